"""Both ends of a run with real certificates, without a link."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta, timezone

from tmrl_core.networking.end_to_end.identity import Signer, Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.protocol.messages import MessageHead
from tmrl_core.networking.security.certificates import Signed, make_authority, make_client_certificate
from tmrl_core.networking.trainer.seal import OpenedStream, TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

DAYS = 30
HEAD = MessageHead(number=7, floor=5, position=700, samples=100)
BODY = b"the samples of one episode"


def later(days: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(days=days)


@functools.cache
def authority(name: str) -> Signed:
    return make_authority(later(DAYS))


@functools.cache
def _certificate(role: str, name: str, ca: str, days: float) -> Signed:
    return make_client_certificate(authority(ca), role, name, later(days))


def certificate(role: str = "worker", name: str = "robot", ca: str = "ours", days: float = DAYS) -> Signed:
    return _certificate(role, name, ca, days)


def signer(role: str = "worker", name: str = "robot", ca: str = "ours", days: float = DAYS) -> Signer:
    signed = certificate(role, name, ca, days)
    return Signer(signed.certificate, signed.key)


def verifier() -> Verifier:
    return Verifier(authority("ours").certificate)


class Ends:
    """A trainer, a worker and one stream. The worker knows the trainer's card."""

    def __init__(self, mode: Mode = "authenticate", *, run: str = "run", key: bytes = bytes(32)) -> None:
        self.worker = WorkerSeal(run, signer(), verifier(), mode=mode)
        self.trainer = TrainerSeal(run, signer("trainer", "node"), verifier(), RunKey(key), mode=mode)
        self.stream = self.worker.new_stream()
        assert self.worker.announced(self.trainer.card(3))

    def opened(self) -> OpenedStream:
        return self.trainer.open_record(self.stream, self.worker.record(self.stream, b"signature"))

    def sealed(self, body: bytes = BODY, head: MessageHead = HEAD) -> memoryview:
        parts = self.worker.seal(self.stream, head, [body])
        assert parts is not None
        return memoryview(bytearray(b"".join(parts)))
