"""Sink for trackio: charts of runs on this machine, without an account (extra `trackio`)."""

# Theory of operation
#
# For: charts in the browser of this machine. trackio has the calls of wandb and stores runs in SQLite files of its own.
# It is imported and started at the first `write`, in the thread of this sink, since that takes a second.
#
# Behaviour of trackio (0.43), and what this file does about it:
#
# - It keeps both branches of a run that is resumed under its name, and can delete whole runs only. After a cut, the run
#   is deleted and the records that are left are logged again, from `metrics.jsonl`.
# - They are read when the sink is made. At the first `write`, the file already has records that wait in this sink's
#   queue, which would come twice.
# - A run has one axis, the step. So it is chosen here, by `metrics.x_axis`.
# - What it cannot write, on a full disk, it drops with one warning, and `log` does not raise: the recorder cannot try
#   again, as it does with other sinks.
# - It records the machine's processor and memory by itself where psutil is installed. That is off.

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics.reading import read_records
from tmrl_core.metrics.records import Axis, MetricRecord
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.standard import SinkRun


def of_run(run: SinkRun, **settings: Any) -> TrackioSink:
    """Make the sink of a run. After a cut, it gets the records that are left before it gets new ones."""
    kept: Sequence[MetricRecord] | None = None
    if run.cut is not None and run.cut.event is not None:
        # Read here: at the first write, the file has records that wait for this sink too. The event comes by itself.
        kept = [each for each in read_records(run.folder / "metrics.jsonl") if each != run.cut.event]
    settings = {"run_name": run.folder.resolve().name, "config": run.hparams, "x_axis": run.x_axis, **settings}
    return TrackioSink(**settings, kept=kept)


class TrackioSink(MetricSink):
    """Sink that logs each record's metrics over one axis. `trackio show` displays them.

    trackio stores runs in its own folder (`TRACKIO_DIR`), or sends them where its other settings say, such as
    `TRACKIO_SERVER_URL`.

    Args:
        project: trackio's project.
        run_name: name of the run, under which a resumed run continues.
        group: group of runs that are shown together.
        config: settings of the run to show; without secrets.
        x_axis: horizontal axis of the charts.
        kept: all records of the run until now: what trackio has of it is replaced by them. None: it is continued.

    Raises:
        MissingExtraError: trackio is not installed.
    """

    def __init__(
        self,
        *,
        project: str = "tmrl_core",
        run_name: str,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        x_axis: Axis = "env_steps",
        kept: Sequence[MetricRecord] | None = None,
    ) -> None:
        # A folder of that name in the current directory is found as a namespace package, which has no origin.
        found = importlib.util.find_spec("trackio")
        if found is None or found.origin is None:
            raise MissingExtraError("trackio", "trackio", "The trackio sink")
        self._identity: dict[str, Any] = {"project": project, "name": run_name, "group": group}
        self._config = dict(config or {})
        self._x_axis = x_axis
        self._kept = kept
        self._run: Any = None
        self._closed = False

    def write(self, record: MetricRecord) -> None:
        """Log the record's metrics; the first call imports and starts trackio, which takes a second."""
        if self._closed:
            raise ValueError("the sink is closed")
        if self._run is None:
            self._run = self._start()
        self._log(record)

    def flush(self) -> None:
        """Do nothing: trackio's thread writes what it has every half second."""

    def close(self) -> None:
        """Finish the run; trackio writes what it has."""
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _log(self, record: MetricRecord) -> None:
        values = record.numbers()
        if values:
            self._run.log(values, step=int(record.at(self._x_axis) or 0))

    def _start(self) -> Any:
        import trackio

        if self._kept is not None:
            # trackio cannot delete the end of a run, and keeps both branches of a resumed one.
            for old in trackio.Api().runs(self._identity["project"]):
                if old.name == self._identity["name"]:
                    old.delete()
        self._run = trackio.init(
            **self._identity,
            config=self._config,
            resume="allow",
            # Its charts of the machine would start where psutil is installed; embedding is for notebooks.
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        for record in self._kept or ():
            self._log(record)
        self._kept = None
        return self._run
