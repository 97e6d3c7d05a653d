"""A thief with the bundle of a worker, and the oracle of its attacks: what honest members still get."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np

from tests.networking.test_hostile import DEADLINE_S, Place, Stranger, head
from tmrl_core.networking.links.sealing import Identity
from tmrl_core.networking.protocol.framing import FIRST, LAST, PING_FRAME, Kind
from tmrl_core.networking.protocol.messages import (
    Announce,
    Control,
    Credit,
    MessageHead,
    OpenStream,
    Refused,
    Resume,
    Want,
)
from tmrl_core.networking.relay.stream_budget import OF_ONE_BYTES
from tmrl_core.networking.relay.streams import Share
from tmrl_core.networking.worker.seal import WorkerSeal
from tmrl_core.samples import Buffer, Chunk

MB = 1 << 20


class Thief(Stranger):
    """A link with a stolen bundle, whose streams the trainer has resumed.

    Against members that authenticate each other, its streams and samples have the proofs that the bundle allows.

    Args:
        folder: the stolen credentials.
        number: number of the link.
        streams: number of streams to open.
    """

    def __init__(self, place: Place, folder: Path, number: int = 0, streams: int = 1, name: str = "robot7") -> None:
        link = place.stranger(folder)
        super().__init__(link.sock, link.tokens)
        self.name = name
        self._seal: WorkerSeal | None = None
        mode = place.settings.end_to_end
        if mode == "authenticate" or mode == "encrypt":
            identity = Identity(folder, "worker")
            self._seal = WorkerSeal("run", identity.signer, identity.verifier, mode=mode)
        self.resumes: dict[int, Resume] = {}
        self.limits: dict[int, int] = {}
        """Bytes that each stream may send, as far as the Server was heard."""
        self.left: dict[int, int] = {}
        """Bytes of credit that each stream has left."""
        self._ids: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self.greet(token="", name=name, peer=b"thief%11d" % number)
        self.open(*range(streams))

    def hear(self, kind: type[Control] | None = None) -> Control | None:
        """The next control message (of that type). The keys of the trainer's card are used from then on."""
        while (told := super().hear()) is not None:
            if isinstance(told, Announce) and self._seal is not None:
                assert self._seal.announced(told.body)
            elif isinstance(told, Credit):
                self.limits[told.channel] = told.limit
            if kind is None or isinstance(told, (kind, Refused)):
                break
        return told

    def opening(self, channel: int, name: str | None = None, signature: bytes = b"") -> OpenStream:
        """Return the announcement of a new stream."""
        if self._seal is None:
            stream = uuid.uuid4().bytes
        else:
            stream = self._seal.new_stream()
            signature = self._seal.record(stream, signature)
        self._ids[channel] = stream
        return OpenStream(channel, stream, self.name if name is None else name, signature)

    def open(self, *channels: int, name: str | None = None) -> None:
        """Open streams. Then the Server has read everything that was said before."""
        self.tell(*(self.opening(channel, name) for channel in channels))
        while not all(channel in self.resumes for channel in channels):
            told = self.hear(Resume)
            assert isinstance(told, Resume), f"the link has ended: {told}"
            self.resumes[told.channel] = told
            self.left[told.channel] = told.credit

    def want(self, channel: int, size: int) -> Want:
        """Return a request for `size` bytes beyond a stream's first credit."""
        return Want(channel, self.resumes[channel].epoch, self.resumes[channel].credit + size)

    def sample(self, channel: int, content: bytes) -> None:
        """Send a message of one sample, which fits the stream's credit."""
        number = self._numbers.get(channel, 0)
        self._numbers[channel] = number + 1
        body = content
        if self._seal is not None:
            while (parts := self._seal.seal(self._ids[channel], MessageHead(number, 0, 0, 1), [content])) is None:
                assert isinstance(self.hear(Announce), Announce)  # encryption needs the trainer's key
            body = b"".join(parts)
        payload = head(number, len(body)) + body
        self.left[channel] -= len(payload) + 12
        assert self.left[channel] >= 0
        self.frame(Kind.DATA, FIRST | LAST, payload, epoch=self.resumes[channel].epoch, channel=channel)


def share_of(place: Place, principal: str) -> Share:
    """Return a principal's part of the pool, after checking that it leaves a request to others."""
    settings = place.relay.settings
    share = place.relay.flow._shares[principal]
    assert share.reserved_bytes <= settings.budget_bytes - settings.request_bytes
    assert len(share.wants) <= 2 * share.streams + 64
    assert place.relay._stream_budget._of[principal] <= OF_ONE_BYTES
    return share


def large(rows: int) -> list[Chunk]:
    """An episode that does not compress."""
    buffer = Buffer(maxlen=None)
    noise = np.random.default_rng(0)
    for row in range(rows):
        buffer.append_sample((np.zeros(1, np.float32), noise.random(64), 0.5, False, row == rows - 1, {}))
    return buffer.take()[0]


def fleet_goes_on(place: Place, rows: int = 4_000, *awake: Stranger) -> None:
    """The honest worker's samples, some megabytes, are all acknowledged over the links that there were.

    Args:
        awake: links of a thief that send heartbeats meanwhile. The Server ends a link after 30 s in which it does not
            use its credit and others wait, so the samples must be acknowledged before that.
    """
    before = place.worker.counts.samples_acked
    place.worker.send(large(rows), [])
    received = 0
    deadline = time.monotonic() + DEADLINE_S
    while place.worker.counts.samples_acked < before + rows:
        assert time.monotonic() < deadline, f"{received} of {rows} samples have arrived in time"
        for link in awake:
            with suppress(OSError):
                link.write(PING_FRAME)
        place.trainer.wait(1.0 if received < rows else 0.005)
        messages = place.trainer.receive()
        received += sum(one.samples for one in messages if one.stream == place.worker.stream)
        place.trainer.acknowledge(messages)
    assert received == rows
    assert place.worker.counts.reconnects == 0
    assert place.trainer.counts.reconnects == 0


def overspend(place: Place, link: Thief, principal: str) -> None:
    """Use up the share of a principal's processor time."""
    step = 0
    while not place.relay.processor_time.overspent(principal, time.monotonic()):
        step += 1
        link.tell(*(link.want(i, step) for i in range(4) for _ in range(250)))
