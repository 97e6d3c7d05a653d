"""Log lines for a terminal that takes nothing for a while: nobody waits for it, and no line is lost before its time."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.waiting import until
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.security import credentials
from tmrl_core.terminal_log import MAX_LINES, TerminalHandler

DEADLINE_S = 20.0


class Paused:
    """A stream that takes nothing while it is paused."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.text = ""

    def write(self, text: str) -> None:
        self.open.wait()
        self.text += text

    def flush(self) -> None:
        """Nothing is kept back."""


@pytest.fixture
def stream() -> Paused:
    return Paused()


@pytest.fixture
def logger(stream: Paused) -> Iterator[logging.Logger]:
    made = logging.Logger("lines")
    handler = TerminalHandler(stream)
    made.addHandler(handler)
    yield made
    stream.open.set()
    handler.close()


def test_a_line_is_written_when_the_call_returns(stream: Paused, logger: logging.Logger) -> None:
    for number in range(100):
        logger.info("line %d", number)
        assert stream.text.endswith(f"line {number}\n")


def test_a_paused_stream_stops_nobody_and_gets_all_lines_in_order_later(stream: Paused, logger: logging.Logger) -> None:
    stream.open.clear()
    for number in range(1_000):
        logger.info("line %d", number)
    stream.open.set()
    logger.handlers[0].close()
    assert stream.text == "".join(f"line {number}\n" for number in range(1_000))
    logger.info("after the end")
    assert stream.text.endswith("after the end\n")


def test_it_waits_for_each_line_again_once_all_are_written(stream: Paused, logger: logging.Logger) -> None:
    stream.open.clear()
    logger.info("first")
    logger.info("second")
    stream.open.set()
    until(lambda: stream.text == "first\nsecond\n")
    test_a_line_is_written_when_the_call_returns(stream, logger)


def test_beyond_a_limit_the_oldest_lines_are_left_out_and_counted(stream: Paused, logger: logging.Logger) -> None:
    stream.open.clear()
    for number in range(MAX_LINES + 8):  # the first one is being written
        logger.info("line %d", number)
    stream.open.set()
    logger.handlers[0].close()
    lines = stream.text.splitlines()
    assert lines[:3] == ["line 0", "(7 lines are left out here, because the output was not read)", "line 8"]
    assert lines[2:] == [f"line {number}" for number in range(8, MAX_LINES + 8)]


def test_a_stream_that_fails_is_reported_and_stops_nothing(
    stream: Paused, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.flush = None  # type: ignore[method-assign,assignment]
    logger.info("first")
    logger.info("%d", "no number")
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


PROGRAM = """
import logging, os, sys
from tmrl_core.terminal_log import TerminalHandler
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[TerminalHandler()])
logging.info("before")
"""


@pytest.mark.parametrize(
    ("end", "status", "lines"),
    [
        ("os._exit(3)", 3, ["before"]),
        ("os.abort()", None, ["before"]),
        ("sys.exit('failed')", 1, ["before", "failed"]),
        ("import atexit; atexit.register(logging.info, 'at the end')", 0, ["before", "at the end"]),
        pytest.param(
            "os.fork() or logging.info('child'); os.getpid() == os.getpgrp() and os.wait()",
            0,
            ["before", "child"],
            marks=pytest.mark.skipif(sys.platform == "win32", reason="there is no fork"),
        ),
    ],
)
def test_the_last_lines_of_a_process_are_written(end: str, status: int | None, lines: list[str]) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        PROGRAM + end,
    ]  # from 3.12 on, fork warns beside threads
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert status is None or done.returncode == status
    assert done.stderr.splitlines() == lines


SERVER = """
import json, logging, sys, threading
from tmrl_core.cli.main import set_up_logging
from tmrl_core.config import from_values
from tmrl_core.networking import Server
if sys.argv[2] == "command line":
    set_up_logging("info")
def fill():
    for number in range(2_000):  # more than a pipe holds
        logging.getLogger("tmrl_core.test").info("line %d, %s", number, 100 * "x")
values = {"network": {"credentials_dir": sys.argv[1], "security": "TLS"}, "server": {"port": 0}}
with Server(config=from_values(values)) as server:
    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    filling.join(10.0)
    print(json.dumps(server.port), flush=True)
    sys.stdin.read()
logging.getLogger("tmrl_core.test").info("the end")
"""


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            yield process, process.stdout, process.stderr
        finally:
            process.kill()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("logs", ["command line", "script"])
def test_links_of_a_server_stay_up_although_nobody_reads_its_output(tmp_path: Path, logs: str) -> None:
    credentials.create(tmp_path, ["localhost"])
    with running(str(tmp_path), logs) as (process, stdout, stderr):
        port = json.loads(stdout.readline())
        settings = LinkSettings(port=port, hostname="localhost", credentials_dir=str(tmp_path), security="TLS")
        links = [WorkerLink(settings, name=name, run="run") for name in ("first", "second", "third")]
        try:
            for link in links:  # the thread of the links logs each
                link.start()
                assert link.wait_connected(DEADLINE_S)
            assert [link.counts.reconnects for link in links] == [0, 0, 0]
            assert all(link.connected for link in links)
        finally:
            for link in links:
                link.close(drain=False)
        assert process.stdin is not None
        process.stdin.close()
        lines = stderr.read().splitlines()
    numbers = [int(line.split("line ")[1].split(",")[0]) for line in lines if "xxx" in line]
    assert numbers == list(range(2_000))
    said = "\n".join(lines)
    assert said.index("first") < said.index("second") < said.index("third") < said.index("the end")
