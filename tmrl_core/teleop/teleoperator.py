"""Teleoperators of lerobot as sources of interventions: gamepads, keyboards, telephones, leader arms."""

# Theory of operation
#
# A Teleoperator has two methods that are used here, `get_action` and `get_teleop_events`, of which the second is in
# those that can take over (`HasTeleopEvents`). Nothing of lerobot is imported: the user's function makes the object,
# since its class takes a configuration object of lerobot's own.
#
# `terminate_episode` alone means that the person gives up: its gamepad and its keyboard say so where others would say
# "failure", and its environments end the episode as terminated. It is a failure here too.

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tmrl_core.actor.interventions import (
    FAILURE,
    IS_INTERVENTION,
    KEY,
    RERECORD,
    SUCCESS,
    TERMINATE,
    InterventionSource,
)
from tmrl_core.config import resolve_with
from tmrl_core.errors import ConfigError


@runtime_checkable
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
    """A Teleoperator of lerobot, which is connected here.

    The numbers of an action that is a dict become an array in the dict's order, which is that of lerobot's
    `action_features`.

    Args:
        make: reference `package.module:Name` of a function that makes the teleoperator.
        kwargs: its keyword arguments.

    Raises:
        ConfigError: the reference names nothing, or makes an object without the methods.
    """

    def __init__(self, make: str, kwargs: Mapping[str, Any] | None = None) -> None:
        self.device = f"the teleoperator {make} {json.dumps(kwargs or {}, default=str)}"
        made = resolve_with(make, kwargs or {}, f"{KEY}.kwargs.make")()
        if not isinstance(made, Teleoperator):
            raise ConfigError(
                f"{KEY}.kwargs.make: {make} made a {type(made).__name__}; allowed: an object with connect, disconnect, "
                "get_action and get_teleop_events, as lerobot's teleoperators with events have them"
            )
        self._teleoperator = made
        self._events: Collection[str] = ()
        made.connect()

    def poll(self, obs: Any) -> Any:
        """See `InterventionSource`."""
        said = self._teleoperator.get_teleop_events()
        # The keys are members of an enumeration there, whose values are the names.
        flags = {str(name.value if isinstance(name, Enum) else name) for name, flag in said.items() if flag}
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
