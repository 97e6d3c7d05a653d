"""Requests to end: signals, the control pipe, once and twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from tmrl_core.roles.shutdown import AT_ONCE, ShutdownSignal


def test_the_first_request_calls_and_the_second_ends_immediately() -> None:
    said: list[str] = []
    shutdown = ShutdownSignal(now=lambda status: said.append(f"exit {status}"))
    shutdown.calls(lambda: said.append("stop"))
    shutdown.kill_on_second(lambda: said.append("kill"))
    assert not shutdown.wait(0)
    shutdown.request("a test")
    assert said == ["stop"]
    assert shutdown.requested
    shutdown.request("a test")
    assert said == ["stop", "kill", f"exit {AT_ONCE}"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that refuse instead of blocking")
def test_a_terminal_that_takes_nothing_does_not_prevent_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(full, bytes(1024)):
            pass
    os.set_blocking(full, True)
    shutdown = ShutdownSignal(now=lambda status: None)
    with open(full, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        requesting = threading.Thread(target=shutdown.request, args=("a test",), daemon=True)
        requesting.start()
        ended = shutdown.wait(10.0)
        while os.read(unread, 1 << 16)[-1:] != b"\n":
            pass
        requesting.join()
    os.close(unread)
    assert ended


def test_functions_registered_after_the_request_are_called_immediately() -> None:
    said: list[str] = []
    shutdown = ShutdownSignal(now=lambda status: None)
    shutdown.request("a test")
    shutdown.calls(lambda: said.append("stop"))
    assert said == ["stop"]


def test_a_failing_function_does_not_prevent_the_immediate_end() -> None:
    said: list[int] = []
    shutdown = ShutdownSignal(now=said.append)
    shutdown.kill_on_second(lambda: 1 // 0)
    shutdown.request("a test")
    shutdown.request("a test")
    assert said == [AT_ONCE]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no os.kill with these signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_requests_within_the_context(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    woken = threading.Event()
    with ShutdownSignal(now=lambda status: None) as shutdown:
        shutdown.calls(woken.set)
        os.kill(os.getpid(), number)
        assert woken.wait(10)
        assert shutdown.requested
    assert signal.getsignal(number) is before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_repeated_sighup_is_one_request() -> None:
    said: list[int] = []
    woken = threading.Event()
    with ShutdownSignal(now=said.append) as shutdown:
        shutdown.calls(woken.set)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
            assert woken.wait(10)
        requested = threading.Event()
        shutdown.calls_for_checkpoint(requested.set)
        os.kill(os.getpid(), signal.SIGUSR1)  # handled after the others
        assert requested.wait(10)
    assert said == []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with ShutdownSignal(now=said.append):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no terminals like these")
def test_output_is_discarded_once_its_terminal_is_closed() -> None:
    """Or the first line that is written then would end the role before it has drained."""
    import pty

    code = (
        "import os, sys\nfrom tmrl_core.roles.shutdown import ShutdownSignal\nout = os.fdopen(int(sys.argv[1]), 'w')\n"
        "with ShutdownSignal() as ending:\n    print('ready', flush=True)\n    assert ending.wait(60)\n"
        "    print('going', flush=True)\nout.write('ended in order')\n"
    )
    read, write = os.pipe()
    os.set_inheritable(write, True)
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", code.replace("sys.argv[1]", str(write))])
    os.close(write)
    seen = b""
    while b"ready\r\n" not in seen:  # the end of the line too: its writer fails where the terminal goes amid it
        seen += os.read(terminal, 1024)
    os.close(terminal)  # which hangs it up
    with os.fdopen(read) as said:
        assert said.read() == "ended in order"
    assert os.waitpid(process, 0)[1] == 0


def test_a_checkpoint_request_does_not_end_the_role(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shutdown = ShutdownSignal(now=lambda status: None)
    shutdown.request_checkpoint("SIGUSR1")
    assert "SIGUSR1 is ignored" in caplog.text
    said: list[str] = []
    shutdown.calls_for_checkpoint(lambda: said.append("checkpoint"))
    shutdown.request_checkpoint("SIGUSR1")
    assert said == ["checkpoint"]
    assert not shutdown.requested


CODE = """
from tmrl_core.roles.shutdown import ShutdownSignal
with ShutdownSignal(control="worker") as ending:
    print("ready", flush=True)
    assert ending.wait(60)
print("ended in order", flush=True)
"""

ASKS = """
import logging, os, sys, threading
from tmrl_core.roles.shutdown import ShutdownSignal
logging.basicConfig()
with ShutdownSignal(control="worker") as ending:
    assert not sys.stdin.isatty() and os.read(0, 1) == b"", "the supervisor's lines are its own"
    asking = threading.Thread(target=input)
    asking.start()
    asking.join()
    print("a thread that asks ends alone", flush=True)
    try:
        input("which level? ")
    finally:
        print("in order", flush=True)
"""


def test_a_supervised_process_that_asks_for_input_ends_with_the_role_to_start_alone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.wait(60) == 2
        assert process.stdout is not None
        assert process.stderr is not None
        assert "a thread that asks ends alone\nwhich level? in order" in process.stdout.read()
        said = process.stderr.read()
    assert "this one in a terminal: `python -m tmrl_core --worker`" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("written", [b"stop\n", b"go on\ncheckpoint\nstop\n", b"", b"x" * 10_000])
def test_the_stop_line_and_the_end_of_the_control_pipe_are_requests(written: bytes) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(written, timeout=60)
    assert process.returncode == 0, err
    assert out.split(b"\n")[1].strip() == b"ended in order"
    reason = b"the control pipe" if b"stop" in written else b"the supervisor is gone"
    assert reason in err


def test_other_lines_are_no_requests() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"stopping\nnonstop\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        _, err = process.communicate(b"stop\n", timeout=60)
    assert b"the control pipe" in err
