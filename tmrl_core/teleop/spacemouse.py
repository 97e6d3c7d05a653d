"""A SpaceMouse of 3Dconnexion: six axes of one cap, read as reports of a HID device."""

# Theory of operation
#
# Reports have a number and little-endian 16-bit integers, up to about 350 at the end of the cap's way:
#
#     1, 6 bytes    x, y, z: to the right, towards the person, down
#     2, 6 bytes    pitch, roll, yaw
#     1, 12 bytes   all six, of newer devices
#     3, n bytes    one bit for each button
#
# The signs are turned, so that forward, left and up are positive, as they are for a robot's arm whose first axis points
# away from the person. `parsed` makes of one report the values of controls and knows no device; `SpaceMouse` reads all
# reports that wait before each step, without waiting for more.
#
# Rejected: pyspacemouse, which has a table of axes for each product, over easyhid, which has had no release since 2019.

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tmrl_core.actor.interventions import FAILURE, KEY, SUCCESS
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.teleop.controls import Controls, Device, Moves, first_moves

FULL = 350.0
"""Value of an axis at the end of its way."""
THREE_D_CONNEXION, LOGITECH = 0x256F, 0x046D
"""Ids of vendors; older devices have Logitech's."""
AXES = (("y", -1.0), ("x", -1.0), ("z", -1.0), ("roll", 1.0), ("pitch", 1.0), ("yaw", -1.0))
SIGNS = dict(AXES)
BUTTONS = tuple(f"button_{number}" for number in range(1, 33))
TRANSLATION, ROTATION = ("x", "y", "z"), ("pitch", "roll", "yaw")
MOST_REPORTS = 256
"""Maximum number of reports read before a step; a device makes about 125 a second of each kind."""


def parsed(report: bytes) -> dict[str, float]:
    """Return the values of the controls that one report tells; empty: another report.

    Args:
        report: its bytes, with its number.
    """
    number, body = report[0] if report else 0, report[1:]
    if number == 3:
        bits = int.from_bytes(body[:4], "little")
        return {name: float(bits >> place & 1) for place, name in enumerate(BUTTONS[: 8 * min(4, len(body))])}
    if number not in (1, 2) or len(body) < 6:
        return {}
    names: tuple[str, ...] = TRANSLATION if number == 1 else ROTATION
    if number == 1 and len(body) >= 12:
        names += ROTATION
    values = struct.unpack_from(f"<{len(names)}h", body)
    return {name: SIGNS[name] * max(-1.0, min(1.0, value / FULL)) for name, value in zip(names, values, strict=True)}


class HidDevice(Protocol):
    """Part of hidapi's devices that is used here."""

    def read(self, max_length: int) -> Sequence[int]:
        """Return the bytes of a report; empty: none waits."""

    def close(self) -> None:
        """Close it."""


class SpaceMouse(Device):
    """The cap of a SpaceMouse, which takes over while it is moved.

    Args:
        action_space: a Box with finite bounds.
        moves: for each control, the element of the action that it moves, and a factor; None: `y`, `x`, `z`, `roll`,
            `pitch` and `yaw` move the first elements, forward, left and up being positive.
        events: for each button, an event; None: `button_1` success, `button_2` failure.
        hold: button that is held to take over; None: any move takes over.
        release_s: without `hold`, seconds that a takeover lasts after the last move.
        latched: elements that keep their last value, such as a gripper's.
        dead_zone: part of the cap's way that counts as its rest.

    Raises:
        MissingExtraError: hidapi is not installed.
        ConfigError: there is no such device, it cannot be opened, or a control, element or event is not allowed.
    """

    device = "the SpaceMouse"

    def __init__(
        self,
        action_space: Any,
        moves: Moves | None = None,
        events: Mapping[str, str] | None = None,
        hold: str | None = None,
        release_s: float = 0.5,
        latched: Sequence[int] = (),
        dead_zone: float = 0.1,
    ) -> None:
        pairs = [(name, name) for name, _ in AXES]
        self.controls = Controls(
            action_space,
            (*SIGNS, *BUTTONS),
            moves=first_moves(pairs, action_space) if moves is None else moves,
            events={"button_1": SUCCESS, "button_2": FAILURE} if events is None else events,
            hold=hold,
            release_s=release_s,
            latched=latched,
            dead_zone=dead_zone,
        )
        self._device = self._open()

    def _open(self) -> HidDevice:
        """Open the first SpaceMouse."""
        try:
            import hid
        except ModuleNotFoundError as exc:
            raise MissingExtraError("hidapi", "teleop", "a SpaceMouse") from exc
        for found in hid.enumerate():
            product = str(found["product_string"] or "")
            old = found["vendor_id"] == LOGITECH and "space" in product.lower()
            if found["vendor_id"] != THREE_D_CONNEXION and not old:
                continue
            device = hid.device()
            try:
                device.open_path(found["path"])
                device.set_nonblocking(True)
            except OSError as exc:
                raise ConfigError(
                    f"{KEY}: {product or 'the SpaceMouse'} cannot be opened: {exc}. On Linux, add a udev rule that "
                    'gives its hidraw device to your user: SUBSYSTEM=="hidraw", ATTRS{idVendor}=="256f", MODE="0660", '
                    'TAG+="uaccess"; end other programs that use it'
                ) from exc
            opened: HidDevice = device
            return opened
        raise ConfigError(
            f"{KEY}: no SpaceMouse is connected. Connect it before the worker starts, or set {KEY}: null here"
        )

    def read(self) -> None:
        """Read the reports that wait."""
        for _ in range(MOST_REPORTS):
            report = self._device.read(64)
            if not report:
                return
            for name, value in parsed(bytes(report)).items():
                self.controls.set(name, value)

    def close(self) -> None:
        """Close the device."""
        self._device.close()
