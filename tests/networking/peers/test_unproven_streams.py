"""Streams without a proof of their origin, at a trainer that asks for one."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import Ends
from tests.networking.peers.test_own_incarnation import said
from tests.networking.peers.test_unread_answers import give
from tmrl_core.networking.peers import TrainerConnection, TrainerState
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.messages import AUTHENTICATED, Resume, StreamOpened, Welcome


@pytest.fixture
def remarks() -> list[str]:
    return []


@pytest.fixture
def link(remarks: list[str]) -> TrainerConnection:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=Ends().trainer)
    state.on_remark = lambda text, name: remarks.append(text)
    made = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    made.connected(Identity("Server"), 0.0)
    give(made, Welcome(2, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    said(made)
    return made


@pytest.mark.parametrize(
    ("signature", "live", "taken"),
    [(b"", True, True), (b"", False, False), (AUTHENTICATED + b"junk", False, True), (AUTHENTICATED, True, True)],
)
def test_only_stored_samples_of_earlier_releases_stay_where_they_are(
    link: TrainerConnection, remarks: list[str], signature: bytes, live: bool, taken: bool
) -> None:
    give(link, StreamOpened(1, b"s" * 16, "robot7", signature, live))
    # A refused stream is resumed, and each of its messages answered with the reason.
    assert any(isinstance(one, Resume) for one in said(link)) == taken
    assert bool(remarks) != taken
    assert not link.trainer.members


def test_the_remark_says_what_to_do(link: TrainerConnection, remarks: list[str]) -> None:
    give(link, StreamOpened(1, b"s" * 16, "robot7", b"", False))
    (remark,) = remarks
    assert "worker robot7" in remark
    assert "run the trainer once with network.end_to_end: off" in remark
