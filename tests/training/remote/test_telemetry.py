"""Scenes and histories of a run fit what viewers are sent, however large the run is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tmrl_core.metrics import names
from tmrl_core.metrics.latest import LatestSink
from tmrl_core.metrics.records import record
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.messages import Lateness, Progress, decode_body
from tmrl_core.networking.protocol.telemetry import MAX_HISTORY_BYTES, MAX_SCENE_BYTES, History, Scene
from tmrl_core.networking.trainer import Member
from tmrl_core.training.remote.telemetry import RATE_S, STANDS_S, Progressing, RunTelemetry


class Run:
    """A run without a link."""

    def __init__(self, settings: dict[str, str] | None = None, every_setting: dict[str, str] | None = None) -> None:
        self.link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
        self.latest = LatestSink()
        self.now = 100.0
        self.progressing = Progressing(Progress(), "", frozenset(), {}, {})
        self.telemetry = RunTelemetry(
            self.link,
            self.latest,
            lambda: self.progressing,
            lambda: 7.5,
            settings or {},
            every_setting or {},
            clock=lambda: self.now,
            wall_clock=lambda: 1e9 + self.now,
        )

    def joined(self, number: int, name: str) -> bytes:
        stream = number.to_bytes(16, "big")
        state = self.link.trainer
        state.members[stream] = Member(stream, name, b"", self.now)
        state.receiver(stream)
        return stream

    def trains(self, **progress: Any) -> None:
        self.progressing = self.progressing._replace(progress=Progress(**progress))

    def write(self, kind: Any, step: int, **values: Any) -> None:
        self.latest.write(record(kind, values, step=step, elapsed_s=float(step)))

    def scene(self) -> Scene:
        body = self.telemetry.scene()
        assert len(body) <= MAX_SCENE_BYTES
        scene: Scene = decode_body(body, Scene)
        return scene

    def history(self) -> History:
        body = self.telemetry.history()
        assert len(body) <= MAX_HISTORY_BYTES
        history: History = decode_body(body, History)
        return history


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_worker_is_shown_as_the_link_sees_it(run: Run) -> None:
    stream = run.joined(1, "robot7")
    state = run.link.trainer
    state.waits[stream] = "an update"
    state.lateness[stream] = Lateness(0, 1_000, 3, 1_500)
    state.counter = 9
    receiver = state.receivers[stream]
    run.progressing = run.progressing._replace(
        versions={stream: 7}, paused_workers=frozenset({"robot7"}), refusals={stream: "another environment"}
    )
    (worker,) = run.scene().workers
    assert (worker.last_sample_s, worker.steps_per_s) == (None, None)
    receiver.position, receiver.heard_at, receiver.gap_samples = 300, run.now + 1.0, 4
    run.now += RATE_S
    (worker,) = run.scene().workers
    assert msgspec.to_builtins(worker)
    assert (worker.name, worker.since_s, worker.last_sample_s, worker.steps_per_s) == ("robot7", 3.0, 2.0, 100.0)
    assert (worker.lateness, worker.late_steps, worker.version_lag, worker.drops) == (0.0015, 3, 2.0, 4)
    assert (worker.waits, worker.refused, worker.paused) == ("an update", "another environment", True)
    del state.members[stream]
    assert run.scene().workers == ()


def test_a_worker_that_sends_whole_episodes_does_not_stand_between_them(run: Run) -> None:
    stream = run.joined(1, "robot7")

    def rate(after_s: float, samples: int) -> float | None:
        run.now += after_s
        run.link.trainer.receivers[stream].position += samples
        (worker,) = run.scene().workers
        return worker.steps_per_s

    assert [rate(0.0, 0), rate(RATE_S, 0), rate(7.0, 200)] == [None, None, 20.0]
    assert [rate(1.0, 0) for _ in range(round(STANDS_S) - 1)] == [20.0] * 29
    assert rate(1.0, 0) == 0.0


def test_the_state_is_of_updates_and_not_of_each_short_wait(run: Run) -> None:
    run.trains(samples=5, lack="5 of 10 samples")
    scene = run.scene()
    assert (scene.state, scene.waits, scene.env_steps, scene.elapsed_s) == ("collecting", "5 of 10 samples", 5, 7.5)
    run.trains(samples=20, updates=3, lack="the ratio")
    assert run.scene().state == "training"
    scene = run.scene()
    assert (scene.state, scene.waits) == ("waiting", "the ratio")
    run.progressing = run.progressing._replace(paused_by="anna")
    scene = run.scene()
    assert (scene.state, scene.waits) == ("paused", "paused by anna")
    run.progressing = run.progressing._replace(paused_by="")
    run.write("event", 3, event=names.EVENT_PHASE, phase="evaluating")
    assert run.scene().state == "evaluating"
    run.write("event", 3, event=names.EVENT_END, message="all epochs are done")
    assert run.scene().state == "ended"


def test_records_are_shown(run: Run) -> None:
    run.write("event", 0, event=names.EVENT_START, run_name="run", return_target=3)
    run.write("round", 1, memory_len=5, samples_received=10)
    run.write("evaluation", 2, return_evaluation=2.5, version="4.17", samples_received=20)
    run.write("evaluation", 3, return_evaluation=float("nan"), version="odd", samples_received=30)
    scene = run.scene()
    assert scene.target_return == 3.0
    assert scene.values["train/memory_len"] == 5.0
    assert [(one.version, one.mean_return) for one in scene.policies] == [((4, 17), 2.5), ((0, 0), None)]
    assert run.history().series == {"eval/mean_reward": ((20, 2.0, 2.5),), "train/memory_len": ((10, 1.0, 5.0),)}


def test_a_scene_of_a_large_run_fits() -> None:
    run = Run({f"agent.kwargs.key_{number}": "x" * 100 for number in range(200)})
    for number in range(500):
        stream = run.joined(number, f"robot{number} " + "x" * 180)
        run.link.trainer.waits[stream] = "y" * 200
    for step in range(50):
        run.write("event", step, event="odd", message="z" * 300)
        run.write("round", step, **{f"train/{'m' * 80}{step}": 1.0})
    scene = run.scene()
    assert scene.workers
    assert scene.workers_left_out == 500 - len(scene.workers)
    assert scene.events[-1].message


def test_of_many_workers_those_with_a_problem_are_shown_first() -> None:
    run = Run()
    streams = [run.joined(number, f"robot{number}") for number in range(1_000)]
    state, run.now = run.link.trainer, run.now + STANDS_S
    for stream in streams:
        state.receivers[stream].heard_at = run.now
    state.receivers[streams[700]].gap_samples = 4
    state.receivers[streams[800]].heard_at = None
    state.receivers[streams[850]].heard_at = None
    state.waits[streams[850]] = "an update"
    run.progressing = run.progressing._replace(
        paused_workers=frozenset({"robot900"}), refusals={streams[999]: "another environment"}
    )
    scene = run.scene()
    shown = [worker.name for worker in scene.workers]
    assert shown[:6] == ["robot999", "robot900", "robot800", "robot700", "robot0", "robot1"]
    assert len(shown) + scene.workers_left_out == 1_000


def test_a_history_of_a_long_run_fits(run: Run) -> None:
    for step in range(800):
        run.write("episode", step, return_train=float(step), samples_received=1 << 40)
        run.write(
            "round", step, samples_received=1 << 40, **{f"loss_{name}": 0.1 for name in "abcdefghijklmnopqrstuvwxyz"}
        )
    series = run.history().series
    assert len(series) == 27
    assert 16 <= min(map(len, series.values())) <= 256
    assert run.link.trainer.telemetry is None


@pytest.mark.parametrize(("number", "told"), [(300, 300), (1_000, 0)])
def test_a_history_has_all_settings_if_they_fit(number: int, told: int) -> None:
    run = Run(every_setting={f"agent.kwargs.key_{key}": "x" * 60 for key in range(number)})
    run.write("episode", 1, return_train=1.0, samples_received=1)
    found = run.history()
    assert len(found.settings) == told
    assert found.series
