"""Deep deterministic policy gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tmrl_core.training.agents.networks import DeterministicActorCritic
from tmrl_core.training.agents.td3 import TD3Agent
from tmrl_core.training.value_types import Settings, Space

one_critic = partial(DeterministicActorCritic, n=1)
"""Make a deterministic policy with a single critic."""


class DDPGAgent(TD3Agent):
    """A deterministic policy and one critic, both updated each time: TD3 without its three additions.

    Until the first update, the published policy samples uniformly from the action space (`exploration`). Use TD3 for
    new work; DDPG is a baseline.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda where there is one.
        model_cls: makes the policy and its critic, see `DeterministicActorCritic`.
        gamma: discount factor per step.
        polyak: coefficient of the Polyak update of the target networks.
        lr_actor: learning rate of the policy.
        lr_critic: learning rate of the critic.
        exploration_noise: standard deviation of the workers' exploration noise, for actions scaled to [-1, 1].
        optimizer_actor: adam, adamw or sgd.
        optimizer_critic: adam, adamw or sgd.
        betas_actor: Adam's; None: torch's default.
        betas_critic: Adam's; None: torch's default.
        l2_actor: weight decay; None: the optimizer's default.
        l2_critic: weight decay; None: the optimizer's default.
        hidden_sizes: width of each hidden layer, passed to `model_cls`; None: its default.
        activation: of the hidden layers, passed to `model_cls`; None: its default.
        model_kwargs: further keyword arguments of `model_cls`.
        compile: true, false or auto, see `OffPolicyAgent.compute_with`.
        precision: float32 or bfloat16, see there.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Lillicrap et al., arXiv:1509.02971, algorithm 1, with Gaussian exploration noise.
    """

    type_id = "ddpg"
    type_version = 1

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str | None = None,
        model_cls: Callable[..., Any] = one_critic,
        gamma: float = 0.99,
        polyak: float = 0.995,
        lr_actor: float = 1e-3,
        lr_critic: float = 1e-3,
        exploration_noise: float = 0.1,
        optimizer_actor: str = "adam",
        optimizer_critic: str = "adam",
        betas_actor: Sequence[float] | None = None,
        betas_critic: Sequence[float] | None = None,
        l2_actor: float | None = None,
        l2_critic: float | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: object = None,
        model_kwargs: Settings | None = None,
        compile: bool | str = "auto",
        precision: str = "float32",
    ) -> None:
        super().__init__(
            observation_space, action_space, device, model_cls, gamma, polyak, lr_actor, lr_critic,
            policy_delay=1, target_noise=0.0, target_noise_clip=0.0, exploration_noise=exploration_noise,
            optimizer_actor=optimizer_actor, optimizer_critic=optimizer_critic, betas_actor=betas_actor,
            betas_critic=betas_critic, l2_actor=l2_actor, l2_critic=l2_critic, hidden_sizes=hidden_sizes,
            activation=activation, model_kwargs=model_kwargs, compile=compile, precision=precision,
        )  # fmt: skip
