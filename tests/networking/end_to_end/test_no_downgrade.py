"""Each end decides by what it demands whether the other end's messages need proofs; a Server cannot change that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.networking.end_to_end.ends import Ends
from tests.networking.relay.test_probes import feed
from tests.networking.test_unread_answers import give
from tests.networking.trainer.test_own_incarnation import said
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import Body
from tmrl_core.networking.protocol.framing import Kind, cut
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    POLICY_HEAD,
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    Announce,
    Direct,
    Directive,
    Hello,
    OpenStream,
    PolicyUpdate,
    Progress,
    Report,
    Welcome,
    encode_body,
)
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState
from tmrl_core.networking.worker.seal import Mode


def new_worker(ends: Ends) -> WorkerConnection:
    state = WorkerState(run="run", name="robot", peer=b"w" * 16, seal=ends.worker)
    return WorkerConnection(state, silent_s=10, heartbeat_s=3)


def new_trainer(ends: Ends) -> TrainerConnection:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=ends.trainer)
    return TrainerConnection(state, silent_s=10, heartbeat_s=3)


@pytest.mark.parametrize("make", [new_worker, new_trainer])
@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_than_the_offered_one_ends_the_link(make: Callable[[Ends], Connection], version: int) -> None:
    link = make(Ends())
    link.connected(Identity("Server"), 0.0)
    (hello,) = said(link)
    assert isinstance(hello, Hello)
    assert hello.versions == SUPPORTED_VERSIONS
    give(link, Welcome(version, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    assert f"answers in protocol version {version}" in str(link.reason)
    assert not any(isinstance(message, OpenStream) for message in said(link))


@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_a_worker_without_proofs_uses_nothing_of_a_trainer_that_authenticates(mode: Mode) -> None:
    trainer = Ends(mode).trainer
    state = WorkerState(run="run", name="robot", peer=b"w" * 16)
    link = WorkerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(PROTOCOL_VERSION, 3, 1 << 20, 1 << 20, 1 << 20, 3.0))
    give(link, Announce(3, trainer.card(3)))
    give(link, Report(trainer.seal_report(3, encode_body(Progress(7)))))
    give(link, Direct(ALL_CHANNELS, 1, trainer.seal_directive(3, encode_body(Directive(1, pause=True)))))
    give_policy(link, trainer.seal_policy((4, 1), encode_body(PolicyUpdate((4, 1), {}))))
    assert not link.closing
    assert state.trainer_authenticates
    assert (state.progress, state.directives, state.policy) == (Progress(), {}, None)


def test_a_worker_with_proofs_uses_nothing_without_one() -> None:
    link = new_worker(Ends())
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(PROTOCOL_VERSION, 3, 1 << 20, 1 << 20, 1 << 20, 3.0))
    give(link, Report(encode_body(Progress(7))))
    give(link, Direct(ALL_CHANNELS, 1, encode_body(Directive(1, pause=True))))
    give_policy(link, (encode_body(PolicyUpdate((4, 1), {})),))
    state = link.worker
    assert not link.closing
    assert state.seal is not None
    assert state.seal.forged == 3
    assert (state.progress, state.directives, state.policy) == (Progress(), {}, None)


def give_policy(link: WorkerConnection, body: Body) -> None:
    head = POLICY_HEAD.pack(4, 1, sum(map(len, body)))
    for wire in cut(Kind.WEIGHTS, head, body, epoch=0, channel=0):
        feed(link, bytes(wire))
