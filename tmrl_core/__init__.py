"""Distributed reinforcement learning over TLS: rollout workers, one server, one trainer.

The most used names are here; each is imported when it is first used, so that importing this package opens nothing and
loads neither torch nor numpy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tmrl_core.actor import ActorModule as ActorModule
    from tmrl_core.actor import SquashedGaussianMLPActor as SquashedGaussianMLPActor
    from tmrl_core.actor import TorchActorModule as TorchActorModule
    from tmrl_core.envs import GenericGymEnv as GenericGymEnv
    from tmrl_core.errors import TmrlError as TmrlError
    from tmrl_core.functional import cached_property as cached_property
    from tmrl_core.functional import partial as partial
    from tmrl_core.functional import prod as prod
    from tmrl_core.networking import Buffer as Buffer
    from tmrl_core.networking import RolloutWorker as RolloutWorker
    from tmrl_core.networking import Server as Server
    from tmrl_core.networking import Trainer as Trainer
    from tmrl_core.training import GenericTorchMemory as GenericTorchMemory
    from tmrl_core.training import Memory as Memory
    from tmrl_core.training import MLPActorCritic as MLPActorCritic
    from tmrl_core.training import REDQMLPActorCritic as REDQMLPActorCritic
    from tmrl_core.training import REDQSACAgent as REDQSACAgent
    from tmrl_core.training import SpinupSacAgent as SpinupSacAgent
    from tmrl_core.training import TorchMemory as TorchMemory
    from tmrl_core.training import TorchTrainingOffline as TorchTrainingOffline
    from tmrl_core.training import TrainingAgent as TrainingAgent
    from tmrl_core.training import TrainingOffline as TrainingOffline

__version__ = "0.1.0"

_HOMES = {
    "ActorModule": "actor",
    "Buffer": "networking",
    "GenericGymEnv": "envs",
    "GenericTorchMemory": "training",
    "MLPActorCritic": "training",
    "Memory": "training",
    "REDQMLPActorCritic": "training",
    "REDQSACAgent": "training",
    "RolloutWorker": "networking",
    "Server": "networking",
    "SpinupSacAgent": "training",
    "SquashedGaussianMLPActor": "actor",
    "TmrlError": "errors",
    "TorchActorModule": "actor",
    "TorchMemory": "training",
    "TorchTrainingOffline": "training",
    "Trainer": "networking",
    "TrainingAgent": "training",
    "TrainingOffline": "training",
    "cached_property": "functional",
    "partial": "functional",
    "prod": "functional",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
