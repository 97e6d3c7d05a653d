"""Training: agents, replay memories, training loops and checkpoints.

Names are resolved when first used, because most of them need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "CheckpointStore": "checkpoint_store",
    "CategoricalActorCritic": "critics",
    "DQNAgent": "dqn",
    "DeterministicActorCritic": "critics",
    "DiscreteSacAgent": "discrete_sac",
    "FrameStackMemory": "frame_stack_memory",
    "GenericTorchMemory": "memory",
    "LocalInterface": "interface",
    "MLPActorCritic": "critics",
    "Memory": "memory",
    "REDQMLPActorCritic": "critics",
    "OffPolicyAgent": "off_policy",
    "REDQSACAgent": "redq",
    "PPOAgent": "ppo",
    "QNetwork": "critics",
    "ReplayMemory": "replay",
    "RoundMemory": "round_memory",
    "SacAgent": "sac",
    "SpinupSacAgent": "sac",
    "TD3Agent": "td3",
    "TorchMemory": "memory",
    "TorchTrainingOffline": "offline",
    "TrainingAgent": "agent",
    "TrainingLockstep": "lockstep",
    "TrainingOffline": "offline",
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
