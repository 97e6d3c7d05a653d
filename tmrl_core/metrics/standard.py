"""Construction of a run's sinks from its settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tmrl_core.errors import MissingExtraError
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

    def __repr__(self) -> str:
        key = "None" if self.key is None else "'***'"
        return f"WandbSettings(project={self.project!r}, entity={self.entity!r}, run_id={self.run_id!r}, key={key})"


def open_sinks(
    folder: str | os.PathLike[str],
    *,
    tensorboard: bool = False,
    wandb: WandbSettings | None = None,
    console: bool = True,
    x_axis: Axis = "env_steps",
    hparams: Mapping[str, Any] | None = None,
    cut: Cut | None = None,
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

    Raises:
        OSError: `metrics.jsonl` cannot be opened.
    """
    folder = Path(folder)
    sinks: list[MetricSink] = [JsonLinesSink(folder / "metrics.jsonl")]
    if console:
        sinks.append(ConsoleSink())
    if tensorboard:
        from tmrl_core.metrics.tensorboard_sink import TensorBoardSink

        try:
            purge_step = None if cut is None or cut.event is None else cut.next_step(x_axis)
            sinks.append(TensorBoardSink(folder / "tensorboard", x_axis=x_axis, hparams=hparams, purge_step=purge_step))
        except (MissingExtraError, OSError) as error:
            logger.warning("no TensorBoard files: %s", error)
    if wandb is not None:
        from tmrl_core.metrics.wandb_sink import WandbSink

        try:
            sinks.append(WandbSink(folder=folder, x_axis=x_axis, **msgspec.structs.asdict(wandb)))
        except MissingExtraError as error:
            logger.warning("wandb gets no records: %s", error)
    return sinks
