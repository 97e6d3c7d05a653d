"""Shapers: raw events become states, model actions become executable ones, trajectories become experiences."""

# Theory of operation
#
# Shapers are where a user's scenario meets the agents; each is called with what the environment gave and returns what a
# policy takes. Only the experience shaper has an algorithm of its own.
#
# `KStepExperienceShaper` takes each agent's decisions for themselves, whatever other agents did between them. Example
# with k = 2, gamma = 0.9 and rewards 1, 2, 3 of an agent that is terminated:
#
#     decision  reward             discount  next state  terminated
#     0         1 + 0.9 * 2 = 2.8  0.81      s2          no
#     1         2 + 0.9 * 3 = 4.7  0.81      s2          yes
#     2         3                  0.9       s2          yes
#
# All k-step returns of an agent are one convolution of its rewards with the powers of gamma, so there is no loop over
# rows and steps; the rewards are reversed, because a convolution looks backwards.
#
# A truncated agent bootstraps from the event that it no longer gets (`final_events` of the metrics). Without it, its
# last state stands in, and its last reward counts twice: in the return and in the value of the state.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import ConfigError, EpisodeError
from tmrl_core.multiagent.trajectory import Columns, Experiences, Trajectory
from tmrl_core.samples.columns import map_leaves


class StateShaper(ABC):
    """Makes the model state of a decision event. Override `_shape`."""

    def __call__(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the model state: an array, a number, or a (nested) dict of arrays."""
        return self._shape(decision_event, snapshot_list)

    @abstractmethod
    def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the model state."""


class ActionShaper(ABC):
    """Makes an executable action of a model action. Override `_shape`."""

    def __call__(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the action that the environment executes."""
        return self._shape(model_action, decision_event, snapshot_list)

    @abstractmethod
    def _shape(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the executable action."""


class ExperienceShaper(ABC):
    """Makes the experiences of each agent from a trajectory. Override `_shape`.

    Args:
        reward: function from the metrics that follow a decision to its reward. None: the rewards are those of
            `metrics["rewards"]`, summed from a decision of an agent until its next one. For rewards that depend on
            more, override `_rewards`.
    """

    def __init__(self, reward: Callable[[Any], float] | None = None) -> None:
        self._reward = reward

    def __call__(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        """Return the experiences by agent, at least `state`, `action` and `reward`."""
        return self._shape(trajectory, snapshot_list)

    @abstractmethod
    def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        """Return the experiences by agent."""

    def _rewards(self, trajectory: Trajectory, snapshot_list: Any) -> Sequence[float] | NDArray[Any]:
        """Return one reward for each decision of the trajectory.

        Override this method for rewards that depend on the whole episode, such as delayed ones.

        Raises:
            EpisodeError: there is no reward function, and no metrics contain rewards.
        """
        if self._reward is not None:
            return [self._reward(decision.metrics) for decision in trajectory]
        return rewards_between_turns(trajectory)


class KStepExperienceShaper(ExperienceShaper):
    """Makes an experience of each decision: its k-step return, and the state that the value is estimated from.

    Each agent is shaped for itself. Its decisions t = 0..T-1 have the states s_t and rewards r_t. Decision t gives,
    with n = min(k, T - t), so that the last decisions sum fewer rewards:

        reward      r_t + gamma r_t+1 + ... + gamma^(n-1) r_t+n-1, float32
        discount    gamma^n, float32
        next_state  s_t+n; at the end of the agent's run its final state if known, else its last state s_T-1
        terminated  the return reaches the end of the run, and there is nothing to expect after it, bool
        truncated   the return reaches the end of the run, which was cut off there, bool

    The learning target is `reward + discount * (1 - terminated) * value(next_state)`: truncated runs bootstrap. The
    state after a truncated agent's last decision is known if the metrics have its `final_events`. If not, its last
    state s_T-1 is used, and r_T-1 counts twice: in the return and in the value.

    Further columns are `state`, `action`, and the extras of the decisions, such as `logp`.

    Args:
        reward: as for `ExperienceShaper`.
        gamma: discount factor of one decision of an agent, 0 to 1.
        k: maximum number of rewards in a return; it may exceed the length of an episode.

    Raises:
        ConfigError: gamma is not from 0 to 1, or k is not a positive integer.

    Source: Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 7.1.
    """

    def __init__(self, reward: Callable[[Any], float] | None = None, *, gamma: float = 0.99, k: int = 1) -> None:
        super().__init__(reward)
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma must be from 0 to 1, got {gamma!r:.100}")
        if type(k) is not int or k < 1:
            raise ConfigError(f"k must be an integer of at least 1, got {k!r:.100}")
        self.gamma = gamma
        self.k = k

    def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        """Return the experiences by agent, in the order of the first decisions.

        Raises:
            EpisodeError: a reward is missing or not finite, or the states, actions or extras of an agent differ in keys
                or shapes. The message names the agent.
        """
        turns: defaultdict[str, list[int]] = defaultdict(list)
        for turn, decision in enumerate(trajectory):
            turns[decision.agent].append(turn)
        rewards = np.asarray(self._rewards(trajectory, snapshot_list), np.float64)
        if rewards.shape != (len(trajectory),):
            raise EpisodeError(
                f"a shaper needs one reward for each of {len(trajectory)} decisions, got {rewards.shape}"
            )
        if len(bad := np.flatnonzero(~np.isfinite(rewards))):
            agents = sorted({trajectory[turn].agent for turn in bad})
            raise EpisodeError(f"the reward of decision {bad[0]} is {rewards[bad[0]]}; {len(bad)} are bad, of {agents}")
        return {agent: self._experiences(agent, own, rewards[own], trajectory) for agent, own in turns.items()}

    def _experiences(
        self, agent: str, turns: list[int], rewards: NDArray[np.float64], trajectory: Trajectory
    ) -> Columns:
        count = len(turns)
        k = min(self.k, count)
        own = [trajectory[turn] for turn in turns]
        states = [decision.state for decision in own]
        if agent in trajectory.final_states:
            states.append(trajectory.final_states[agent])
        state = stacked(states, f"states of {agent!r}")
        start = np.arange(count)
        steps = np.minimum(k, count - start)
        after = np.minimum(start + k, len(states) - 1)
        at_end = start + k >= count
        terminated = trajectory.ended(agent) == "terminated"
        given = [decision.extras for decision in own]
        extras = stacked(given, f"extras of {agent!r}") if any(given) else {}
        columns: Columns = {
            "state": map_leaves(lambda leaf: leaf[:count], state),
            "action": stacked([decision.action for decision in own], f"actions of {agent!r}"),
            # The sum over k rewards, for all decisions at once: the convolution with reversed time.
            "reward": np.convolve(rewards[::-1], self.gamma ** np.arange(k))[count - 1 :: -1].astype(np.float32),
            "next_state": map_leaves(lambda leaf: leaf[after], state),
            "discount": (self.gamma**steps).astype(np.float32),
            "terminated": at_end & terminated,
            "truncated": at_end & (not terminated),
        }
        if taken := columns.keys() & extras.keys():
            raise EpisodeError(f"extras of {agent!r} have the names of other columns: {sorted(taken)}. Rename them.")
        return {**columns, **extras}


def rewards_between_turns(trajectory: Trajectory) -> NDArray[np.float64]:
    """Return for each decision the sum of its agent's rewards from then until that agent's next decision.

    The rewards are those of `metrics["rewards"]`, which maps agent ids to numbers. Rewards before an agent's first
    decision are left out.

    Raises:
        EpisodeError: no metrics contain rewards.
    """
    rewards = np.zeros(len(trajectory))
    latest: dict[str, int] = {}
    found = not trajectory
    for turn, decision in enumerate(trajectory):
        latest[decision.agent] = turn
        if isinstance(decision.metrics, Mapping) and (given := decision.metrics.get("rewards")) is not None:
            found = True
            for agent, reward in given.items():
                if agent in latest:
                    rewards[latest[agent]] += reward
    if not found:
        raise EpisodeError(
            "the metrics of this episode contain no `rewards` (agent id -> reward). Give the experience shaper a "
            "function from the metrics to the reward, or override its `_rewards`."
        )
    return rewards


def stacked(values: Sequence[Any], what: str) -> Any:
    """Return values of the same structure as columns: an array [n, ...], or a dict of columns if they are dicts.

    Args:
        values: n numbers, arrays, or nested dicts of them.
        what: their name for messages.

    Raises:
        EpisodeError: they differ in keys or shapes, or are not numeric.
    """
    first = values[0]
    if isinstance(first, Mapping):
        if any(not isinstance(value, Mapping) or value.keys() != first.keys() for value in values):
            raise EpisodeError(f"the {what} differ in their keys; each must have the keys {list(first)}")
        return {key: stacked([value[key] for value in values], f"{what} (key {key!r})") for key in first}
    try:
        column = np.array(values)
    except ValueError as exc:
        raise EpisodeError(f"the {what} differ in shape or structure: {exc}") from exc
    if column.dtype.kind not in "biuf":
        raise EpisodeError(f"the {what} must be numbers or numeric arrays, got {first!r:.100}")
    return column
