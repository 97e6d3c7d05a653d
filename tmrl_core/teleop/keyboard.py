"""A keyboard: keys of a small window, which must have the focus."""

# Theory of operation
#
# A window and not all keys of the machine: what is typed into a terminal or a browser must not move a robot. Its events
# are read in the thread that steps, before each step: SDL wants the thread that made the window.
#
# The window's loss of the focus releases all keys: SDL does not report a key that is released elsewhere, and an arm
# would go on moving.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tmrl_core.actor.interventions import FAILURE, KEY, RERECORD, SUCCESS, TERMINATE
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.teleop.controls import Controls, Device, Moves, first_moves

PAIRS = (("s", "w"), ("d", "a"), ("down", "up"), ("c", "o"), ("j", "l"), ("k", "i"), ("u", "p"))
EVENT_KEYS = {"return": SUCCESS, "backspace": FAILURE, "r": RERECORD, "escape": TERMINATE}
NO_SCREEN = frozenset({"dummy", "offscreen"})
"""Video drivers of SDL without a window, which it takes where there is no display."""


class Keyboard(Device):
    """Keys of a window that take over while a key is held.

    Args:
        action_space: a Box with finite bounds.
        moves: for each key, the element of the action that it moves, and a factor; None: `s` and `w` move the first
            one, `d` and `a` the second, `down` and `up` the third, `c` and `o` the fourth, then `j` and `l`, `k` and
            `i`, `u` and `p`. Keys have SDL's names, in small letters.
        events: for each key, an event; None: `return` success, `backspace` failure, `r` rerecord_episode, `escape`
            terminate_episode.
        hold: key that is held to take over; None: any move takes over.
        release_s: without `hold`, seconds that a takeover lasts after the last move.
        latched: elements that keep their last value, such as a gripper's.

    Raises:
        MissingExtraError: pygame-ce is not installed.
        ConfigError: there is no display, or a key, element or event is not allowed.
    """

    device = "the keyboard"

    def __init__(
        self,
        action_space: Any,
        moves: Moves | None = None,
        events: Mapping[str, str] | None = None,
        hold: str | None = "space",
        release_s: float = 0.5,
        latched: Sequence[int] = (),
    ) -> None:
        pygame = self._pygame = import_pygame()
        moves = first_moves(PAIRS, action_space) if moves is None else moves
        events = EVENT_KEYS if events is None else events
        try:
            pygame.display.init()
        except pygame.error as exc:
            raise ConfigError(_no_display(str(exc))) from exc
        driver = pygame.display.get_driver()
        if driver in NO_SCREEN and os.environ.get("SDL_VIDEODRIVER") != driver:
            pygame.display.quit()
            raise ConfigError(_no_display(f"SDL takes its driver {driver!r}"))
        codes: dict[int, str] = {}
        for name in (*moves, *events, *(() if hold is None else (hold,))):
            try:
                codes[pygame.key.key_code(name)] = name
            except (ValueError, TypeError):
                continue  # `Controls` refuses it
        self._codes = codes
        self.controls = Controls(
            action_space, codes.values(), moves=moves, events=events, hold=hold, release_s=release_s, latched=latched
        )
        if pygame.display.get_surface() is None:
            pygame.display.set_mode((420, 80))
            pygame.display.set_caption(f"takeover: hold {hold}" if hold else "takeover")

    def read(self) -> None:
        """Read the window's events.

        Raises:
            OSError: the window was closed.
        """
        pygame = self._pygame
        for event in pygame.event.get((pygame.KEYDOWN, pygame.KEYUP, pygame.WINDOWFOCUSLOST, pygame.QUIT)):
            if event.type == pygame.QUIT:
                raise OSError("the window of the keyboard was closed")
            if event.type == pygame.WINDOWFOCUSLOST:
                for name in self._codes.values():
                    self.controls.set(name, 0.0)
            elif event.key in self._codes:
                self.controls.set(self._codes[event.key], float(event.type == pygame.KEYDOWN))

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()


def _no_display(why: str) -> str:
    return (
        f"{KEY}: a keyboard needs a display for its window, and there is none: {why.rstrip('.')}. Start the worker in "
        f"a desktop session, take tmrl_core.teleop:Gamepad, or set {KEY}: null on this machine"
    )


def import_pygame() -> Any:
    """Return pygame.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import pygame
    except ModuleNotFoundError as exc:
        raise MissingExtraError("pygame-ce", "teleop", "a keyboard or gamepad") from exc
    return pygame
