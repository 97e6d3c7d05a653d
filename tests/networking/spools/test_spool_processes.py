"""Workers that end without a trainer, a Server that is killed, a trainer that comes: real processes over TLS."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.config import from_values
from tmrl_core.errors import FolderLockedError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.networking.security import credentials
from tmrl_core.networking.spools.stream_files import left_streams
from tmrl_core.samples import Buffer, Chunk, decode_message

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 40.0

ENVIRONMENT = '''
import gymnasium, numpy as np
from pathlib import Path

class Counting(gymnasium.Env):
    """Numbers its steps, and leaves a file when there have been some."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    count = -1

    def seen(self):
        self.count += 1
        if self.count == 200:
            Path("collected").touch()
        return np.full(3, self.count, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, action):
        return self.seen(), 0.0, False, self.count % 20 == 0, {}
'''


class Process:
    """A role's process, and the lines that it says."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tmrl_core", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "TMRL_CORE_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def says(self, pattern: str) -> re.Match[str]:
        """Wait for a line."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"{pattern!r} was not said:\n{''.join(self.said)}"
            self.said.append(line)
            if found := re.search(pattern, line):
                return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Place:
    """A folder with a configuration, and the roles that run there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.keys = folder / "credentials"
        credentials.create(self.keys, ["localhost"])
        (folder / "counting.py").write_text(ENVIRONMENT)
        self.port = 0
        self.config: dict[str, Any] = {
            "run": {"name": "run"},
            "environment": {"cls": "counting:Counting", "kwargs": {}},
            "actor": {"kwargs": {"hidden_sizes": [8]}},
            "worker": {"max_env_steps_per_update": None, "drain_timeout_s": DEADLINE_S},
            "network": {"credentials_dir": str(self.keys), "backoff_max_s": 0.2},
            "server": {"port": 0, "spool_dir": str(folder / "spool")},
        }

    def start(self, role: str) -> Process:
        path = self.folder / "config.json"
        path.write_text(json.dumps(self.config))
        process = Process(self.folder, role, "-c", str(path))
        self.stack.callback(process.end)
        return process

    def start_server(self) -> Process:
        server = self.start("--server")
        self.config["server"]["port"] = self.port = int(server.says(r"listens on .* port (\d+)")[1])
        return server

    def settings(self) -> LinkSettings:
        return LinkSettings(port=self.port, hostname="localhost", credentials_dir=str(self.keys), backoff_min_s=0.01)

    def worker(self, name: str, drain_timeout_s: float = DEADLINE_S, **bounds: Any) -> WorkerLink:
        link = WorkerLink(self.settings(), name=name, run="run", drain_timeout_s=drain_timeout_s, **bounds)
        link.start()
        self.stack.callback(link.close, drain=False)
        assert link.wait_connected(DEADLINE_S)
        return link

    def trainer(self) -> TrainerLink:
        link = TrainerLink(self.settings(), name="trainer", run="run")
        link.start()
        self.stack.callback(link.close)
        return link


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def episode(first: float, rows: int) -> list[Chunk]:
    buffer = Buffer(maxlen=None)
    for i in range(rows):
        observation = np.full(3, first + i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, i == rows - 1, {}))
    chunks, _ = buffer.take()
    return chunks


def collect(trainer: TrainerLink, rows: int) -> dict[bytes, list[int]]:
    """Take and commit until so many rows have come and all streams have left; their numbers by stream."""
    numbers: dict[bytes, list[int]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, numbers.values())) < rows or trainer.members:
        assert time.monotonic() < deadline, f"{numbers} of {rows} came; {trainer.members} are there"
        trainer.wait(0.05)
        received = trainer.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
            if chunk is not None:
                numbers.setdefault(one.stream, []).extend(np.asarray(chunk.observation)[:, 0].astype(int).tolist())
        trainer.acknowledge(received)
    return numbers


def numbers_of(trainer: TrainerLink, stream: bytes | None = None) -> list[int]:
    """Take and commit what has arrived. Return the numbers of the samples of one stream, or of all."""
    numbers: list[int] = []
    received = trainer.receive()
    for one in received:
        chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
        if chunk is not None and stream in (None, one.stream):
            numbers += np.asarray(chunk.observation)[:, 0].astype(int).tolist()
    trainer.acknowledge(received)
    return numbers


def test_spooled_samples_survive_a_kill_of_the_server(place: Place) -> None:
    server = place.start_server()
    streams = {}
    for name, messages in (("a", 3), ("b", 40)):
        worker = place.worker(name)
        for i in range(messages):
            worker.send(episode(100 * i, 100), [])
        assert worker.close() == (0, 100 * messages, 0)
        streams[worker.stream] = list(range(100 * messages))
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(DEADLINE_S)
    again = place.start_server()
    assert again.says(r"spool: (.*)")[1] == "2 streams, 4,300 samples of run 'run'"
    trainer = place.trainer()
    assert collect(trainer, 4_300) == streams
    assert trainer.counts.duplicate_messages == trainer.counts.gap_messages == 0
    again.says("4,000 samples of worker b, run 'run', have been acknowledged")
    deadline = time.monotonic() + DEADLINE_S
    while list((place.folder / "spool").glob("*.seg")):  # the spool's own thread removes them
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_worker_repeats_missing_messages_after_a_kill_of_the_server_during_a_handoff(place: Place) -> None:
    server = place.start_server()
    worker = place.worker("a")
    for i in range(60):
        worker.send(episode(1_000 * i, 1_000), [])
    ended: list[tuple[int, int, int]] = []
    closing = threading.Thread(target=lambda: ended.append(worker.close()))
    closing.start()
    deadline = time.monotonic() + DEADLINE_S
    while not list((place.folder / "spool").glob("*.seg")):
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(DEADLINE_S)
    place.start_server()
    closing.join(DEADLINE_S)
    assert ended == [(0, 60_000, 0)]
    assert collect(place.trainer(), 60_000) == {worker.stream: list(range(60_000))}


def test_an_interrupted_worker_hands_over_without_a_trainer(place: Place) -> None:
    place.start_server()
    worker = place.start("--worker")
    deadline = time.monotonic() + DEADLINE_S
    while not (place.folder / "collected").exists():
        assert time.monotonic() < deadline
        assert worker.process.poll() is None, worker.says("^$")
        threading.Event().wait(0.01)
    worker.process.send_signal(signal.SIGINT)
    found = worker.says(r"(\d+) samples acknowledged, (\d+) handed over to the Server, (\d+) lost")
    acknowledged, handed_over, neither = map(int, found.groups())
    assert (acknowledged, neither) == (0, 0)
    assert handed_over >= 200
    (numbers,) = collect(place.trainer(), handed_over).values()
    assert numbers == list(range(handed_over))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_samples_of_an_outage_survive_a_kill_of_the_worker(place: Place) -> None:
    server = place.start_server()
    killed = place.start("--worker")
    trainer = place.trainer()
    before: list[int] = []
    while len(before) < 200:
        assert trainer.wait(DEADLINE_S)
        before += numbers_of(trainer)
    offsets = trainer.trainer.offsets
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(DEADLINE_S)
    trainer.close()
    spool = place.folder / "runs" / "run" / "worker" / "spool"
    deadline = time.monotonic() + DEADLINE_S
    while sum(path.stat().st_size for path in spool.glob("*/*.seg")) < 100_000:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(DEADLINE_S)
    ((files, messages),) = left_streams(spool)
    files.close()
    written = messages[-1].position + messages[-1].samples
    assert written > len(before)

    place.start_server()
    again = place.start("--worker")
    again.says(r"\d+ samples of an earlier process wait in .* and are delivered")
    trainer = TrainerLink(place.settings(), name="trainer", run="run", offsets=offsets)
    trainer.start()
    place.stack.callback(trainer.close)
    after: list[int] = []
    stream = bytes.fromhex(files.info.stream)
    while len(before) + len(after) < written:
        assert trainer.wait(DEADLINE_S)
        after += numbers_of(trainer, stream)
    assert before + after == list(range(written)), "each sample once, in order"
    again.says("the samples that an earlier process had left in .* are delivered")
    assert not files.folder.exists()
    assert trainer.counts.gap_samples == 0


def test_a_full_server_refuses_and_the_worker_reports_the_rest(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.config["server"]["spool_bytes"] = 60_000
    place.start_server()
    worker = place.worker("a", drain_timeout_s=0.5, queue_bytes=160_000)  # messages of an eighth of that at most
    for i in range(50):
        worker.send(episode(100 * i, 100), [])
    with caplog.at_level(logging.WARNING, "tmrl_core"):
        acknowledged, handed_over, neither = worker.close()
    assert acknowledged == 0
    assert handed_over > 0
    assert handed_over + neither == 5_000
    assert "server.spool_bytes" in caplog.text
    assert collect(place.trainer(), handed_over) == {worker.stream: list(range(handed_over))}


def test_the_error_of_a_second_server_names_the_process_that_uses_the_folder(place: Place) -> None:
    server = place.start_server()
    config = from_values({"network": place.config["network"], "server": {**place.config["server"], "port": 0}})
    with pytest.raises(FolderLockedError, match=str(server.process.pid)):
        Server(config=config)


def test_a_server_that_cannot_listen_releases_the_folder(place: Place) -> None:
    section = {"spool_dir": str(place.folder / "other")}
    network = place.config["network"]
    with Server(config=from_values({"network": network, "server": {"port": 0}})) as first:
        with pytest.raises(Exception, match="in use"):
            Server(config=from_values({"network": network, "server": {**section, "port": first.port}}))
        Server(config=from_values({"network": network, "server": {**section, "port": 0}})).close()


def test_the_server_warns_that_samples_in_memory_are_lost_with_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"port": 0, "spool_dir": None}
    with Server(config=from_values({"network": place.config["network"], "server": section})) as server:
        place.port = server.port
        worker = place.worker("a")
        worker.send(episode(0, 100), [])
        assert worker.close() == (0, 100, 0)
        with caplog.at_level(logging.WARNING, "tmrl_core"):
            server.close()
    assert "100 samples of run 'run' go with this Server" in caplog.text
