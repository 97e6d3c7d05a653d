"""Settings of proximal policy optimization with a recurrent policy, and its row of the table of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from tmrl_core.training.agents.ppo_settings import PpoSettings
from tmrl_core.training.agents.settings import AT_LEAST_1, SIZES


class RecurrentPpoSettings(
    PpoSettings,
    agent="tmrl_core.training.agents.recurrent_ppo:RecurrentPPOAgent",
    actors=frozenset({"CategoricalRNNActor", "GaussianRNNActor"}),
):
    """Settings of proximal policy optimization with a recurrent policy."""

    of_model: ClassVar[tuple[str, ...]] = (*PpoSettings.of_model, "cell", "cell_size", "state_interval")

    hidden_sizes: Annotated[
        Sequence[int], SIZES, "width of each hidden layer, before the recurrent one and of the values"
    ] = (64,)
    minibatch_size: Annotated[int, AT_LEAST_1, "transitions in a minibatch of whole sequences, about"] = 256
    cell: Annotated[str, "recurrent layer: gru or lstm"] = "gru"
    cell_size: Annotated[int, "units of the recurrent layer"] = 128
    state_interval: Annotated[int, "ticks between two stored states: the longest sequence that gradients cross"] = 20
