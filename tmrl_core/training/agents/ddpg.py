"""Deep deterministic policy gradient."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from tmrl_core.training.agents.ddpg_settings import DdpgSettings
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.networks import DeterministicActorCritic
from tmrl_core.training.agents.td3 import TD3Agent

one_critic = partial(DeterministicActorCritic, n=1)
"""Make a deterministic policy with a single critic."""


@takes(DdpgSettings, one_critic)
class DDPGAgent(TD3Agent):
    """A deterministic policy and one critic, both updated each time: TD3 without its three additions.

    Until the first update, the published policy samples uniformly from the action space (`exploration`). Use TD3 for
    new work; DDPG is a baseline.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda where there is one.
        model_cls: makes the policy and its critic, see `DeterministicActorCritic`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Lillicrap et al., arXiv:1509.02971, algorithm 1, with Gaussian exploration noise.
    """

    type_id = "ddpg"
    type_version = 1

    settings: DdpgSettings

    def update_kind(self) -> Hashable:
        """Return the same kind for every update: each one moves the policy."""
        return super().update_kind()
