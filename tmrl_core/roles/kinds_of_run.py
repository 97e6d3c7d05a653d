"""Runs of another kind than one agent in one environment: the functions that make them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tmrl_core.config import Config
from tmrl_core.config.sections import RoomSection

if TYPE_CHECKING:
    from typing_extensions import Self

    from tmrl_core.actor.rollout.recorder import StepRecorder
    from tmrl_core.actor.rollout.uplink import Uplink


class RunWorker(Protocol):
    """A worker of any kind of run, for the command line and for displays.

    Attributes:
        recorder: records its episodes: label, version of the policy that acts, numbers and figures.
        uplink: connects it with the trainer.
    """

    recorder: StepRecorder
    uplink: Uplink

    def stop(self) -> None:
        """End collection at the next opportunity."""

    def close(self) -> object:
        """Drain and release everything."""


class KindWorker(RunWorker, Protocol):
    """A worker of a run of another kind."""

    def run(self) -> None:
        """Collect until the trainer finishes, a limit is reached, or `stop`."""

    def run_episode(self) -> bool:
        """Play a test episode. Return False if `stop` has ended it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class RunParts(Protocol):
    """The functions that make a run of another kind: the module `RoomSection.parts`."""

    def make_worker(
        self, config: Config, *, name: str | None = None, standalone: bool = False, model_path: Path | None = None
    ) -> KindWorker:
        """Return a worker, as `make_worker` here does for an ordinary run."""

    def training_from_config(self, config: Config) -> Callable[[], Any]:
        """Return a function that makes the training object."""

    def probe_environment(self, config: Config) -> None:
        """Make the environment, reset it once, and close it."""


def parts_of(kind: RoomSection) -> RunParts:
    """Return the functions that make a run of this kind."""
    parts: RunParts = importlib.import_module(kind.parts)
    return parts
