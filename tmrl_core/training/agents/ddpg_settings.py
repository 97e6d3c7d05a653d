"""Settings of deep deterministic policy gradient, and its row of the table of algorithms."""

from __future__ import annotations

from typing import ClassVar

from tmrl_core.training.agents.td3_settings import Td3Settings


class DdpgSettings(Td3Settings, agent="tmrl_core.training.agents.ddpg:DDPGAgent"):
    """Settings of deep deterministic policy gradient: those of TD3 without its additions, which are constants here."""

    policy_delay: ClassVar[int] = 1  # type: ignore[misc]
    target_noise: ClassVar[float] = 0.0  # type: ignore[misc]
    target_noise_clip: ClassVar[float] = 0.0  # type: ignore[misc]
