"""Training: agents, replay memories, training loops and checkpoints.

Names are resolved when first used, because most of them need torch.
"""

from __future__ import annotations

from tmrl_core.config.algorithms import MEMORIES, agent_modules
from tmrl_core.lazy_names import lazy_names

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "agent": "TrainingAgent",
        "agents.networks": "CategoricalActorCritic DeterministicActorCritic MLPActorCritic QNetwork REDQMLPActorCritic",
        "agents.off_policy": "OffPolicyAgent",
        "checkpoints.checkpoint_store": "CheckpointStore",
        "interface": "LocalInterface",
        "loops.lockstep": "TrainingLockstep",
        "loops.training_loop": "TorchTrainingOffline TrainingOffline",
        "memories.generic": "GenericTorchMemory",
        "memories.memory": "Memory TorchMemory",
    },
    MEMORIES,
    further=agent_modules,
)
