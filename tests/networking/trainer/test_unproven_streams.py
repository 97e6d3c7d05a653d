"""Streams without a proof of their origin, at a trainer that asks for one."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import Ends
from tests.networking.test_unread_answers import give
from tests.networking.trainer.test_greedy_server import give_frame
from tests.networking.trainer.test_own_incarnation import said
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import FIRST, LAST
from tmrl_core.networking.protocol.messages import (
    AUTHENTICATED,
    SAMPLES_HEAD,
    Ack,
    Halt,
    Resume,
    StreamClosed,
    StreamOpened,
    Welcome,
)
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.seal import TrainerSeal


@pytest.fixture
def remarks() -> list[str]:
    return []


def new_link(remarks: list[str], seal: TrainerSeal | None) -> TrainerConnection:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=seal)
    state.on_remark = lambda text, name: remarks.append(text)
    made = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    made.connected(Identity("Server"), 0.0)
    give(made, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    said(made)
    return made


@pytest.fixture
def link(remarks: list[str]) -> TrainerConnection:
    return new_link(remarks, Ends().trainer)


@pytest.mark.parametrize(
    ("signature", "live", "taken"),
    [(b"", True, False), (b"", False, False), (AUTHENTICATED + b"junk", False, True), (AUTHENTICATED, True, True)],
)
def test_only_streams_that_claim_a_proof_are_resumed_and_refused(
    link: TrainerConnection, remarks: list[str], signature: bytes, live: bool, taken: bool
) -> None:
    give(link, StreamOpened(1, b"s" * 16, "robot7", signature, live))
    answers = said(link)
    # A refused stream is resumed, and each of its messages answered with the reason.
    assert any(isinstance(one, Resume) for one in answers) == taken
    assert any(isinstance(one, Halt) for one in answers) == (live and not taken)
    assert bool(remarks) != taken
    assert not link.trainer.members


@pytest.mark.parametrize(
    ("live", "advice"),
    [
        (True, "use the same network.end_to_end on all machines"),
        (False, "run the trainer once with network.end_to_end: off"),
    ],
)
def test_the_remark_says_what_to_do(link: TrainerConnection, remarks: list[str], live: bool, advice: str) -> None:
    give(link, StreamOpened(1, b"s" * 16, "robot7", b"", live))
    (remark,) = remarks
    assert "worker robot7 does not authenticate its samples" in remark
    assert advice in remark


def test_a_trainer_that_checks_nothing_halts_a_stream_with_proofs(remarks: list[str]) -> None:
    link = new_link(remarks, None)
    give(link, StreamOpened(1, b"s" * 16, "robot7", AUTHENTICATED + b"record"))
    (halt,) = said(link)
    assert isinstance(halt, Halt)
    assert "use the same network.end_to_end on all machines" in halt.reason
    assert len(remarks) == 1


def test_a_burst_of_refused_messages_gets_one_answer_and_does_not_cut_the_link(link: TrainerConnection) -> None:
    for channel in (1, 2):
        give(link, StreamOpened(channel, b"%16d" % channel, "robot7", AUTHENTICATED + b"junk"))
    said(link)
    for number in range(12_000):  # half a megabyte
        give_frame(link, 1, FIRST | LAST, SAMPLES_HEAD.pack(number, 0, number, 1, 0))
    for channel in (1, 2):
        give_frame(link, channel, FIRST | LAST, SAMPLES_HEAD.pack(12_000, 0, 12_000, 1, 0))
    assert not link.closing
    give(link, StreamClosed(2, False))
    (answer,) = (one for one in said(link) if isinstance(one, Ack))
    assert (answer.channel, answer.next, [number for number, _ in answer.refused]) == (1, 12_001, [12_000])
    assert not link.trainer.receivers


def test_a_channel_has_one_unproven_stream(link: TrainerConnection) -> None:
    give(link, StreamOpened(1, b"s" * 16, "robot7", AUTHENTICATED))
    assert not link.closing
    give(link, StreamOpened(1, b"t" * 16, "robot7", AUTHENTICATED))
    assert "channel 1 was announced twice" in str(link.reason)
