"""SessionBatchEnvironment: recorded sessions as an environment that replays them.

Data are NumPy arrays or torch tensors; torch is imported when it is needed. Shape suffixes: B batch, T ticks.
"""

# Theory of operation
#
# For: recorded sessions that are stepped like an environment, so that one piece of code (a learner's loop,
# `get_sessions`) serves live and recorded data. It knows arrays [B, T, ...]; where they come from (a pool, a file, a
# test) it does not.
#
# One class is two things. As a vector environment of Gymnasium it has a tick for each session, and steps them. As a
# `BaseEnvironment` it is a function of a state, which is the tick itself: nothing is remembered between calls, so any
# number of unrolls can go through the same recording, from any tick.
#
# The convention, in numbers, for a session of three ticks that was truncated:
#
#     tick              0     1     2     3 and later
#     observation       o0    o1    o2    the final one, else o2
#     recorded action   a0    a1    a2    a2
#     reward            r0    r1    r2    0
#     alive             1     1     1     0
#
# Reward r2 belongs to action a2, and o3, the observation after it, is known only as `final_observations`. `step` number
# 2 returns r2, the final observation and `truncated`. The value at tick 3 is then the one to bootstrap from, which is
# why the final observation stands there and not zeros.
#
# A session ends with its last tick that is alive, even if the arrays continue: padding of shorter sessions, or what a
# recorder wrote after the end, cannot reach a result. That is checked once, in the constructor (1s, then 0s), so that
# the length of a session is the sum of its flags.
#
# Actions are ignored. `checked_action_results` therefore does not compare them with a declaration: an actor whose
# actions have another dtype may still be evaluated on a recording.
#
# The arrays are the caller's, NumPy or torch, on any device; nothing is copied until a mask changes something. torch is
# imported in the methods that need tensors. A replay of NumPy arrays by Gymnasium's API works without it.

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tmrl_core.envs.replay.functional_environment import BaseEnvironment, Shapes, as_shapes, as_space
from tmrl_core.envs.replay.sequences import check_alive

if TYPE_CHECKING:
    from torch import Tensor

    from tmrl_core.envs.replay.functional_environment import Results, Shape

    Array = np.ndarray | Tensor
    Arrays = Array | Sequence[Array]


class ReplayEnvironment(BaseEnvironment, VectorEnv[Any, Any, np.ndarray]):
    """Recorded sessions: sub-environments of Gymnasium's vector API, and together a `BaseEnvironment`.

    Tick t of a session is observation t, the action chosen on it, and the reward for that action. The environment
    ignores the actions that it is given. Its state is the tick, one int32 for each session.

    A session ends after its last tick that is alive. Past the end it shows its last observation (the final one where it
    is known), gives the reward 0 and is not alive. Anything recorded in ticks that are not alive is ignored.

    Gymnasium: `reset` shows observation 0. Step t gives the reward of tick t and observation t + 1, and ends a session
    whose last tick is t: truncated if the session is known to be truncated, else terminated. `infos["action"]` has the
    recorded actions of tick t, and `infos["_action"]` is True for sessions that were alive. A session that has ended
    stays ended until it is reset (`AutoresetMode.DISABLED`); `reset_mask`, an option of `reset`, is True for the
    sessions to reset.

    Attributes:
        observations: recorded sequences [B, T, ...], a list in declared order.
        actions: likewise; an empty list if no actions were recorded.
        rewards: [B, T], or None.
        is_alive: [B, T], 1 through the terminal tick and 0 after.
        preceding_agent_memories: memories of the actor before tick 0, [B, ...], a list; or None.
        terminated: [B], 0 for sessions that were truncated; or None, all were terminated.
        final_observations: observations after the last action, [B, ...], a list; or None.
        recorded_ticks: T, number of ticks that were recorded.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012  # as Gymnasium declares it

    observations: list[Array]
    actions: list[Array]
    rewards: Array | None
    is_alive: Array
    preceding_agent_memories: list[Array] | None
    terminated: Array | None
    final_observations: list[Array] | None

    def _declare(self, action_shapes: list[Shape]) -> None:
        """Declare shapes and dtypes, and begin at tick 0."""
        first = self.observations[0]
        BaseEnvironment.__init__(
            self,
            [()],
            [tuple(each.shape[2:]) for each in self.observations],
            action_shapes,
            "int32",
            [each.dtype for each in self.observations],
            [each.dtype for each in self.actions] or None,
        )
        self.num_envs, self.recorded_ticks = int(first.shape[0]), int(first.shape[1])
        self._tick_B = np.zeros(self.num_envs, np.int32)

    # Computed when they are asked for: a learner that samples batches needs none of them.

    @cached_property
    def single_observation_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Space of the observations of one session."""
        return as_space(self.observation_shapes, self.observation_dtypes)

    @cached_property
    def single_action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Space of the actions of one session."""
        return as_space(self.action_shapes, self.action_dtypes)

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Space of the observations of all sessions."""
        return batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Space of the actions of all sessions."""
        return batch_space(self.single_action_space, self.num_envs)

    @cached_property
    def _lengths_B(self) -> np.ndarray:
        lengths_B: np.ndarray = as_numpy(self.is_alive).astype(bool).sum(axis=1)
        return lengths_B

    def at(self, sequence: Array, tick_B: np.ndarray) -> Array:
        """Return entries of a recorded sequence; past the end of a session, its last one.

        Args:
            sequence: [B, T, ...].
            tick_B: [B] or [B, n] ticks from 0 on.

        Returns:
            [B, ...] or [B, n, ...], of the type of the sequence.
        """
        rows_B = np.arange(self.num_envs)
        last_B = np.maximum(self._lengths_B - 1, 0)
        if tick_B.ndim == 2:
            rows_B, last_B = rows_B[:, None], last_B[:, None]
            # All ticks from 0 on, of sessions that are long enough: a view, where indices would copy everything.
            if (tick_B <= last_B).all() and (tick_B == np.arange(tick_B.shape[1])).all():
                return sequence[:, : tick_B.shape[1]]
        return sequence[rows_B, np.minimum(tick_B, last_B)]

    def observations_at(self, tick_B: np.ndarray) -> list[Array]:
        """Return the observations of ticks [B] or [B, n]; past the end of a session, its final or its last one."""
        found = [self.at(each, tick_B) for each in self.observations]
        if self.final_observations is None:
            return found
        ended = ~self.alive_at(tick_B)
        sessions = np.nonzero(ended)[0]
        return [_with(each, ended, final[sessions]) for each, final in zip(found, self.final_observations, strict=True)]

    def rewards_at(self, tick_B: np.ndarray) -> Array:
        """Return the rewards of ticks [B] or [B, n]: 0 past the end of a session, or if no rewards were recorded."""
        if self.rewards is None:
            return np.zeros(tick_B.shape, np.float32)
        return _with(self.at(self.rewards, tick_B), ~self.alive_at(tick_B), 0)

    def alive_at(self, tick_B: np.ndarray) -> np.ndarray:
        """Return True for ticks [B] or [B, n] before the end of their sessions."""
        alive: np.ndarray = tick_B < (self._lengths_B if tick_B.ndim == 1 else self._lengths_B[:, None])
        return alive

    # --- BaseEnvironment --------------------------------------------------------------------------------------------

    def get_initial_results(self, batch_size: int) -> Results:
        """Return tick 0 and its observations.

        Raises:
            ValueError: the batch is not as large as the recorded one.
        """
        import torch

        if batch_size != self.num_envs:
            raise ValueError(f"found a batch of {batch_size}; a replay has as many as were recorded, {self.num_envs}.")
        observations = [as_tensor(each) for each in self.observations_at(np.zeros(batch_size, np.int32))]
        return [torch.zeros(batch_size, dtype=torch.int32, device=observations[0].device)], observations

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """Return the next tick and its observations. The actions are ignored."""
        ticks = last_states[0] + 1
        return [ticks], [as_tensor(each) for each in self.observations_at(as_numpy(ticks))]

    def checked_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """As `get_action_results`: actions that are ignored may have any shape and dtype."""
        return self.get_action_results(last_states, actions)

    def get_recorded_actions(self, states: list[Tensor]) -> list[Tensor]:
        """Return the recorded actions of the tick in `states`: past the end of a session, the last ones."""
        return [as_tensor(self.at(each, as_numpy(states[0]))) for each in self.actions]

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        """Return the rewards of the tick in `last_states`."""
        return as_tensor(self.rewards_at(as_numpy(last_states[0])))

    def get_is_alive(self, states: list[Tensor]) -> Tensor:
        """Return 1 for sessions that have not ended at the tick in `states`, else 0."""
        import torch

        return torch.as_tensor(self.alive_at(as_numpy(states[0])).astype(np.uint8), device=states[0].device)

    # --- Gymnasium ----------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin again at tick 0: all sessions, or those that the option `reset_mask` is True for."""
        super().reset(seed=seed)
        mask_B = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self._tick_B = np.where(mask_B, np.int32(0), self._tick_B)
        return self._joined(self.observations_at(self._tick_B)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Go one tick on. The actions are ignored and may be None."""
        # A new array: the old one may be in the hands of a caller as a state.
        tick_B = self._tick_B
        self._tick_B = tick_B + np.int32(1)
        ended_B = ~self.alive_at(self._tick_B)
        truncated_B = np.zeros_like(ended_B) if self.terminated is None else ended_B & (as_numpy(self.terminated) == 0)
        infos = {}
        if self.actions:
            infos = {"action": self._joined([self.at(each, tick_B) for each in self.actions])}
            infos["_action"] = self.alive_at(tick_B)
        observations = self._joined(self.observations_at(self._tick_B))
        return observations, as_numpy(self.rewards_at(tick_B)), ended_B & ~truncated_B, truncated_B, infos

    @staticmethod
    def _joined(arrays: list[Array]) -> Any:
        joined = tuple(map(as_numpy, arrays))
        return joined[0] if len(joined) == 1 else joined


class SessionBatchEnvironment(ReplayEnvironment):
    """A batch of recorded sessions. It refers to the given arrays and copies none of them.

    Args:
        observations: an array or tensor, or a list of them, [B, T, ...].
        single_observation_shapes: shapes of one observation, without batch and tick: one shape, or a list of them.
        actions: likewise; None: none were recorded, so that an actor's own actions are used with these observations.
        single_action_shapes: likewise, of the actions; `"all_scalar"`: each action has the shape (), also if none were
            recorded.
        rewards: [B, T]; None: none were recorded.
        is_alive: [B, T], 1 through the terminal tick and 0 after; None: all ones.
        preceding_agent_memories: an array or tensor, or a list of them, [B, ...]: what the actor remembered before
            tick 0.
        terminated: [B], 0 for sessions that were truncated; None: all were terminated.
        final_observations: an array or tensor, or a list of them, [B, ...], after the last action of each session.

    Raises:
        ValueError: numbers, shapes or lengths of the arrays differ from each other or from the given shapes, or
            `is_alive` is not 0 or 1, or is 1 after a 0.
    """

    def __init__(
        self,
        observations: Arrays,
        single_observation_shapes: Shapes,
        actions: Arrays | None = None,
        single_action_shapes: Shapes | Literal["all_scalar"] = "all_scalar",
        rewards: Array | None = None,
        is_alive: Array | None = None,
        preceding_agent_memories: Arrays | None = None,
        *,
        terminated: Array | None = None,
        final_observations: Arrays | None = None,
    ) -> None:
        self.observations = _listed("observations", observations)
        self.actions = [] if actions is None else _listed("actions", actions)
        if not self.observations or self.observations[0].ndim < 2:
            raise ValueError(
                "observations is empty or has no axes [batch, tick]; a session has at least one observation."
            )
        sessions: Shape = tuple(self.observations[0].shape[:2])
        shapes = as_shapes("single_observation_shapes", single_observation_shapes)
        _check("observations", self.observations, shapes, sessions)
        action_shapes: list[Shape] = (
            [()] * max(len(self.actions), 1)
            if single_action_shapes == "all_scalar"
            else as_shapes("single_action_shapes", single_action_shapes)
        )
        if actions is not None:
            _check("actions", self.actions, action_shapes, sessions)
        self.rewards = rewards
        self.is_alive = _ones(self.observations[0]) if is_alive is None else is_alive
        self.terminated = terminated
        for name, given, expected in (
            ("rewards", rewards, sessions),
            ("is_alive", is_alive, sessions),
            ("terminated", terminated, sessions[:1]),
        ):
            if given is not None:
                _check(name, _listed(name, given), [()], expected)
        if is_alive is not None:
            check_alive(as_numpy(is_alive))
        self.preceding_agent_memories = None
        if preceding_agent_memories is not None:
            memories = self.preceding_agent_memories = _listed("preceding_agent_memories", preceding_agent_memories)
            _check("preceding_agent_memories", memories, [tuple(each.shape[1:]) for each in memories], sessions[:1])
        self.final_observations = None
        if final_observations is not None:
            self.final_observations = _listed("final_observations", final_observations)
            _check("final_observations", self.final_observations, shapes, sessions[:1])
        self._declare(action_shapes)

    def to(self, device: Any) -> SessionBatchEnvironment:
        """Return these sessions as tensors on `device`."""

        def moved(arrays: list[Array] | None) -> list[Array] | None:
            return None if arrays is None else [as_tensor(each).to(device) for each in arrays]

        def one(array: Array | None) -> Array | None:
            return None if array is None else as_tensor(array).to(device)

        return SessionBatchEnvironment(
            moved(self.observations) or [],
            self.observation_shapes,
            moved(self.actions) or None,
            self.action_shapes,
            one(self.rewards),
            one(self.is_alive),
            moved(self.preceding_agent_memories),
            terminated=one(self.terminated),
            final_observations=moved(self.final_observations),
        )


def as_numpy(array: Array) -> np.ndarray:
    """Return an array or tensor as a NumPy array."""
    return array if isinstance(array, np.ndarray) else array.numpy(force=True)


def as_tensor(array: Array) -> Tensor:
    """Return an array or tensor as a tensor, without a copy if torch can refer to the array."""
    import torch

    # torch warns of arrays that cannot be written, as those of a mapped file, and takes no negative strides.
    if isinstance(array, np.ndarray) and not (array.flags.writeable and min(array.strides, default=0) >= 0):
        array = array.copy()
    return torch.as_tensor(array)


def _with(array: Array, mask: np.ndarray, values: Any) -> Array:
    """Return the array with other values where the mask is True."""
    if not mask.any():
        return array
    copy = array.copy() if isinstance(array, np.ndarray) else array.clone()
    copy[mask] = values
    return copy


def _ones(like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return np.ones(like.shape[:2], np.uint8)
    import torch

    return torch.ones(like.shape[:2], dtype=torch.uint8, device=like.device)


def _listed(name: str, given: Arrays) -> list[Array]:
    """Return one array, or a list of them, as a list."""
    arrays: list[Array] = list(given) if isinstance(given, list | tuple) else [given]  # type: ignore[list-item]
    torch = sys.modules.get("torch")  # there can be no tensor before it is imported
    for array in arrays:
        if not (isinstance(array, np.ndarray) or (torch is not None and isinstance(array, torch.Tensor))):
            raise ValueError(f"{name} has a {type(array).__name__}; allowed: NumPy arrays and torch tensors.")
    return arrays


def _check(name: str, arrays: list[Array], shapes: list[Shape], leading: Shape) -> None:
    """Refuse arrays that are not [*leading, *shape]."""
    if len(arrays) != len(shapes):
        raise ValueError(f"{name} has {len(arrays)} arrays for {len(shapes)} shapes; give one shape for each.")
    for index, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        if tuple(array.shape) != (*leading, *shape):
            place = f"{name}[{index}]" if len(arrays) > 1 else name
            raise ValueError(
                f"{place} has the shape {tuple(array.shape)}; expected {(*leading, *shape)}: the batch"
                f"{', the ticks' if len(leading) == 2 else ''} and the shape of one item."
            )
