"""Settings of soft actor-critic for discrete actions, and its row of the table of algorithms."""

from __future__ import annotations

from typing import Annotated

from tmrl_core.config.algorithms import DISCRETE
from tmrl_core.training.agents.settings import Betas, Decay, EntropySettings, Optimizer


class DiscreteSacSettings(
    EntropySettings,
    agent="tmrl_core.training.agents.discrete_sac:DiscreteSacAgent",
    action_spaces=DISCRETE,
    actors=frozenset({"CategoricalMLPActor"}),
):
    """Settings of soft actor-critic for discrete actions."""

    target_entropy_share: Annotated[float, "target entropy, as a fraction of a uniform policy's"] = 0.5
    optimizer_actor: Optimizer = "adam"
    optimizer_critic: Optimizer = "adam"
    betas_actor: Betas = None
    betas_critic: Betas = None
    l2_actor: Decay = None
    l2_critic: Decay = None
