"""Settings of deep deterministic policy gradient, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tmrl_core.config.algorithms import BOX, OFF_POLICY, REPLAY, Algorithm
from tmrl_core.training.agents.td3_settings import Td3Settings


@dataclass(repr=False, eq=False)
class DdpgSettings(Td3Settings):
    """Settings of deep deterministic policy gradient: those of TD3 without its additions, which are constants here."""

    policy_delay: ClassVar[int] = 1  # type: ignore[misc]
    target_noise: ClassVar[float] = 0.0  # type: ignore[misc]
    target_noise_clip: ClassVar[float] = 0.0  # type: ignore[misc]


ALGORITHM = Algorithm(
    "tmrl_core.training.agents.ddpg:DDPGAgent",
    DdpgSettings,
    action_spaces=BOX,
    collection=OFF_POLICY,
    actors=frozenset({"DeterministicMLPActor"}),
    memories=REPLAY,
)
