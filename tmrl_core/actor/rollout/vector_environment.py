"""Several environments of one worker, which are stepped together through Gymnasium's vector interface."""

# Theory of operation
#
# The worker makes `worker.envs` environments, and steps one after the other: what is saved is everything around the
# environments, since the policy acts, and the recorder writes, once for all of them. A user's callable may also make a
# vector environment of its own, which may well step faster.
#
# The environments are those of a SyncVectorEnv of Gymnasium's, which makes and resets them and compares their spaces.
# Its loop over `step` is replaced (`_Stepper`), because it takes 2.4 us for each row: it stacks observations that could
# be written where they belong, copies arrays, and makes infos where there are none. A test compares both, step by step.
#
# Vector environments begin the next episode of a row by themselves, in one of three modes. With n rows, let row 1 end
# at step 7:
#
#     mode       step 7 returns for row 1            step 8 returns for row 1
#     next step  the last observation                the first observation of the next episode; its action is ignored
#     same step  the first observation of the next   an ordinary step
#                episode; the last is in the infos
#     disabled   the last observation                an error, unless `reset` was called with a mask
#
# `step` returns the last observation in all of them, and the flags say that row 1 has ended. In the first mode, `step`
# returns the first observation with the next call. In the others, `restart` returns it, before the next call. So a loop
# has two cases, and no step of any mode is lost or counted twice.
#
# A failure of one row is a failure of all: Gymnasium's exception does not say of which row it is, and the other rows of
# a SyncVectorEnv have been stepped in part. All rows are then reset.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, iterate

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.actor.rollout.lateness import Timed
from tmrl_core.actor.rollout.step_checks import BadValue, failure
from tmrl_core.config.environment_contract import as_environment
from tmrl_core.envs.identity import unwrapped
from tmrl_core.errors import ConfigError, EnvironmentFailedError
from tmrl_core.long_calls import watched
from tmrl_core.samples.columns import map_leaves
from tmrl_core.signal_handlers import take_back


class Restart(NamedTuple):
    """Rows whose next episodes have begun.

    Attributes:
        rows: [rows] bool.
        obs_B: of all rows; the first observation of these rows.
        infos: of the resets.
    """

    rows: np.ndarray
    obs_B: Any
    infos: dict[str, Any]


class _Row:
    """One environment as SyncVectorEnv needs it: with its step limit, and no arguments of `reset` that are not given.

    Not every environment takes `seed` and `options`, and those that are no gymnasium.Env cannot have its wrappers.
    """

    metadata: ClassVar[dict[str, Any]] = {}
    render_mode = None

    def __init__(self, env: Any, limit: float) -> None:
        self.env, self.observation_space, self.action_space = env, env.observation_space, env.action_space
        self._limit = limit
        self._steps = 0
        self.close: Callable[[], object] = env.close

    def reset(self, seed: int | None = None, options: object = None) -> Any:
        self._steps = 0
        return self.env.reset() if seed is None else self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return obs, reward, terminated, truncated or (self._steps >= self._limit and not terminated), info


def _row_of(make: Callable[[], Any], limit: float) -> _Row:
    return _Row(make(), limit)


class _Stepper(SyncVectorEnv):
    """Gymnasium's environments, with a faster loop, and the infos and the order of keys that each of them returns.

    Gymnasium's arrays of infos take their type from the first environment that has a key: 0.75 beside an int becomes 0,
    as happens with an environment that has just been reset beside one that is stepped (gymnasium 1.4). Its Dicts have
    the order of keys of the space, where samples have that of the environment.

    Args:
        rows: the environments.
        limit: number of steps after which an episode is truncated.
    """

    def __init__(self, rows: Sequence[Callable[[], Any]], limit: float) -> None:
        makers: Any = [partial(_row_of, one, limit) for one in rows]  # Gymnasium needs no more than a _Row has
        # Each observation is written into columns, or acted on, before the next step.
        super().__init__(makers, copy=False)
        made: list[Any] = self.envs
        self._step_row = [row.step if limit < math.inf else row.env.step for row in made]
        self._over: list[int] = []
        """Rows whose next episodes begin with the next step."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if env_info:
            vector_infos.setdefault(_BY_ROW, [{}] * self.num_envs)[env_num] = env_info
        return vector_infos

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self._over = []
        obs_B, infos = super().reset(seed=seed, options=options)
        return _in_order(obs_B, self._env_obs[0]), infos

    def step(self, actions: Any) -> Any:
        rows, over = self.num_envs, self._over
        infos: dict[str, Any] = {}
        all_obs: Any = self._env_obs
        reward_B, terminated_B, truncated_B = np.zeros(rows), np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        # The batch of arrays of one dtype and shape is written row by row; Gymnasium converts and stacks all others.
        obs_B: Any = self._observations
        is_array = type(obs_B) is np.ndarray
        dtype, shape = (obs_B.dtype, obs_B.shape[1:]) if is_array else (None, None)
        self._over = []
        # The rows of an array of actions are the actions of every space that is batched to an array.
        each = actions if type(actions) is np.ndarray else iterate(self.action_space, actions)
        for row, (action, step) in enumerate(zip(each, self._step_row, strict=True)):
            if over and row in over:
                obs, info = self.envs[row].reset()
            else:
                obs, reward, terminated, truncated, info = step(action)
                reward_B[row] = reward
                if terminated or truncated:
                    terminated_B[row], truncated_B[row] = terminated, truncated
                    self._over.append(row)
            all_obs[row] = obs
            if is_array and type(obs) is np.ndarray and obs.dtype is dtype and obs.shape == shape:
                obs_B[row] = obs
            else:
                is_array = False
            if info:
                infos = self._add_info(infos, info, row)
        if not is_array:
            obs_B = self._observations = concatenate(self.single_observation_space, all_obs, obs_B)
        return _in_order(obs_B, all_obs[0]), reward_B, terminated_B, truncated_B, infos


def _in_order(tree_B: Any, like: Any) -> Any:
    """Return a batch with the order of keys of one observation."""
    if isinstance(tree_B, dict):
        return {key: _in_order(tree_B[key], entry) for key, entry in like.items()}
    if isinstance(tree_B, tuple) and isinstance(like, tuple):  # Gymnasium makes tuples of texts too
        return tuple(_in_order(entry_B, entry) for entry_B, entry in zip(tree_B, like, strict=True))
    return tree_B


_BY_ROW = "by row"
"""Key of infos under which a `_Stepper` has a list of the rows' own."""
_FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")
"""Keys of infos that are about the last step of an episode, where the others are about the reset after it."""


def row_of(tree_B: Any, row: int) -> Any:
    """Return one row of a batch."""
    return map_leaves(itemgetter(row), tree_B)


def put_row(tree_B: Any, row: int, value: Any) -> None:
    """Write one row of a batch."""
    if isinstance(tree_B, dict):
        for key, entry_B in tree_B.items():
            put_row(entry_B, row, value[key])
    elif isinstance(tree_B, tuple):
        for entry_B, entry in zip(tree_B, value, strict=True):
            put_row(entry_B, row, entry)
    else:
        tree_B[row] = value


def info_of(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row, of its last step if its episode has ended."""
    if _BY_ROW in infos:
        own: dict[str, Any] = infos[_BY_ROW][row]
        return own
    if "final_info" in infos and _has(infos, "final_info", row):
        infos = infos["final_info"]
    found: dict[str, Any] = {}
    for name, value_B in infos.items():
        # A key comes with the mask `_key` of the rows that have it.
        if name in _FINAL or not _has(infos, name, row) or (name[:1] == "_" and name[1:] in infos):
            continue
        found[name] = info_of(value_B, row) if isinstance(value_B, Mapping) else value_B[row]
    return found


def _has(infos: Mapping[str, Any], name: str, row: int) -> bool:
    mask = infos.get(f"_{name}")
    return mask is None or bool(mask[row])


class VectorEnvironment(CheckedEnvironment):
    """Make and check several environments, as `CheckedEnvironment` does with one; observations have a leading axis.

    Args:
        make: makes one environment, or a vector environment of `rows`.
        rows: number of environments.
        limit: number of steps after which an episode is truncated.
        strict_spaces: see `CheckedEnvironment`.

    Raises:
        ConfigError: `make` makes something else, or environments that cannot be stepped together.

    Attributes:
        by_row: True: each row can be seeded by itself.
    """

    def __init__(
        self, make: Callable[[], Any], rows: int, *, limit: float = math.inf, strict_spaces: bool = False
    ) -> None:
        self.rows = rows
        self._limit = limit
        self._one: Any = None
        self._restart: Restart | None = None
        super().__init__(make, strict_spaces=strict_spaces)

    def _made(self) -> Any:
        made = self._make()
        if isinstance(made, VectorEnv):
            self.by_row = False
            self._one = SimpleNamespace(
                observation_space=made.single_observation_space, action_space=made.single_action_space
            )
            self._mode = self._users_mode(made)
            return made
        first = as_environment(made, f"env_cls: {self._make!r:.100}")
        if isinstance(unwrapped(first), Timed):
            raise ConfigError(
                f"worker.envs: found {self.rows} environments of {type(unwrapped(first)).__name__}, which has a rate "
                "(time_step_duration): one worker cannot keep the rate of several. Set worker.envs: 1, and start more "
                "workers (--workers)"
            )
        self.by_row, self._one, self._mode = True, first, AutoresetMode.NEXT_STEP
        return _Stepper([lambda: first, *[self._made_beside] * (self.rows - 1)], self._limit)

    def _made_beside(self) -> Any:
        # Emulators often allow one in a process, and say something else than that.
        try:
            return self._make()
        except Exception as exc:
            raise EnvironmentFailedError(
                f"worker.envs: found {self.rows}; the first environment was made, and another beside it, in the same "
                f"process, was not: {exc}. If there can be only one, set worker.envs: 1, and start more workers "
                "(--workers)"
            ) from exc

    @property
    def one(self) -> Any:
        """Return the first environment, or the spaces of a row of a user's vector environment."""
        return self._one

    def _users_mode(self, made: VectorEnv[Any, Any, Any]) -> AutoresetMode:
        mode, problem = made.metadata.get("autoreset_mode"), None
        if made.num_envs != self.rows:
            problem = f"it has {made.num_envs} environments, and worker.envs is {self.rows}: both must be equal"
        elif not isinstance(mode, AutoresetMode):
            problem = (
                "its metadata has no autoreset_mode, a gymnasium.vector.AutoresetMode: nobody can know whether an "
                "observation is the last of an episode or the first of the next"
            )
        elif self._limit < math.inf:
            problem = (
                "worker.max_samples_per_episode cannot end the episodes of single rows of a vector environment: give "
                "the limit to the environment"
            )
        if problem is not None:
            raise ConfigError(f"env_cls: {self._make!r:.100} made a {type(made).__name__}: {problem}")
        assert isinstance(mode, AutoresetMode)
        return mode

    def reset_rows(self, seeds: Sequence[int | None] | int | None) -> tuple[Any, dict[str, Any]]:
        """Reset all rows; see `CheckedEnvironment.reset`.

        Args:
            seeds: of the rows; or that of the first, from which Gymnasium derives the others'.
        """
        self._restart = None
        if isinstance(seeds, Sequence):
            seeds = [*seeds, *[None] * (self.rows - len(seeds))] if self.by_row else seeds[0]
        return self.reset(seeds)  # type: ignore[arg-type]  # SyncVectorEnv takes one seed of each row

    @watched("the environment's step")
    def step(self, action_B: Any, keep: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        """Step all rows; see `CheckedEnvironment.step`. Rows that `restart` returns are stepped from there.

        Returns:
            Observations (the last ones of rows that have ended), rewards [rows] float64, terminated [rows] bool,
            truncated [rows] bool, infos as Gymnasium has them.
        """
        try:
            if keep:
                action_B = action_B.copy() if type(action_B) is np.ndarray else map_leaves(np.copy, action_B)
            obs_B, reward_B, terminated_B, truncated_B, infos = self.env.step(action_B)
            if self._first_step:
                self._first_step = False
                take_back()
            if not self.by_row:  # the flags of a user's vector environment may be anything
                terminated_B, truncated_B = self._flags(terminated_B), self._flags(truncated_B)
            if self._mode is not AutoresetMode.NEXT_STEP:
                ended = terminated_B | truncated_B
                if ended.any():
                    obs_B = self._end(ended, obs_B, infos)
            if not self._check.fits_observation(obs_B):
                obs_B = self._check.observation(obs_B)
            reward_B = self._rewards(reward_B)
            if not self._has_stepped:
                self._has_stepped = True
                self.when_stepped()
            return obs_B, reward_B, terminated_B, truncated_B, infos
        except Exception as exc:
            self._judge(exc, self._has_stepped)
            raise

    def _end(self, ended: np.ndarray, obs_B: Any, infos: dict[str, Any]) -> Any:
        """Return observations with the last ones of rows that have ended, and keep their first ones for `restart`."""
        last_B = map_leaves(np.copy, obs_B)  # the environment may write over them
        if self._mode is AutoresetMode.DISABLED:
            self._restart = Restart(ended, *self.env.reset(options={"reset_mask": ended.copy()}))
            return last_B
        self._restart = Restart(ended, obs_B, {name: value for name, value in infos.items() if name not in _FINAL})
        for row in np.flatnonzero(ended).tolist():
            put_row(last_B, row, row_of(infos["final_obs"], row))
        return last_B

    def restart(self) -> Restart | None:
        """Return the rows whose next episodes began with the latest step, once; None: they begin with the next step."""
        restart, self._restart = self._restart, None
        if restart is not None:
            obs_B = self._check.observation(restart.obs_B, ", after a reset")
            return Restart(restart.rows, obs_B, restart.infos)
        return None

    def _rewards(self, reward_B: Any) -> np.ndarray:
        rewards: np.ndarray = np.asarray(reward_B, np.float64)
        if rewards.shape != (self.rows,):
            raise failure(f"the rewards have the shape {rewards.shape}, {self.rows} environments want ({self.rows},)")
        if not isfinite(sum(rewards.tolist())) and not np.isfinite(rewards).all():
            raise failure(BadValue(f"the rewards are {rewards}, finite numbers are wanted"))
        return rewards

    def _flags(self, flags: Any) -> np.ndarray:
        found: np.ndarray = flags if type(flags) is np.ndarray else np.asarray(flags)
        if found.shape != (self.rows,) or found.dtype != np.bool_:
            raise failure(f"a flag is {found.dtype}{list(found.shape)}, {self.rows} environments want bool")
        return found
