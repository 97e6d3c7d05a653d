"""Construction of a run's sinks from its settings."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tmrl_core import rooms
from tmrl_core.config.references import check_kwargs
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.metrics.branch import Cut
from tmrl_core.metrics.records import Axis
from tmrl_core.metrics.sinks import ConsoleSink, JsonLinesSink, MetricSink

logger = logging.getLogger(__name__)


class WandbSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the wandb sink; see `WandbSink`. Its `repr` never shows the key."""

    project: str
    entity: str | None = None
    run_id: str | None = None
    run_name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    config: Mapping[str, Any] = {}
    key: str | None = None
    policy: Path | None = None

    def __repr__(self) -> str:
        key = "None" if self.key is None else "'***'"
        return f"WandbSettings(project={self.project!r}, entity={self.entity!r}, run_id={self.run_id!r}, key={key})"


@dataclass(frozen=True)
class SinkRun:
    """The run whose records a sink receives.

    Args:
        folder: folder of the run, for files.
        x_axis: horizontal axis of charts.
        hparams: the run's configuration.
        cut: place at which the records of a resumed run continue.
    """

    folder: Path
    x_axis: Axis = "env_steps"
    hparams: Mapping[str, Any] | None = None
    cut: Cut | None = None


def open_sinks(
    folder: str | os.PathLike[str],
    *,
    tensorboard: bool = False,
    wandb: WandbSettings | None = None,
    console: bool = True,
    x_axis: Axis = "env_steps",
    hparams: Mapping[str, Any] | None = None,
    cut: Cut | None = None,
    further: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[MetricSink]:
    """Open a run's sinks: always `metrics.jsonl`, and the other requested ones.

    A missing package, or a folder that cannot be written, gives a warning with the remedy and does not stop training.

    Args:
        folder: folder of the run, for `metrics.jsonl`, `tensorboard/` and `wandb/`.
        tensorboard: write TensorBoard files.
        wandb: log to wandb with these settings.
        console: log each round's row.
        x_axis: horizontal axis of TensorBoard and wandb.
        hparams: the run's configuration, for TensorBoard.
        cut: place at which the records of a resumed run continue; TensorBoard discards later ones too.
        further: keyword arguments of further sinks by name, see `tmrl_core.rooms`.

    Raises:
        ConfigError: there is no sink of a further name, or its package is broken.
        OSError: `metrics.jsonl` cannot be opened.
    """
    run = SinkRun(Path(folder), x_axis, hparams, cut)
    wanted: dict[str, Mapping[str, Any]] = {}
    if console:
        wanted["console"] = {}
    if tensorboard:
        wanted["tensorboard"] = {}
    if wandb is not None:
        wanted["wandb"] = msgspec.structs.asdict(wandb)
    # A sink that was opened before one that is refused would keep its file and its thread.
    with contextlib.ExitStack() as undo:
        sinks: list[MetricSink] = [undo.enter_context(JsonLinesSink(run.folder / "metrics.jsonl"))]
        for name, kwargs in {**wanted, **(further or {})}.items():
            if (entry := rooms.find("sinks", name)) is None:
                raise ConfigError(f"metrics.sinks: {name!r} is no sink; allowed: {', '.join(rooms.entries('sinks'))}")
            make: Callable[..., MetricSink] = entry.load()
            check_kwargs(make, kwargs, f"metrics.sinks.{name}")
            try:
                sinks.append(undo.enter_context(make(run, **kwargs)))
            # Hours of training are worth more than one of several sinks. A name that is wrong is refused at the start.
            except (MissingExtraError, OSError) as error:
                logger.warning("%s gets no records: %s", name, error)
        undo.pop_all()
    return sinks


def console(run: SinkRun) -> ConsoleSink:
    """Make the sink that logs each round's row."""
    return ConsoleSink()
