"""Sentinel of an omitted argument, whose value comes from the configuration."""

from __future__ import annotations

import enum
from typing import Final, TypeVar

T = TypeVar("T")


class Cfg(enum.Enum):
    """Type of `CFG`: an enumeration with one member, so that type checkers understand `value is CFG`."""

    CFG = "cfg"

    def __repr__(self) -> str:
        return "cfg"


CFG: Final = Cfg.CFG
"""Sentinel of an omitted argument. An explicit None is a value."""


def given(value: T | Cfg, default: T) -> T:
    """Return `value`, or `default` if it was omitted."""
    return default if value is CFG else value
