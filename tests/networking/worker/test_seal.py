"""A worker accepts cards, acknowledgements, policies, directives and reports from trainers of its run only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.networking.end_to_end.ends import Ends, authority, signer, verifier
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import RunCard, StreamRecord, decode_statement, encode_statement
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.protocol.packed_policy import pack
from tmrl_core.networking.trainer.seal import OpenedStream, TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

REFUSED = ((4, "no room"), (5, "NaN"))


def trainer_with(role: str = "trainer", ca: str = "ours", days: float = 30.0, *, run: str = "run") -> TrainerSeal:
    return TrainerSeal(run, signer(role, "node", ca, days), verifier(), RunKey(bytes(32)))


def new_worker(accepted: Version = (0, 0)) -> WorkerSeal:
    return WorkerSeal("run", signer(), verifier(), mode="authenticate", accepted=accepted)


# --- cards ---


def test_a_card_makes_a_worker_ready() -> None:
    worker = new_worker()
    assert not worker.ready
    assert worker.announced(trainer_with().card(3))
    assert (worker.ready, worker.incarnation, worker.forged, worker.outdated) == (True, 3, 0, 0)


def test_every_changed_bit_of_a_card_is_noticed() -> None:
    worker = new_worker()
    card = trainer_with().card(3)
    for place in range(len(card)):
        altered = bytearray(card)
        altered[place] ^= 1 << place % 8
        assert not worker.announced(bytes(altered))
    assert (worker.ready, worker.forged) == (False, len(card))


def test_every_length_of_a_card_but_the_whole_is_refused() -> None:
    worker = new_worker()
    card = trainer_with().card(3)
    for other in [*(card[:end] for end in range(len(card))), card + b"\0"]:
        assert not worker.announced(other)
    assert not worker.ready


@pytest.mark.parametrize(
    "trainer",
    [
        lambda: trainer_with("worker"),
        lambda: trainer_with("observer"),
        lambda: trainer_with(ca="theirs"),
        lambda: trainer_with(days=-0.5),
        lambda: trainer_with(run="other run"),
    ],
    ids=["worker", "observer", "other CA", "expired", "other run"],
)
def test_other_cards_are_refused(trainer: Callable[[], TrainerSeal]) -> None:
    worker = new_worker()
    assert not worker.announced(trainer().card(3))
    assert (worker.ready, worker.forged) == (False, 1)


def test_a_worker_cannot_make_a_card_from_one_of_a_trainer() -> None:
    card = decode_statement(trainer_with().card(3), RunCard)
    thief = signer(name="thief")
    for certificate in (card.certificate, thief.certificate):
        forged = msgspec.structs.replace(card, run_key=RunKey(b"1" * 32).public, certificate=certificate)
        forged = msgspec.structs.replace(forged, proof=thief.sign(forged.covered()))
        worker = new_worker()
        assert not worker.announced(encode_statement(forged))


def test_a_card_of_a_revoked_trainer_is_refused() -> None:
    serial = verifier().check(signer("trainer", "node").certificate, ("trainer",)).serial
    worker = WorkerSeal("run", signer(), Verifier(authority("ours").certificate, revoked={serial}), mode="authenticate")
    assert not worker.announced(trainer_with().card(3))


def test_a_trainer_that_is_revoked_later_loses_its_card() -> None:
    revoked: set[str] = set()
    worker = WorkerSeal("run", signer(), Verifier(authority("ours").certificate, revoked=revoked), mode="authenticate")
    card = trainer_with().card(3)
    assert worker.announced(card)
    revoked.add(verifier().check(signer("trainer", "node").certificate, ("trainer",)).serial)
    assert not worker.announced(card)
    assert not worker.ready


@pytest.mark.parametrize("key", ["run_key", "signing_key"])
def test_a_card_with_an_invalid_key_is_refused(key: str) -> None:
    trainer = signer("trainer", "node")
    card = decode_statement(trainer_with().card(3), RunCard)
    card = msgspec.structs.replace(card, **{key: bytes(len(getattr(card, key)))})
    card = msgspec.structs.replace(card, proof=trainer.sign(card.covered()))
    assert not new_worker().announced(encode_statement(card))


def test_a_card_of_a_lower_incarnation_is_outdated() -> None:
    worker = new_worker()
    earlier, later = trainer_with().card(3), trainer_with().card(4)
    assert worker.announced(later)
    assert not worker.announced(earlier)
    assert (worker.incarnation, worker.outdated, worker.forged) == (4, 1, 0)


def test_an_earlier_process_protects_from_cards_below_its_version() -> None:
    worker = new_worker(accepted=(4, 9))
    assert not worker.announced(trainer_with().card(3))
    assert worker.announced(trainer_with().card(4))


def test_two_trainers_of_one_incarnation_do_not_take_turns() -> None:
    worker = new_worker()
    other = TrainerSeal("run", signer("trainer", "other"), verifier(), RunKey(b"1" * 32))
    assert worker.announced(trainer_with().card(3))
    assert not worker.announced(other.card(3))
    assert worker.announced(other.card(4))


def test_a_renewed_certificate_of_the_trainer_changes_nothing_else() -> None:
    ends = Ends()
    policy = b"".join(ends.trainer.seal_policy((3, 1), b"weights"))
    ends.trainer.signer = signer("trainer", "node", "ours", 20.0)
    assert ends.worker.announced(ends.trainer.card(3))
    assert ends.worker.open_policy((3, 1), memoryview(policy)) is not None


# --- acknowledgements ---


def test_an_acknowledgement_covers_number_refusals_and_stream() -> None:
    ends = Ends()
    opened = ends.opened()
    tag = opened.ack_tag(6, REFUSED)
    assert ends.worker.check_ack(ends.stream, 6, REFUSED, tag)
    assert ends.worker.check_ack(ends.stream, 6, REFUSED, tag), "a repetition is harmless"
    other = ends.worker.new_stream()
    wrong = [
        (ends.stream, 7, REFUSED, tag),
        (ends.stream, 5, REFUSED, tag),
        (ends.stream, 6, (), tag),
        (ends.stream, 6, REFUSED[:1], tag),
        (ends.stream, 6, REFUSED[::-1], tag),
        (ends.stream, 6, ((4, "no room"), (5, "nan")), tag),
        (ends.stream, 6, ((3, "no room"), (5, "NaN")), tag),
        (other, 6, REFUSED, tag),
        (bytes(16), 6, REFUSED, tag),
        (ends.stream, 6, REFUSED, b""),
        (ends.stream, 6, REFUSED, tag[:-1]),
        (ends.stream, 6, REFUSED, tag + b"\0"),
        *((ends.stream, 6, REFUSED, bytes(tag[:i] + bytes((tag[i] ^ 1,)) + tag[i + 1 :])) for i in range(len(tag))),
    ]
    for one in wrong:
        assert not ends.worker.check_ack(*one)
    assert ends.worker.forged == len(wrong)


def test_another_trainer_or_run_cannot_acknowledge() -> None:
    ends = Ends()
    record = ends.worker.record(ends.stream, b"")
    for other in (Ends(key=b"1" * 32), Ends(run="other run")):
        other.trainer.run = "run"  # so that it opens the record
        opened = other.trainer.open_record(ends.stream, record)
        if other.worker.run != "run":
            other.trainer.run = other.worker.run
            opened._keys = {other.trainer.run_key.id: opened._derive(other.trainer.run_key)}
        assert not ends.worker.check_ack(ends.stream, 6, (), opened.ack_tag(6, ()))


def test_nothing_is_acknowledged_without_a_card() -> None:
    worker = new_worker()
    assert not worker.check_ack(worker.new_stream(), 1, (), bytes(16))


# --- policies, directives, reports ---


def test_policies_grow() -> None:
    ends = Ends()
    accepted: list[Version] = []
    ends.worker._on_accepted = accepted.append
    policies = {number: b"".join(ends.trainer.seal_policy((3, number), b"weights")) for number in (1, 2, 3)}
    first = ends.worker.open_policy((3, 2), memoryview(policies[2]))
    assert first is not None
    assert bytes(first) == b"weights"
    assert ends.worker.open_policy((3, 1), memoryview(policies[1])) is None
    assert ends.worker.open_policy((3, 2), memoryview(policies[2])) is None
    assert ends.worker.open_policy((3, 3), memoryview(policies[3])) is not None
    assert (accepted, ends.worker.outdated, ends.worker.forged) == ([(3, 2), (3, 3)], 2, 0)


def test_a_worker_with_its_record_takes_no_earlier_policy() -> None:
    ends = Ends()
    ends.worker.accepted = (3, 5)
    policies = {n: memoryview(b"".join(ends.trainer.seal_policy((3, n), b"w"))) for n in (4, 5, 6)}
    assert ends.worker.open_policy((3, 4), policies[4]) is None
    assert ends.worker.open_policy((3, 5), policies[5]) is not None, "its file of weights may be lost"
    assert ends.worker.open_policy((3, 5), policies[5]) is None
    assert ends.worker.open_policy((3, 6), policies[6]) is not None


@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_an_older_packed_policy_serves_as_a_base_and_is_proved(mode: Mode) -> None:
    ends = Ends(mode)
    if mode == "encrypt":
        ends.worker.open_directive(ends.stream, ends.opened().letter(3, b""))
    ends.worker.accepted = (3, 5)
    old = pack(b"weights")
    sealed = [memoryview(b"".join(ends.trainer.seal_policy((3, n), body))) for n, body in ((4, old), (2, b"weights"))]
    content = ends.worker.open_policy((3, 4), memoryview(bytes(sealed[0])), base=True)
    assert content is not None
    assert bytes(content) == old
    assert (ends.worker.accepted, ends.worker.outdated) == ((3, 5), 0)
    assert ends.worker.open_policy((3, 4), memoryview(bytes(sealed[0]))) is None, "it is not to act with"
    assert ends.worker.open_policy((3, 2), sealed[1], base=True) is None, "no delta refers to what is not packed"
    assert ends.worker.outdated == 2
    sealed[0] = memoryview(bytearray(sealed[0]))
    sealed[0][len(sealed[0]) // 2] ^= 1
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 4), sealed[0], base=True)


@pytest.mark.parametrize("version", [(3, 2), (4, 1), (2, 1), (1, 3)])
def test_a_policy_under_another_version_is_refused(version: Version) -> None:
    ends = Ends()
    with pytest.raises(ForgedError, match="another version"):
        ends.worker.open_policy(version, memoryview(b"".join(ends.trainer.seal_policy((3, 1), b"weights"))))


def policy(ends: Ends, body: bytes) -> object:
    return ends.worker.open_policy((3, 1), memoryview(body))


OPENERS: dict[str, Callable[[Ends, bytes], object]] = {
    "policy": policy,
    "own directive": lambda ends, body: ends.worker.open_directive(ends.stream, body),
    "directive": lambda ends, body: ends.worker.open_directive(None, body),
    "report": lambda ends, body: ends.worker.open_report(body),
}


def letter(ends: Ends) -> bytes:
    record = StreamRecord(b"", b"", ends.worker._streams[ends.stream].key, 0, 0)
    peer = verifier().check(signer().certificate, ("worker",))
    return OpenedStream(ends.trainer, ends.stream, record, peer).letter(3, b"content")


SEALERS: dict[str, Callable[[Ends], bytes]] = {
    "policy": lambda ends: b"".join(ends.trainer.seal_policy((3, 1), b"content")),
    "own directive": letter,
    "directive": lambda ends: ends.trainer.seal_directive(3, b"content"),
    "report": lambda ends: ends.trainer.seal_report(3, b"content"),
}


@pytest.mark.parametrize("kind", OPENERS)
def test_every_changed_bit_is_noticed(kind: str) -> None:
    ends = Ends()
    body = SEALERS[kind](ends)
    for place in range(len(body)):
        altered = bytearray(body)
        altered[place] ^= 1 << place % 8
        with pytest.raises(ForgedError):
            OPENERS[kind](ends, bytes(altered))
    assert ends.worker.forged == len(body)
    assert bytes(OPENERS[kind](ends, body)) == b"content"  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", OPENERS)
def test_every_length_but_the_whole_is_refused(kind: str) -> None:
    ends = Ends()
    body = SEALERS[kind](ends)
    for other in [*(body[:end] for end in range(len(body))), *(body[at:] for at in range(1, len(body))), body + b"\0"]:
        with pytest.raises(ForgedError):
            OPENERS[kind](ends, other)


@pytest.mark.parametrize("sealed", SEALERS)
@pytest.mark.parametrize("opened", OPENERS)
def test_one_kind_is_never_another(sealed: str, opened: str) -> None:
    ends = Ends()
    body = SEALERS[sealed](ends)
    if sealed == opened:
        assert OPENERS[opened](ends, body) is not None
    else:
        with pytest.raises(ForgedError):
            OPENERS[opened](ends, body)


@pytest.mark.parametrize("kind", OPENERS)
def test_another_run_key_run_or_no_card_refuses_it(kind: str) -> None:
    ends = Ends()
    for other in (Ends(key=b"1" * 32), Ends(run="other run")):
        other.stream = ends.stream
        other.worker._streams.update(ends.worker._streams)
        with pytest.raises(ForgedError):
            OPENERS[kind](ends, SEALERS[kind](other))
    body, streams = SEALERS[kind](ends), ends.worker._streams
    ends.worker = new_worker()
    ends.worker._streams.update(streams)
    with pytest.raises(ForgedError):
        OPENERS[kind](ends, body)


def test_a_directive_for_another_stream_is_refused() -> None:
    ends = Ends()
    other = ends.worker.new_stream()
    with pytest.raises(ForgedError):
        ends.worker.open_directive(other, ends.opened().letter(3, b"own"))


def test_an_older_directive_is_not_obeyed() -> None:
    ends = Ends()
    first, second = (ends.trainer.seal_directive(3, text) for text in (b"first", b"second"))
    assert ends.worker.open_directive(None, second) == b"second"
    assert ends.worker.open_directive(None, first) is None
    assert ends.worker.open_directive(None, second) == b"second", "a reconnection repeats it"
    assert (ends.worker.outdated, ends.worker.forged) == (1, 0)


def test_an_older_report_is_not_believed() -> None:
    ends = Ends()
    first, second = (ends.trainer.seal_report(3, text) for text in (b"first", b"second"))
    assert ends.worker.open_report(second) == b"second"
    assert ends.worker.open_report(first) is None
    assert (ends.worker.outdated, ends.worker.forged) == (1, 0)


def test_a_restarted_trainer_is_newer_than_its_earlier_process() -> None:
    ends = Ends()
    before = [ends.trainer.seal_directive(3, b"before") for _ in range(5)][-1]
    assert ends.worker.open_directive(None, before) == b"before"
    restarted = trainer_with()
    assert ends.worker.announced(restarted.card(4))
    assert ends.worker.open_directive(None, restarted.seal_directive(4, b"after")) == b"after"
    assert ends.worker.open_directive(None, before) is None


def test_a_policy_is_hashed_once_for_all_incarnations() -> None:
    ends = Ends()
    body = bytes(1_000)
    first, second = ends.trainer.seal_policy((3, 1), body), ends.trainer.seal_policy((4, 1), body)
    assert first[0] is body
    assert first[1] != second[1]
    assert ends.trainer._policy is not None
    assert ends.trainer._policy[0] is body


def test_attempts_are_told() -> None:
    ends = Ends()
    told: list[str] = []
    ends.worker._on_forged = told.append
    ends.worker.announced(b"")
    with pytest.raises(ForgedError):
        ends.worker.open_report(b"report")
    assert ends.worker.check_ack(ends.stream, 1, (), b"") is False
    assert len(told) == ends.worker.forged == 3
