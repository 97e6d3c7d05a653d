from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics.records import Axis, record
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.tensorboard_sink import TensorBoardSink
from tmrl_core.testing.metric_sinks import SinkSuite, Written


def events(folder: Path) -> list[Any]:
    found = []
    # The file number at the end of the name counts up in this process; times in the name are whole seconds.
    for path in sorted(folder.iterdir(), key=lambda path: int(path.name.rpartition(".")[2])):
        for raw in RawEventFileLoader(str(path)).Load():
            found.append(event_pb2.Event.FromString(raw))
    return found


class TestTensorBoardSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        return TensorBoardSink(folder / "tensorboard")

    def read_back(self, folder: Path) -> list[Written]:
        written = []
        for event in events(folder / "tensorboard"):
            numbers = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
            if numbers:
                written.append((event.step, numbers))
        return written


@pytest.mark.parametrize(("axis", "scale"), [("env_steps", 2), ("updates", 1), ("wall_time", 3)])
def test_tensorboard_shows_scalars_at_their_steps_and_times(tmp_path: Path, axis: Axis, scale: int) -> None:
    with TensorBoardSink(tmp_path, x_axis=axis) as sink:
        for step in (0, 100, 200):
            row = {"return_test": -step / 4, "samples_received": 2 * step}
            sink.write(record("round", row, step=step, elapsed_s=3.0 * step, time_s=1_000.0 + 3 * step))
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["rollout/test_ep_rew", "time/total_timesteps"]
    got = [(point.wall_time, point.step, point.value) for point in accumulator.Scalars("rollout/test_ep_rew")]
    assert got == [(1000.0, 0, 0.0), (1300.0, 100 * scale, -25.0), (1600.0, 200 * scale, -50.0)]


def test_setting_the_wall_clock_does_not_move_the_curves(tmp_path: Path) -> None:
    with TensorBoardSink(tmp_path, x_axis="wall_time") as sink:
        for elapsed_s, time_s in ((60.0, 5000.0), (70.0, 5010.0 - 10_800.0), (80.0, 5020.0 + 108_000.0)):
            sink.write(record("round", {"return_test": 1.0}, step=1, elapsed_s=elapsed_s, time_s=time_s))
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    points = accumulator.Scalars("rollout/test_ep_rew")
    assert [(point.wall_time, point.step) for point in points] == [(5000.0, 60), (5010.0, 70), (5020.0, 80)]


def test_tensorboard_discards_what_a_resume_has_cut(tmp_path: Path) -> None:
    for purge_step, steps in ((None, range(100, 700, 100)), (301, range(350, 750, 100))):
        with TensorBoardSink(tmp_path, x_axis="updates", purge_step=purge_step) as sink:
            for step in steps:
                sink.write(record("round", {"return_test": 1.0}, step=step, elapsed_s=1.0))
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    shown = [point.step for point in accumulator.Scalars("rollout/test_ep_rew")]
    assert shown == [100, 200, 300, 350, 450, 550, 650]


def test_tensorboard_shows_events_as_text(tmp_path: Path) -> None:
    with TensorBoardSink(tmp_path) as sink:
        sink.write(record("event", {"event": "checkpoint", "message": "wrote näme"}, step=7, elapsed_s=0.0))
        sink.write(record("event", {"event": "phase", "phase": "learning"}, step=7, elapsed_s=0.0))
        sink.write(record("event", {"event": "silent"}, step=7, elapsed_s=0.0))
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    # Older data that TensorBoard migrates on loading gets this suffix.
    tags = [tag for tag in accumulator.Tags()["tensors"] if tag.startswith("event/")]
    assert [tag.removesuffix("/text_summary") for tag in tags] == ["event/checkpoint", "event/phase"]
    (point,) = accumulator.Tensors(tags[0])
    assert (point.step, [text.decode() for text in point.tensor_proto.string_val]) == (0, ["wrote näme"])


def test_hyper_parameters_are_the_configurations_values(tmp_path: Path) -> None:
    config = {"agent": {"cls": "a:B", "kwargs": {"lr": 0.5}}, "run": {"seed": None, "deep": True}}
    TensorBoardSink(tmp_path, hparams=config).close()
    (content,) = [value.metadata.plugin_data.content for event in events(tmp_path) for value in event.summary.value]
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {"agent.cls": "a:B", "agent.kwargs.lr": 0.5, "run.seed": "null", "run.deep": True}


def test_numbers_that_are_not_finite_are_written(tmp_path: Path) -> None:
    with TensorBoardSink(tmp_path) as sink:
        sink.write(record("round", {"loss_actor": math.nan}, step=1, elapsed_s=0.0))
    assert math.isnan(events(tmp_path)[-1].summary.value[0].simple_value)


def test_each_sink_writes_a_file_of_its_own(tmp_path: Path) -> None:
    sinks = [TensorBoardSink(tmp_path) for _ in range(3)]
    for sink in sinks:
        sink.close()
    assert len({sink.path for sink in sinks}) == len(list(tmp_path.iterdir())) == 3


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[tensorboard\]"):
        TensorBoardSink(tmp_path)
