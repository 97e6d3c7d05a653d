"""Settings of behaviour cloning, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tmrl_core.config.algorithms import BOX, CHOICES, OFF_POLICY, REPLAY, Algorithm
from tmrl_core.training.agents.settings import ClippedNorm, Decay, OffPolicySettings, Optimizer, PolicyRate


@dataclass(repr=False, eq=False)
class BehaviorCloningSettings(OffPolicySettings):
    """Settings of behaviour cloning, which uses no rewards."""

    gamma: ClassVar[float] = 0.0  # type: ignore[misc]
    polyak: ClassVar[float] = 0.0  # type: ignore[misc]

    lr: PolicyRate = 1e-3
    _: KW_ONLY
    max_grad_norm: ClippedNorm = None
    optimizer: Optimizer = "adam"
    l2: Decay = None


ALGORITHM = Algorithm(
    "tmrl_core.training.agents.behavior_cloning:BehaviorCloningAgent",
    BehaviorCloningSettings,
    action_spaces=BOX | CHOICES,
    collection=OFF_POLICY,
    actors=frozenset({"SquashedGaussianMLPActor", "CategoricalMLPActor"}),
    memories=REPLAY,
)
