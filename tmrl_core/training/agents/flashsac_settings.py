"""Settings of FlashSAC, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    CriticRate,
    PolicyRate,
    Polyak,
)


class FlashsacSettings(
    SacSettings,
    agent="tmrl_core.training.agents.flashsac:FlashSACAgent",
    actors=frozenset({"SquashedGaussianResidualActor"}),
):
    """Settings of FlashSAC."""

    of_model: ClassVar[tuple[str, ...]] = ("width", "critic_width", "blocks", "bins", "highest_value", "convolutions")
    # Not settings here: the networks are residual blocks with ReLU.
    hidden_sizes: ClassVar[None] = None  # type: ignore[misc]
    activation: ClassVar[None] = None  # type: ignore[misc]

    polyak: Polyak = 0.99
    alpha: Annotated[float, AT_LEAST_0, "(initial) entropy coefficient, the temperature"] = 0.01
    lr_actor: PolicyRate = 3e-4
    lr_critic: CriticRate = 3e-4
    lr_entropy: Annotated[float, "learning rate of the entropy coefficient"] = 3e-4
    target_entropy: Annotated[
        float | None, "target entropy, in nats; None: that of a Gaussian of the deviation `target_std`"
    ] = None
    _: KW_ONLY
    target_std: Annotated[float, ABOVE_0, "standard deviation of actions in [-1, 1] whose entropy is the target"] = 0.15
    policy_delay: Annotated[int, AT_LEAST_1, "critic updates per update of the policy and the temperature"] = 2
    lr_final: Annotated[float, AT_LEAST_0, "fraction of the learning rates at the end of their schedule"] = 0.5
    lr_horizon: Annotated[int, AT_LEAST_1, "updates of the learning rates' cosine schedule"] = 1_000_000
    width: Annotated[int, AT_LEAST_1, "width of the policy's residual blocks"] = 128
    critic_width: Annotated[int, AT_LEAST_1, "width of the critics' residual blocks"] = 256
    blocks: Annotated[int, AT_LEAST_1, "number of residual blocks of each network"] = 2
    bins: Annotated[int, "bins (at least 2) of the distribution of values"] = 101
    highest_value: Annotated[
        float, ABOVE_0, "value of the last bin, to which the memory scales rewards; the first bin is its negative"
    ] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise ConfigError(f"agent.kwargs.bins: found {self.bins}, allowed: at least 2")
