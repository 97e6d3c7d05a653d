"""Sections of the configuration that rooms declare, as fields of one type."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, TypeVar

import msgspec

from tmrl_core import rooms
from tmrl_core.config.sections import Config, RoomSection, Section
from tmrl_core.errors import TmrlError

_Section = TypeVar("_Section", bound=Section)


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
    whole: dict[str, Any] = {one.name: one.default_factory for one in msgspec.structs.fields(Config)}
    for section in section_types():
        if section.extends:
            whole[section.key] = extended = _extended(whole[section.key], section)
            fields = [one for one in fields if one[0] != section.key]
            fields.append((section.key, extended, msgspec.field(default_factory=extended)))
        elif msgspec.NODEFAULT in section.__struct_defaults__:  # it has required keys
            fields.append((section.key, section | None, None))
        else:
            fields.append((section.key, section, msgspec.field(default_factory=section)))
    return _derived(Config, fields, keeps_folder=True)


def _extended(core: type[Section], keys: type[RoomSection]) -> type[Section]:
    """Return a section of the core with a room's keys."""
    return _derived(core, [(one.name, one.type, one.default) for one in msgspec.structs.fields(keys)])


def _derived(base: type[_Section], fields: list[tuple[str, Any, Any]], keeps_folder: bool = False) -> type[_Section]:
    made: Any = msgspec.defstruct(
        base.__name__,
        fields,
        bases=(base,),
        namespace={"__doc__": base.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        dict=keeps_folder,
    )
    derived: type[_Section] = made
    return derived


def room_sections(config: Config) -> list[RoomSection]:
    """Return the sections of rooms that a configuration has."""
    return [section for kind in section_types() if (section := kind.of(config)) is not None]


def kind_of_run(config: Config) -> RoomSection | None:
    """Return the section that makes a run one of another kind; None: an ordinary run."""
    return next((section for section in room_sections(config) if section.parts), None)
