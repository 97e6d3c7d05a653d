"""The policy runner, owner of the acting state: an actor, its device, its random generator, the state of each row.

A row is one environment, client session or agent that the policy acts for. Rows that act at the same time are one
batch. Others, such as sessions, keep their part (`carried`) themselves and lend it to the runner for an action.
"""

# Theory of operation
#
# The runner owns what an actor must not: the acting state of each row, the random generator, and the number of its
# weights. An actor can thus be replaced in the middle of an episode, by other weights or another object, and the
# episode goes on with the same state. It knows no environment, no version numbers and no link.
#
# Three ways to an action, of which a row count and a class choose one when the actor is set, never in a step:
#
# 1. `act` of a plain actor: one observation, no state here. `plain_act` gives the loop the bare function, after the
#    first action has shown that the policy can act at all, so that a step costs one call.
# 2. `act_batch` with one row: recurrent actors, and users' `BatchActor`. The batch axis is added and removed here.
# 3. `act_batch` with several rows: also the project's policies without a state. With one row their `act` is twice as
#    fast; with eight, one product of matrices of [8, n] costs about three of [1, n]. A class of another package that
#    overrides `act` keeps its `act`, one row after the other: `act_batch` would silently leave its changes out.
#
# `carried` is replaced and never changed in place. A session of a client can therefore keep the tuple of an earlier
# step and return to it, and rows of different sessions never share an array.
#
# States in samples: a recurrent learner needs the state *before* an action, but not of each tick. With `state_interval`
# = 4, ticks 0, 4, 8, ... of an episode carry it, and so does the first tick after new weights, because a state that
# other weights have made is no start for these. All other ticks carry zeros: the columns must exist in every row, and
# zeros compress to nothing.
#
# An action is checked last, after `override`: a person's or an expert's action must be finite too. `override` is called
# after the policy, not in place of it, so that the policy's state follows the whole episode.
#
# The first action of all is special: if it fails, no later one will succeed (a wrong shape, a missing key), so it
# becomes a ConfigError that names the policy. Failures of the machine (OSError, MemoryError) may pass and stay what
# they are.
#
# Seeds: policy and environment get different generators from one seed. NumPy would make the same stream of both, and
# the environment's noise would be the exploration.

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray

from tmrl_core.actor.module import STATE_COLUMN, ActorModule, BatchActor, RecurrentActor, State
from tmrl_core.actor.policies.masks import with_all_allowed
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.weights import exploration_in, with_exploration
from tmrl_core.actor.rollout.checked_environment import check_maker
from tmrl_core.actor.rollout.step_checks import few_values, only_integers
from tmrl_core.errors import ConfigError, PolicyFailedError, TmrlError, WeightsError
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.samples.columns import map_leaves
from tmrl_core.samples.finite import is_finite
from tmrl_core.storage import read_whole

Override = Callable[[Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]
"""`(observation, action, extras)` of the policy -> the action and extras that count."""


Carried = tuple[State, tuple[int, ...], tuple[int, ...]]
"""Acting state of B rows, which changes by being replaced: the recurrent state (empty without recurrence), the number
of actions of each row's episode, and the number of the weights that chose each row's latest action (0: it has none)."""

FEW_OF_ROWS = 128
"""Maximum number of values of all rows' actions for which Python's sum is faster than calls of NumPy."""

Acted = tuple[Any, dict[str, Any], dict[str, Any]]
"""Action of a policy, its extras, and the recurrent state before the action by the names of its columns; or those of
all rows."""


def exploration_seed(seed: int) -> int:
    """Return the seed of an actor whose environment gets `seed`.

    Both make NumPy's default generator of it: with equal seeds the environment's noise would be the policy's.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0])


def only_policy(policies: Mapping[str, Blob]) -> Blob:
    """Return the only policy of a version, of any name.

    Raises:
        WeightsError: there is none, or more than one.
    """
    if len(policies) != 1:
        raise WeightsError(
            f"the version contains the policies {sorted(policies)}; this worker uses one policy. Give "
            "the worker the trainer's configuration"
        )
    return next(iter(policies.values()))


def cannot_act(actor: ActorModule, action_space: Any, failure: Exception) -> ConfigError:
    """Return the error of a policy whose first action failed: another one would fail too."""
    return ConfigError(
        f"actor.cls: {actor.owner or type(actor).__name__} cannot act in the action space {action_space}: its first "
        f"action failed with {type(failure).__name__}: {failure}. Choose a policy for this space, or correct its act"
    )


class PolicyRunner:
    """Run a policy: an action for each row's observation, and a state that is reset with each row's episode.

    Args:
        make_actor: `(observation_space=, action_space=)` creates the actor.
        observation_space, action_space: spaces of one row's environment.
        device: device of the actor.
        seed: seed of the environment; `exploration_seed` derives the actor's. None: from the operating system.
        rows: number of rows. `decide` and `act` are for one, `decide_rows` for any number.

    Raises:
        ConfigError: `make_actor` does not return an actor, or one with a state of its own for several rows.

    Attributes:
        device: device of the actor.
        override: chooses the action in place of the policy, as a person or an expert does; called after the policy, so
            that its state continues. None: the policy acts. A change within an episode takes effect with the next
            slice.
        always_finite: True: the action space holds integers only.
        few: shape of actions that are short vectors: such an action is finite if the sum of its values is.
        carried: acting state of the rows. To return to an earlier step, or to act for other rows, assign theirs.
        keeps_extras: True: the actor returns values besides the action, to be stored with it.
    """

    def __init__(
        self,
        make_actor: Callable[..., Any],
        observation_space: Any,
        action_space: Any,
        *,
        device: Any = "cpu",
        seed: int | None = None,
        rows: int = 1,
    ) -> None:
        check_maker("actor_module_cls", make_actor)
        # The actor's own, because some environments seed their action space at each reset: an actor that samples from a
        # shared one would repeat the actions of the episode before.
        action_space = copy.deepcopy(action_space)
        actor = make_actor(observation_space=observation_space, action_space=action_space)
        if not isinstance(actor, ActorModule):
            raise ConfigError(
                f"actor_module_cls made a {type(actor).__name__}; wanted: an actor derived from "
                "tmrl_core.actor.ActorModule, or from TorchActorModule"
            )
        if rows > 1:
            refuse_own_state(actor, "several environments")
        self.device = device
        self.override: Override | None = None
        self.few = few_values(action_space)
        self.always_finite = only_integers(action_space)
        self._rng = np.random.default_rng()
        self._rows = rows
        self._action_space = action_space
        self._in_box = isinstance(action_space, spaces.Box)
        self._has_acted = False
        self._weights = 0
        self.carried: Carried = {}, (0,) * rows, (0,) * rows
        self.actor = actor.to_device(device)
        if seed is not None:
            self.seed(seed)

    @property
    def actor(self) -> ActorModule:
        """The actor. A new one, or one with new weights, continues with the states of the one before it."""
        return self._actor

    @actor.setter
    def actor(self, actor: ActorModule) -> None:
        self._actor = actor
        self._weights += 1
        self._acted_by = (self._weights,) * self._rows
        # Several rows are one batch for policies without a state too; for one row, their `act` takes half the time.
        self._batch: BatchActor | Policy | None = None
        if isinstance(actor, BatchActor) or (self._rows > 1 and isinstance(actor, Policy) and _acts_as_made(actor)):
            self._batch = actor
        self._interval = actor.state_interval if isinstance(actor, RecurrentActor) else 0
        if self._batch is not None and not self.carried[0]:
            self._reset_state(0)
        self.keeps_extras = (
            isinstance(actor, BatchActor) or type(actor).act_with_extras is not ActorModule.act_with_extras
        )

    def seed(self, seed: int) -> None:
        """Seed the exploration, given the seed of the environment: the actor's action space, then the actor."""
        derived = exploration_seed(seed)
        self._action_space.seed(derived)
        self._actor.seed(derived)
        self._rng = np.random.default_rng(derived)

    def reset(self, row: int = 0) -> None:
        """Begin an episode in a row."""
        if self._batch is not None:
            self._reset_state(row)
        self._actor.begin_episode()

    def _reset_state(self, row: int) -> None:
        """Give a row the state of an episode's beginning; all rows if they have none yet."""
        state_B, ticks, weights = self.carried
        if self._batch is not None and (self._rows == 1 or not state_B):
            state_B = self._batch.initial_state(self._rows)
        elif self._batch is not None:
            first = self._batch.initial_state(1)
            state_B = {
                name: np.concatenate([value_B[:row], first[name], value_B[row + 1 :]])
                for name, value_B in state_B.items()
            }
        self.carried = state_B, (*ticks[:row], 0, *ticks[row + 1 :]), (*weights[:row], 0, *weights[row + 1 :])

    def reset_extras(self) -> dict[str, Any] | None:
        """Return the extras of a reset, which has no action; None: the actor has none."""
        return self._actor.reset_extras() if self.keeps_extras else None

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the policy's action for an observation. An action that is not finite passes.

        Args:
            obs: after the worker's `obs_preprocessor`.
            test: True: no exploration.
        """
        return self._act_one(obs, test)[0] if self._batch is not None else self._actor.act_(obs, test=test)

    def decide(
        self,
        obs: Any,
        test: bool,
        extras: bool,
        act: Callable[..., Any] | None = None,
    ) -> tuple[Any, dict[str, Any] | None]:
        """Return the action of one row to execute, and the extras to store with it.

        Args:
            obs: observation after the worker's `obs_preprocessor`.
            test: True: no exploration.
            extras: True: return extras too, if the actor has any.
            act: `(obs, test)` acts in place of an actor without extras.

        Raises:
            PolicyFailedError: the action is not finite.
            ConfigError: the first action of all raised an exception.
        """
        more: dict[str, Any] | None = None
        states: dict[str, Any] = {}
        try:
            if self._batch is not None:
                action, more, states = self._act_one(obs, test)
            elif extras and self.keeps_extras:
                action, more = self._actor.act_with_extras(obs, test=test)
            else:
                action = (act or self._actor.act_)(obs, test)
        except Exception as exc:
            self._note_failure(exc)
            raise
        self._has_acted = True
        if self.override is not None:
            action, more = self.override(obs, action, more or {})
        if states:
            more = {**(more or {}), **states}
        self.check(action)
        return action, more

    def decide_rows(
        self, obs_B: Any, test: bool, extras: bool, ended: ndarray | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the actions of all rows to execute, and the extras to store with them, as `decide` does for one row.

        `override` does not apply. An actor without batches acts for one row after the other.

        Args:
            obs_B: observations of all rows.
            test, extras: see `decide`.
            ended: [rows] bool, rows whose episodes have ended with this observation, and whose actions will not be
                executed; None: none.

        Raises:
            PolicyFailedError, ConfigError: as `decide`.
        """
        if ended is not None and isinstance(self._actor, Policy) and self._actor.masked:
            # The last observation of an episode may allow no action, which would be an error in a row that goes on.
            obs_B = with_all_allowed(obs_B, ended)
        more_B: dict[str, Any] = {}
        try:
            if self._batch is not None:
                action_B, more_B, states_B = self._act_batch(obs_B, test)
                more_B = {**more_B, **states_B}
            else:
                of_rows = [map_leaves(itemgetter(row), obs_B) for row in range(self._rows)]
                if extras and self.keeps_extras:
                    acted = [self._actor.act_with_extras(obs, test=test) for obs in of_rows]
                    more_B = stacked([more for _, more in acted])
                    action_B = stacked([action for action, _ in acted])
                else:
                    action_B = stacked([self._actor.act_(obs, test=test) for obs in of_rows])
        except Exception as exc:
            self._note_failure(exc)
            raise
        self._has_acted = True
        if not self.always_finite and not (
            # As in `EnvironmentLoop`: a sum of a few numbers is the fastest check.
            type(action_B) is ndarray and action_B.size <= FEW_OF_ROWS and isfinite(sum(action_B.ravel().tolist()))
        ):
            self.check(action_B)
        return action_B, more_B

    def _note_failure(self, failure: Exception) -> None:
        """Raise a ConfigError if the first action has failed, unless the machine has, which may recover."""
        if not self._has_acted and not isinstance(failure, (TmrlError, OSError, MemoryError)):
            raise cannot_act(self._actor, self._action_space, failure) from failure

    def plain_act(self, extras: bool) -> Callable[[Any, bool], Any] | None:
        """Return the function `(obs, test)` that is all of `decide` but its checks; None: `decide` does more.

        Args:
            extras: as in `decide`.
        """
        actor = self._actor
        if (
            not self._has_acted
            or self._batch is not None
            or self.override is not None
            or (extras and self.keeps_extras)
        ):
            return None
        # Saves one call per step for actors without preparation.
        return actor.act if type(actor).act_ is ActorModule.act_ else actor.act_

    def check(self, action: Any) -> None:
        """Refuse an action that is not finite.

        Raises:
            PolicyFailedError: it is not.
        """
        if (
            not self.always_finite
            and not (type(action) is ndarray and action.shape == self.few and isfinite(sum(action.tolist())))
            and not is_finite(action)
        ):
            raise PolicyFailedError(
                f"the policy's action is not finite, so it is not executed: {str(action)[:200]}. Its weights or the "
                "observation's numbers are too large, or its computation is wrong"
            )

    def load(self, tag: str, data: bytes) -> None:
        """Load weights, given the tag of their format.

        Raises:
            WeightsError: the weights do not fit this actor, which is unchanged.
        """
        actor = self._actor.from_blob(tag, data, self.device)
        self.actor = actor if actor is self._actor else actor.to_device(self.device)

    def load_policies(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> None:
        """Load the only policy of a version, of any name, and its exploration parameters; see `PolicyTarget`."""
        blob = only_policy(policies)
        self.load(blob.format, blob.data)
        if exploration:
            self._actor.set_exploration(exploration)

    def file_content(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> bytes:
        """Return the weights with the exploration parameters, for `load_file`."""
        return with_exploration(only_policy(policies).data, exploration)

    def load_file(self, path: Path) -> None:
        """Load what `PolicyFiles` has stored. Raises the errors of the actor's `load`."""
        if type(self._actor).from_bytes is ActorModule.from_bytes:
            self.actor = self._actor.load(path, self.device)
            return
        data = read_whole(path)
        exploration = exploration_in(data)
        self.actor = self._actor.from_bytes(data, self.device)
        if exploration:
            self._actor.set_exploration(exploration)

    def _act_one(self, obs: Any, test: bool) -> Acted:
        obs_B = obs[None] if type(obs) is ndarray else stacked([obs])
        action_B, extras_B, states_B = self._act_batch(obs_B, test)
        # The action of a Box is an array, even with the shape ().
        index: Any = (0, ...) if self._in_box else 0
        action = action_B[index] if type(action_B) is ndarray else _at(index, action_B)
        extras = {name: np.asarray(value_B)[0] for name, value_B in extras_B.items()}
        return action, extras, {name: value_B[0] for name, value_B in states_B.items()}

    def _act_batch(self, obs_B: Any, test: bool) -> Acted:
        """Return the rows' actions, the policy's extras, and the states before them, zeros between intervals."""
        assert self._batch is not None
        state_B, ticks, weights = self.carried
        action_B, after_B, extras_B = self._batch.act_batch(obs_B, state_B, self._rng, test)
        self.carried = after_B, tuple(map((1).__add__, ticks)), self._acted_by
        if not self._interval:
            return action_B, extras_B, {}
        stored = [by != self._weights or tick % self._interval == 0 for tick, by in zip(ticks, weights, strict=True)]
        states_B = {STATE_COLUMN + name: value_B for name, value_B in state_B.items()}
        if not all(stored):
            states_B = {name: _where(stored, value_B) for name, value_B in states_B.items()}
        return action_B, extras_B, states_B


def _acts_as_made(policy: Policy) -> bool:
    """Return True if no class of another package has overridden the methods that act on one observation."""
    methods = (type(policy).act, type(policy).act_, type(policy).act_with_extras)
    return all(method.__module__.startswith("tmrl_core.") for method in methods)


def refuse_own_state(actor: ActorModule, users: str) -> None:
    """Refuse an actor that keeps a state of its own between the steps of an episode.

    Args:
        actor: the actor.
        users: those that would share its state.

    Raises:
        ConfigError: it keeps one.
    """
    if type(actor).begin_episode is not ActorModule.begin_episode and not isinstance(actor, BatchActor):
        raise ConfigError(
            f"{type(actor).__name__} overrides begin_episode, so it keeps a state between steps that {users} cannot "
            "share. Derive it from tmrl_core.actor.BatchActor, which is handed its state at each step."
        )


def _where(stored: Sequence[bool], value_B: ndarray) -> ndarray:
    """Return the rows that are stored, and zeros in place of the others."""
    kept: ndarray = np.zeros_like(value_B)
    if any(stored):  # never with one row, which is the ordinary case
        kept[stored] = value_B[stored]
    return kept


def stacked(rows: Sequence[Any]) -> Any:
    """Return values of rows as one batch, whose arrays have a leading dimension."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: stacked([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(entries) for entries in zip(*rows, strict=True))
    return np.stack(rows)


def _at(index: Any, action_B: Any) -> Any:
    """Return the action of one row of a batch."""
    return map_leaves(lambda value_B: np.asarray(value_B)[index], action_B)
