"""Settings of twin delayed DDPG, and its row of the table of algorithms."""

from __future__ import annotations

from typing import Annotated

from tmrl_core.config.algorithms import BOX
from tmrl_core.training.agents.settings import (
    AT_LEAST_0,
    AT_LEAST_1,
    Betas,
    CriticRate,
    Decay,
    OffPolicySettings,
    Optimizer,
    PolicyRate,
)


class Td3Settings(
    OffPolicySettings,
    agent="tmrl_core.training.agents.td3:TD3Agent",
    action_spaces=BOX,
    actors=frozenset({"DeterministicMLPActor"}),
):
    """Settings of twin delayed DDPG."""

    lr_actor: PolicyRate = 1e-3
    lr_critic: CriticRate = 1e-3
    policy_delay: Annotated[int, AT_LEAST_1, "critic updates per update of the policy and the targets"] = 2
    target_noise: Annotated[float, AT_LEAST_0, "standard deviation of noise on target actions in [-1, 1]"] = 0.2
    target_noise_clip: Annotated[float, AT_LEAST_0, "bound of that noise, in the same unit"] = 0.5
    exploration_noise: Annotated[float, AT_LEAST_0, "standard deviation of exploration noise on actions in [-1, 1]"] = (
        0.1
    )
    optimizer_actor: Optimizer = "adam"
    optimizer_critic: Optimizer = "adam"
    betas_actor: Betas = None
    betas_critic: Betas = None
    l2_actor: Decay = None
    l2_critic: Decay = None
