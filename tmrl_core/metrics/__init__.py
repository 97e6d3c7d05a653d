"""Metrics of training: one stream of records, its sinks, and its display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.metrics.console import hide_messages, show_messages
    from tmrl_core.metrics.curve import draw
    from tmrl_core.metrics.names import VOCABULARY
    from tmrl_core.metrics.progress import LiveProgress, ProgressDisplay
    from tmrl_core.metrics.reading import RecordReader, follow, read_records
    from tmrl_core.metrics.recorder import Recorder, SinkState
    from tmrl_core.metrics.records import MetricRecord, episode_values, record
    from tmrl_core.metrics.sinks import ConsoleSink, JsonLinesSink, MemorySink, MetricSink
    from tmrl_core.metrics.standard import WandbSettings, open_sinks
    from tmrl_core.metrics.tensorboard_sink import TensorBoardSink
    from tmrl_core.metrics.wandb_sink import WandbSink

__all__ = [
    "VOCABULARY",
    "ConsoleSink",
    "JsonLinesSink",
    "LiveProgress",
    "MemorySink",
    "MetricRecord",
    "MetricSink",
    "ProgressDisplay",
    "RecordReader",
    "Recorder",
    "SinkState",
    "TensorBoardSink",
    "WandbSettings",
    "WandbSink",
    "draw",
    "episode_values",
    "follow",
    "hide_messages",
    "open_sinks",
    "read_records",
    "record",
    "show_messages",
]

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "console": "hide_messages show_messages",
        "curve": "draw",
        "names": "VOCABULARY",
        "progress": "LiveProgress ProgressDisplay",
        "reading": "RecordReader follow read_records",
        "recorder": "Recorder SinkState",
        "records": "MetricRecord episode_values record",
        "sinks": "ConsoleSink JsonLinesSink MemorySink MetricSink",
        "standard": "WandbSettings open_sinks",
        "tensorboard_sink": "TensorBoardSink",
        "wandb_sink": "WandbSink",
    },
)
