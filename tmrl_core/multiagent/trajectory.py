"""An episode as a manager records it, and the form of the experiences made from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tmrl_core.errors import EpisodeError
from tmrl_core.samples.columns import Tree, leaves

Columns = dict[str, Tree]
"""Experiences by key (`state`, `action`, `reward`, ...): arrays [n, ...], or nested dicts of arrays."""

Experiences = dict[str, Columns]
"""The experiences of each agent, by its id."""

IMPORTANCE = "importance"
"""Column of a batch, [n] float32: factors of the losses of rows that were not sampled uniformly."""

End = Literal["terminated", "truncated"]


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
    """All decisions of an episode, in their order.

    Attributes:
        final_states: model state of each truncated agent after its last decision, as far as it is known.
    """

    _ends: tuple[dict[str, End], End] | None = None

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        super().__init__(decisions)
        self.final_states: dict[str, Any] = {}
        self._final_events: list[tuple[str, Any]] = []

    def final_events(self) -> list[tuple[str, Any]]:
        """Return the agents that were truncated, with their events in `metrics["final_events"]`.

        Raises:
            EpisodeError: as for `ended`.
        """
        self._read_ends()
        return [(agent, event) for agent, event in self._final_events if self.ended(agent) == "truncated"]

    def ended(self, agent: str) -> End:
        """Return how the run of an agent ended. Use it only once the episode is over.

        Raises:
            EpisodeError: an agent decided after its end, or a reserved key of the metrics has a wrong value.
        """
        ends, others = self._ends or self._read_ends()
        return ends.get(agent, others)

    def _read_ends(self) -> tuple[dict[str, End], End]:
        """Read the end of each agent that the metrics name, the end of all others, and the final events."""
        ends: dict[str, End] = {}
        self._final_events.clear()
        metrics: Any = None
        for number, decision in enumerate(self):
            if ends and decision.agent in ends:
                raise EpisodeError(
                    f"decision {number} is by the agent {decision.agent!r}, whose run had {ends[decision.agent]}. "
                    "Name another agent, or leave it out of the earlier metrics' terminations and truncations"
                )
            metrics = decision.metrics
            if isinstance(metrics, dict) and (
                "terminations" in metrics or "truncations" in metrics or "final_events" in metrics
            ):
                for key, end in _ENDS:
                    flagged = [agent for agent, flag in _by_agent(metrics, key).items() if flag]
                    ends |= {agent: end for agent in flagged if agent not in ends}
                self._final_events += _by_agent(metrics, "final_events").items()
        others: End = "truncated" if isinstance(metrics, dict) and metrics.get("truncated") else "terminated"
        self._ends = ends, others
        return self._ends


_ENDS: tuple[tuple[str, End], ...] = (("terminations", "terminated"), ("truncations", "truncated"))


def _by_agent(metrics: dict[str, Any], key: str) -> Mapping[str, Any]:
    value = metrics.get(key, {})
    if not isinstance(value, Mapping):
        kind = "events" if key == "final_events" else "bools"
        raise EpisodeError(f"metrics[{key!r}] must map agent ids to {kind}, got {value!r:.100}")
    return value


def experience_problem(experiences: Any, agents: Collection[str]) -> str | None:
    """Return the first problem of experiences, or None.

    Args:
        experiences: should have, for agents among `agents`, the columns state, action and reward, of one length and
            with finite numbers.
        agents: the known ids.
    """
    if not isinstance(experiences, Mapping):
        return f"experiences must map agent ids to columns, got {type(experiences).__name__}"
    for agent, columns in experiences.items():
        if agent not in agents:
            return f"experiences name the agent {agent!r}; the agents are {list(agents)!r:.300}"
        if not isinstance(columns, Mapping):
            return f"the experiences of {agent!r} must map keys to columns, got {type(columns).__name__}"
        if missing := [key for key in ("state", "action", "reward") if key not in columns]:
            return f"the experiences of {agent!r} lack {missing}; they have {list(columns)}"
        reward = columns["reward"]
        if not isinstance(reward, np.ndarray) or not reward.ndim:
            return f"'reward' of {agent!r} is {_kind(reward)}; it must be an array [n]"
        for key, column in columns.items():
            for leaf in leaves(column):
                if not isinstance(leaf, np.ndarray) or not leaf.ndim or leaf.dtype.kind not in "biuf":
                    return f"{key!r} of {agent!r} is {_kind(leaf)}; it must be an array [n, ...] of numbers, or a dict"
                if len(leaf) != len(reward):
                    return f"the experiences of {agent!r} have {len(reward)} rewards, but {len(leaf)} rows of {key!r}"
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    row = int(np.argwhere(~np.isfinite(leaf))[0][0])
                    return f"{key!r} of experience {row} of {agent!r} holds {leaf[row]!s:.100}; it must be finite"
    return None


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
