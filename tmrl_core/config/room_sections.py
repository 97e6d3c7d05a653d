"""Sections of the configuration that rooms declare, as fields of one type."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import msgspec

from tmrl_core import rooms
from tmrl_core.config.sections import Config, RoomSection
from tmrl_core.errors import TmrlError


@functools.cache
def section_types() -> tuple[type[RoomSection], ...]:
    """Return the types of the sections of all rooms. Broken ones are left out."""
    found: list[type[RoomSection]] = []
    for entry in rooms.entries("sections").values():
        # An error is reported if a configuration has this section.
        with contextlib.suppress(TmrlError):
            found.append(entry.load())
    return tuple(found)


@functools.cache
def config_type() -> type[Config]:
    """Return the type of loaded configurations: `Config` with the sections of all rooms."""
    fields: list[tuple[str, Any, Any]] = []
    for section in section_types():
        if msgspec.NODEFAULT in section.__struct_defaults__:  # it has required keys
            fields.append((section.key, section | None, None))
        else:
            fields.append((section.key, section, msgspec.field(default_factory=section)))
    made: Any = msgspec.defstruct(
        "Config",
        fields,
        bases=(Config,),
        namespace={"__doc__": Config.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        dict=True,
    )
    whole: type[Config] = made
    return whole


def room_sections(config: Config) -> list[RoomSection]:
    """Return the sections of rooms that a configuration has."""
    return [section for kind in section_types() if (section := kind.of(config)) is not None]


def kind_of_run(config: Config) -> RoomSection | None:
    """Return the section that makes a run one of another kind; None: an ordinary run."""
    return next((section for section in room_sections(config) if section.parts), None)
