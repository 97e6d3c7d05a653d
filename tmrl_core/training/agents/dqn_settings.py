"""Settings of deep Q-networks, and their row of the table of algorithms."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tmrl_core.config.algorithms import DISCRETE
from tmrl_core.training.agents.settings import (
    AT_LEAST_1,
    SHARE,
    Betas,
    ClippedNorm,
    Decay,
    OffPolicySettings,
    Optimizer,
    Polyak,
)


class DqnSettings(
    OffPolicySettings,
    agent="tmrl_core.training.agents.dqn:DQNAgent",
    action_spaces=DISCRETE,
    actors=frozenset({"QValueMLPActor"}),
):
    """Settings of deep Q-networks."""

    of_model: ClassVar[tuple[str, ...]] = (*OffPolicySettings.of_model, "dueling")

    polyak: Polyak = 0.0
    target_interval: Annotated[int, AT_LEAST_1, "updates between two updates of the target network"] = 500
    lr: Annotated[float, "learning rate"] = 5e-4
    double: Annotated[bool, "double DQN: the target network evaluates the online network's choice"] = True
    dueling: Annotated[bool | None, "dueling network; None: `model_cls`'s default"] = None
    epsilon_initial: Annotated[float, SHARE, "fraction of random actions before the first update"] = 1.0
    epsilon_final: Annotated[float, SHARE, "fraction of random actions at the end"] = 0.05
    epsilon_updates: Annotated[int, AT_LEAST_1, "updates from the initial to the final fraction"] = 10_000
    max_grad_norm: ClippedNorm = 10.0
    optimizer: Optimizer = "adam"
    betas: Betas = None
    l2: Decay = None
