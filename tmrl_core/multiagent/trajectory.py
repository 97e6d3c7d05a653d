"""An episode as a manager records it, and the form of the experiences made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tmrl_core.samples.columns import Tree

Columns = dict[str, Tree]
"""Experiences by key (`state`, `action`, `reward`, ...): arrays [n, ...], or nested dicts of arrays."""

Experiences = dict[str, Columns]
"""The experiences of each agent, by its id."""


@dataclass(slots=True, eq=False)
class Decision:
    """One decision of an agent and the metrics that followed.

    Args:
        agent: its id.
        state: the model state, as the state shaper made it.
        action: the model action, before the action shaper.
        event: the decision event.
        metrics: the metrics that `step` returned for this action; None until then.
        extras: further values of the policy, such as `logp`.
    """

    agent: str
    state: Any
    action: Any
    event: Any
    metrics: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict)


class Trajectory(list[Decision]):
    """All decisions of an episode, in their order."""

    def ended(self, agent: str) -> Literal["terminated", "truncated"]:
        """Return how the run of an agent ended. Use it once the episode is over."""
        metrics: Any = None
        for decision in self:
            metrics = decision.metrics
            if isinstance(metrics, Mapping):
                if metrics.get("terminations", {}).get(agent):
                    return "terminated"
                if metrics.get("truncations", {}).get(agent):
                    return "truncated"
        return "truncated" if isinstance(metrics, Mapping) and metrics.get("truncated") else "terminated"
