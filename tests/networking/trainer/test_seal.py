"""Records of streams: the trainer believes only those that a worker of this run has signed for this stream."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.networking.end_to_end.ends import HEAD, Ends, authority, signer, verifier
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import StreamRecord, decode_statement, encode_statement, stream_id
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker.seal import WorkerSeal


def test_a_record_names_its_worker() -> None:
    ends = Ends()
    opened = ends.opened()
    assert (opened.signature, opened.peer.name, opened.incarnation) == (b"signature", "robot", 3)
    assert ends.trainer.forged == 0


def test_every_changed_bit_is_noticed() -> None:
    ends = Ends()
    record = ends.worker.record(ends.stream, b"signature")
    for place in range(len(record)):
        altered = bytearray(record)
        altered[place] ^= 1 << place % 8
        with pytest.raises(ForgedError):
            ends.trainer.open_record(ends.stream, bytes(altered))
    assert ends.trainer.forged == len(record)


def test_every_length_but_the_whole_is_refused() -> None:
    ends = Ends()
    record = ends.worker.record(ends.stream, b"signature")
    for other in [*(record[:end] for end in range(len(record))), record + b"\0", record + record]:
        with pytest.raises(ForgedError):
            ends.trainer.open_record(ends.stream, other)


def test_a_stream_without_a_record_is_refused() -> None:
    with pytest.raises(ForgedError, match="could not be read"):
        Ends().trainer.open_record(bytes(16), b"signature")


def test_the_record_of_another_stream_or_run_is_refused() -> None:
    ends, elsewhere = Ends(), Ends(run="other run")
    record = ends.worker.record(ends.stream, b"")
    with pytest.raises(ForgedError, match="another run"):
        ends.trainer.open_record(ends.worker.new_stream(), record)
    with pytest.raises(ForgedError, match="another run"):
        elsewhere.trainer.open_record(ends.stream, record)


@pytest.mark.parametrize(
    ("role", "ca", "days"), [("trainer", "ours", 30.0), ("worker", "theirs", 30.0), ("worker", "ours", -0.5)]
)
def test_a_certificate_of_another_role_or_ca_or_an_expired_one_is_refused(role: str, ca: str, days: float) -> None:
    ends = Ends()
    worker = WorkerSeal("run", signer(role, "robot", ca, days), verifier(), mode="authenticate")
    stream = worker.new_stream()
    with pytest.raises(ForgedError):
        ends.trainer.open_record(stream, worker.record(stream, b""))


@pytest.mark.parametrize("late_s", [86_400.0 * 20, -86_400.0 * 20], ids=["expired", "the trainer's clock is wrong"])
def test_a_stored_stream_is_valid_if_its_certificate_was_when_it_began(late_s: float) -> None:
    worker = WorkerSeal("run", signer(days=10.0), verifier(), mode="authenticate")
    stream = worker.new_stream()
    check = Verifier(authority("ours").certificate, clock=lambda: time.time() + late_s)
    later = TrainerSeal("run", signer("trainer", "node"), check, RunKey(bytes(32)))
    record = worker.record(stream, b"")
    assert later.open_record(stream, record, stored=True).name == "robot"
    with pytest.raises(ForgedError, match="not valid here"):
        later.open_record(stream, record)


def test_a_revoked_worker_is_refused() -> None:
    ends = Ends()
    ends.trainer._verifier = Verifier(authority("ours").certificate, revoked={ends.opened().peer.serial})
    with pytest.raises(ForgedError, match="robot is revoked"):
        ends.opened()


def test_nobody_opens_the_stream_of_another_worker() -> None:
    """A stolen bundle signs a record for the id, or the id and the key, of an honest stream."""
    ends = Ends()
    honest = decode_statement(ends.worker.record(ends.stream, b""), StreamRecord)
    thief = signer(name="thief")
    for key in (honest.key, bytes(32)):
        record = msgspec.structs.replace(honest, certificate=thief.certificate, key=key)
        record = msgspec.structs.replace(record, proof=thief.sign(record.covered("run", ends.stream)))
        with pytest.raises(ForgedError):
            ends.trainer.open_record(ends.stream, encode_statement(record))


def test_a_key_of_small_order_is_refused() -> None:
    ends = Ends()
    worker = signer()
    stream = stream_id("run", worker.identity, bytes(32), 5)
    record = StreamRecord(b"", worker.certificate, bytes(32), 0, 5)
    record = msgspec.structs.replace(record, proof=worker.sign(record.covered("run", stream)))
    with pytest.raises(ForgedError, match="agreement of keys"):
        ends.trainer.open_record(stream, encode_statement(record))


def test_a_renewed_certificate_keeps_the_stream() -> None:
    ends = Ends()
    ends.worker.signer = signer(days=20.0)
    assert ends.worker.signer.certificate != signer().certificate
    opened = ends.opened()
    assert opened.open(HEAD, ends.sealed())


@pytest.mark.parametrize("clock", [-5.0, 0.0, 1e12, 1.8e9])
def test_any_clock_of_a_worker_gives_a_valid_stream(clock: float) -> None:
    ends = Ends()
    ends.worker = WorkerSeal("run", signer(), verifier(), mode="authenticate", clock=lambda: clock)
    ends.stream = ends.worker.new_stream()
    assert ends.opened().signature == b"signature"


def test_attempts_are_told() -> None:
    ends = Ends()
    told: list[str] = []
    ends.trainer._on_forged = lambda text, name: told.append(text)
    with pytest.raises(ForgedError):
        ends.trainer.open_record(ends.stream, b"")
    sealed = ends.sealed()
    sealed[0] ^= 1
    with pytest.raises(ForgedError):
        ends.opened().open(HEAD, sealed)
    assert len(told) == 2
    assert "robot: message 7" in told[1]
