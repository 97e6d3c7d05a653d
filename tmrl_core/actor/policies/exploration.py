"""Exploration parameters that policies of all backends have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tmrl_core.actor.module import ActorModule

if TYPE_CHECKING:
    from typing_extensions import Self


class EpsilonGreedy(ActorModule):
    """A policy with a share of random actions, `epsilon`."""

    epsilon: float

    def exploration(self) -> dict[str, float]:
        """Return `epsilon`."""
        return {"epsilon": self.epsilon}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set `epsilon`."""
        self.epsilon = float(parameters.get("epsilon", self.epsilon))


class RandomUntilTrained(ActorModule):
    """A policy with a share of random actions, `random`, which ends with the first weights if nobody has set it."""

    random: float
    _told: bool

    def begin_exploration(self, random: float | None) -> None:
        """Set the share that the constructor was given; None: all actions, until weights arrive without a share."""
        self._told = random is not None
        self._explore_with(1.0 if random is None else float(random))

    def exploration(self) -> dict[str, float]:
        """Return `random`."""
        return {"random": self.random}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set `random`."""
        if "random" in parameters:
            self._told = True
            self._explore_with(float(parameters["random"]))

    def from_bytes(self, data: bytes, device: Any = "cpu") -> Self:
        """Load the weights as the base class does, and use them from now on, unless `random` was set explicitly."""
        actor: Self = super().from_bytes(data, device)  # type: ignore[assignment]  # each backend returns itself
        if not self._told:
            self._explore_with(0.0)
        return actor

    def _explore_with(self, random: float) -> None:
        self.random = random
