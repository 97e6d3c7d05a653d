"""A viewer shows pictures of the run's workers alone, whatever the relay does."""

from __future__ import annotations

import msgspec
import pytest

from tests.networking.end_to_end.ends import certificate, signer, verifier
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.signed import sign_message
from tmrl_core.networking.observer.seal import ViewerSeal
from tmrl_core.networking.observer.viewer import ViewerState
from tmrl_core.networking.protocol.messages import encode_body
from tmrl_core.networking.protocol.pictures import Picture, Piece
from tmrl_core.networking.protocol.telemetry import Scene
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.worker.pictures import SECRET, OutgoingPictures
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

PIECE = Piece("run", "robot7", "camera", 5, 0, 1, b"frame")


def viewer() -> ViewerState:
    state = ViewerState(run="run", name="anna", peer=b"v" * 16, seal=ViewerSeal(signer("operator", "anna"), verifier()))
    state.scene = Scene(run="run")
    return state


@pytest.mark.parametrize(
    "changed",
    [
        {"content": b"other"},
        {"number": 6},
        {"worker": "robot8"},
        {"kind": "video"},
        {"text": "all is well"},
        {"certificate": b""},
        {"proof": b""},
        {"proof": bytes(64)},
    ],
)
def test_a_piece_that_was_changed_is_not_shown(changed: dict[str, object]) -> None:
    state, piece = viewer(), sign_message(PIECE, signer("worker", "robot7"))
    assert not state.filmed(encode_body(msgspec.structs.replace(piece, **changed)))
    assert state.seal is not None
    assert (state.seal.forged, state.pictures.shown) == (1, {})
    assert state.filmed(encode_body(piece))
    assert state.pictures.shown["robot7", "camera"].origin == "robot7"
    assert not state.filmed(encode_body(piece))  # again


@pytest.mark.parametrize(("role", "ca"), [("trainer", "ours"), ("operator", "ours"), ("worker", "theirs")])
def test_only_a_worker_of_this_ca_shows_pictures(role: str, ca: str) -> None:
    state = viewer()
    assert not state.filmed(encode_body(sign_message(PIECE, signer(role, "robot7", ca))))
    assert not state.pictures.shown


def test_a_revoked_worker_shows_nothing_more() -> None:
    check = verifier()
    seal = ViewerSeal(signer("operator", "anna"), check)
    piece = sign_message(PIECE, signer("worker", "robot7"))
    assert seal.check_piece(piece) == "robot7"
    check.revoked = {read_facts(certificate("worker", "robot7").certificate).serial}
    with pytest.raises(ForgedError):
        seal.check_piece(piece)


def test_a_picture_of_another_run_is_left_out() -> None:
    state = viewer()
    assert not state.filmed(encode_body(sign_message(msgspec.structs.replace(PIECE, run="b"), signer("worker", "r"))))
    state.scene = None
    assert not state.filmed(encode_body(sign_message(PIECE, signer("worker", "robot7"))))


@pytest.mark.parametrize(("mode", "shown"), [("authenticate", b"frame"), ("encrypt", b"")])
def test_with_encryption_the_relay_sees_no_picture(mode: Mode, shown: bytes) -> None:
    seal = WorkerSeal("run", signer("worker", "robot7"), verifier(), mode=mode)
    pictures = OutgoingPictures("run", lambda: seal)
    pictures.show(Picture("robot7", "camera", 5, b"frame"))
    (film,) = pictures.take(0.0)
    assert (b"frame" in film.body) == bool(shown)
    state = viewer()
    assert state.filmed(film.body)
    assert state.pictures.shown["robot7", "camera"] == (
        "robot7",
        "camera",
        5,
        shown,
        "" if shown else SECRET,
        "robot7",
    )
