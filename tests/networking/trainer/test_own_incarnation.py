"""A trainer with a seal chooses its incarnation: the Server and signed records may raise it, by a plausible number."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import Ends, signer, verifier
from tests.networking.test_unread_answers import give
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import FrameReader, Kind
from tmrl_core.networking.protocol.messages import (
    MOST_RAISED,
    Announce,
    Direct,
    Directive,
    Incarnation,
    StreamClosed,
    StreamOpened,
    Welcome,
    decode_control,
)
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.connection import MOST_RECORD_RAISES
from tmrl_core.networking.worker.seal import WorkerSeal


class Held:
    """Incarnations that a trainer has stored."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.full = False

    def __call__(self, incarnation: int) -> None:
        if self.full:
            raise CredentialsError("the disk is full")
        self.stored.append(incarnation)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def remarks() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def link(held: Held, ends: Ends, remarks: list[tuple[str, str]]) -> TrainerConnection:
    state = TrainerState(
        run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=ends.trainer, incarnation=4, hold=held
    )
    state.on_remark = lambda text, name: remarks.append((text, name))
    return open_link(state)


def open_link(state: TrainerState, suggested: int = 1) -> TrainerConnection:
    made = TrainerConnection(state, silent_s=1_000, heartbeat_s=1_000)
    made.connected(Identity("Server"), 0.0)
    give(made, Welcome(1, suggested, 1 << 20, 1 << 20, 1 << 20, 3.0))
    return made


def said(link: Connection) -> list[object]:
    reader = FrameReader()
    messages: list[object] = []
    data = b"".join(link.to_send(0.0))
    while data:
        view = reader.get_buffer()
        n = min(len(view), len(data))
        view[:n] = data[:n]
        messages += [decode_control(frame.payload) for frame in reader.received(n) if frame.kind == Kind.CONTROL]
        data = data[n:]
    return messages


def test_a_server_raises_it_by_a_plausible_number(link: TrainerConnection, held: Held) -> None:
    for suggested in (3, 9, 9 + MOST_RAISED + 1):
        give(link, Incarnation(suggested))
    assert held.stored == [5, 9]
    assert [one.incarnation for one in said(link) if isinstance(one, Announce)] == [5, 5, 9, 9]


def test_a_disk_that_fails_keeps_it_and_the_link(
    link: TrainerConnection, held: Held, remarks: list[tuple[str, str]]
) -> None:
    held.full = True
    give(link, Incarnation(9))
    assert (link.trainer.holding, link.closing) == (5, False)
    assert "the disk is full" in remarks[-1][0]


def test_the_signed_record_of_a_worker_raises_it_also_if_the_server_hides_it(
    link: TrainerConnection, held: Held, ends: Ends
) -> None:
    """Its worker has accepted incarnation 7 of a trainer on another machine."""
    assert ends.worker.announced(ends.trainer.card(7))
    link.trainer.directives[None] = Directive(1, pause=True)
    said(link)
    for channel in (1, 2):
        give(link, StreamOpened(channel, ends.stream, "robot", ends.worker.record(ends.stream, b"")))
        if channel == 1:
            give(link, StreamClosed(1, False))
    assert held.stored == [5, 8]
    messages = said(link)
    (card,) = (one for one in messages if isinstance(one, Announce))
    (directive,) = (one for one in messages if isinstance(one, Direct))
    assert ends.worker.announced(card.body)
    assert ends.worker.open_directive(None, directive.body) is not None
    assert ends.worker.incarnation == 8


def test_an_implausible_record_does_not_make_it_announce_again(link: TrainerConnection, held: Held, ends: Ends) -> None:
    """The Server lets a trainer keep a number that another one has had, if the trainer announces it a second time."""
    assert ends.worker.announced(ends.trainer.card(6 + MOST_RAISED))
    said(link)
    give(link, StreamOpened(1, ends.stream, "robot", ends.worker.record(ends.stream, b"")))
    assert held.stored == [5]
    assert not [one for one in said(link) if isinstance(one, Announce)]


def test_records_of_one_worker_raise_it_a_few_times_only(
    link: TrainerConnection, held: Held, ends: Ends, remarks: list[tuple[str, str]]
) -> None:
    """A stolen worker claims ever higher incarnations, each of which makes the trainer publish its weights again."""

    def claim(worker: WorkerSeal, incarnation: int) -> None:
        stream = worker.new_stream()
        assert worker.announced(ends.trainer.card(incarnation))
        give(link, StreamOpened(incarnation, stream, "robot", worker.record(stream, b"")))

    for incarnation in range(10, 10 + 2 * MOST_RECORD_RAISES, 2):
        claim(ends.worker, incarnation)
        assert held.stored[-1] == incarnation + 1
    claim(ends.worker, 1_000)
    assert held.stored[-1] < 1_000
    ((text, name),) = remarks
    assert "higher incarnations" in text
    assert name == "robot"
    other = WorkerSeal("run", signer(name="other"), verifier(), mode="authenticate")
    claim(other, 2_000)
    assert held.stored[-1] == 2_001
