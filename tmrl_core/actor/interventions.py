"""Sources of interventions: the contract of what lets a person take over from the policy, and adapters to it."""

# Theory of operation
#
# A source is asked once before each step, in the thread that steps: `poll(obs)` returns the person's action, or None
# while the policy acts, and `events()` what the person said since the last step. Devices have threads of their own and
# keep the latest value, so that neither call waits: a control loop of 50 Hz has 20 ms.
#
# What a user names in `worker.interventions.cls` need not derive from a class of this package. `as_source` accepts, in
# this order:
#
#     InterventionSource                       as it is
#     get_action, get_teleop_events            a Teleoperator of lerobot that reports events (`TeleoperatorSource`)
#     poll                                     an object of one method: it takes over and says nothing else
#
# Events have lerobot's names, so that buttons, infos of environments and teleoperators say the same word for the same
# thing. One of them means two things there. A teleoperator of lerobot reports `terminate_episode` alone where the
# person gives up (its gamepad's and keyboard's "failure"), and its environments then end the episode as terminated: the
# adapter therefore reports `failure`. Here, `terminate_episode` is an end without a judgement, a truncation.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk

IS_INTERVENTION = "is_intervention"
"""Extra of a sample: True where a person chose the action; also a key of infos, with which environments say so."""
POLICY_ACTION = "policy_action"
"""Extra of a sample: the action that the policy chose, whoever acted."""
TAKEOVER_EXTRAS = frozenset({IS_INTERVENTION, POLICY_ACTION})
"""Extras that come from a takeover and not from the policy."""
SUCCESS, FAILURE = "success", "failure"
"""Events: the episode ends as terminated, with the reward of a success, or with the environment's own."""
RERECORD, TERMINATE = "rerecord_episode", "terminate_episode"
"""Events: the episode is discarded and begins anew; it ends as truncated."""
EVENTS = (SUCCESS, FAILURE, RERECORD, TERMINATE)
"""All events, by lerobot's names."""

KEY = "worker.interventions"


class InterventionSource(ABC):
    """A person beside the environment, or a rule in place of one.

    All methods are called in the thread that steps, between two steps, and must return at once.
    """

    @abstractmethod
    def poll(self, obs: Any) -> Any:
        """Return the action to execute in place of the policy's; None: the policy acts.

        Args:
            obs: the observation that the policy acts on.
        """

    def events(self) -> Collection[str]:
        """Return the events since the last call, members of `EVENTS`. Default: none."""
        return ()

    def begin_episode(self) -> None:  # noqa: B027  # not abstract: most sources keep nothing
        """Begin an episode: forget what was said before. Default: do nothing."""

    def close(self) -> None:  # noqa: B027
        """Release the device. Default: do nothing."""


class PolledSource(InterventionSource):
    """An object that has no other method than `poll`.

    Args:
        poll: `poll(obs) -> action or None`.
    """

    def __init__(self, poll: Callable[[Any], Any]) -> None:
        self._poll = poll

    def poll(self, obs: Any) -> Any:
        """See `InterventionSource`."""
        return self._poll(obs)


class Teleoperator(Protocol):
    """Part of lerobot's `Teleoperator` that a takeover needs."""

    def connect(self) -> object:
        """Connect the device."""

    def disconnect(self) -> object:
        """Disconnect it."""

    def get_action(self) -> Any:
        """Return the person's action: an array, or a flat dict of numbers by name."""

    def get_teleop_events(self) -> Mapping[Any, bool]:
        """Return the flags `is_intervention`, `success`, `rerecord_episode` and `terminate_episode`."""


class TeleoperatorSource(InterventionSource):
    """A Teleoperator of lerobot, such as a gamepad, a keyboard or a leader arm. It is connected here.

    The numbers of an action that is a dict become an array in the dict's order, which is that of lerobot's
    `action_features`.

    Args:
        teleoperator: an object with `get_action` and `get_teleop_events`.
    """

    def __init__(self, teleoperator: Teleoperator) -> None:
        self._teleoperator = teleoperator
        self._events: Collection[str] = ()
        teleoperator.connect()

    def poll(self, obs: Any) -> Any:
        """See `InterventionSource`."""
        # The keys are members of an enumeration there, whose values are the names.
        found = {
            str(getattr(name, "value", name)): flag for name, flag in self._teleoperator.get_teleop_events().items()
        }
        flags = {name for name, flag in found.items() if flag}
        if flags & {RERECORD}:
            self._events = (RERECORD,)
        elif flags & {SUCCESS}:
            self._events = (SUCCESS,)
        else:
            self._events = (FAILURE,) if flags & {FAILURE, TERMINATE} else ()
        if IS_INTERVENTION not in flags:
            return None
        action = self._teleoperator.get_action()
        return np.array([*action.values()]) if isinstance(action, Mapping) else action

    def events(self) -> Collection[str]:
        """Return the events that the latest poll has found."""
        return self._events

    def close(self) -> None:
        """Disconnect the teleoperator."""
        self._teleoperator.disconnect()


class EnvironmentTakesOver(InterventionSource):
    """A source for environments in which the person acts by itself, and whose infos say so: it never acts."""

    def poll(self, obs: Any) -> None:
        """Return None."""


def as_source(made: object, reference: str) -> InterventionSource:
    """Return an object as a source, see the theory of operation of this file.

    Args:
        made: the object.
        reference: name of its class, for the error.

    Raises:
        ConfigError: it has none of the methods.
    """
    if isinstance(made, InterventionSource):
        return made
    if all(
        callable(getattr(made, name, None)) for name in ("get_action", "get_teleop_events", "connect", "disconnect")
    ):
        return TeleoperatorSource(cast(Teleoperator, made))
    poll = getattr(made, "poll", None)
    if callable(poll):
        return PolledSource(poll)
    raise ConfigError(
        f"{KEY}.cls: {reference} made a {type(made).__name__}, which has neither `poll(obs)` nor lerobot's `connect`, "
        "`disconnect`, `get_action` and `get_teleop_events`. Derive it from "
        "tmrl_core.actor.interventions:InterventionSource"
    )


def taken_over(chunk: Chunk) -> NDArray[np.bool_]:
    """Return [rows] bool: True where a person chose the action."""
    flags = chunk.extras.get(IS_INTERVENTION)
    if isinstance(flags, np.ndarray) and flags.shape == (chunk.rows,) and flags.dtype.kind in "biuf":
        return np.asarray(flags > 0)
    return np.zeros(chunk.rows, bool)
