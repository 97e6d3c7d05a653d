"""Settings of randomized ensembled double Q-learning, and its row of the table of algorithms."""

from __future__ import annotations

from typing import Annotated

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import AT_LEAST_1, Arguments, Settings


class _Ensemble(Settings):
    n: Annotated[int, "number of critics"] = 10
    m: Annotated[int, "critics in the random subset whose lowest value is the target"] = 2
    q_updates_per_policy_update: Annotated[
        int, AT_LEAST_1, "critic updates per policy update, as `trainer.max_training_steps_per_env_step`"
    ] = 1


class RedqSettings(SacSettings, _Ensemble, agent="tmrl_core.training.agents.redq:REDQSACAgent"):
    """Settings of randomized ensembled double Q-learning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.m <= self.n:
            raise ConfigError(f"REDQ needs 1 <= m <= n, got m={self.m} and n={self.n}")

    def model_arguments(self) -> Arguments:
        """Return those of soft actor-critic with the number of critics."""
        return {"n": self.n, **super().model_arguments()}
