"""Devices with which a person takes over from the policy, for `worker.interventions.cls` (extra `teleop`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.teleop.gamepad import Gamepad as Gamepad
    from tmrl_core.teleop.keyboard import Keyboard as Keyboard
    from tmrl_core.teleop.spacemouse import SpaceMouse as SpaceMouse
    from tmrl_core.teleop.teleoperator import TeleoperatorSource as TeleoperatorSource

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gamepad": "Gamepad",
        "keyboard": "Keyboard",
        "spacemouse": "SpaceMouse",
        "teleoperator": "TeleoperatorSource",
    },
)
