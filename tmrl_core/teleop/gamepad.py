"""A gamepad, by SDL's table of controllers, so that buttons and sticks have the same names on all of them."""

# Theory of operation
#
# SDL numbers axes and buttons of a joystick by its driver: the right stick is axis 3 on one system and 2 on another.
# Its table of controllers (pygame's `_sdl2.controller`) gives them the names of an Xbox controller, so that a
# configuration holds for other controllers and systems. A device that is not in the table is refused.
#
# Values are read before each step, without events. SDL renews them when its queue is pumped, which needs its video
# part; without a display, that runs without a window.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tmrl_core.actor.interventions import FAILURE, KEY, RERECORD, SUCCESS, TERMINATE
from tmrl_core.errors import ConfigError
from tmrl_core.teleop.controls import Controls, Device, Moves, first_moves
from tmrl_core.teleop.keyboard import import_pygame

AXES = ("left_x", "left_y", "right_x", "right_y", "left_trigger", "right_trigger")
BUTTONS = (
    "a", "b", "x", "y", "back", "guide", "start", "left_stick", "right_stick", "left_shoulder", "right_shoulder",
    "up", "down", "left", "right",
)  # fmt: skip
"""In SDL's order of axes and buttons."""
PAIRS = (("left_y", "left_y"), ("left_x", "left_x"), ("right_y", "right_y"), ("left_trigger", "right_trigger"))
EVENT_BUTTONS = {"y": SUCCESS, "a": FAILURE, "x": RERECORD, "b": TERMINATE}
FULL = 32767.0
"""Value of an axis at its end."""


class Controller(Protocol):
    """Part of SDL's controllers that is used here."""

    def get_axis(self, axis: int) -> int:
        """Return a value from -32768 to 32767."""

    def get_button(self, button: int) -> bool:
        """Return True if a button is pressed."""

    def attached(self) -> bool:
        """Return False if it was unplugged."""


class Gamepad(Device):
    """Sticks, triggers and buttons that take over while a button is held.

    Args:
        action_space: a Box with finite bounds.
        moves: for each control, the element of the action that it moves, and a factor; None: `left_y`, `left_x` and
            `right_y` move the first three elements, forward, left and up being positive; `left_trigger` lowers the
            fourth one, and `right_trigger` raises it.
        events: for each button, an event; None: `y` success, `a` failure, `x` rerecord_episode, `b` terminate_episode.
        hold: control that is held to take over; None: any move takes over.
        release_s: without `hold`, seconds that a takeover lasts after the last move.
        latched: elements that keep their last value, such as a gripper's.
        dead_zone: part of a stick's way that counts as its rest.
        number: number of the controller, if there are several; the first one is 0.

    Raises:
        MissingExtraError: pygame-ce is not installed.
        ConfigError: there is no such controller, or a control, element or event is not allowed.
    """

    def __init__(
        self,
        action_space: Any,
        moves: Moves | None = None,
        events: Mapping[str, str] | None = None,
        hold: str | None = "right_shoulder",
        release_s: float = 0.5,
        latched: Sequence[int] = (),
        dead_zone: float = 0.1,
        number: int = 0,
    ) -> None:
        if moves is None:
            # SDL's sticks are positive to the right and backwards.
            moves = {
                name: (element, -factor if name in ("left_y", "left_x", "right_y") else factor)
                for name, (element, factor) in first_moves(PAIRS, action_space).items()
            }
        self.controls = Controls(
            action_space,
            (*AXES, *BUTTONS),
            moves=moves,
            events=EVENT_BUTTONS if events is None else events,
            hold=hold,
            release_s=release_s,
            latched=latched,
            dead_zone=dead_zone,
        )
        self.device = f"gamepad {number}"
        self._controller = self._open(number)

    def _open(self, number: int) -> Controller:
        """Return the controller of this number."""
        self._pygame = pygame = import_pygame()
        from pygame._sdl2 import controller

        if not pygame.display.get_init():
            _init_events(pygame)
        controller.init()
        joysticks = controller.get_count()
        named = [number for number in range(joysticks) if controller.is_controller(number)]
        if not 0 <= number < len(named):
            raise ConfigError(
                f"{KEY}: found {len(named)} gamepads that SDL knows, among {joysticks} joysticks, and wanted number "
                f"{number} (from 0). Connect it before the worker starts, or set {KEY}: null on this machine"
            )
        found: Controller = controller.Controller(named[number])
        return found

    def _pump(self) -> None:
        """Renew the values of the controller."""
        self._pygame.event.pump()

    def read(self) -> None:
        """Read sticks, triggers and buttons.

        Raises:
            OSError: the controller was unplugged.
        """
        self._pump()
        if not self._controller.attached():
            raise OSError("the gamepad was unplugged")
        for number, name in enumerate(AXES):
            self.controls.set(name, max(-1.0, self._controller.get_axis(number) / FULL))
        for number, name in enumerate(BUTTONS):
            self.controls.set(name, float(self._controller.get_button(number)))


def _init_events(pygame: Any) -> None:
    """Begin SDL's events, without a window where there is no display."""
    try:
        pygame.display.init()
    except pygame.error:
        before = os.environ.get("SDL_VIDEODRIVER")
        os.environ["SDL_VIDEODRIVER"] = "dummy"
        try:
            pygame.display.init()
        finally:
            if before is None:
                del os.environ["SDL_VIDEODRIVER"]
            else:
                os.environ["SDL_VIDEODRIVER"] = before
