"""Settings of behaviour cloning, and its row of the table of algorithms."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from tmrl_core.config.algorithms import BOX, CHOICES
from tmrl_core.training.agents.settings import ABOVE_0, ClippedNorm, Decay, OffPolicySettings, Optimizer, PolicyRate


class BehaviorCloningSettings(
    OffPolicySettings,
    agent="tmrl_core.training.agents.behavior_cloning:BehaviorCloningAgent",
    action_spaces=BOX | CHOICES,
    actors=frozenset({"SquashedGaussianMLPActor", "CategoricalMLPActor"}),
):
    """Settings of behaviour cloning, which uses no rewards."""

    gamma: ClassVar[float] = 0.0  # type: ignore[misc]
    polyak: ClassVar[float] = 0.0  # type: ignore[misc]

    lr: PolicyRate = 1e-3
    _: KW_ONLY
    max_grad_norm: ClippedNorm = None
    optimizer: Optimizer = "adam"
    l2: Decay = None
    spread: Annotated[
        float | None,
        ABOVE_0,
        "for a Box: standard deviation, before squashing, with which workers act, such as 0.05; None: that of the "
        "untrained network, which is large",
    ] = None
