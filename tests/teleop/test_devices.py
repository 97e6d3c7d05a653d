"""Devices of a person: SDL's virtual controller, its driver without a screen, and a fake layer below hidapi."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.teleop import Gamepad, Keyboard, SpaceMouse
from tmrl_core.teleop.controls import Controls
from tmrl_core.teleop.spacemouse import parsed

ARM = spaces.Box(np.array([-0.02, -0.02, -0.02, 0.0], np.float32), np.array([0.02, 0.02, 0.02, 2.0], np.float32))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def controls(**kwargs: Any) -> Controls:
    given = {"moves": {"x": (0, 1.0), "y": (1, -1.0), "open": (3, 1.0)}, "events": {"b": "success"}, "hold": None}
    return Controls(ARM, ["x", "y", "open", "b", "h"], **{**given, **kwargs})


# --- controls ---------------------------------------------------------------------------------------------------------


def test_deflections_are_parts_of_the_bounds() -> None:
    made = controls(dead_zone=0.1)
    made.set("x", 0.55)
    made.set("y", 1.0)
    action = made.action()
    assert action is not None
    np.testing.assert_allclose(action, [0.01, -0.02, 0.0, 1.0], atol=1e-9)
    assert action.dtype == np.float32
    assert action.shape == (4,)


def test_what_a_stick_shows_at_rest_does_not_take_over() -> None:
    made = controls(dead_zone=0.1)
    made.set("x", 0.09)
    assert made.action() is None


def test_without_a_button_to_hold_a_takeover_lasts_a_moment_longer_than_its_moves() -> None:
    clock = Clock()
    made = controls(release_s=0.5, clock=clock)
    assert made.action() is None
    made.set("x", 1.0)
    assert made.action() is not None
    made.set("x", 0.0)
    clock.now = 0.4
    action = made.action()
    assert action is not None
    assert action[0] == 0.0
    clock.now = 0.6
    assert made.action() is None


def test_a_held_button_takes_over_also_to_stand_still() -> None:
    made = controls(hold="h")
    made.set("x", 1.0)
    assert made.action() is None
    made.set("h", 1.0)
    made.set("x", 0.0)
    assert made.action() is not None


def test_a_latched_element_keeps_its_last_value_until_the_next_episode() -> None:
    made = controls(hold="h", latched=[3])
    made.set("h", 1.0)
    made.set("open", 1.0)
    made.action()
    made.set("open", 0.0)
    assert made.action()[3] == 2.0  # type: ignore[index]
    made.begin_episode()
    assert made.action()[3] == 1.0  # type: ignore[index]


def test_an_event_is_said_once_when_its_button_is_pressed() -> None:
    made = controls()
    for value in (1.0, 1.0, 0.0, 1.0):
        made.set("b", value)
    assert made.pop_events() == ["success", "success"]
    assert made.pop_events() == []
    made.set("b", 0.0)
    made.set("b", 1.0)
    made.begin_episode()
    assert made.pop_events() == []


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"moves": {"z": (0, 1)}}, r"found the control 'z'; this device has x, y, open, b, h"),
        ({"moves": {"x": (4, 1)}}, r"moves\.x: found the element 4, allowed: 0 to 3"),
        ({"moves": {"x": (0,)}}, r"moves\.x: found \(0,\), allowed: \[element, factor\]"),
        ({"latched": [-1]}, r"latched: found the element -1, allowed: 0 to 3"),
        ({"events": {"b": "won"}}, r"events\.b: found 'won', allowed: success, failure, rerecord_episode"),
        ({"hold": "q"}, r"found the control 'q'"),
        ({"dead_zone": 1.0}, r"dead_zone: found 1\.0, allowed: at least 0 and below 1"),
    ],
)
def test_what_a_device_does_not_have_is_refused(kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        controls(**kwargs)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,))])
def test_a_device_is_for_a_bounded_box(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"this device is for a Box with finite bounds"):
        SpaceMouse(space)


# --- keyboard ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_screen(monkeypatch: Any) -> Iterator[Any]:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield pygame
    pygame.display.quit()


def press(pygame: Any, name: str, down: bool = True) -> None:
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN if down else pygame.KEYUP, key=pygame.key.key_code(name)))


def test_keys_move_and_say(no_screen: Any) -> None:
    keyboard = Keyboard(ARM, latched=[3])
    keyboard.begin_episode()
    assert keyboard.poll(None) is None
    for name in ("space", "w", "d", "o", "return"):
        press(no_screen, name)
    np.testing.assert_allclose(keyboard.poll(None), [0.02, -0.02, 0.0, 2.0], atol=1e-9)
    assert list(keyboard.events()) == ["success"]
    press(no_screen, "w", down=False)
    assert keyboard.poll(None)[0] == 0.0
    no_screen.event.post(no_screen.event.Event(no_screen.WINDOWFOCUSLOST))
    assert keyboard.poll(None) is None
    no_screen.event.post(no_screen.event.Event(no_screen.QUIT))
    with pytest.raises(OSError, match="window of the keyboard was closed"):
        keyboard.poll(None)
    keyboard.close()


def test_a_key_that_does_not_exist_is_refused(no_screen: Any) -> None:
    with pytest.raises(ConfigError, match="found the control 'hyper'; this device has"):
        Keyboard(ARM, moves={"hyper": (0, 1.0)})


def test_a_missing_display_is_one_line(monkeypatch: Any) -> None:
    pytest.importorskip("pygame")
    if sys.platform != "linux":
        pytest.skip("other systems have a display")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"interventions: a keyboard needs a display for its window, and there is no"):
        Keyboard(ARM)


# --- gamepad ----------------------------------------------------------------------------------------------------------


class VirtualPad:
    """A controller that SDL itself pretends to have, moved from here."""

    def __init__(self, pygame: Any) -> None:
        found = [*Path(pygame.__file__).parents[1].glob("pygame_ce.libs/libSDL2-2*")]
        if not found:
            pytest.skip("SDL's library is in pygame-ce's wheels for Linux alone")
        self._sdl = ctypes.CDLL(str(found[0]))
        self._sdl.SDL_JoystickOpen.restype = ctypes.c_void_p
        pygame.joystick.init()
        self._index = self._sdl.SDL_JoystickAttachVirtual(1, 6, 15, 0)
        self._joystick = ctypes.c_void_p(self._sdl.SDL_JoystickOpen(self._index))

    def axis(self, number: int, value: int) -> None:
        self._sdl.SDL_JoystickSetVirtualAxis(self._joystick, number, ctypes.c_int16(value))

    def press(self, button: int) -> None:
        self._sdl.SDL_JoystickSetVirtualButton(self._joystick, button, ctypes.c_uint8(1))

    def unplug(self) -> None:
        self._sdl.SDL_JoystickDetachVirtual(self._index)


def test_sticks_and_buttons_have_the_names_of_sdls_controllers(no_screen: Any) -> None:
    from pygame import CONTROLLER_AXIS_LEFTY, CONTROLLER_AXIS_TRIGGERLEFT, CONTROLLER_AXIS_TRIGGERRIGHT
    from pygame import CONTROLLER_BUTTON_RIGHTSHOULDER as HOLD
    from pygame import CONTROLLER_BUTTON_Y as Y

    no_screen.display.init()
    pad = VirtualPad(no_screen)
    gamepad = Gamepad(ARM)
    pad.axis(CONTROLLER_AXIS_TRIGGERLEFT, -32768)
    pad.axis(CONTROLLER_AXIS_LEFTY, -32768)
    pad.axis(CONTROLLER_AXIS_TRIGGERRIGHT, 32767)
    assert gamepad.poll(None) is None
    pad.press(HOLD)
    pad.press(Y)
    np.testing.assert_allclose(gamepad.poll(None), [0.02, 0, 0, 2.0], atol=1e-9)
    assert list(gamepad.events()) == ["success"]
    pad.unplug()
    with pytest.raises(OSError, match="unplugged"):
        gamepad.poll(None)


def test_a_missing_gamepad_is_one_line(no_screen: Any) -> None:
    with pytest.raises(ConfigError, match=r"found 0 gamepads that SDL knows, among \d+ joysticks, and wanted number 9"):
        Gamepad(ARM, number=9)


# --- SpaceMouse -------------------------------------------------------------------------------------------------------


def report(number: int, *values: int) -> bytes:
    return bytes([number]) + struct.pack(f"<{len(values)}h", *values)


def test_reports_of_old_and_new_devices_are_read() -> None:
    assert parsed(report(1, 350, -175, 0)) == {"x": -1.0, "y": 0.5, "z": -0.0}
    assert parsed(report(2, 35, 700, 350)) == {"pitch": 0.1, "roll": 1.0, "yaw": -1.0}
    assert parsed(report(1, 0, 0, -350, 0, 0, 0))["z"] == 1.0
    assert len(parsed(report(1, 0, 0, 0, 0, 0, 0))) == 6
    pressed = parsed(bytes([3, 0b10, 0]))
    assert (pressed["button_1"], pressed["button_2"], len(pressed)) == (0.0, 1.0, 16)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x02\x03", b"\x17abcdefgh", b"\x03", bytes(64)])
def test_other_bytes_say_nothing(data: bytes) -> None:
    assert parsed(data) == {}


class Hid:
    def __init__(self, reports: list[bytes]) -> None:
        self.reports, self.closed = reports, False

    def read(self, max_length: int) -> list[int]:
        return list(self.reports.pop(0)) if self.reports else []

    def close(self) -> None:
        self.closed = True


class FakeMouse(SpaceMouse):
    def _open(self) -> Hid:
        return Hid([])


def test_a_cap_takes_over_while_it_is_moved() -> None:
    mouse = FakeMouse(ARM)
    hid = mouse._device = Hid([report(1, 0, 0, 0), bytes([3, 1, 0])])
    assert mouse.poll(None) is None
    assert list(mouse.events()) == ["success"]
    hid.reports += [report(1, 0, -350, 0)] * 3
    np.testing.assert_allclose(mouse.poll(None), [0.02, 0, 0, 1.0], atol=1e-9)
    assert not hid.reports
    mouse.close()
    assert hid.closed


def test_a_missing_spacemouse_is_one_line() -> None:
    pytest.importorskip("hid")
    with pytest.raises(ConfigError, match=r"no SpaceMouse is connected\. Connect it before the worker starts, or set"):
        SpaceMouse(ARM)
