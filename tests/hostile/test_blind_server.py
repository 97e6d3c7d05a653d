"""With `network.end_to_end: encrypt`, no plain text of users is in the memory of the Server's process."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.fleet import Fleet
from tests.hostile.server_process import start_server
from tests.networking.test_hostile import DEADLINE_S
from tests.waiting import until
from tmrl_core.networking.links import WorkerLink
from tmrl_core.networking.protocol.messages import Blob, Directive, Progress
from tmrl_core.samples import Buffer, EpisodeRecord


def memory_contains(pid: int, marks: dict[str, str]) -> set[str]:
    """Return the names of the texts that are in the writable memory of a process."""
    found = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, modes, *_ = line.split()
            if not modes.startswith("rw"):
                continue
            start, end = (int(one, 16) for one in place.split("-"))
            try:
                memory.seek(start)
                content = memory.read(end - start) or b""
            except (OSError, OverflowError):  # memory of the system
                continue
            found |= {name for name, mark in marks.items() if mark.encode() in content}
    return found


def send_samples(worker: WorkerLink, sample: str, metric: str) -> None:
    """Send samples whose observation contains one text, and the record of their episode with another."""
    buffer = Buffer(maxlen=None)
    observation = np.frombuffer(sample.encode(), np.uint8).copy()
    for last in (False, True):
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, last, {}))
    worker.send(buffer.take()[0], [EpisodeRecord("", 1.0, 2, "train", "truncated", metrics={metric: 1.0})])


def exchange(fleet: Fleet, mode: str, marks: dict[str, str]) -> None:
    """Send each text through the Server, and check that it arrives at the other end."""
    settings = {"end_to_end": mode, "compression": "none"}
    trainer = fleet.trainer(settings=settings)
    worker = fleet.worker(settings=settings)
    for number in range(2):  # repeated under one key
        send_samples(worker, marks["sample"], marks["metric"])
        until(lambda: bool(trainer.members))
        trainer.publish({marks["policy name"]: Blob("file", marks["policy"].encode() * 50_000)})
        trainer.report(Progress(updates=number, lack=marks["report"]))
        trainer.direct(Directive(revision=number, refusal=marks["directive"]))
        trainer.direct(Directive(revision=number, refusal=marks["own directive"]), worker.stream)
        until(lambda number=number: worker.progress.updates == number and worker.progress.lack == marks["report"])  # type: ignore[misc]
        until(lambda: worker.directive.refusal == marks["own directive"])
        assert worker.wait_policy(DEADLINE_S)
        update = worker.take_policy()
        assert update is not None
        assert marks["policy"].encode() in bytes(update.policies[marks["policy name"]].data)
        assert trainer.wait(DEADLINE_S)
        payload = b"".join(bytes(one.payload) for one in trainer.receive())
        assert marks["sample"].encode() in payload
    late = fleet.worker(settings=settings)
    assert late.wait_policy(DEADLINE_S), "the letter of a worker that joins later has the key of the stored policy"
    until(lambda: late.progress.lack == marks["report"] and late.directive.refusal == marks["directive"])
    assert worker.counts.forged == late.counts.forged == trainer.counts.forged == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="reads the memory of a process through /proc")
@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_the_server_has_no_plain_text(tmp_path: Path, mode: str) -> None:
    kinds = ("sample", "metric", "policy", "policy name", "report", "directive", "own directive")
    marks = {kind: secrets.token_hex(16) for kind in kinds}
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack)
        network = {"credentials_dir": str(fleet.folder / "server")}
        server, fleet.port = start_server(stack, {"network": network, "server": {"port": 0}})
        exchange(fleet, mode, marks)
        try:
            found = memory_contains(server.pid, marks)
        except PermissionError:
            pytest.skip("this machine does not let a process read the memory of its child")
    if mode == "encrypt":
        assert found == set()
    else:  # the search finds what is there
        assert found >= {"policy", "policy name", "report", "directive"}
