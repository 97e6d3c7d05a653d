"""The mark of an argument that was left out: it comes from the configuration then."""

from __future__ import annotations

import enum
from typing import Final, TypeVar

T = TypeVar("T")


class Cfg(enum.Enum):
    """Type of `CFG`; an enumeration of one, so that type checkers understand `value is CFG`."""

    CFG = "cfg"

    def __repr__(self) -> str:
        return "cfg"


CFG: Final = Cfg.CFG
"""Left out: from the configuration. An explicit None means none."""


def given(value: T | Cfg, default: T) -> T:
    """`value`, or `default` when it was left out."""
    return default if value is CFG else value
