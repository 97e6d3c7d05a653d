"""SessionPoolEnvironment: a pool of recorded sessions that is an environment."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from tmrl_core.envs.replay.functional_environment import BaseEnvironment
from tmrl_core.envs.replay.pool import SessionPool
from tmrl_core.envs.replay.recorded import ReplayEnvironment, SessionBatchEnvironment

if TYPE_CHECKING:
    from torch import Tensor

    from tmrl_core.envs.replay.functional_environment import Results


class SessionPoolEnvironment(SessionPool, BaseEnvironment, VectorEnv[Any, Any, np.ndarray]):
    """A `SessionPool` that is an environment: it replays all its sessions, as `SessionBatchEnvironment` does.

    The environment needs its sessions a second time, padded to the longest one. It gathers them when it is first used,
    and again after a change of the content, and is at tick 0 then. Learners that sample batches do not need that. An
    empty pool cannot be used as an environment.

    The arguments are those of `SessionPool`.
    """

    metadata = ReplayEnvironment.metadata

    num_envs = property(len)
    state_shapes = property(attrgetter("_replay.state_shapes"))
    observation_shapes = property(attrgetter("_replay.observation_shapes"))
    action_shapes = property(attrgetter("_replay.action_shapes"))
    state_dtypes = property(attrgetter("_replay.state_dtypes"))
    observation_dtypes = property(attrgetter("_replay.observation_dtypes"))
    action_dtypes = property(attrgetter("_replay.action_dtypes"))
    single_observation_space = property(attrgetter("_replay.single_observation_space"))
    single_action_space = property(attrgetter("_replay.single_action_space"))
    observation_space = property(attrgetter("_replay.observation_space"))
    action_space = property(attrgetter("_replay.action_space"))

    _shown: object = None
    """The content that `_batch` was gathered from."""
    _batch_of_all: SessionBatchEnvironment

    @property
    def _replay(self) -> SessionBatchEnvironment:
        if self._shown is None or self._shown is not self._content:
            self._batch_of_all = super().replay()
            self._shown = self._content
        return self._batch_of_all

    def replay(self) -> SessionBatchEnvironment:
        """Return all sessions, without gathering them again."""
        return self._replay

    def get_initial_results(self, batch_size: int) -> Results:
        """As `SessionBatchEnvironment`."""
        return self._replay.get_initial_results(batch_size)

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """As `SessionBatchEnvironment`."""
        return self._replay.get_action_results(last_states, actions, **kwargs)

    def checked_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """As `SessionBatchEnvironment`."""
        return self._replay.checked_action_results(last_states, actions, **kwargs)

    def get_recorded_actions(self, states: list[Tensor]) -> list[Tensor]:
        """As `SessionBatchEnvironment`."""
        return self._replay.get_recorded_actions(states)

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        """As `SessionBatchEnvironment`."""
        return self._replay.get_rewards(last_states, actions, new_states)

    def get_is_alive(self, states: list[Tensor]) -> Tensor:
        """As `SessionBatchEnvironment`."""
        return self._replay.get_is_alive(states)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As `SessionBatchEnvironment`."""
        return self._replay.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """As `SessionBatchEnvironment`."""
        return self._replay.step(actions)
