"""The command line as processes over a configuration `small.yaml` of the test's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tmrl_core.metrics import MetricRecord, read_records

ROOT = Path(__file__).resolve().parents[1]
Start = Callable[..., "subprocess.Popen[str]"]


@contextlib.contextmanager
def starting(folder: Path, small: str) -> Iterator[Start]:
    """Starts the command line in `folder`, with a home of its own; what still runs at the end is killed."""
    (folder / "small.yaml").write_text(small, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    environ |= {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(folder / "home")}
    with contextlib.ExitStack() as stack:

        def call(*arguments: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tmrl_core", *arguments, "-c", "small.yaml"],
                    cwd=folder,
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield call


def records(folder: Path, kind: str) -> list[MetricRecord]:
    """What the run `small` in `folder` has recorded of one kind."""
    path = folder / "runs" / "small" / "metrics.jsonl"
    return [record for record in read_records(path) if record.kind == kind] if path.exists() else []
