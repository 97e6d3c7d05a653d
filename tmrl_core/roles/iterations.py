"""Training one round at a time, from Python: the implementation of `Trainer.train_iteration` and related methods."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tmrl_core.errors import CheckpointError, LinkClosedError
from tmrl_core.samples import EpisodeRecord
from tmrl_core.training.contracts import as_loop

if TYPE_CHECKING:
    from tmrl_core.metrics.recorder import Recorder
    from tmrl_core.training.contracts import TrainingLoop
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)


class RoundsOwner(Protocol):
    """A Trainer, as far as its rounds need it."""

    training: Any

    @property
    def interface(self) -> RemoteInterface | None:
        """Interface to the Server, while there is a link."""

    def make_training(self) -> Any:
        """Return a new training object."""

    def load_training(self, path: Path) -> Any:
        """Return the training object of a checkpoint."""

    def dump_training(self, training: TrainingLoop, path: Path, recorder: Recorder | None) -> None:
        """Write a checkpoint."""

    def open_recorder(self, training: TrainingLoop, closing: contextlib.ExitStack) -> Recorder:
        """Return the recorder of the run, which `closing` closes."""

    def open_interface(self, training: TrainingLoop, recorder: Recorder) -> RemoteInterface:
        """Connect to the Server."""

    def close_interface(self) -> None:
        """Close the link, if there is one."""


class Iterations:
    """A Trainer's training object and link, which persist between rounds.

    Args:
        trainer: the Trainer.
    """

    def __init__(self, trainer: RoundsOwner) -> None:
        self._trainer = trainer
        self._closing = contextlib.ExitStack()
        self._recorder: Any = None
        self._episodes: list[EpisodeRecord] = []

    @property
    def training(self) -> Any:
        """Return the training object; create it at the first call."""
        trainer = self._trainer
        if trainer.training is None:
            trainer.training = trainer.make_training()
        return trainer.training

    def train(self) -> dict[str, Any]:
        """Train for one round; see `Trainer.train_iteration`.

        Raises:
            LinkClosedError: the trainer was stopped.
        """
        training = as_loop(self.training)
        interface = self._trainer.interface
        if self._recorder is None or interface is None:
            self._recorder = self._trainer.open_recorder(training, self._closing)
            interface = self._trainer.open_interface(training, self._recorder)
            interface.on_episode = self._note
        self._episodes = []
        with interface.whole_round():  # the caller decides when to stop
            row = training.run_iteration(interface)
        if row is None:
            raise LinkClosedError("the trainer was stopped within the round; the round's samples are not trained on")
        return {**_episode_statistics(self._episodes), **row, "iteration": training.iterations}

    def _note(self, record: EpisodeRecord) -> None:
        if record.mode == "train" and record.end != "aborted":
            self._episodes.append(record)

    def save(self, root: Path) -> Path:
        """Write a checkpoint into a new folder under `root`. Return that folder."""
        training = as_loop(self.training)
        path = root / f"checkpoint_{training.iterations:06d}"
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise CheckpointError(f"no checkpoint can be written into {root}: {exc}") from exc
        self._trainer.dump_training(training, path, self._recorder)
        return path

    def restore(self, path: Path) -> None:
        """Resume from a checkpoint that `save` wrote. The next round opens a new link."""
        training = self._trainer.load_training(path)
        self.close()
        self._trainer.training = training

    def close(self) -> None:
        """Close the link and the records. The training object is kept."""
        self._recorder = None
        self._trainer.close_interface()
        self._closing.close()


def _episode_statistics(records: list[EpisodeRecord]) -> dict[str, Any]:
    """Statistics of the training episodes that have arrived in a round. A lockstep round counts its own episodes."""
    returns = [record.episode_return for record in records]
    return {
        "episodes": len(returns),
        "return_min": min(returns, default=math.nan),
        "return_mean": statistics.fmean(returns) if returns else math.nan,
        "return_max": max(returns, default=math.nan),
        "episode_length_mean": statistics.fmean(record.length for record in records) if records else math.nan,
    }
