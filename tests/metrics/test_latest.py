"""Latest values and curves of a run, in constant memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tmrl_core.metrics import names
from tmrl_core.metrics.curves import MOST_CURVES, MOST_POINTS, Curve, Point
from tmrl_core.metrics.latest import KEPT, MOST_VALUES, LatestSink
from tmrl_core.metrics.records import Kind, MetricRecord, record
from tmrl_core.metrics.sinks import JsonLinesSink, MetricSink
from tmrl_core.testing.metric_sinks import SinkSuite


class TestLatestSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        return LatestSink(folder / "metrics.jsonl")


def made(kind: Kind = "round", step: int = 0, **values: Any) -> MetricRecord:
    return record(kind, {"samples_received": 10 * step, **values}, step=step, elapsed_s=float(step), time_s=1e9 + step)


def test_the_latest_values_are_kept_without_those_of_single_workers() -> None:
    sink = LatestSink()
    sink.write(made(memory_len=5, loss_actor=1.0, name="text"))
    sink.write(made("network", 1, **{"worker/robot7/steps_per_s": 3.0, names.QUEUE_BYTES: 7}))
    sink.write(made(step=2, memory_len=6, loss_actor=float("nan")))
    assert sink.latest().values == {"train/memory_len": 6.0, "wire/queue_bytes": 7.0, names.SAMPLES_RECEIVED: 20.0}


def test_events_checkpoints_policies_target_and_phase_are_kept() -> None:
    sink = LatestSink()
    sink.write(made("event", event="start", run_name="run", return_target=3))
    sink.write(made("event", 1, event="phase", phase="learning"))
    sink.write(made("event", 2, event="checkpoint", epoch=1, checkpoint="7"))
    sink.write(made("evaluation", 3, return_evaluation=2.5, version="4.17", return_target=3))
    sink.write(made("event", 4, event="worker_joined", message="worker a joined" + "!" * 500, worker="a"))
    latest = sink.latest()
    assert (latest.target_return, latest.phase) == (3.0, "learning")
    assert latest.checkpoints == ((1e9 + 2, 2, "7"),)
    assert latest.policies == (("4.17", 1e9 + 3, 2.5),)
    assert [(event.name, len(event.message)) for event in latest.events] == [("start", 58), ("worker_joined", 200)]
    sink.write(made("event", 5, event="end", message="all epochs are done", phase="done"))
    assert sink.latest().phase == "done"
    sink.write(made("event", 6, event="start", run_name="run"))
    assert sink.latest().phase == "", "the run was resumed"


def test_everything_is_bounded() -> None:
    sink = LatestSink()
    for step in range(300):
        sink.write(made("event", step, event=f"happens {step}"))
        sink.write(made("event", step, event="checkpoint", checkpoint=str(step)))
        sink.write(made("evaluation", step, return_evaluation=step))
        sink.write(made("round", step, **{f"train/{step}_loss": 1.0, "loss_actor": step}))
    latest = sink.latest()
    assert len(latest.events) == len(latest.checkpoints) == len(latest.policies) == KEPT
    assert latest.events[-1].name == "happens 299"
    assert len(latest.values) == MOST_VALUES
    curves = sink.curves()
    assert len(curves) == MOST_CURVES
    assert max(map(len, curves.values())) <= MOST_POINTS
    assert max(map(len, sink.curves(16).values())) <= 16


def test_curves_show_returns_evaluations_losses_and_rates() -> None:
    sink = LatestSink()
    sink.write(made("episode", 1, return_train=1.5, mode="train", end="terminated"))
    sink.write(made("episode", 2, return_train=9.0, mode="train", end="aborted"))
    sink.write(made("episode", 3, return_test=7.0, mode="test", end="terminated"))
    sink.write(made("evaluation", 4, return_evaluation=2.0, return_evaluation_min=1.0, return_evaluation_max=3.0))
    sink.write(made("round", 5, loss_critic=0.5, memory_len=7, samples_per_s=9.0, updates_per_s=8.0, round_time=1.0))
    assert sink.curves() == {
        "rollout/ep_rew": [(10, 1.0, 1.5)],
        "eval/mean_reward": [(40, 4.0, 2.0)],
        "eval/min_reward": [(40, 4.0, 1.0)],
        "eval/max_reward": [(40, 4.0, 3.0)],
        "train/critic_loss": [(50, 5.0, 0.5)],
        "train/memory_len": [(50, 5.0, 7.0)],
        "time/fps": [(50, 5.0, 9.0)],
        "time/updates_per_s": [(50, 5.0, 8.0)],
    }


def test_a_long_curve_keeps_means() -> None:
    curve = Curve(most=4)
    for number in range(1, 12):
        curve.add(Point(number, float(number), float(number)))
    assert [(point.env_steps, point.value) for point in curve.points()] == [(4, 2.5), (8, 6.5), (11, 10.0)]
    assert len(curve.points(2)) == 2


@pytest.mark.parametrize(("name", "kept"), [("return_evaluation_min", 0.0), ("return_evaluation_max", 511.0)])
def test_limits_keep_the_lowest_and_the_highest(name: str, kept: float) -> None:
    sink = LatestSink()
    for step in range(512):
        sink.write(made("evaluation", step, **{name: step}))
    (curve,) = sink.curves().values()
    assert kept in [point.value for point in curve]


def test_a_resumed_run_begins_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLinesSink(path) as file:
        for step in range(100):
            file.write(made("round", step, loss_actor=step))
        path.write_bytes(path.read_bytes() + b"no record\n")
        sink = LatestSink(path)
        later = made("round", 100, loss_actor=100.0)
        file.write(later)  # both sinks get it
        sink.write(later)
    values = [point.value for point in sink.curves()["train/actor_loss"]]
    assert values == [float(step) for step in range(101)]


def test_without_a_file_it_begins_empty(tmp_path: Path) -> None:
    sink = LatestSink(tmp_path / "missing" / "metrics.jsonl")
    sink.write(made(loss_actor=1.0))
    assert len(sink.curves()["train/actor_loss"]) == 1
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(made())
