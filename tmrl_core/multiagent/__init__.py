"""Many agents in one environment: agent managers, shapers, exploration, and the Learner and Actor of a scenario.

Names are resolved when first used: those of `algorithms` need torch, those of `pettingzoo` the extra `marl`. The latter
are not in `__all__`, so that `import *` needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.multiagent.actor import Actor as Actor
    from tmrl_core.multiagent.agent import Agent as Agent
    from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm as AgentAlgorithm
    from tmrl_core.multiagent.algorithms.a2c import A2C as A2C
    from tmrl_core.multiagent.algorithms.a2c import A2CParameters as A2CParameters
    from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy as ActingPolicy
    from tmrl_core.multiagent.algorithms.dqn import DQN as DQN
    from tmrl_core.multiagent.algorithms.dqn import DQNParameters as DQNParameters
    from tmrl_core.multiagent.algorithms.rules import RandomPolicy as RandomPolicy
    from tmrl_core.multiagent.algorithms.rules import RulePolicy as RulePolicy
    from tmrl_core.multiagent.algorithms.torch_algorithm import Algorithm as Algorithm
    from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm as TrainingAgentAlgorithm
    from tmrl_core.multiagent.assembly import Assembly as Assembly
    from tmrl_core.multiagent.assembly import PolicySettings as PolicySettings
    from tmrl_core.multiagent.environment import EventEnvironment as EventEnvironment
    from tmrl_core.multiagent.exploration import Explorer as Explorer
    from tmrl_core.multiagent.exploration import LinearExplorer as LinearExplorer
    from tmrl_core.multiagent.exploration import TwoPhaseLinearExplorer as TwoPhaseLinearExplorer
    from tmrl_core.multiagent.learner import EarlyStopping as EarlyStopping
    from tmrl_core.multiagent.learner import EpisodeResult as EpisodeResult
    from tmrl_core.multiagent.learner import Learner as Learner
    from tmrl_core.multiagent.learner import episode_seeds as episode_seeds
    from tmrl_core.multiagent.manager import AgentManager as AgentManager
    from tmrl_core.multiagent.pettingzoo import PettingZooEnvironment as PettingZooEnvironment
    from tmrl_core.multiagent.remote import RemoteActor as RemoteActor
    from tmrl_core.multiagent.settings import AgentParameters as AgentParameters
    from tmrl_core.multiagent.settings import MemorySettings as MemorySettings
    from tmrl_core.multiagent.shapers import ActionShaper as ActionShaper
    from tmrl_core.multiagent.shapers import ExperienceShaper as ExperienceShaper
    from tmrl_core.multiagent.shapers import KStepExperienceShaper as KStepExperienceShaper
    from tmrl_core.multiagent.shapers import StateShaper as StateShaper
    from tmrl_core.multiagent.store import SimpleStore as SimpleStore
    from tmrl_core.multiagent.training import MultiAgentTraining as MultiAgentTraining
    from tmrl_core.multiagent.training import remote_actor as remote_actor
    from tmrl_core.multiagent.trajectory import Decision as Decision
    from tmrl_core.multiagent.trajectory import Trajectory as Trajectory

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "actor": "Actor",
        "agent": "Agent",
        "agent_algorithm": "AgentAlgorithm",
        "algorithms.a2c": "A2C A2CParameters",
        "algorithms.acting_policy": "ActingPolicy",
        "algorithms.torch_algorithm": "Algorithm",
        "algorithms.dqn": "DQN DQNParameters",
        "algorithms.rules": "RandomPolicy RulePolicy",
        "algorithms.training_agent": "TrainingAgentAlgorithm",
        "assembly": "Assembly PolicySettings",
        "environment": "EventEnvironment",
        "exploration": "Explorer LinearExplorer TwoPhaseLinearExplorer",
        "learner": "EarlyStopping EpisodeResult Learner episode_seeds",
        "manager": "AgentManager",
        "remote": "RemoteActor",
        "settings": "AgentParameters MemorySettings",
        "shapers": "ActionShaper ExperienceShaper KStepExperienceShaper StateShaper",
        "store": "SimpleStore",
        "training": "MultiAgentTraining remote_actor",
        "trajectory": "Decision Trajectory",
    },
    hidden={"pettingzoo": "PettingZooEnvironment"},
)
