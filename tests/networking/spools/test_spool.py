"""What every spool promises, in memory and on disk; and what only the files promise."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.networking.relay.test_relay import Trainer, Worker
from tests.networking.relay.test_spooling import SpoolNetwork, connected, end, leave, spooled
from tmrl_core import rate_limited_log
from tmrl_core.errors import FolderLockedError, StorageError
from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES, SAMPLES_HEAD
from tmrl_core.networking.relay import MemorySpool, Spool
from tmrl_core.networking.spools import spool
from tmrl_core.networking.spools.disk_spool import DiskSpool
from tmrl_core.networking.spools.spool import (
    MAX_SIGNATURES_BYTES,
    MAX_SPOOLED_STREAMS,
    MESSAGE_COST_BYTES,
    STREAM_COST_BYTES,
    StreamInfo,
)
from tmrl_core.storage import FileCalls
from tmrl_core.storage.format import Buffer

DEADLINE_S = 20.0


class Thread:
    """Stands for the relay's thread: what the spool posts is called by `run`."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, until: Callable[[], bool]) -> None:
        """Call what was posted, until a condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < deadline, "it did not happen in time"
            with contextlib.suppress(queue.Empty):
                self.posted.get(timeout=0.01)()


class Kept:
    """One spool, with a thread to run its results in."""

    def __init__(self, make: Callable[[int, Thread], Spool], limit_bytes: int = 1 << 20) -> None:
        self.thread = Thread()
        self.spool = make(limit_bytes, self.thread)
        self.stored: list[tuple[bytes, int]] = []
        self.failed: list[tuple[bytes, str]] = []
        self.spool.on_stored = lambda stream: self.stored.append((stream, self.spool.streams[stream].stored))
        self.spool.on_failed = lambda stream, reason: self.failed.append((stream, reason))

    def append(self, number: int, body: bytes = b"body", *, floor: int = 0, samples: int = 2, info: StreamInfo) -> str:
        return self.spool.append(
            info,
            number=number,
            floor=floor,
            position=10 * number,
            samples=samples,
            body=[body[:3], memoryview(body)[3:]],
        )

    def fill(self, *numbers: int, info: StreamInfo, body: bytes = b"body") -> None:
        for number in numbers:
            assert self.append(number, body, info=info) == ""
        stream = info.stream
        self.thread.run(lambda: self.spool.streams[stream].stored == numbers[-1] + 1)

    def bodies(self, info: StreamInfo) -> list[tuple[int, int, bytes]]:
        """Number, floor and body of each message, as a trainer would get them."""
        found, number = [], 0
        while (message := self.spool.peek(info.stream, number)) is not None:
            head, body = self.spool.read(info.stream, message)
            got, floor, position, samples, length = SAMPLES_HEAD.unpack(head)
            assert (got, position, samples) == (message.number, 10 * message.number, 2)
            assert length == sum(map(len, body)) == message.length
            found.append((got, floor, b"".join(bytes(part) for part in body)))
            number = message.number + 1
        return found


A = StreamInfo(b"a" * 16, "run", "robot a", b"signature", "")
B = StreamInfo(b"b" * 16, "other", "robot b", b"", "")


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int, Thread], Spool]]:
    made: list[Spool] = []

    def new(limit_bytes: int, thread: Thread) -> Spool:
        if request.param == "memory":
            made.append(MemorySpool(limit_bytes))
        else:
            made.append(DiskSpool(tmp_path / f"spool{len(made)}", limit_bytes, post=thread.posted.put))
        return made[-1]

    yield new
    for one in made:
        one.close()


@pytest.fixture
def kept(make: Callable[[int, Thread], Spool]) -> Kept:
    return Kept(make)


def test_messages_are_read_in_order_and_unchanged(kept: Kept) -> None:
    bodies = [b"first", b"", b"x" * 300_000]
    for number, body in enumerate(bodies):
        assert kept.append(number, body, info=A) == ""
    assert [body for _, _, body in kept.bodies(A)] == bodies, "also while they are being written"
    kept.thread.run(lambda: len(kept.stored) == 3)
    assert kept.stored[-1] == (A.stream, 3)
    assert [body for _, _, body in kept.bodies(A)] == bodies
    assert kept.spool.streams[A.stream].info == A


def test_stored_rises_in_order(kept: Kept) -> None:
    for number in range(20):
        kept.append(number, info=A)
        kept.append(number, info=B)
    kept.thread.run(lambda: len(kept.stored) == 40)
    for info in (A, B):
        assert [stored for stream, stored in kept.stored if stream == info.stream] == list(range(1, 21))


def test_numbers_may_be_skipped_but_not_repeated(kept: Kept) -> None:
    kept.fill(3, 7, info=A)
    assert kept.spool.streams[A.stream].next_number == 8
    with pytest.raises(ValueError, match="message 7 comes after message 7"):
        kept.append(7, info=A)
    message = kept.spool.peek(A.stream, 4)
    assert message is not None
    assert message.number == 7
    assert kept.spool.peek(A.stream, 8) is None
    assert kept.spool.peek(B.stream, 0) is None


def test_acknowledged_messages_are_removed_and_the_stream_with_the_last(kept: Kept) -> None:
    kept.fill(0, 1, 2, 3, info=A)
    assert kept.spool.drop(A.stream, 0) == 0
    assert kept.spool.drop(A.stream, 2) == 4
    assert [number for number, _, _ in kept.bodies(A)] == [2, 3]
    assert kept.spool.streams[A.stream].samples == 4
    assert kept.spool.drop(A.stream, 9) == 4
    assert kept.spool.streams == {}
    assert kept.spool.used_bytes == 0
    assert kept.spool.drop(A.stream, 9) == 0


def test_the_floor_of_the_first_remaining_message_explains_the_gap(kept: Kept) -> None:
    for number, floor in ((4, 0), (5, 5), (6, 6), (9, 7)):
        kept.append(number, floor=floor, info=A)
    assert [floor for _, floor, _ in kept.bodies(A)] == [0, 5, 6, 7]
    kept.spool.drop(A.stream, 6)
    assert [floor for _, floor, _ in kept.bodies(A)] == [0, 7]
    kept.spool.drop(A.stream, 7)
    assert [floor for _, floor, _ in kept.bodies(A)] == [0]


def test_an_unreadable_message_can_be_discarded(kept: Kept) -> None:
    kept.fill(0, 1, 2, info=A)
    for number in (0, 1, 2):
        kept.spool.streams[A.stream].messages[number].floor = number
    middle = kept.spool.peek(A.stream, 1)
    assert middle is not None
    kept.spool.discard(A.stream, middle)
    assert [(number, floor) for number, floor, _ in kept.bodies(A)] == [(0, 0), (2, 1)]


def test_a_full_spool_refuses_until_a_stream_is_removed(
    make: Callable[[int, Thread], Spool],
) -> None:
    room = 2 * (STREAM_COST_BYTES + len(A.name) + len(A.signature)) + 3 * (1_000 + MESSAGE_COST_BYTES)
    room = room * 5 // 4  # one principal leaves a fifth
    kept = Kept(make, room)
    kept.fill(0, 1, info=A, body=bytes(1_000))
    kept.fill(0, info=B, body=bytes(1_000))
    refusal = kept.append(2, bytes(1_000), info=A)
    assert "full" in refusal
    assert "server.spool_bytes" in refusal
    assert str(room) in refusal
    assert kept.spool.used_bytes <= room
    assert len(kept.bodies(A)) == 2
    assert kept.spool.streams[A.stream].next_number == 2
    kept.spool.drop(A.stream, 2)
    assert kept.append(0, bytes(1_000), info=A) == ""


def test_many_small_messages_and_streams_are_bounded_too(make: Callable[[int, Thread], Spool]) -> None:
    kept = Kept(make, 100_000)
    taken = 0
    while not kept.append(taken, b"", info=A):
        taken += 1
    assert taken < 200
    big = Kept(lambda limit_bytes, thread: MemorySpool(limit_bytes), 1 << 30)
    for i in range(MAX_SPOOLED_STREAMS - 1):
        assert big.append(0, info=A._replace(stream=i.to_bytes(16, "big"), principal=str(i))) == ""
    assert str(MAX_SPOOLED_STREAMS) in big.append(0, info=B)


def fill_up(kept: Kept, principal: str, size: int, messages: int = 10) -> tuple[int, str]:
    """Store new streams of one principal until one is refused. Return their messages' number, and the reason."""
    taken = 0
    while True:
        stream = f"{principal}:{taken // messages}".encode().ljust(16, b".")
        info = StreamInfo(stream, "run", principal, b"", principal)
        refusal = kept.append(taken % messages, bytes(size), info=info)
        if refusal:
            return taken, refusal
        taken += 1


def test_one_principal_leaves_bytes_for_the_others_as_they_do(make: Callable[[int, Thread], Spool]) -> None:
    kept = Kept(make)
    limit = kept.spool.limit_bytes
    _, refusal = fill_up(kept, "thief", 2_000)
    assert "these credentials" in refusal
    assert "server.spool_bytes" in refusal
    free = limit - kept.spool.used_bytes
    assert limit // 5 <= free < limit // 4, "alone, it uses most of the spool"
    taken, _ = fill_up(kept, "honest", 2_000)
    assert taken * 2_000 > limit // 10
    assert limit - kept.spool.used_bytes >= free // 5
    assert kept.append(0, bytes(1_000), info=StreamInfo(b"t" * 16, "run", "third", b"", "third")) == ""
    assert kept.spool.used_bytes <= limit


def test_one_principal_leaves_places_for_the_streams_of_others_as_they_do() -> None:
    kept = Kept(lambda limit_bytes, thread: MemorySpool(limit_bytes), 1 << 30)
    taken, refusal = fill_up(kept, "thief", 10, messages=1)
    assert taken == 1_024
    assert "they have 1024 " in refusal
    assert kept.append(1, info=StreamInfo(b"thief:0".ljust(16, b"."), "run", "", b"", "thief")) == "", "it has a place"
    taken, _ = fill_up(kept, "honest", 10, messages=1)
    assert taken == (MAX_SPOOLED_STREAMS - 1_024) * 4 // 5
    assert len(kept.spool.streams) < MAX_SPOOLED_STREAMS


def test_one_principal_leaves_messages_for_the_others_as_they_do(
    make: Callable[[int, Thread], Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory, also if the files of a spool may have terabytes."""
    monkeypatch.setattr(spool, "MAX_SPOOLED_MESSAGES", 100)
    kept = Kept(make, 1 << 40)
    taken, refusal = fill_up(kept, "thief", 0)
    assert taken == 80
    assert "80 of its 100 messages" in refusal
    assert fill_up(kept, "honest", 0)[0] == 16
    kept.spool.drop(next(iter(kept.spool.streams)), 7)
    assert fill_up(kept, "third", 0)[0] == 8
    for stream in list(kept.spool.streams):
        kept.spool.drop(stream, 99)
    assert fill_up(kept, "thief", 0)[0] == 80


def test_one_principal_stores_few_bytes_of_signatures(make: Callable[[int, Thread], Spool]) -> None:
    """A trainer that comes receives all of them before any sample."""
    kept = Kept(make, 1 << 30)
    stored = 0
    while not (
        refusal := kept.append(0, info=StreamInfo(b"t%15d" % stored, "run", "", bytes(MAX_SIGNATURE_BYTES), "thief"))
    ):
        stored += 1
    assert stored == MAX_SIGNATURES_BYTES // MAX_SIGNATURE_BYTES
    assert "signatures" in refusal
    assert kept.append(1, info=StreamInfo(b"t%15d" % 0, "run", "", bytes(MAX_SIGNATURE_BYTES), "thief")) == ""
    assert kept.append(0, info=StreamInfo(b"h" * 16, "run", "", bytes(MAX_SIGNATURE_BYTES), "honest")) == ""
    kept.spool.drop(b"t%15d" % 0, 9)
    assert kept.append(0, info=StreamInfo(b"t%15d" % stored, "run", "", bytes(MAX_SIGNATURE_BYTES), "thief")) == ""


def test_principals_with_equal_parts_use_nearly_all(make: Callable[[int, Thread], Spool]) -> None:
    kept = Kept(make)
    infos = [StreamInfo(bytes([i]) * 16, "run", "robot", b"", f"robot {i}") for i in range(20)]
    for number in range(1_000):
        if any(kept.append(number, bytes(200), info=info) for info in infos):
            break
    assert kept.spool.used_bytes > 0.97 * kept.spool.limit_bytes


def test_acknowledged_streams_return_the_part_of_their_principal(make: Callable[[int, Thread], Spool]) -> None:
    kept = Kept(make)
    first, _ = fill_up(kept, "fleet", 2_000)
    *others, last = kept.spool.streams
    for stream in others:
        kept.spool.drop(stream, 99)
    holding = kept.spool._holdings["fleet"]
    assert (holding.streams, holding.used_bytes) == (1, kept.spool.streams[last].cost)
    kept.spool.drop(last, 99)
    assert (kept.spool.used_bytes, kept.spool._holdings) == (0, {})
    again, _ = fill_up(kept, "fleet", 2_000)
    assert again == first


def test_runs_are_separate(kept: Kept) -> None:
    kept.fill(0, 1, info=A)
    kept.fill(0, info=B)
    assert [found.info for found in kept.spool.of_run("run")] == [A]
    assert kept.spool.of_run("third") == []
    assert kept.spool.summary() == ["1 stream, 2 samples of run 'other'", "1 stream, 4 samples of run 'run'"]


def test_the_end_of_a_stream_is_stored_until_it_continues(kept: Kept) -> None:
    kept.fill(0, info=A)
    kept.spool.end(A.stream)
    kept.spool.end(B.stream)
    assert kept.spool.streams[A.stream].ended
    kept.fill(1, info=A)
    assert not kept.spool.streams[A.stream].ended


def test_a_removed_stream_can_return(kept: Kept) -> None:
    kept.fill(0, 1, info=A)
    kept.spool.drop(A.stream, 2)
    kept.fill(0, info=A, body=b"again")
    assert [body for _, _, body in kept.bodies(A)] == [b"again"]


def test_closing_twice_is_fine(kept: Kept) -> None:
    kept.fill(0, info=A)
    kept.spool.close()
    kept.spool.close()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 6 else pytest.mark.full) for seed in range(20)])
def test_delivery_holds_over_cuts_and_restarts_of_the_server(
    seed: int, make: Callable[[int, Thread], Spool], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    on_disk = request.node.callspec.params["make"] == "disk"
    thread = Thread()
    network = SpoolNetwork(seed)
    network.new_spool = lambda: make(64 << 20, thread)
    network.restart_server(lose_spool=True)

    def step() -> None:
        network.step()
        while not thread.posted.empty():
            thread.posted.get()()

    def settle(until: Callable[[], bool], work: Trainer | None = None) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < deadline, "the network did not settle"
            step()
            if work is not None:
                work.work()

    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(15):
        worker.make(network.random.choice((10, 5_000, 200_000)))
    worker.connect()
    end(worker)
    for _ in range(network.random.randint(0, 60)):
        step()
    if on_disk:
        # A Server that dies: its spool's files stay, and another one finds them.
        assert isinstance(network.spool, DiskSpool)
        network.spool.close()
        folder = network.spool.folder
        network.new_spool = lambda: DiskSpool(folder, 64 << 20, post=thread.posted.put)
        while not thread.posted.empty():
            thread.posted.get()
    network.restart_server(lose_spool=on_disk)
    worker.connect()
    settle(lambda: worker.sender.settled and connected(worker))
    leave(worker)
    settle(lambda: not network.relay.workers)
    assert spooled(network, worker) == 15
    trainer.connect()
    settle(lambda: len(trainer.memory) >= 15, trainer)
    settle(lambda: not network.spool.streams, trainer)
    assert trainer.memory == worker.made
    assert (trainer.state.gap_messages, trainer.state.duplicates) == (0, 0)
    assert network.refused == []
    assert network.relay.flow.reserved_bytes == network.relay.flow.queued_bytes == 0
    network.spool.close()


# --- files ---


def disk(folder: Path, limit_bytes: int = 1 << 20, **changes: object) -> Kept:
    return Kept(
        lambda limit, thread: DiskSpool(folder, limit, post=thread.posted.put, **changes),  # type: ignore[arg-type]
        limit_bytes,
    )


def test_a_reopened_spool_has_the_stored_messages(tmp_path: Path) -> None:
    first = disk(tmp_path)
    first.fill(2, 3, 7, info=A, body=b"x" * 5_000)
    first.fill(0, info=B)
    first.spool.end(A.stream)
    used = first.spool.used_bytes
    before = first.bodies(A)
    first.spool.close()
    again = disk(tmp_path)
    assert again.spool.used_bytes == used
    assert again.bodies(A) == before
    assert again.bodies(B) == [(0, 0, b"body")]
    assert again.spool.streams[A.stream].info == A
    assert again.spool.streams[A.stream].ended
    assert not again.spool.streams[B.stream].ended
    assert again.spool.streams[A.stream].stored == again.spool.streams[A.stream].next_number == 8
    again.fill(8, info=A)
    again.spool.close()
    third = disk(tmp_path)
    assert [number for number, _, _ in third.bodies(A)] == [2, 3, 7, 8]
    assert not third.spool.streams[A.stream].ended
    third.spool.drop(A.stream, 9)
    third.spool.drop(B.stream, 9)
    third.spool.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_reopened_spool_knows_the_principals(tmp_path: Path) -> None:
    first = disk(tmp_path)
    fill_up(first, "thief", 2_000)
    used = first.spool.used_bytes
    first.spool.close()
    again = disk(tmp_path)
    assert again.spool.used_bytes == used
    assert again.spool._holdings["thief"].messages == sum(len(one.messages) for one in again.spool.streams.values())
    assert {stream.info.principal for stream in again.spool.streams.values()} == {"thief"}
    more = StreamInfo(b"m" * 16, "run", "", b"", "thief")
    assert "these credentials" in again.append(0, bytes(2_000), info=more)
    assert fill_up(again, "honest", 2_000)[0] * 2_000 > again.spool.limit_bytes // 10
    for stream in list(again.spool.streams):
        again.spool.drop(stream, 99)
    assert (again.spool.used_bytes, again.spool._holdings) == (0, {})
    again.spool.close()


def test_existing_messages_beyond_the_limit_are_kept_and_new_ones_refused(tmp_path: Path) -> None:
    first = disk(tmp_path)
    first.fill(0, 1, 2, info=A, body=bytes(10_000))
    first.spool.close()
    again = disk(tmp_path, limit_bytes=10_000)
    assert len(again.bodies(A)) == 3
    assert "full" in again.append(3, info=A)
    again.spool.close()


@pytest.mark.parametrize("cut", [1, 100, 900])
def test_an_incomplete_record_is_removed_and_reported(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = disk(tmp_path)
    first.fill(0, 1, 2, info=A, body=bytes(1_000))
    first.spool.close()
    (path,) = tmp_path.glob("*.seg")
    os.truncate(path, path.stat().st_size - cut)
    with caplog.at_level(logging.WARNING):
        again = disk(tmp_path)
    assert isinstance(again.spool, DiskSpool)
    assert 0 < again.spool.torn_bytes <= 1_100
    assert "cut off" in caplog.text
    assert [number for number, _, _ in again.bodies(A)] == [0, 1]
    again.fill(2, info=A, body=b"told again")
    again.spool.close()
    third = disk(tmp_path)
    assert [body for _, _, body in third.bodies(A)][2] == b"told again"
    third.spool.close()


@pytest.mark.parametrize("length", [0, 5, 30])
def test_a_file_without_a_head_is_set_aside_and_the_others_are_used(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = disk(tmp_path)
    first.fill(0, info=A)
    first.fill(0, info=B)
    first.spool.close()
    damaged = tmp_path / f"{A.stream.hex()}.seg"
    os.truncate(damaged, length)
    with caplog.at_level(logging.WARNING):
        again = disk(tmp_path)
    assert list(again.spool.streams) == [B.stream]
    assert damaged.with_name(damaged.name + ".damaged").exists()
    assert "not used" in caplog.text
    again.spool.close()


def test_files_of_another_kind_are_set_aside(tmp_path: Path) -> None:
    from tmrl_core.storage import SegmentFile

    SegmentFile.create(tmp_path / "x.seg", "something else", {}).close()
    SegmentFile.create(tmp_path / "y.seg", "tmrl_core spool 1", {"stream": "no"}).close()
    kept = disk(tmp_path)
    assert kept.spool.streams == {}
    assert len(list(tmp_path.glob("*.damaged"))) == 2
    kept.spool.close()


def test_a_file_of_another_version_is_set_aside_with_both_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tmrl_core.storage import SegmentFile

    SegmentFile.create(tmp_path / "x.seg", "tmrl_core spool 2", {}).close()
    kept = disk(tmp_path)
    assert "'tmrl_core spool 2', not 'tmrl_core spool 1'" in caplog.text
    assert [path.name for path in tmp_path.glob("x.seg*")] == ["x.seg.damaged"]
    kept.spool.close()


def test_the_error_names_the_server_that_uses_the_folder(tmp_path: Path) -> None:
    first = disk(tmp_path)
    with pytest.raises(FolderLockedError, match=rf"the Server's spool.*process {os.getpid()}"):
        disk(tmp_path)
    first.spool.close()
    disk(tmp_path).spool.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the Server's spool"):
        disk(tmp_path / "file" / "spool")


class FailingDisk(FileCalls):
    """A disk on which writing fails while `full`."""

    def __init__(self) -> None:
        self.full = False
        self.synced = 0

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        if self.full:
            # Half of it, as a disk does that becomes full.
            os.write(descriptor, bytes(buffers[0])[: len(buffers[0]) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, buffers)

    def sync(self, descriptor: int) -> None:
        self.synced += 1
        super().sync(descriptor)


def test_a_full_disk_refuses_messages_which_can_be_offered_again(tmp_path: Path) -> None:
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls)
    kept.fill(0, 1, info=A)
    calls.full = True
    for number in (2, 3, 4):
        kept.append(number, info=A)
    told = []
    kept.thread.posted.put(lambda: told.append("first"))
    kept.thread.run(lambda: bool(kept.failed) and bool(told))
    assert len(kept.failed) == 1
    assert "No space left" in kept.failed[0][1]
    assert kept.spool.streams[A.stream].next_number == kept.spool.streams[A.stream].stored == 2
    calls.full = False
    kept.fill(2, 3, info=A, body=b"now")
    assert [number for number, _, _ in kept.bodies(A)] == [0, 1, 2, 3]
    kept.spool.close()
    again = disk(tmp_path)
    assert isinstance(again.spool, DiskSpool)
    assert again.spool.torn_bytes == 0
    assert [body for _, _, body in again.bodies(A)] == [b"body", b"body", b"now", b"now"]
    again.spool.close()


def test_a_failing_disk_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limited_log, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(rate_limited_log, "LINES_PER_S", 0.0)
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls)
    streams = [StreamInfo(bytes([number]) * 16, "run", f"robot {number}", b"", "") for number in range(40)]
    for info in streams:
        kept.fill(0, info=info)
    calls.full = True
    for info in streams[:20]:
        assert kept.append(1, info=info) == ""
    for info in streams[20:]:
        kept.spool.end(info.stream)
    kept.spool.close()
    assert sum("could not be written" in record.message for record in caplog.records) == 5
    assert sum("could not be recorded" in record.message for record in caplog.records) == 5


def test_a_late_result_of_a_lost_message_lets_no_later_one_past_a_new_failure(tmp_path: Path) -> None:
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls)
    kept.fill(0, info=A)

    def result() -> Callable[[], None]:
        return kept.thread.posted.get(timeout=DEADLINE_S)

    calls.full = True
    kept.append(1, info=A)
    kept.append(2, info=A)
    first, second = result(), result()
    first()
    kept.append(1, info=A)
    again = result()  # it has failed again
    second()
    calls.full = False
    kept.append(2, info=A)
    after = result()
    again()
    after()
    stream = kept.spool.streams[A.stream]
    assert (stream.next_number, stream.stored) == (1, 1), "message 2 is not stored before message 1"
    kept.fill(1, 2, info=A)
    kept.spool.close()
    reopened = disk(tmp_path)
    assert [number for number, _, _ in reopened.bodies(A)] == [0, 1, 2]
    reopened.spool.close()


def test_a_stream_whose_lost_messages_were_acknowledged_can_return(tmp_path: Path) -> None:
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls)
    calls.full = True
    kept.append(0, info=A)
    lost = kept.thread.posted.get(timeout=DEADLINE_S)
    kept.spool.drop(A.stream, 1)
    lost()
    assert kept.failed == []
    calls.full = False
    kept.fill(1, info=A)
    kept.spool.close()


def test_messages_that_could_not_be_stored_use_no_space(tmp_path: Path) -> None:
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls)
    kept.fill(0, info=A)
    used = kept.spool.used_bytes
    calls.full = True
    kept.append(1, info=A)
    kept.thread.run(lambda: bool(kept.failed))
    assert kept.spool.used_bytes == kept.spool._holdings[A.principal].used_bytes == used
    kept.spool.close()


def test_a_worker_keeps_samples_that_the_disk_refuses_and_gets_the_reason(tmp_path: Path) -> None:
    calls = FailingDisk()
    network = SpoolNetwork()
    thread = Thread()
    network.new_spool = lambda: DiskSpool(tmp_path, 1 << 20, post=thread.posted.put, calls=calls)
    network.restart_server(lose_spool=True)
    worker = Worker(network, "a")
    worker.make(10)
    calls.full = True
    worker.connect()
    end(worker)
    deadline = time.monotonic() + DEADLINE_S
    while not worker.state.hand_over_refusal:
        assert time.monotonic() < deadline
        network.step()
        while not thread.posted.empty():
            thread.posted.get()()
    assert "No space left" in worker.state.hand_over_refusal
    assert not worker.sender.settled
    assert network.relay.flow.reserved_bytes == network.relay.flow.queued_bytes == 0
    trainer = Trainer(network)
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    network.spool.close()


class SlowDisk(FileCalls):
    """A disk on which nothing is written until `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        self.go.wait(DEADLINE_S)
        return super().write(descriptor, buffers)


def test_a_slow_disk_delays_no_other_and_memory_stays_within_the_credit(tmp_path: Path) -> None:
    calls = SlowDisk()
    network = SpoolNetwork(budget_bytes=4 << 20)
    thread = Thread()
    network.new_spool = lambda: DiskSpool(tmp_path, 64 << 20, post=thread.posted.put, calls=calls)
    network.restart_server(lose_spool=True)
    ending, live, trainer = Worker(network, "a", run="other"), Worker(network, "b"), Trainer(network)
    for _ in range(60):
        ending.make(200_000)
    ending.connect()
    live.connect()
    trainer.connect()
    end(ending)
    network.settle()
    assert 0 < network.relay.flow.queued_bytes <= 4 << 20, "and no more than that is in memory"
    assert ending.sender.samples_stored == 0, "stored means in the file"
    for _ in range(20):
        live.make(50_000)
    network.settle(until=lambda: len(trainer.memory) == 20, work=trainer)
    calls.go.set()
    deadline = time.monotonic() + DEADLINE_S
    while not ending.sender.settled:
        assert time.monotonic() < deadline
        network.step()
        while not thread.posted.empty():
            thread.posted.get()()
    assert network.relay.flow.queued_bytes == 0
    network.spool.close()


class StepwiseDisk(FileCalls):
    """A disk that writes once for each `go`."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.written = 0

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        assert self.go.acquire(timeout=DEADLINE_S)
        self.written += 1
        return super().write(descriptor, buffers)


def test_the_messages_of_one_principal_do_not_wait_for_all_of_another_one(tmp_path: Path) -> None:
    calls = StepwiseDisk()
    kept = disk(tmp_path, calls=calls)
    thief, honest = A._replace(principal="thief"), B._replace(principal="honest")
    for number in range(300):
        assert kept.append(number, b"", info=thief) == ""
    for number in range(3):
        assert kept.append(number, bytes(1_000), info=honest) == ""
    assert kept.spool.unwritten_bytes("thief") == 300 * MESSAGE_COST_BYTES
    for _ in range(12):  # two of them are heads of files
        calls.go.release()
    kept.thread.run(lambda: kept.stored.count((honest.stream, 3)) == 1)
    assert calls.written <= 12
    for _ in range(400):
        calls.go.release()
    kept.thread.run(lambda: kept.stored[-1] == (thief.stream, 300))
    assert kept.spool.unwritten_bytes("thief") == kept.spool.unwritten_bytes("honest") == 0
    kept.spool.close()


def test_a_file_is_removed_before_its_stream_returns_with_another_owner(tmp_path: Path) -> None:
    calls = StepwiseDisk()
    kept = disk(tmp_path, calls=calls)
    assert isinstance(kept.spool, DiskSpool)
    for number in range(10):
        assert kept.append(number, info=B) == ""
    assert kept.append(0, info=A) == ""
    kept.spool.drop(A.stream, 1)
    returned = A._replace(principal="robot")
    assert kept.append(5, b"again", info=returned) == ""
    for _ in range(20):
        calls.go.release()
    kept.thread.run(lambda: (A.stream, 6) in kept.stored)
    assert [body for _, _, body in kept.bodies(returned)] == [b"again"]
    kept.spool.drop(A.stream, 9)
    kept.spool.drop(B.stream, 99)
    removals = kept.spool._removals
    kept.thread.run(lambda: not removals)
    kept.spool.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_fsync_flushes_each_message(tmp_path: Path) -> None:
    calls = FailingDisk()
    kept = disk(tmp_path, calls=calls, sync="fsync")
    kept.fill(0, info=A)
    before = calls.synced
    kept.fill(1, info=A)
    assert calls.synced > before
    kept.spool.close()


def test_a_removed_file_is_a_gap(tmp_path: Path) -> None:
    network = SpoolNetwork()
    thread = Thread()
    network.new_spool = lambda: DiskSpool(tmp_path, 1 << 20, post=thread.posted.put)
    network.restart_server(lose_spool=True)
    worker, other, trainer = Worker(network, "a"), Worker(network, "b"), Trainer(network)
    for one in (worker, other):
        one.make(10)
        one.connect()
        end(one)
        deadline = time.monotonic() + DEADLINE_S
        while not one.sender.settled:
            assert time.monotonic() < deadline
            network.step()
            while not thread.posted.empty():
                thread.posted.get()()
        leave(one)
    network.settle()
    (tmp_path / f"{worker.sender.stream.hex()}.seg").unlink()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == other.made
    assert any("cannot be read and are lost" in line for line in network.said)
    assert network.spool.streams == {}
    assert network.relay.streams == {}
    network.spool.close()


def test_messages_are_kept_while_the_system_has_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = SpoolNetwork()
    thread = Thread()
    network.new_spool = lambda: DiskSpool(tmp_path, 1 << 20, post=thread.posted.put)
    network.restart_server(lose_spool=True)
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.make(10)
    worker.connect()
    end(worker)
    deadline = time.monotonic() + DEADLINE_S
    while not worker.sender.settled:
        assert time.monotonic() < deadline
        network.step()
        while not thread.posted.empty():
            thread.posted.get()()
    leave(worker)
    network.settle()

    def fail(*_: object) -> Sequence[memoryview]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(DiskSpool, "_load", fail)
        trainer.connect()
        network.settle(work=trainer)
    assert trainer.memory == []
    assert any("Too many open files" in line for line in network.said)
    trainer.kill()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert network.spool.streams == {}
    network.spool.close()


def test_many_streams_share_a_few_open_files(tmp_path: Path) -> None:
    kept = disk(tmp_path)
    generator = random.Random(1)
    numbers = dict.fromkeys(range(50), 0)
    for _ in range(400):
        index = generator.randrange(50)
        assert kept.append(numbers[index], info=A._replace(stream=index.to_bytes(16, "big"))) == ""
        numbers[index] += 1
    kept.thread.run(lambda: len(kept.stored) == 400)
    assert isinstance(kept.spool, DiskSpool)
    assert len(kept.spool._files) <= 32
    kept.spool.close()
    again = disk(tmp_path)
    for index, count in numbers.items():
        assert len(again.bodies(A._replace(stream=index.to_bytes(16, "big")))) == count
    again.spool.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from tmrl_core.networking.spools.spool import StreamInfo
from tmrl_core.networking.spools.disk_spool import DiskSpool

def stored(number):
    os.write(1, b"%d\\n" % number)
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)

spool = DiskSpool(Path(sys.argv[1]), 1 << 30, post=lambda function: function())
spool.on_stored = lambda stream: stored(spool.streams[stream].stored)
info = StreamInfo(b"a" * 16, "run", "robot a", b"signature", "")
for number in range(1000):
    spool.append(info, number=number, floor=number, position=10 * number, samples=2, body=[bytes(50_000)])
signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL is POSIX's")
def test_confirmed_messages_survive_a_kill(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, timeout=60)
    assert ended.returncode == -9, ended.stderr.decode()
    said = [int(line) for line in ended.stdout.split()]
    again = disk(tmp_path, limit_bytes=1 << 30)
    assert len(again.bodies(A)) >= max(said) == 20
    again.spool.close()
