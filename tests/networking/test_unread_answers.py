"""A Server that sends messages and reads no answers does not fill the memory of a trainer or worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.networking.end_to_end.ends import Ends
from tmrl_core.networking.protocol.client import ClientConnection
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Control, Halt, Incarnation, Welcome, control_frame
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState


def give(connection: Connection, message: Control) -> None:
    data = control_frame(message)
    while data and not connection.closing:
        view = connection.get_buffer()
        n = min(len(view), len(data))
        view[:n] = data[:n]
        connection.received(n, 0.0)
        data = data[n:]


def new_trainer() -> Connection:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=Ends().trainer)
    return TrainerConnection(state, silent_s=10, heartbeat_s=3)


def new_worker() -> Connection:
    state = WorkerState(run="run", name="robot", peer=b"w" * 16)
    state.add_stream(StreamSender(b"s" * 16, queue_bytes=1 << 20, drop_oldest=False), b"")
    state.ending = True
    return WorkerConnection(state, silent_s=10, heartbeat_s=3)


@pytest.mark.parametrize(
    ("make", "flood"),
    [(new_trainer, lambda n: Incarnation(n + 3)), (new_worker, lambda n: Halt(0))],
    ids=["trainer", "worker"],
)
def test_its_link_is_closed(
    make: Callable[[], Connection], flood: Callable[[int], Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ClientConnection.MAX_UNREAD_BYTES == 16 << 20
    connection = make()
    monkeypatch.setattr(type(connection), "MAX_UNREAD_BYTES", 20_000)
    connection.connected(Identity("Server"), 0.0)
    connection.to_send(0.0)
    give(connection, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0, spool_bytes=1))
    for number in range(5_000):
        give(connection, flood(number))
        if connection.closing:
            break
    assert "does not read the answers" in str(connection.reason)
    assert sum(map(len, connection.to_send(0.0))) < 20_000
