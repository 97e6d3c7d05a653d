"""Settings of deep Q-networks, and their row of the table of algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tmrl_core.config.algorithms import DISCRETE, OFF_POLICY, REPLAY, Algorithm
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


@dataclass(repr=False, eq=False)
class DqnSettings(OffPolicySettings):
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


ALGORITHM = Algorithm(
    "tmrl_core.training.agents.dqn:DQNAgent",
    DqnSettings,
    action_spaces=DISCRETE,
    collection=OFF_POLICY,
    actors=frozenset({"QValueMLPActor"}),
    memories=REPLAY,
)
