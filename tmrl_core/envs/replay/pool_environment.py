"""SessionPoolEnvironment: a pool of recorded sessions that is an environment."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from tmrl_core.envs.replay.functional_environment import BaseEnvironment
from tmrl_core.envs.replay.pool import SessionPool
from tmrl_core.envs.replay.recorded import ReplayEnvironment, SessionBatchEnvironment


def _of_replay(name: str) -> Any:
    """Return a property: that of the replay of all sessions."""
    return property(attrgetter(f"_replay.{name}"))


def _as_replay(name: str) -> Any:
    """Return a method that calls that of the replay of all sessions."""
    method = attrgetter(f"_replay.{name}")  # asked for in the call: an empty pool has no replay
    return lambda self, *args, **kwargs: method(self)(*args, **kwargs)


class SessionPoolEnvironment(SessionPool, BaseEnvironment, VectorEnv[Any, Any, np.ndarray]):
    """A `SessionPool` that is an environment: it replays all its sessions, as `SessionBatchEnvironment` does.

    The environment needs its sessions a second time, padded to the longest one. It gathers them when it is first used,
    and again after a change of the content, and is at tick 0 then. Learners that sample batches do not need that. An
    empty pool cannot be used as an environment.

    The arguments are those of `SessionPool`.
    """

    metadata = ReplayEnvironment.metadata

    num_envs = property(len)
    state_shapes = _of_replay("state_shapes")
    observation_shapes = _of_replay("observation_shapes")
    action_shapes = _of_replay("action_shapes")
    state_dtypes = _of_replay("state_dtypes")
    observation_dtypes = _of_replay("observation_dtypes")
    action_dtypes = _of_replay("action_dtypes")
    single_observation_space = _of_replay("single_observation_space")
    single_action_space = _of_replay("single_action_space")
    observation_space = _of_replay("observation_space")
    action_space = _of_replay("action_space")
    get_initial_results = _as_replay("get_initial_results")
    get_action_results = _as_replay("get_action_results")
    checked_action_results = _as_replay("checked_action_results")
    get_recorded_actions = _as_replay("get_recorded_actions")
    get_rewards = _as_replay("get_rewards")
    get_is_alive = _as_replay("get_is_alive")
    reset = _as_replay("reset")
    step = _as_replay("step")

    _shown: object = None
    """The content that `_batch_of_all` was gathered from."""
    _batch_of_all: SessionBatchEnvironment

    @property
    def _replay(self) -> SessionBatchEnvironment:
        # Each change of a pool makes another content, so identity tells whether it is the one that is shown.
        if self._shown is None or self._shown is not self._content:
            self._batch_of_all = super().replay()
            self._shown = self._content
        return self._batch_of_all

    def replay(self) -> SessionBatchEnvironment:
        """Return all sessions, without gathering them again."""
        return self._replay
