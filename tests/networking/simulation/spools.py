"""A simulated disk for the Server's spool: what is stored survives the process, what is on its way there does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.networking.simulation.network import Network
from tmrl_core.networking.spools.spool import Spool, SpooledMessage, SpooledStream, StreamInfo


@dataclass
class _File:
    """What is on disk of one stream."""

    info: StreamInfo
    messages: list[SpooledMessage] = field(default_factory=list)
    ended: bool = False


class Disk:
    """What outlives the Server's process. Acknowledged messages stay until the whole stream is forgotten."""

    def __init__(self) -> None:
        self.files: dict[bytes, _File] = {}


class SimulatedDiskSpool(Spool):
    """A spool that stores after a while, in order.

    Args:
        limit_bytes: as for every spool.
        disk: what the process before has left.
        network: its clock.
    """

    frees_messages = False

    def __init__(self, limit_bytes: int, disk: Disk, network: Network) -> None:
        super().__init__(limit_bytes)
        self._disk = disk
        self._network = network
        self._busy_until = 0.0
        self.open = True
        for file in disk.files.values():
            kept = SpooledStream(file.info)
            kept.messages = list(file.messages)
            kept.next_number = kept.stored = file.messages[-1].number + 1
            kept.samples = sum(message.samples for message in file.messages)
            kept.cost += sum(message.cost for message in file.messages)
            kept.ended = file.ended
            self._add(kept)

    def _store(self, kept: SpooledStream, message: SpooledMessage) -> None:
        network = self._network
        self._busy_until = max(self._busy_until, network.now) + 0.3 * network.random.random() ** 2
        network.at(self._busy_until - network.now, self._written, kept, message)

    def _written(self, kept: SpooledStream, message: SpooledMessage) -> None:
        if not self.open or self.streams.get(kept.info.stream) is not kept:
            return
        file = self._disk.files.setdefault(kept.info.stream, _File(kept.info))
        file.messages.append(message)
        file.ended = False
        self._is_stored(kept, message)

    def _load(self, kept: SpooledStream, message: SpooledMessage) -> Sequence[bytes | memoryview]:
        raise AssertionError("bodies stay in memory here")

    def _store_end(self, kept: SpooledStream) -> None:
        file = self._disk.files.get(kept.info.stream)
        if self.open and file is not None:
            file.ended = True

    def _forget(self, kept: SpooledStream) -> None:
        self._disk.files.pop(kept.info.stream, None)

    def close(self) -> None:
        """The process is gone: nothing is written any more."""
        self.open = False
