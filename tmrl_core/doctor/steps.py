"""Result of one step of a diagnosis."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "failed", "skipped"]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at.

    Args:
        name: what.
        state: skipped: it could not be looked at, since something before it failed, or it does not apply.
        found: what was seen, in words.
        todo: next step for the user, after a failure or although the step is ok.
        figures: what was measured; units are in the names.
    """

    name: str
    state: State
    found: str
    todo: str = ""
    figures: dict[str, float] = {}


class FailedStepError(Exception):
    """A step failed: what was found and what to do. Never leaves this package."""

    def __init__(self, found: str, todo: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.todo = todo


def from_text(text: str, otherwise: str) -> FailedStepError:
    """Of an error's message: what is wrong in its first sentence, then what to do; else that is `otherwise`."""
    found, _, todo = text.partition(". ")
    return FailedStepError(found, todo or otherwise)
