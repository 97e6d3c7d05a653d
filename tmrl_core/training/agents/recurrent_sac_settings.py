"""Settings of soft actor-critic on sequences, and its row of the table of algorithms."""

from __future__ import annotations

from tmrl_core.config.algorithms import SEQUENCES
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import RecurrentSettings


class RecurrentSacSettings(
    SacSettings,
    RecurrentSettings,
    agent="tmrl_core.training.agents.recurrent_sac:RecurrentSacAgent",
    actors=frozenset({"SquashedGaussianRNNActor"}),
    memories=SEQUENCES,
):
    """Settings of soft actor-critic on sequences."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.imitation_coef:
            raise ConfigError(
                f"agent.kwargs.imitation_coef: found {self.imitation_coef!r}, allowed for recurrent agents: 0"
            )
