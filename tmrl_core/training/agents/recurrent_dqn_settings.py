"""Settings of R2D2, which is deep Q-networks on sequences, and its row of the table of algorithms."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tmrl_core.config.algorithms import SEQUENCES
from tmrl_core.training.agents.dqn_settings import DqnSettings
from tmrl_core.training.agents.settings import AT_LEAST_1, RecurrentSettings


class _TargetSettings(RecurrentSettings):
    n_step: Annotated[int, AT_LEAST_1, "ticks of a target, within a sequence"] = 1
    rescale_values: Annotated[bool, "learn values as sign(x) (sqrt(abs(x) + 1) - 1) + 0.001 x"] = False


class RecurrentDqnSettings(
    DqnSettings,
    _TargetSettings,
    agent="tmrl_core.training.agents.recurrent_dqn:RecurrentDQNAgent",
    actors=frozenset({"QValueRNNActor"}),
    memories=SEQUENCES,
):
    """Settings of R2D2: deep Q-networks on sequences."""

    of_model: ClassVar[tuple[str, ...]] = (*RecurrentSettings.of_model, "dueling")
