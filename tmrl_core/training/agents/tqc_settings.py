"""Settings of truncated quantile critics, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import AT_LEAST_0, AT_LEAST_1, Arguments


class TqcSettings(SacSettings, agent="tmrl_core.training.agents.tqc:TQCAgent"):
    """Settings of truncated quantile critics."""

    _: KW_ONLY
    n: Annotated[int, AT_LEAST_1, "number of critics"] = 2
    quantiles: Annotated[int, "quantiles of the return that each critic estimates, at least 2"] = 25
    dropped_quantiles: Annotated[
        int, AT_LEAST_0, "number of the highest quantiles, times the number of critics, that targets leave out"
    ] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 2:
            raise ConfigError(f"agent.kwargs.quantiles: found {self.quantiles}, allowed: at least 2")
        if self.dropped_quantiles >= self.quantiles:
            raise ConfigError(
                f"agent.kwargs.dropped_quantiles: found {self.dropped_quantiles}, allowed: less than "
                f"agent.kwargs.quantiles = {self.quantiles}"
            )

    def model_arguments(self) -> Arguments:
        """Return those of soft actor-critic with the number of critics and of their quantiles."""
        return {"n": self.n, "outputs": self.quantiles, **super().model_arguments()}
