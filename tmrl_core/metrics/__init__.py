"""Metrics of training: one stream of records, its sinks, and its display."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "hide_messages": "console",
    "show_messages": "console",
    "draw": "curve",
    "LiveProgress": "progress",
    "ProgressDisplay": "progress",
    "RecordReader": "reading",
    "follow": "reading",
    "read_records": "reading",
    "Recorder": "recorder",
    "SinkState": "recorder",
    "VOCABULARY": "names",
    "MetricRecord": "records",
    "episode_values": "records",
    "record": "records",
    "ConsoleSink": "sinks",
    "JsonLinesSink": "sinks",
    "MemorySink": "sinks",
    "MetricSink": "sinks",
    "WandbSettings": "standard",
    "open_sinks": "standard",
    "TensorBoardSink": "tensorboard_sink",
    "WandbSink": "wandb_sink",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
