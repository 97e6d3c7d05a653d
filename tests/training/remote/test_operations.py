"""Orders of operators, carried out between two updates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.waiting import until
from tmrl_core.errors import ConfigError
from tmrl_core.metrics import MemorySink, Recorder, names
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.messages import PAUSE_END, Evaluation, Progress, encode_body, starves
from tmrl_core.networking.protocol.pictures import CAMERA_S, Wanted
from tmrl_core.networking.protocol.telemetry import Order, OrderEnvelope, OrderKind, OrderOutcome
from tmrl_core.networking.trainer import Member
from tmrl_core.networking.trainer.orders import MAX_WAITING
from tmrl_core.training.loops.evaluation import Evaluator
from tmrl_core.training.remote.interface import RemoteInterface

FIRST, SECOND = (bytes([number]) * 16 for number in (1, 2))


class Paused:
    """An interface whose clock goes on by itself, and orders for it."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.recorder = Recorder([self.sink])
        self.now = 0.0
        self.link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
        self.interface = RemoteInterface(self.link, recorder=self.recorder, clock=lambda: self.now)
        self.joined(FIRST, "robot7")
        self.joined(SECOND, "robot8")
        self._ids = 0

    def joined(self, stream: bytes, name: str) -> None:
        self.link.trainer.members[stream] = Member(stream, name, b"", 0.0)
        self.interface.receive()

    def order(self, kind: OrderKind, **more: object) -> None:
        order = encode_body({"kind": kind, **more})
        self._ids += 1
        self.link.trainer.orders.received(
            encode_body(OrderEnvelope("run", str(self._ids), time.time(), order, "anna")), None
        )

    @property
    def answer(self) -> OrderOutcome:
        return self.link.trainer.orders.outcomes[-1]

    def pauses(self, stream: bytes) -> bool:
        directive = self.link.trainer.directives.get(stream)
        return directive is not None and directive.pause


@pytest.fixture
def paused() -> Iterator[Paused]:
    made = Paused()
    yield made
    made.recorder.close()


class Controls:
    """A Trainer that writes checkpoints and takes ratios up to 4."""

    def __init__(self) -> None:
        self.checkpoints = 0
        self.ratio = 1.0
        self.against = ""

    def checkpoint_now(self) -> str:
        self.checkpoints += 1
        return self.against

    def change_ratio(self, updates_per_step: float) -> None:
        if updates_per_step > 4:
            raise ConfigError("too many")
        self.ratio = updates_per_step


def test_a_pause_holds_training_takes_samples_and_writes_checkpoints(paused: Paused) -> None:
    held, rested = threading.Event(), threading.Event()
    paused.interface.on_hold, paused.interface.on_rest = held.set, rested.set
    paused.interface.rest()
    assert not held.is_set()
    rested.clear()
    paused.order("pause")
    training = threading.Thread(target=paused.interface.rest)
    training.start()
    try:
        assert held.wait(20.0)
        assert rested.wait(20.0)
        assert paused.interface.progressing().paused_by == "anna"
        assert (paused.answer.text, paused.answer.outcome, paused.answer.by) == ("pause training", "done", "anna")
    finally:
        paused.order("resume")
        training.join(20.0)
    assert not training.is_alive()
    assert paused.interface.progressing().paused_by == ""
    paused.recorder.flush()
    events = [one.text(names.MESSAGE) for one in paused.sink.records if one.text(names.EVENT) == names.EVENT_ORDER]
    assert events == ["anna: pause training: done", "anna: resume training: done"]


def test_a_loop_that_never_rests_is_not_said_to_be_paused(paused: Paused) -> None:
    paused.order("pause")
    paused.interface.receive()
    assert "this training loop has not yet called interface.rest" in paused.answer.outcome
    assert not paused.interface.progressing().paused_by


def test_trainers_that_act_together_are_not_paused_alone(paused: Paused) -> None:
    operations = paused.interface.operations
    operations.together, operations.controls = "there are several ranks", Controls()
    paused.interface.rest()
    for kind, done in (("pause", False), ("ratio", False), ("checkpoint", True)):
        paused.order(kind, value=1.0)  # type: ignore[arg-type]
        paused.interface.receive()
        assert paused.answer.done is done
    assert not operations.pauses


def test_a_stop_ends_a_pause(paused: Paused) -> None:
    paused.interface.rest()
    paused.order("pause")
    paused.interface.receive()
    paused.interface.stop()
    paused.interface.rest()
    assert paused.interface.stopping


def test_a_paused_worker_is_directed_also_if_it_starts_again(paused: Paused) -> None:
    paused.order("pause_worker", worker="robot7")
    paused.interface.receive()
    assert (paused.pauses(FIRST), paused.pauses(SECOND)) == (True, False)
    assert paused.interface.workers() == [(SECOND, "robot8")]
    assert paused.interface.progressing().paused_workers == {"robot7"}
    del paused.link.trainer.members[FIRST]
    again = bytes(16)
    paused.joined(again, "robot7")
    assert paused.pauses(again)
    paused.order("resume_worker", worker="robot7")
    paused.interface.receive()
    assert not paused.pauses(again)
    assert len(paused.interface.workers()) == 2


def test_a_paused_worker_runs_no_evaluation(paused: Paused) -> None:
    interface = paused.interface
    interface.evaluator = Evaluator(1, 0, 0, interface.ask)
    paused.order("pause_worker", worker="robot7")
    interface.receive()
    interface.evaluate_now()
    interface.ask(Evaluation(1, (1,)), FIRST)
    directives = paused.link.trainer.directives
    assert directives[FIRST].evaluation is None
    assert directives[SECOND].evaluation is not None
    paused.order("resume_worker", worker="robot7")
    interface.receive()
    assert directives[FIRST].evaluation is not None


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("pause_worker", {"worker": "robot9"}, "no worker 'robot9' is connected; connected: robot7, robot8"),
        ("resume_worker", {"worker": "robot7"}, "worker 'robot7' is not paused"),
        ("checkpoint", {}, "round by round"),
        ("ratio", {"value": 2.0}, "round by round"),
    ],
)
def test_an_order_that_is_not_possible_says_why(
    paused: Paused, kind: OrderKind, more: dict[str, object], why: str
) -> None:
    paused.order(kind, **more)
    paused.interface.receive()
    assert not paused.answer.done
    assert why in paused.answer.outcome


def test_checkpoints_and_ratios_are_the_trainers(paused: Paused) -> None:
    controls = paused.interface.operations.controls = Controls()
    paused.order("checkpoint")
    paused.order("ratio", value=0.5)
    paused.interface.receive()
    assert (controls.checkpoints, controls.ratio, paused.answer.done) == (1, 0.5, True)
    assert paused.answer.text == "at most 0.5 updates for each environment step"
    for value, why in ((None, "it says no ratio"), (5.0, "too many")):
        paused.order("ratio", value=value)
        paused.interface.receive()
        assert paused.answer.outcome == f"refused: {why}"
    controls.against = "there is no folder"
    paused.order("checkpoint")
    paused.interface.receive()
    assert paused.answer.outcome == "refused: there is no folder"


def test_whoever_waits_for_an_operator_does_not_starve(paused: Paused) -> None:
    assert not starves(PAUSE_END)
    interface, state = paused.interface, paused.link.trainer
    interface.report(Progress(samples=5, lack="samples"))
    assert state.progress is not None
    assert state.progress.lack == "samples"
    paused.order("pause_worker", worker="robot7")
    interface.receive()
    for stream in (FIRST, SECOND):
        state.waits[stream] = "the trainer"
    assert state.progress.lack == ""
    assert interface.progress.lack == "samples"
    for _ in range(5):
        paused.now += 20.0
        interface._check_starvation()


def test_orders_that_wait_are_bounded(paused: Paused) -> None:
    for _ in range(MAX_WAITING + 1):
        paused.order("resume")
    assert "too many orders wait" in paused.answer.outcome


def test_an_order_is_in_words() -> None:
    kinds: list[OrderKind] = ["pause", "resume", "checkpoint"]
    assert [Order(kind=kind).text for kind in kinds] == ["pause training", "resume training", "write a checkpoint"]
    assert Order(kind="resume_worker", worker="a").text == "resume worker a"
    assert Order(kind="ratio").text == "change the ratio"


def test_looking_for_orders_costs_nothing_where_there_are_none(paused: Paused) -> None:
    assert not paused.interface.operations.obey()
    until(lambda: not paused.interface.operations.pauses)


def test_who_wants_to_see_a_worker_is_recorded_once_and_forgotten_after_a_minute(paused: Paused) -> None:
    def wanted(stream: bytes) -> Wanted | None:
        directive = paused.link.trainer.directives.get(stream)
        return None if directive is None else directive.wanted

    paused.order("camera", worker="robot7")
    paused.interface.rest()
    assert wanted(FIRST) == Wanted("robot7", camera=1)
    assert wanted(SECOND) is None
    for _ in range(3):
        paused.now += CAMERA_S / 2
        paused.order("camera", worker="robot7")
        paused.interface.rest()
    paused.order("video", worker="robot7")
    paused.interface.rest()
    assert wanted(FIRST) == Wanted("robot7", camera=4, video=5)
    texts = [outcome.text for outcome in paused.link.trainer.orders.outcomes]
    assert texts == ["show the camera of robot7", "show the video of robot7"]
    paused.recorder.flush()
    events = [one.text(names.MESSAGE) for one in paused.sink.records if one.text(names.EVENT) == names.EVENT_ORDER]
    assert events == [f"anna: {text}: done" for text in texts]
    paused.now += CAMERA_S
    paused.order("pause_worker", worker="robot7")
    paused.interface.rest()
    assert wanted(FIRST) is None
    paused.order("camera", worker="robot9")
    paused.interface.rest()
    assert paused.answer.outcome.startswith("refused: no worker 'robot9' is connected; connected: robot7, robot8")
