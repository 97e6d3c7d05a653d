"""Settings of soft actor-critic on sequences, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_core.config.algorithms import BOX, OFF_POLICY, SEQUENCES, Algorithm
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import RecurrentSettings


@dataclass(repr=False, eq=False)
class RecurrentSacSettings(SacSettings, RecurrentSettings):
    """Settings of soft actor-critic on sequences."""


ALGORITHM = Algorithm(
    "tmrl_core.training.agents.recurrent_sac:RecurrentSacAgent",
    RecurrentSacSettings,
    action_spaces=BOX,
    collection=OFF_POLICY,
    actors=frozenset({"SquashedGaussianRNNActor"}),
    memories=SEQUENCES,
)
