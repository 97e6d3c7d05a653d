"""Settings of proximal policy optimization with a recurrent policy, and its row of the table of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tmrl_core.config.algorithms import BOX, CHOICES, ON_POLICY, Algorithm
from tmrl_core.training.agents.ppo_settings import PpoSettings
from tmrl_core.training.agents.settings import AT_LEAST_1, SIZES


@dataclass(repr=False, eq=False)
class RecurrentPpoSettings(PpoSettings):
    """Settings of proximal policy optimization with a recurrent policy."""

    of_model: ClassVar[tuple[str, ...]] = (*PpoSettings.of_model, "cell", "cell_size", "state_interval")

    hidden_sizes: Annotated[
        Sequence[int], SIZES, "width of each hidden layer, before the recurrent one and of the values"
    ] = (64,)
    minibatch_size: Annotated[int, AT_LEAST_1, "transitions in a minibatch of whole sequences, about"] = 256
    cell: Annotated[str, "recurrent layer: gru or lstm"] = "gru"
    cell_size: Annotated[int, "units of the recurrent layer"] = 128
    state_interval: Annotated[int, "ticks between two stored states: the longest sequence that gradients cross"] = 20


ALGORITHM = Algorithm(
    "tmrl_core.training.agents.recurrent_ppo:RecurrentPPOAgent",
    RecurrentPpoSettings,
    action_spaces=BOX | CHOICES,
    collection=ON_POLICY,
    actors=frozenset({"CategoricalRNNActor", "GaussianRNNActor"}),
)
