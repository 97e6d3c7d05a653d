"""The benchmark of the gateway: its own WebSocket frames, and a short run of everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gateway import frame, without_pings

ROOT = Path(__file__).parents[2]


def test_a_server_reads_the_frames() -> None:
    for text in (b"{}", b"x" * 125, b"x" * 126, b"x" * 60_000):
        server = ServerProtocol(state=State.OPEN)
        server.receive_data(frame(text))
        (event,) = server.events_received()
        assert isinstance(event, Frame)
        assert (event.opcode, bytes(event.data)) == (Opcode.TEXT, text)


def test_pings_are_answered_and_left_out() -> None:
    sent: list[bytes] = []
    ping = Frame(Opcode.PING, b"abcd").serialize(mask=False)
    assert without_pings(ping + b"answer", sent.append) == b"answer"
    assert without_pings(ping, sent.append) == b""
    server = ServerProtocol(state=State.OPEN)
    server.receive_data(sent[0])
    (event,) = server.events_received()
    assert isinstance(event, Frame)
    assert (event.opcode, bytes(event.data)) == (Opcode.PONG, b"abcd")


@pytest.mark.full
def test_a_short_run_gives_all_figures(tmp_path: Path) -> None:
    short = "--repetitions 1 --episodes 1 --clients 5 --seconds 1 --sessions 20"
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gateway.py"), *short.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    rows = [line.split(" |")[0] for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert "| HTTP keep-alive, requests" in rows
    assert "| WebSocket, websockets" in rows
    assert any(re.fullmatch(r"\| [3-5]\d", row) for row in rows), rows
    assert "| 20" in rows
    assert "samples arrived" in ended.stdout
