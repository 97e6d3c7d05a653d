"""Many agents in one environment: agent managers, shapers, exploration, and the Learner and Actor of a scenario.

Names are resolved when first used: those of `algorithms` need torch, those of `pettingzoo` the extra `marl`. The latter
are not in `__all__`, so that `import *` needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.multiagent.actor import Actor
    from tmrl_core.multiagent.agent import Agent
    from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
    from tmrl_core.multiagent.algorithms.a2c import A2C, A2CParameters
    from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy
    from tmrl_core.multiagent.algorithms.algorithm import Algorithm
    from tmrl_core.multiagent.algorithms.dqn import DQN, DQNParameters
    from tmrl_core.multiagent.algorithms.rules import RandomPolicy, RulePolicy
    from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
    from tmrl_core.multiagent.assembly import Assembly, PolicySettings
    from tmrl_core.multiagent.environment import EventEnvironment
    from tmrl_core.multiagent.exploration import (
        AdaptiveExplorer,
        Explorer,
        LinearExplorer,
        TwoPhaseLinearExplorer,
    )
    from tmrl_core.multiagent.learner import EarlyStopping, EpisodeResult, Learner, episode_seeds
    from tmrl_core.multiagent.manager import AgentManager
    from tmrl_core.multiagent.pettingzoo import EventAECEnv as EventAECEnv
    from tmrl_core.multiagent.pettingzoo import PettingZooEnvironment as PettingZooEnvironment
    from tmrl_core.multiagent.remote import RemoteActor, remote_actor
    from tmrl_core.multiagent.settings import AgentParameters, MemorySettings
    from tmrl_core.multiagent.shapers import ActionShaper, ExperienceShaper, KStepExperienceShaper, StateShaper
    from tmrl_core.multiagent.store import SimpleStore
    from tmrl_core.multiagent.training import MultiAgentTraining
    from tmrl_core.multiagent.trajectory import Decision, Trajectory

__all__ = [
    "A2C",
    "DQN",
    "A2CParameters",
    "ActingPolicy",
    "ActionShaper",
    "Actor",
    "AdaptiveExplorer",
    "Agent",
    "AgentAlgorithm",
    "AgentManager",
    "AgentParameters",
    "Algorithm",
    "Assembly",
    "DQNParameters",
    "Decision",
    "EarlyStopping",
    "EpisodeResult",
    "EventEnvironment",
    "ExperienceShaper",
    "Explorer",
    "KStepExperienceShaper",
    "Learner",
    "LinearExplorer",
    "MemorySettings",
    "MultiAgentTraining",
    "PolicySettings",
    "RandomPolicy",
    "RemoteActor",
    "RulePolicy",
    "SimpleStore",
    "StateShaper",
    "TrainingAgentAlgorithm",
    "Trajectory",
    "TwoPhaseLinearExplorer",
    "episode_seeds",
    "remote_actor",
]

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "actor": "Actor",
        "agent": "Agent",
        "agent_algorithm": "AgentAlgorithm",
        "algorithms.a2c": "A2C A2CParameters",
        "algorithms.acting_policy": "ActingPolicy",
        "algorithms.algorithm": "Algorithm",
        "algorithms.dqn": "DQN DQNParameters",
        "algorithms.rules": "RandomPolicy RulePolicy",
        "algorithms.training_agent": "TrainingAgentAlgorithm",
        "assembly": "Assembly PolicySettings",
        "environment": "EventEnvironment",
        "exploration": "AdaptiveExplorer Explorer LinearExplorer TwoPhaseLinearExplorer",
        "learner": "EarlyStopping EpisodeResult Learner episode_seeds",
        "manager": "AgentManager",
        "pettingzoo": "EventAECEnv PettingZooEnvironment",
        "remote": "RemoteActor remote_actor",
        "settings": "AgentParameters MemorySettings",
        "shapers": "ActionShaper ExperienceShaper KStepExperienceShaper StateShaper",
        "store": "SimpleStore",
        "training": "MultiAgentTraining",
        "trajectory": "Decision Trajectory",
    },
)
