"""Training: agents, replay memories, training loops and checkpoints.

Names are resolved when first used, because most of them need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tmrl_core.config.algorithms import ALGORITHMS, MEMORIES

_HOMES = {
    **{algorithm.name: algorithm.module for algorithm in ALGORITHMS},
    **MEMORIES,
    "CheckpointStore": "checkpoints.store",
    "CategoricalActorCritic": "agents.networks",
    "DeterministicActorCritic": "agents.networks",
    "GenericTorchMemory": "memories.memory",
    "LocalInterface": "interface",
    "MLPActorCritic": "agents.networks",
    "Memory": "memories.memory",
    "REDQMLPActorCritic": "agents.networks",
    "OffPolicyAgent": "agents.off_policy",
    "QNetwork": "agents.networks",
    "TorchMemory": "memories.memory",
    "TorchTrainingOffline": "loops.offline",
    "TrainingAgent": "agent",
    "TrainingLockstep": "loops.lockstep",
    "TrainingOffline": "loops.offline",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        from tmrl_core.errors import MissingExtraError

        raise MissingExtraError("torch", "trainer", f"tmrl_core.training.{name}") from exc


def __dir__() -> list[str]:
    return __all__
