"""Result of one step of a diagnosis."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "failed", "skipped"]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of one check.

    Args:
        name: subject of the check.
        state: skipped: not checked, because an earlier step failed or because it does not apply.
        found: description of the observation.
        todo: next step for the user, after a failure or as advice.
        figures: measurements; units are in the names.
    """

    name: str
    state: State
    found: str
    todo: str = ""
    figures: dict[str, float] = {}


class FailedStepError(Exception):
    """Failure of a step, with finding and remedy. It is never raised outside this package."""

    def __init__(self, found: str, todo: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.todo = todo


def from_text(text: str, otherwise: str) -> FailedStepError:
    """Make a failure from an error's message: its first sentence is the finding, the rest (or `otherwise`) the fix."""
    found, _, todo = text.partition(". ")
    return FailedStepError(found, todo or otherwise)
