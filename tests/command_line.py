"""The command line, as processes or in this one."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tmrl_core import terminal_log
from tmrl_core.blas_threads import THREAD_VARIABLES
from tmrl_core.cli.main import main
from tmrl_core.metrics import MetricRecord, read_records
from tmrl_core.terminal_log import TerminalHandler

ROOT = Path(__file__).resolve().parents[1]
Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Run the command line to its end; return what it printed, and its exit status."""


@contextlib.contextmanager
def in_this_process(folder: Path, modules: Sequence[str] = ()) -> Iterator[Run]:
    """Run the command line in this process, which is as before at the end.

    Args:
        folder: current folder of the commands, with a home of its own in it.
        modules: names of modules that the commands import from folders of their own.
    """
    interval = sys.getswitchinterval()

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                status = main(arguments)
            except SystemExit as exc:  # of the parser
                status = int(exc.code or 0)
            finally:
                for handler in logging.root.handlers[:]:
                    if isinstance(handler, TerminalHandler):
                        logging.root.removeHandler(handler)
                        handler.close()  # once all lines are written
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        changed.setenv("TMRL_CORE_HOME", str(folder / "home"))
        for name in THREAD_VARIABLES:
            changed.setenv(name, "1")
        # Lines stay in order on a busy machine too: the output is always taken here.
        changed.setattr(terminal_log, "WAIT_S", 60.0)
        changed.setattr(sys, "path", sys.path[:])
        changed.setattr(sys, "dont_write_bytecode", True)
        try:
            yield call
        finally:
            sys.setswitchinterval(interval)
            gc.unfreeze()
            for name in modules:
                sys.modules.pop(name, None)


@contextlib.contextmanager
def started(
    folder: Path, environ: Mapping[str, str], always: Sequence[str] = (), stderr: int = subprocess.STDOUT
) -> Iterator[Start]:
    """Starts the command line in `folder`; what still runs at the end is killed.

    Args:
        folder: where it is typed.
        environ: its environment; each call may add to it.
        always: arguments after those of each call.
        stderr: where its errors go.
    """
    with contextlib.ExitStack() as stack:

        def call(*arguments: str, **more: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tmrl_core", *arguments, *always],
                    cwd=folder,
                    env={**environ, **more},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    pipesize=1 << 20,  # a role whose output nobody reads stops when the pipe is full
                )
            )
            stack.callback(process.kill)
            return process

        yield call


@contextlib.contextmanager
def starting(folder: Path, small: str) -> Iterator[Start]:
    """`started` with the configuration `small`, and a home of its own."""
    (folder / "small.yaml").write_text(small, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    environ |= {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(folder / "home")}
    with started(folder, environ, ["-c", "small.yaml"]) as call:
        yield call


def announced(process: subprocess.Popen[str]) -> int:
    """Return the port that a role started with `--announce` names."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return int(json.JSONDecoder().raw_decode(line)[0]["port"])  # a message may follow in the same line
    raise AssertionError("it ended")


def records(folder: Path, kind: str) -> list[MetricRecord]:
    """What the run `small` in `folder` has recorded of one kind."""
    path = folder / "runs" / "small" / "metrics.jsonl"
    return [record for record in read_records(path) if record.kind == kind] if path.exists() else []
