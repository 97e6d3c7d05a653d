"""When a trainer sends its telemetry. Sans-I/O."""

# Theory of operation
#
# The trainer's link asks `Telemetry` what is due, as it asks for acknowledgements and credit. Nothing is made in the
# training thread, and nothing is made for nobody: one scene in 30 s keeps what the Server has for the next viewer from
# becoming old, and a viewer that comes gets a new one at once.

from __future__ import annotations

from typing import Literal, Protocol

SCENE_S = 1.0
"""Seconds between two scenes while somebody watches."""
UNWATCHED_S = 30.0
"""Seconds between two scenes while nobody watches."""
HISTORY_S = 30.0
"""Seconds between two histories while somebody watches."""

Part = Literal["scene", "history"]


class TelemetrySource(Protocol):
    """Maker of scenes and histories. The link's thread calls it."""

    def scene(self) -> bytes:
        """Return an encoded `Scene`, at most `MAX_SCENE_BYTES` long."""

    def history(self) -> bytes:
        """Return an encoded `History`, at most `MAX_HISTORY_BYTES` long."""


class TelemetryTimes:
    """Times at which a link sends the parts of the telemetry."""

    def __init__(self) -> None:
        self.viewers = 0
        self._joined = 0
        self._due: dict[Part, float] = {"scene": float("inf"), "history": float("inf")}
        """Times, in the order in which parts are sent."""

    def begin(self, now: float) -> None:
        """Send both parts at the beginning of a link: its Server may have none."""
        self._due = {"scene": now, "history": now}

    def watched(self, viewers: int, joined: int, now: float) -> None:
        """Handle the number of viewers, and the number of those that have come on this link."""
        if joined > self._joined:
            self._due = {"scene": now, "history": now}
        elif viewers and not self.viewers:
            # They were there before this link, so they have seen its first scene, and wait for the next ones.
            self._due["scene"] = min(self._due["scene"], now + SCENE_S)
            self._due["history"] = min(self._due["history"], now + HISTORY_S)
        self.viewers, self._joined = viewers, joined

    def hurry(self, now: float) -> None:
        """Send a scene now, because something has changed that somebody waits for."""
        self._due["scene"] = min(self._due["scene"], now)

    @property
    def due_at(self) -> float:
        """Return the time at which the next part is due."""
        return min(self._due.values())

    def take_due(self, now: float) -> list[Part]:
        """Return the parts that are due, and plan the next ones."""
        parts = [part for part, due in self._due.items() if due <= now]
        watched = self.viewers > 0
        for part in parts:
            wait_s = (
                (SCENE_S if watched else UNWATCHED_S) if part == "scene" else HISTORY_S if watched else float("inf")
            )
            self._due[part] = now + wait_s
        return parts
