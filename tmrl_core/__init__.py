"""Distributed reinforcement learning over TLS: rollout workers, one server, one trainer.

The most used names are available here. Each is imported at its first use, so that importing this package opens nothing
and loads neither torch nor numpy.
"""

from __future__ import annotations

from tmrl_core.lazy_names import lazy_names

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

_NAMES, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "actor": "ActorModule SquashedGaussianMLPActor TorchActorModule",
        "envs": "GenericGymEnv",
        "errors": "TmrlError",
        "functional": "cached_property partial prod",
        "networking": "Buffer RolloutWorker Server Trainer",
        "training": "GenericTorchMemory MLPActorCritic Memory REDQMLPActorCritic REDQSACAgent SpinupSacAgent "
        "TorchMemory TorchTrainingOffline TrainingAgent TrainingOffline",
    },
)
__all__ = ["__version__", *_NAMES]
