"""Messages to observers that watch a run, and their orders to its trainer. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.networking.relay.test_status import Wires
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.observer.viewer import ViewerConnection, ViewerState
from tmrl_core.networking.protocol.messages import Announce, Command, Control, Show, Watch, encode_body
from tmrl_core.networking.protocol.telemetry import History, Order, Scene
from tmrl_core.networking.relay import viewers
from tmrl_core.networking.relay.status import MAX_OBSERVERS
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.telemetry import HISTORY_S, SCENE_S, UNWATCHED_S, TelemetryTimes


class Source:
    """Telemetry that says how often it was asked for."""

    def __init__(self, run: str, clock: Callable[[], float]) -> None:
        self.run, self.clock = run, clock
        self.scenes = self.histories = 0

    def scene(self) -> bytes:
        self.scenes += 1
        return encode_body(Scene(run=self.run, updates=self.scenes, time_s=self.clock(), takes_orders=True))

    def history(self) -> bytes:
        self.histories += 1
        return encode_body(History(run=self.run, series={"rollout/ep_rew": ((self.histories, 1.0, 2.0),)}))


class Room(Wires):
    """A relay with a trainer that shows something, and viewers."""

    def trained(self, run: str = "run", peer: bytes = b"t") -> tuple[TrainerState, TrainerConnection, Source]:
        state = TrainerState(run=run, name="hpc", peer=peer * 16, inbox_bytes=1 << 20)
        state.orders._wall_clock = lambda: self.now
        state.orders._began = self.now
        state.orders.obeys = True
        state.telemetry = source = Source(run, lambda: self.now)
        connection = TrainerConnection(state, silent_s=10, heartbeat_s=3)
        self.connect(connection)
        return state, connection, source

    def viewer(self, run: str = "run") -> tuple[ViewerState, ViewerConnection]:
        state = ViewerState(run=run, name="anna", peer=b"v" * 16)
        connection = ViewerConnection(state, silent_s=10, heartbeat_s=3)
        self.connect(connection)
        return state, connection

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for pair in self.pairs:
                for one in pair:
                    if one.deadline() <= self.now:
                        one.tick(self.now)
            self.run()

    def leave(self, connection: TrainerConnection | ViewerConnection) -> None:
        connection.close()
        self.run()


def run_of(state: ViewerState) -> str:
    """Return the run that a viewer sees; empty: none."""
    return state.scene.run if state.scene is not None else ""


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_viewer_sees_the_latest_at_once_and_then_each_newer_one(room: Room) -> None:
    _, _, source = room.trained()
    state, _ = room.viewer()
    assert state.scene is not None
    assert state.history is not None
    assert state.history.series == {"rollout/ep_rew": ((source.histories, 1.0, 2.0),)}
    seen = state.scene.updates
    room.wait(5.0)
    assert state.scene.updates == source.scenes == seen + 5


def test_nothing_is_made_for_nobody(room: Room) -> None:
    _, _, source = room.trained()
    before = source.scenes, source.histories
    room.wait(2 * UNWATCHED_S)
    assert (source.scenes - before[0], source.histories - before[1]) == (2, 0)
    _, viewer = room.viewer()
    room.wait(HISTORY_S + SCENE_S)
    watched = source.scenes
    assert watched >= before[0] + 2 + HISTORY_S
    assert source.histories == before[1] + 2
    room.leave(viewer)
    room.wait(UNWATCHED_S)
    assert source.scenes <= watched + 2


def test_viewers_that_were_there_before_the_trainer_see_each_scene(room: Room) -> None:
    state, _ = room.viewer()
    _, trainer, source = room.trained()
    assert run_of(state) == "run"
    room.wait(5.0)
    assert source.scenes >= 5
    room.leave(trainer)
    room.trained(peer=b"u")
    before = source.scenes
    room.wait(5.0)
    assert state.scene is not None
    assert (source.scenes, state.scene.updates) == (before, 6)


def test_a_trainer_that_hears_late_of_viewers_shows_the_next_scene_soon() -> None:
    times = TelemetryTimes()
    times.begin(0.0)
    assert times.take_due(0.0) == ["scene", "history"]
    times.watched(3, 0, 0.5)
    assert times.due_at == 0.5 + SCENE_S
    assert times.take_due(HISTORY_S + 0.5) == ["scene", "history"]


def test_a_viewer_that_reads_nothing_holds_one_part_of_each(room: Room) -> None:
    _, trainer, _ = room.trained()
    _, viewer = room.viewer()
    room.pairs.remove(next(pair for pair in room.pairs if pair[0] is viewer))
    (link,) = room.relay.observers
    for number in range(100):
        trainer.send(Show("history", bytes([number]) * 50_000))
        trainer.send(Show("scene", bytes([number]) * 8_000))
        room.run()
    assert set(link._slots) <= {"scene", "history"}
    assert room.relay.viewers.held_bytes == 58_000


def test_another_run_is_not_shown_and_gets_no_orders(room: Room) -> None:
    state, trainer, _ = room.trained("first")
    shown, _ = room.viewer("first")
    other, other_link = room.viewer("second")
    assert (run_of(shown), run_of(other)) == ("first", "")
    other_link.command(*other.envelope(Order(kind="pause")))
    room.run()
    (outcome,) = other.answered.values()
    assert "the Server's trainer is of run 'first', and you watch 'second'" in outcome.outcome
    assert state.orders.take() is None
    room.leave(trainer)
    room.trained("second", b"u")
    assert (run_of(shown), run_of(other)) == ("first", "second")


def test_without_a_run_it_follows_the_trainer_and_sees_the_end_of_a_run(room: Room) -> None:
    _, trainer, _ = room.trained("first")
    room.leave(trainer)
    state, _ = room.viewer("")
    assert run_of(state) == "first"
    room.trained("second", b"u")
    assert run_of(state) == "second"


def test_runs_beyond_a_number_are_forgotten(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MAX_RUNS", 3)
    for number in range(5):
        _, trainer, _ = room.trained(f"run{number}", bytes([number + 1]))
        room.leave(trainer)
    seen = [room.viewer(f"run{number}")[0].scene is not None for number in range(5)]
    assert seen == [False, False, True, True, True]


def test_the_status_counts_telemetry(room: Room) -> None:
    room.trained()
    assert room.look().budgets["telemetry"].used_bytes == room.relay.viewers.held_bytes > 0


def test_viewers_share_the_places_of_observers(room: Room) -> None:
    for _ in range(MAX_OBSERVERS):
        room.viewer()
    state, connection = room.viewer()
    assert state.connections == 0
    assert connection.closing


@pytest.mark.parametrize("message", [Watch("run"), Command(0, b"nonsense")])
def test_one_that_asks_and_does_not_read_loses_its_link(room: Room, message: Control) -> None:
    room.trained()
    room.viewer()
    (link,) = room.relay.observers
    room.relay._cards["run"] = Announce(1, bytes(10_000))

    def ask_often() -> None:
        for _ in range(2_000):
            room.relay.message(link, message)

    with pytest.raises(RemoteProtocolError, match="faster than the answers are read"):
        ask_often()
    assert link.unread_bytes < 80_000


def test_viewers_that_come_again_and_again_cost_few_histories(room: Room) -> None:
    _, _, source = room.trained()
    _, viewer = room.viewer()
    room.wait(5.0)
    before = source.histories
    for _ in range(20):
        viewer.send(Watch("run"))
        room.run()
    assert source.histories == before
    for _ in range(4):
        room.viewer()
    room.wait(5.0)
    assert source.histories <= before + 2


def test_only_the_trainer_may_show(room: Room) -> None:
    room.trained()
    _, viewer = room.viewer()
    viewer.send(Show("scene", encode_body(Scene(run="run"))))
    room.run()
    assert isinstance(viewer.reason, Exception)
    assert room.relay.protocol_errors == 1


def test_what_cannot_be_read_ends_the_link(room: Room) -> None:
    _, trainer, _ = room.trained()
    _, viewer = room.viewer()
    trainer.send(Show("scene", b"\xc1"))
    room.run()
    assert isinstance(viewer.reason, RemoteProtocolError)


def test_an_order_is_carried_out_once_and_its_outcome_shown(room: Room) -> None:
    state, _, _ = room.trained()
    viewer, link = room.viewer()
    number, envelope = viewer.envelope(Order(kind="pause_worker", worker="robot7"))
    link.command(number, envelope)
    link.command(number, envelope)
    room.run()
    order = state.orders.take()
    assert order is not None
    assert (order.by, order.order) == ("anna", Order(kind="pause_worker", worker="robot7"))
    assert state.orders.take() is None
    assert [one.outcome for one in state.orders.outcomes] == ["refused: it was received before"]
    state.orders.answer(order, "done", done=True)
    assert state.orders.outcomes[-1].id == envelope.id
    assert state.orders.outcomes[-1].text == "pause worker robot7"


def test_an_order_without_a_trainer_is_answered(room: Room) -> None:
    viewer, link = room.viewer()
    link.command(*viewer.envelope(Order(kind="checkpoint")))
    room.run()
    (outcome,) = viewer.answered.values()
    assert outcome.outcome.startswith("refused: no trainer is connected to the Server")
    assert not outcome.done


def test_an_order_to_a_trainer_that_was_seen_long_ago_is_refused(room: Room) -> None:
    state, trainer, _ = room.trained()
    viewer, link = room.viewer()
    order = viewer.envelope(Order(kind="resume"))
    room.wait(61.0)
    link.command(*order)
    room.run()
    assert state.orders.take() is None
    assert "saw the trainer too long ago" in state.orders.outcomes[-1].outcome
    room.leave(trainer)
    restarted, _, _ = room.trained(peer=b"u")
    link.command(*viewer.envelope(Order(kind="resume")))  # it has seen the new process
    link.command(*order)
    room.run()
    assert restarted.orders.take() is not None
    assert restarted.orders.take() is None


def test_orders_are_limited_for_each_principal(room: Room) -> None:
    state, _, _ = room.trained()
    viewer, link = room.viewer()
    for _ in range(viewers.COMMANDS_AT_ONCE + 3):
        link.command(*viewer.envelope(Order(kind="checkpoint")))
    room.run()
    taken = 0
    while state.orders.take() is not None:
        taken += 1
    assert taken == viewers.COMMANDS_AT_ONCE
    assert sum("more than 1 order each second" in one.outcome for one in viewer.answered.values()) == 3
    room.wait(2.0)
    link.command(*viewer.envelope(Order(kind="checkpoint")))
    room.run()
    assert state.orders.take() is not None


@pytest.mark.parametrize("body", [b"", b"\xc1", encode_body(["run", "id", 0.0, b"nonsense"])])
def test_what_is_no_order_is_refused(room: Room, body: bytes) -> None:
    state, _, _ = room.trained()
    _, link = room.viewer()
    link.send(Command(0, body))
    room.run()
    assert state.orders.take() is None
    assert state.orders.outcomes[-1].outcome.startswith("refused: ")


def test_a_trainer_that_shows_nothing_takes_no_orders(room: Room) -> None:
    trainer = room.trainer()
    viewer, link = room.viewer()
    link.command(*viewer.envelope(Order(kind="pause")))
    room.run()
    assert trainer.orders.take() is None
    assert "this trainer carries out no orders" in trainer.orders.outcomes[-1].outcome
