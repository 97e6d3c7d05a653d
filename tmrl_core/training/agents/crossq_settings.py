"""Settings of CrossQ, and its row of the table of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import AT_LEAST_0, AT_LEAST_1, SIZES, Arguments, Betas


class CrossqSettings(
    SacSettings,
    agent="tmrl_core.training.agents.crossq:CrossQAgent",
    actors=frozenset({"NormalizedSquashedGaussianMLPActor"}),
):
    """Settings of CrossQ."""

    # Not a setting here: there are no target networks.
    polyak: ClassVar[float] = 0.0  # type: ignore[misc]
    alpha: Annotated[float, AT_LEAST_0, "(initial) entropy coefficient, the temperature"] = 1.0
    betas_actor: Betas = (0.5, 0.999)
    betas_critic: Betas = (0.5, 0.999)
    _: KW_ONLY
    policy_delay: Annotated[int, AT_LEAST_1, "critic updates per update of the policy and the temperature"] = 3
    critic_sizes: Annotated[Sequence[int], SIZES, "width of each hidden layer of the critics"] = (1024, 1024)

    def model_arguments(self) -> Arguments:
        """Return those of soft actor-critic with the critics' widths."""
        return {"critic_sizes": self.critic_sizes, **super().model_arguments()}
