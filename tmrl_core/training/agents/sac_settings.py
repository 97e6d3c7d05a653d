"""Settings of soft actor-critic, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from tmrl_core.config.algorithms import BOX
from tmrl_core.training.agents.settings import ABOVE_0, AT_LEAST_0, Betas, Decay, EntropySettings, Optimizer


class SacSettings(
    EntropySettings,
    agent="tmrl_core.training.agents.sac:SacAgent",
    action_spaces=BOX,
    actors=frozenset({"SquashedGaussianMLPActor"}),
    aliases=("SpinupSacAgent",),
):
    """Settings of soft actor-critic."""

    target_entropy: Annotated[float | None, "target entropy, in nats; None: minus the number of action elements"] = None
    optimizer_actor: Optimizer = "adam"
    optimizer_critic: Optimizer = "adam"
    betas_actor: Betas = None
    betas_critic: Betas = None
    l2_actor: Decay = None
    l2_critic: Decay = None
    _: KW_ONLY
    reward_scale: Annotated[
        float, ABOVE_0, "factor of rewards in targets; large returns are learned faster below 1"
    ] = 1.0
    imitation_coef: Annotated[
        float,
        AT_LEAST_0,
        "coefficient of the squared distance between the policy's most likely actions and those of demonstrations and "
        "interventions (`memory.shares`); 0: no such term",
    ] = 0.0
