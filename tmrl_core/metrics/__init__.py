"""Metrics of training: one stream of records, its sinks, and its display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.metrics.console import hide_messages as hide_messages
    from tmrl_core.metrics.console import show_messages as show_messages
    from tmrl_core.metrics.curve import draw as draw
    from tmrl_core.metrics.names import VOCABULARY as VOCABULARY
    from tmrl_core.metrics.progress import LiveProgress as LiveProgress
    from tmrl_core.metrics.progress import ProgressDisplay as ProgressDisplay
    from tmrl_core.metrics.reading import RecordReader as RecordReader
    from tmrl_core.metrics.reading import follow as follow
    from tmrl_core.metrics.reading import iter_records as iter_records
    from tmrl_core.metrics.reading import read_records as read_records
    from tmrl_core.metrics.recorder import Recorder as Recorder
    from tmrl_core.metrics.recorder import SinkState as SinkState
    from tmrl_core.metrics.records import MetricRecord as MetricRecord
    from tmrl_core.metrics.records import episode_values as episode_values
    from tmrl_core.metrics.records import record as record
    from tmrl_core.metrics.sinks import ConsoleSink as ConsoleSink
    from tmrl_core.metrics.sinks import JsonLinesSink as JsonLinesSink
    from tmrl_core.metrics.sinks import MemorySink as MemorySink
    from tmrl_core.metrics.sinks import MetricSink as MetricSink
    from tmrl_core.metrics.standard import WandbSettings as WandbSettings
    from tmrl_core.metrics.standard import open_sinks as open_sinks
    from tmrl_core.metrics.tensorboard_sink import TensorBoardSink as TensorBoardSink
    from tmrl_core.metrics.wandb_sink import WandbSink as WandbSink

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "console": "hide_messages show_messages",
        "curve": "draw",
        "names": "VOCABULARY",
        "progress": "LiveProgress ProgressDisplay",
        "reading": "RecordReader follow iter_records read_records",
        "recorder": "Recorder SinkState",
        "records": "MetricRecord episode_values record",
        "sinks": "ConsoleSink JsonLinesSink MemorySink MetricSink",
        "standard": "WandbSettings open_sinks",
        "tensorboard_sink": "TensorBoardSink",
        "wandb_sink": "WandbSink",
    },
)
