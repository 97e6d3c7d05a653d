"""Records as TensorBoard event files, written with tensorboard's own formats and without torch or TensorFlow."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics import names
from tmrl_core.metrics.records import Axis, MetricRecord
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.standard import SinkRun

_file_numbers = itertools.count()


def of_run(run: SinkRun) -> TensorBoardSink:
    """Make the sink of a run, in its folder `tensorboard`."""
    purge_step = None if run.cut is None or run.cut.event is None else run.cut.next_step(run.x_axis)
    return TensorBoardSink(run.folder / "tensorboard", x_axis=run.x_axis, hparams=run.hparams, purge_step=purge_step)


class TensorBoardSink(MetricSink):
    """Sink that writes each record's metrics as scalars, and events as text, at the record's time.

    Labels of a record are left out; values that are not finite are written unchanged, and TensorBoard marks them.

    Args:
        folder: folder of the event file; created if it is missing. Each sink writes its own file, so a resumed run adds
            one.
        x_axis: axis of TensorBoard's steps; whole seconds for wall_time.
        hparams: the run's configuration, nested; its single values are shown as hyper-parameters.
        purge_step: TensorBoard discards the points of earlier files from this step on; None: it shows all.

    Raises:
        MissingExtraError: tensorboard is not installed.
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        x_axis: Axis = "env_steps",
        hparams: Mapping[str, Any] | None = None,
        purge_step: int | None = None,
    ) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
            from tensorboard.plugins.hparams import summary_v2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard", "The TensorBoard sink") from error
        self._event_type: Any = event_pb2.Event
        self._summary_type: Any = summary_pb2.Summary
        self._tensor_type: Any = tensor_pb2.TensorProto
        self._text_metadata: Any = metadata.create_summary_metadata(display_name="", description="")
        self._x_axis: Axis = x_axis
        self._began_s: float | None = None
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard searches and sorts files by this name. tensorboard's own EventFileWriter would add a thread and a
        # queue, whose failures show only at a later call; the Recorder has both already.
        now_s = time.time()
        self.path = self.folder / (
            f"events.out.tfevents.{now_s:.0f}.{socket.gethostname()}.{os.getpid()}.{next(_file_numbers)}"
        )
        self._file = self.path.open("xb")
        self._writer: Any = RecordWriter(self._file)
        self._write(self._event_type(wall_time=now_s, file_version="brain.Event:2"))
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event_type(wall_time=now_s, step=purge_step, session_log=start))
        if hparams:
            # The run has one session group, also over resumes.
            summary = summary_v2.hparams_pb(flattened(hparams), trial_id=self.folder.resolve().parent.name)
            self._write(self._event_type(wall_time=now_s, summary=summary))
        self._file.flush()

    def write(self, record: MetricRecord) -> None:
        """Write one event with all metrics of the record."""
        if self._file.closed:
            raise ValueError("the sink is closed")
        values = [self._summary_type.Value(tag=name, simple_value=value) for name, value in record.numbers().items()]
        if record.kind == "event" and (text := record.text(names.MESSAGE) or record.text(names.PHASE)):
            values.append(self._text(f"event/{record.text(names.EVENT) or 'event'}", text))
        if values:
            if self._began_s is None:
                self._began_s = record.time_s - record.elapsed_s
            # TensorBoard's relative axis subtracts these times, so they must not jump when somebody sets the clock.
            wall_time = self._began_s + record.elapsed_s
            summary = self._summary_type(value=values)
            self._write(self._event_type(wall_time=wall_time, step=int(record.at(self._x_axis) or 0), summary=summary))

    def flush(self) -> None:
        """Pass written records to the operating system."""
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def _text(self, tag: str, text: str) -> Any:
        tensor = self._tensor_type(dtype="DT_STRING", string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        return self._summary_type.Value(tag=tag, metadata=self._text_metadata, tensor=tensor)


def flattened(values: Mapping[str, Any], path: str = "") -> dict[str, bool | float | str]:
    """Return the single values of a nested configuration by their dotted paths; None as "null"."""
    flat: dict[str, bool | float | str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{path}{key}.")
        else:
            flat[f"{path}{key}"] = value if isinstance(value, bool | int | float) else _label(value)
    return flat


def _label(value: Any) -> str:
    return "null" if value is None else str(value)
