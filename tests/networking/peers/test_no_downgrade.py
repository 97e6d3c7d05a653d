"""A Server cannot turn off the authentication of a worker or trainer by the version of the protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.networking.end_to_end.ends import Ends
from tests.networking.peers.test_own_incarnation import said
from tests.networking.peers.test_unread_answers import give
from tmrl_core.networking.peers import TrainerConnection, TrainerState, WorkerConnection, WorkerState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.messages import Hello, OpenStream, Welcome


def new_worker(ends: Ends) -> WorkerConnection:
    state = WorkerState(run="run", name="robot", peer=b"w" * 16, seal=ends.worker)
    return WorkerConnection(state, silent_s=10, heartbeat_s=3)


def new_trainer(ends: Ends) -> TrainerConnection:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=ends.trainer)
    return TrainerConnection(state, silent_s=10, heartbeat_s=3)


@pytest.mark.parametrize("make", [new_worker, new_trainer])
@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_than_the_offered_one_ends_the_link(make: Callable[[Ends], Connection], version: int) -> None:
    link = make(Ends())
    link.connected(Identity("Server"), 0.0)
    (hello,) = said(link)
    assert isinstance(hello, Hello)
    assert hello.versions == (2,)
    give(link, Welcome(version, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    assert f"answers in protocol version {version}" in str(link.reason)
    assert not any(isinstance(message, OpenStream) for message in said(link))
