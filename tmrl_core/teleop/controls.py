"""Controls of a device as actions and events: which key or stick moves which element, and which button says what."""

# Theory of operation
#
# This file knows no device. A device tells the value of each of its controls, from -1 to 1 (a key or a button: 0 or 1),
# and this file makes of them an action of a Box, and events.
#
#     moves    control -> (element, factor): an element's deflection is the sum of factor times value, within [-1, 1]
#     latched  elements that keep their last deflection, as a gripper must, which no finger holds closed
#     events   control -> event, said once when the control is pressed
#     hold     control that is held to take over; None: any move takes over, until `release_s` after the last one
#
# A deflection of -1 is the element's lower bound, 1 the upper one, 0 the middle: an arm whose actions are steps stands
# still while nothing is pressed. With `hold`, standing still is an action too, so the policy does not get the arm back
# between two movements; hence a keyboard and a gamepad have a control to hold by default. A SpaceMouse has two buttons,
# which are of more use as success and failure.
#
# In numbers: bounds of -0.02 and 0.02, a stick at 0.5 and a factor of 1 make the action 0.01. A dead zone of 0.1 takes
# away what a stick shows at rest, and the rest of its way still begins at 0: 0.1 makes 0, 0.55 makes 0.5, 1 makes 1.

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_core.actor.interventions import EVENTS, KEY, InterventionSource
from tmrl_core.errors import ConfigError

Moves = Mapping[str, Sequence[float]]
"""For each control, the element of the action that it moves, and a factor."""

PRESSED = 0.5
"""Value from which on a control counts as pressed."""


class Controls:
    """Values of a device's controls as an action of a Box, and events.

    Args:
        action_space: a Box with finite bounds.
        known: names of the device's controls.
        moves: for each control, element of the flattened action and factor.
        events: for each control, a member of `EVENTS`.
        hold: control that is held to take over; None: any move takes over.
        release_s: without `hold`, seconds that a takeover lasts after the last move.
        latched: elements that keep their last deflection.
        dead_zone: values of controls below it count as 0; at least 0, below 1.
        clock: monotonic seconds.

    Raises:
        ConfigError: the space is not a Box with finite bounds, or a control, element, event or number is not allowed.
    """

    def __init__(
        self,
        action_space: Any,
        known: Collection[str],
        *,
        moves: Moves,
        events: Mapping[str, str],
        hold: str | None,
        release_s: float = 0.5,
        latched: Sequence[int] = (),
        dead_zone: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(action_space, spaces.Box) or not action_space.is_bounded():
            raise ConfigError(f"{KEY}: this device is for a Box with finite bounds; the action space is {action_space}")
        self._space = action_space
        self._size = int(np.prod(action_space.shape))
        self._low, self._high = (np.ravel(bound).astype(np.float64) for bound in (action_space.low, action_space.high))
        for name in (*moves, *events, *(() if hold is None else (hold,))):
            if name not in known:
                raise ConfigError(f"{KEY}.kwargs: found the control {name!r:.50}; this device has {', '.join(known)}")
        for name, event in events.items():
            if event not in EVENTS:
                raise ConfigError(f"{KEY}.kwargs.events.{name}: found {event!r:.50}, allowed: {', '.join(EVENTS)}")
        for name, move in moves.items():
            if len(move) != 2:
                raise ConfigError(f"{KEY}.kwargs.moves.{name}: found {move!r:.50}, allowed: [element, factor]")
            self._check_element(move[0], f"moves.{name}")
        for element in latched:
            self._check_element(element, "latched")
        if not 0 <= dead_zone < 1:
            raise ConfigError(f"{KEY}.kwargs.dead_zone: found {dead_zone!r:.50}, allowed: at least 0 and below 1")
        self._moves = {name: (int(element), float(factor)) for name, (element, factor) in moves.items()}
        self._events, self._hold, self._release_s = dict(events), hold, release_s
        self._latched = np.zeros(self._size, bool)
        self._latched[list(latched)] = True
        self._dead_zone, self._clock = dead_zone, clock
        self._values: dict[str, float] = {}
        self._kept = np.zeros(self._size)
        self._said: list[str] = []
        self._moved_at = -np.inf

    def _check_element(self, element: float, where: str) -> None:
        if element != int(element) or not 0 <= element < self._size:
            raise ConfigError(
                f"{KEY}.kwargs.{where}: found the element {element!r:.50}, allowed: 0 to {self._size - 1}, as the "
                "action space has"
            )

    def set(self, control: str, value: float) -> None:
        """Take the value of a control, -1 to 1; of a key or button 0 or 1. Controls without a meaning are ignored."""
        before = self._values.get(control, 0.0)
        self._values[control] = value
        if abs(value) >= PRESSED > abs(before) and control in self._events:
            self._said.append(self._events[control])

    def begin_episode(self) -> None:
        """Forget what was said, and what latched elements keep."""
        self._said.clear()
        self._kept[:] = 0.0

    def pop_events(self) -> list[str]:
        """Return the events since the last call."""
        said, self._said = self._said, []
        return said

    def action(self) -> NDArray[Any] | None:
        """Return the person's action; None: the policy acts."""
        deflection = np.zeros(self._size)
        moving = False
        for control, (element, factor) in self._moves.items():
            value = self._values.get(control, 0.0)
            size = (abs(value) - self._dead_zone) / (1.0 - self._dead_zone)
            if size > 0.0:
                moving = True
                deflection[element] += factor * np.copysign(min(size, 1.0), value)
        deflection = np.clip(deflection, -1.0, 1.0)
        renewed = self._latched & (deflection != 0.0)
        self._kept[renewed] = deflection[renewed]
        now = self._clock()
        if moving:
            self._moved_at = now
        if self._hold is not None:
            active = abs(self._values.get(self._hold, 0.0)) >= PRESSED
        else:
            active = now - self._moved_at <= self._release_s
        if not active:
            return None
        deflection = np.where(self._latched, self._kept, deflection)
        action = self._low + (deflection + 1.0) / 2.0 * (self._high - self._low)
        return action.astype(self._space.dtype).reshape(self._space.shape)


class Device(InterventionSource):
    """A device whose controls are read before each step. A subclass implements `read`, and sets `controls`."""

    controls: Controls

    def read(self) -> None:
        """Tell `controls` all that has changed. Must return at once; an exception ends the worker."""
        raise NotImplementedError

    def poll(self, obs: Any) -> Any:
        """See `InterventionSource`."""
        self.read()
        return self.controls.action()

    def events(self) -> Collection[str]:
        """See `InterventionSource`."""
        return self.controls.pop_events()

    def begin_episode(self) -> None:
        """See `InterventionSource`. What was pressed during the reset is read and forgotten."""
        self.read()
        self.controls.begin_episode()


def first_moves(pairs: Sequence[tuple[str, str]], action_space: Any) -> dict[str, tuple[int, float]]:
    """Return the default moves: for each element of the action in order, a control that lowers it and one that raises.

    Args:
        pairs: names of the two controls of each element; a stick is both.
        action_space: of the environment.
    """
    moves: dict[str, tuple[int, float]] = {}
    for element, (lower, upper) in zip(range(int(np.prod(action_space.shape or ()))), pairs, strict=False):
        if lower != upper:
            moves[lower] = (element, -1.0)
        moves[upper] = (element, 1.0)
    return moves
