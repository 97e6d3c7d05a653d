"""A viewer believes its trainer alone, and a trainer its operators alone, whatever the relay does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.networking.end_to_end.ends import certificate, signer, verifier
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import Signer, Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.signed import check_message, sign_message
from tmrl_core.networking.observer.seal import ViewerSeal
from tmrl_core.networking.protocol.messages import encode_body
from tmrl_core.networking.protocol.telemetry import Order, OrderEnvelope
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.trainer.orders import Orders
from tmrl_core.networking.trainer.seal import TrainerSeal


def trainer(run: str = "run", role: str = "trainer", ca: str = "ours", revoked: Any = ()) -> TrainerSeal:
    check = verifier()
    check.revoked = revoked
    return TrainerSeal(run, signer(role, "node", ca), check, RunKey(bytes(32)))


def viewer(check: Verifier | None = None) -> ViewerSeal:
    return ViewerSeal(signer("operator", "anna"), check or verifier())


def envelope(**changes: Any) -> OrderEnvelope:
    order = encode_body(Order(kind="pause_worker", worker="robot"))
    return msgspec.structs.replace(OrderEnvelope("run", "id", 1_700_000_000.25, order), **changes)


# --- scenes -----------------------------------------------------------------------------------------------------------


def test_what_the_trainer_shows_is_believed() -> None:
    seal, end = trainer(), viewer()
    end.announced(seal.card(3))
    run, content = end.open("scene", seal.seal_telemetry(3, "scene", b"content"))
    assert (run, bytes(content), end.forged) == ("run", b"content", 0)


def test_a_byte_that_was_changed_is_noticed() -> None:
    seal, end = trainer(), viewer()
    end.announced(seal.card(3))
    body = seal.seal_telemetry(3, "scene", b"content")
    for at in (0, len(body) - 20, len(body) - 1):
        changed = bytearray(body)
        changed[at] ^= 1
        with pytest.raises(ForgedError):
            end.open("scene", bytes(changed))
    assert end.forged == 3


def test_a_scene_is_no_history_and_an_old_one_not_the_latest() -> None:
    seal, end = trainer(), viewer()
    end.announced(seal.card(3))
    old, new = (seal.seal_telemetry(3, "scene", body) for body in (b"old", b"new"))
    with pytest.raises(ForgedError, match="wrong signature"):
        end.open("history", new)
    end.open("scene", new)
    end.open("scene", new)  # a link that is made again begins with the latest
    with pytest.raises(ForgedError, match="older than an accepted one"):
        end.open("scene", old)


@pytest.mark.parametrize(
    "other", [trainer(ca="theirs"), trainer(role="worker"), trainer(role="operator")], ids=["CA", "worker", "operator"]
)
def test_only_a_trainer_of_this_ca_is_believed(other: TrainerSeal) -> None:
    end = viewer()
    end.announced(other.card(3))
    with pytest.raises(ForgedError, match="no trainer with a valid certificate"):
        end.open("scene", other.seal_telemetry(3, "scene", b"content"))


def test_a_card_of_an_earlier_trainer_is_ignored() -> None:
    seal, end = trainer(), viewer()
    end.announced(seal.card(3))
    earlier = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes([1]) * 32))
    end.announced(earlier.card(2))
    end.open("scene", seal.seal_telemetry(3, "scene", b"content"))
    with pytest.raises(ForgedError):
        end.open("scene", earlier.seal_telemetry(2, "scene", b"content"))


def test_another_run_may_be_watched_next() -> None:
    end = viewer()
    for name in ("first", "second"):
        seal = trainer(name)
        end.announced(seal.card(3))
        assert end.open("scene", seal.seal_telemetry(3, "scene", b"content"))[0] == name


def test_a_revoked_trainer_is_not_believed_any_more() -> None:
    check = verifier()
    seal, end = trainer(), viewer(check)
    end.announced(seal.card(3))
    check.revoked = {read_facts(certificate("trainer", "node").certificate).serial}
    end.recheck()
    with pytest.raises(ForgedError, match="no trainer with a valid certificate"):
        end.open("scene", seal.seal_telemetry(3, "scene", b"content"))


def test_a_card_that_is_nonsense_is_counted() -> None:
    end = viewer()
    end.announced(b"nonsense")
    assert end.forged == 1


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["operator", "trainer"])
def test_an_operator_is_obeyed_and_whoever_can_train(role: str) -> None:
    assert check_message(sign_message(envelope(), signer(role, "anna")), verifier()).name == "anna"


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"id": "other"},
        {"scene_s": 1_700_000_001.25},
        {"order": encode_body(Order(kind="pause"))},
        {"certificate": signer("operator", "ben").certificate},
        {"proof": bytes(64)},
        {"proof": b""},
        {"certificate": b""},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_order_cannot_be_changed(change: dict[str, Any]) -> None:
    signed = sign_message(envelope(), signer("operator", "anna"))
    with pytest.raises(ForgedError):
        check_message(msgspec.structs.replace(signed, **change), verifier())


@pytest.mark.parametrize("by", [signer("worker", "robot"), signer("operator", "anna", "theirs")], ids=["worker", "CA"])
def test_nobody_else_gives_orders(by: Signer) -> None:
    with pytest.raises(ForgedError):
        check_message(sign_message(envelope(), by), verifier())


def test_an_unsigned_or_revoked_order_is_answered_and_counted() -> None:
    revoked = {read_facts(certificate("operator", "anna").certificate).serial}
    seal, orders = trainer(revoked=revoked), Orders("run", lambda: 1_700_000_000.0)
    orders.obeys = True
    orders.received(encode_body(envelope(by="anna")), seal)
    orders.received(encode_body(sign_message(envelope(), signer("operator", "anna"))), seal)
    orders.received(encode_body(sign_message(envelope(), signer("operator", "ben"))), seal)
    assert [one.outcome.partition(":")[2][:17] for one in orders.outcomes] == [" it is not signed", " the certificate "]
    assert [one.by for one in orders.outcomes] == ["", ""]
    assert seal.forged == 2
    order = orders.take()
    assert order is not None
    assert order.by == "ben"
    assert orders.take() is None
