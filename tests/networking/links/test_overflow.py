"""A worker's memory that overflows to the disk, with a clock of the test's own."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.networking.spools.test_stream_files import INFO, STREAM, Full
from tmrl_core.networking.links.overflow import Overflow
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Ack
from tmrl_core.networking.spools.stream_files import StreamFiles
from tmrl_core.storage import FileCalls

DEADLINE_S = 20.0
BODY = bytes(1_000)


class Spooled:
    """A sender with files. The test is its I/O thread."""

    def __init__(self, folder: Path, queue_bytes: int = 10_000, calls: FileCalls | None = None) -> None:
        self.files = StreamFiles(folder / STREAM.hex(), INFO, 1 << 20, calls=calls or FileCalls())
        self.sender = StreamSender(
            STREAM, queue_bytes=queue_bytes, drop_oldest=True, store=self.files, store_bytes=1 << 20
        )
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.overflow = Overflow(self.sender, self.files, self.posted.put, lambda: None)

    def offer(self, messages: int) -> None:
        for _ in range(messages):
            assert self.sender.offer([BODY], 1)

    def check(self, now: float, receiving: bool = False) -> bool:
        """Check until the disk has nothing more to do."""
        again = self.overflow.check(now, receiving)
        while self.overflow._busy:
            self.posted.get(timeout=DEADLINE_S)()
            again = self.overflow.check(now, receiving)
        return again

    def acknowledge(self, next_number: int) -> None:
        self.sender.on_ack(Ack(0, next_number))


@pytest.fixture
def spooled(tmp_path: Path) -> Spooled:
    return Spooled(tmp_path / "spool")


def test_nothing_is_written_while_acknowledgements_come(spooled: Spooled, tmp_path: Path) -> None:
    assert not spooled.check(0.0)
    for second in range(20):
        spooled.offer(2)
        assert spooled.check(second + 0.0)
        assert spooled.check(second + 0.9)
        spooled.acknowledge(2 * second + 1)
    assert list(tmp_path.iterdir()) == []
    spooled.overflow.close()


@pytest.mark.parametrize(("receiving", "after_s"), [(False, 1.0), (True, 10.0)])
def test_without_acknowledgements_all_is_written_in_time(
    spooled: Spooled, receiving: bool, after_s: float, tmp_path: Path
) -> None:
    spooled.check(90.0)
    spooled.offer(3)
    spooled.check(100.0, receiving)
    spooled.check(100.0 + after_s - 0.1, receiving)
    assert spooled.sender.written_bytes == 0
    spooled.check(100.0 + after_s, receiving)
    assert spooled.sender.written_bytes == 3_000
    spooled.offer(2)
    spooled.check(100.1 + after_s, receiving)
    assert spooled.sender.written_bytes == 5_000
    spooled.acknowledge(5)
    assert not spooled.check(100.2 + after_s, receiving)
    assert list((tmp_path / "spool").iterdir()) == [], "an empty spool leaves no files"
    spooled.overflow.close()


def test_half_of_the_memory_is_enough_to_begin(spooled: Spooled) -> None:
    spooled.offer(5)
    spooled.check(0.0, receiving=True)
    assert spooled.sender.written_bytes == 0
    spooled.offer(1)
    spooled.check(0.0, receiving=True)
    assert spooled.sender.memory_bytes == 6 * 512
    for _ in range(12):
        spooled.offer(1)
        spooled.check(0.0, receiving=True)
    assert spooled.sender.samples_dropped == 0
    spooled.overflow.close()


def test_a_full_disk_is_logged_once_and_leaves_the_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Full(3_000)
    spooled = Spooled(tmp_path / "spool", calls=disk)
    with caplog.at_level(logging.WARNING):
        for second in range(20):
            spooled.offer(1)
            spooled.check(float(second))
    (warning,) = caplog.messages
    assert "worker.spool_dir" in warning
    assert "No space left on device" in warning
    sender = spooled.sender
    assert sender.written_bytes == 2_000
    assert (sender.held_samples, sender.samples_dropped) == (10, 10)
    assert spooled.overflow.bound == "worker.queue_bytes"
    # The oldest are on the disk; of the others, the newest are kept.
    sender.resume(channel=0, epoch=1, next_number=0, credit=1 << 20)
    while sender.next_frame() is not None:
        pass
    assert [message.number for message in sender._sent] == [0, 1, *range(12, 20)]
    # After the outage, the disk is tried again.
    disk.room = 1 << 20
    spooled.acknowledge(20)
    spooled.check(30.0)
    spooled.offer(1)
    spooled.check(30.0)
    spooled.check(31.0)
    assert sender.written_bytes == 1_000
    spooled.overflow.close()
