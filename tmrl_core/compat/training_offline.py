"""The training loops of `tmrl.training_offline`: data classes whose `check_ratio` may be overridden."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from tmrl_core.errors import ConfigError
from tmrl_core.training.interface import TrainingInterface
from tmrl_core.training.loops import training_loop
from tmrl_core.training.value_types import Device

__all__ = ["TorchTrainingOffline", "TrainingOffline"]


@dataclass(eq=False, repr=False)
class TrainingOffline(training_loop.TrainingOffline):
    """The project's `TrainingOffline` as a data class, with the hook `check_ratio`.

    The arguments are those of `tmrl_core.training.TrainingOffline`. A subclass may be a data class too.

    Raises:
        ConfigError: one of the first three arguments is missing.
    """

    env_cls: Any = None
    memory_cls: Any = None
    training_agent_cls: Any = None
    epochs: int = 10
    rounds: int = 50
    steps: int = 2000
    update_model_interval: int = 100
    update_buffer_interval: int = 100
    max_training_steps_per_env_step: float = 1.0
    sleep_between_buffer_retrieval_attempts: float = 1.0
    profiling: bool = False
    agent_scheduler: Callable[[Any, int], None] | None = None
    start_training: int = 0
    device: Device = None
    _: KW_ONLY
    max_policy_lag: int | None = None
    max_bad_updates: int = 10
    samples_per_insert: float | None = None
    error_buffer: float | None = None
    declared: Collection[str] = ()
    threads: int | None = None
    offline: str | Path | None = None
    recorded: str | Path | None = None

    # Settings come from the configuration, so they are not in checkpoints.
    transient: ClassVar[frozenset[str]] = frozenset({"samples_per_insert", "error_buffer", "declared", "threads"})

    def __post_init__(self) -> None:
        for name in ("env_cls", "memory_cls", "training_agent_cls"):
            if vars(self)[name] is None:
                raise ConfigError(f"{type(self).__name__} needs {name}: found None, allowed: a class or a callable")
        settings = {one.name: vars(self)[one.name] for one in fields(TrainingOffline)}
        training_loop.TrainingOffline.__init__(self, **settings)

    def check_ratio(self, interface: TrainingInterface) -> object:
        """Wait until training may continue. It is called before the first update of a round and after each update."""
        return super()._hold_ratio(interface)

    def _hold_ratio(self, interface: TrainingInterface) -> bool:
        self.check_ratio(interface)
        return not interface.stopping

    def _until_due(self) -> int:
        # An overridden `check_ratio` is called between any two updates.
        overridden = type(self).check_ratio is not TrainingOffline.check_ratio
        return 1 if overridden else super()._until_due()


@dataclass(eq=False, repr=False)
class TorchTrainingOffline(TrainingOffline):
    """`TrainingOffline` that selects a device if none is given: cuda if available, otherwise cpu."""

    def __post_init__(self) -> None:
        import torch

        if self.device is None:
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__post_init__()
