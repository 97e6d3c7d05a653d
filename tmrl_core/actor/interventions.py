"""Sources of interventions: the contract of what lets a person take over from the policy, and adapters to it."""

# Theory of operation
#
# A source is asked once before each step, in the thread that steps: `poll(obs)` returns the person's action, or None
# while the policy acts, and `events()` what the person said since the last step. Devices keep the latest value, so that
# neither call waits: a control loop of 50 Hz has 20 ms.
#
# What a user names in `worker.interventions.cls` need not derive from a class of this package: an object with `poll`
# takes over and says nothing else (`as_source`).
#
# Events have the names that robot libraries gave them, so that buttons, infos of environments and teleoperators say the
# same word for the same thing. `terminate_episode` is an end without a judgement, a truncation.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

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
"""All events."""

KEY = "worker.interventions"


class InterventionSource(ABC):
    """A person beside the environment, or a rule in place of one.

    All methods are called in the thread that steps, between two steps, and must return at once.
    """

    device: str = ""
    """Name of the device, which one worker of this machine can have at a time; empty: there is none."""

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


@runtime_checkable
class Polled(Protocol):
    """An object that takes over and says nothing else."""

    def poll(self, obs: Any) -> Any:
        """Return an action, or None."""


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
    if isinstance(made, Polled):
        return PolledSource(made.poll)
    raise ConfigError(
        f"{KEY}.cls: {reference} made a {type(made).__name__}, which has no `poll(obs)`. Derive it from "
        "tmrl_core.actor.interventions:InterventionSource"
    )


def taken_over(chunk: Chunk) -> NDArray[np.bool_]:
    """Return [rows] bool: True where a person chose the action."""
    flags = chunk.extras.get(IS_INTERVENTION)
    if isinstance(flags, np.ndarray) and flags.shape == (chunk.rows,) and flags.dtype.kind in "biuf":
        return np.asarray(flags > 0)
    return np.zeros(chunk.rows, bool)
