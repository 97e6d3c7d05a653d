"""Changes of the configuration between a checkpoint and the process that resumes from it.

Most changes take effect. This module lists the keys that must not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tmrl_core.config.loading import convert, put
from tmrl_core.config.room_sections import section_types
from tmrl_core.config.sections import Config, RoomSection

COMPARED = (
    "run.seed",
    "environment",
    "actor",
    "worker.collection",
    "memory",
    "agent",
    "trainer",
    "checkpoint",
)
"""Keys that are compared, besides sections of rooms that make a run of another kind. Others concern only this process.
"""

FIXED: dict[str, str] = {
    r"memory\.(n_step|capacity|kwargs\.(length|stride))": "the stored transitions have the earlier value",
    r"memory\.recorded": "the checkpoint holds the recorded sessions that the run began with",
    r"(actor|agent)\.kwargs\.activation": "the networks were trained with the earlier one",
}
"""Keys that must not change, as regular expressions, with the reasons."""

FIRST: dict[str, str] = {
    r"run\.seed": "random generators continue from the checkpoint",
    r"(actor|agent)\.kwargs\.(alpha|log_std)": "it applies to new runs only",
}
"""Keys whose first value in the run stays in force, with the reasons."""

LEFT_OUT = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs from the checkpoint's."""

    key: str
    then: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.then)} in the checkpoint, {_shown(self.now)} now"

    def reason(self, table: Mapping[str, str]) -> str | None:
        """Return a table's reason for this key; None: the table does not list the key."""
        return next((reason for pattern, reason in table.items() if re.fullmatch(pattern, self.key)), None)

    @property
    def fixed(self) -> str | None:
        """Return the reason why this change is refused; None: it is allowed."""
        # An omitted keyword argument has a default, which this module does not know.
        if LEFT_OUT in (self.then, self.now):
            return None
        return next(filter(None, map(self.reason, (FIXED, *(kind.fixed for kind in _kinds_of_run())))), None)


def changes_since(stored: Mapping[str, Any], config: Config) -> list[Change]:
    """Return the keys whose values differ.

    Args:
        stored: the configuration of a checkpoint, as primitive values; keys that it lacks are skipped.
        config: the present configuration.
    """
    then, now = dict(stored), plain(config)
    for kind in _kinds_of_run():
        for values in (then, now):
            if values.get(kind.key):
                values[kind.key] = kind.compared(values[kind.key])
    keys = (*COMPARED, *(kind.key for kind in _kinds_of_run()))
    return [change for key in keys for change in _differences(key, _at(then, key), _at(now, key))]


def _kinds_of_run() -> list[type[RoomSection]]:
    return [kind for kind in section_types() if kind.parts]


def in_force(stored: Mapping[str, Any], config: Config) -> Config:
    """Return the present configuration, with the checkpoint's values for keys whose first value stays in force."""
    changes = [change for change in changes_since(stored, config) if change.reason(FIRST) is not None]
    if not changes:
        return config
    values = plain(config)
    for change in changes:
        put(values, change.key, None if change.then is LEFT_OUT else change.then, "checkpoint")
    return convert(values, "checkpoint").started_in(config.start_folder)


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as JSON values."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config, enc_hook=str))
    return values


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name, LEFT_OUT) if isinstance(values, Mapping) else LEFT_OUT
    return values


def _differences(key: str, then: Any, now: Any) -> Iterator[Change]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = then.keys() | now.keys() if _has_free_names(key) else then.keys() & now.keys()
        for name in sorted(names):
            yield from _differences(f"{key}.{name}", then.get(name, LEFT_OUT), now.get(name, LEFT_OUT))
    elif then != now and (LEFT_OUT not in (then, now) or _has_free_names(key.rpartition(".")[0])):
        yield Change(key, then, now)


def _has_free_names(key: str) -> bool:
    """Return True if the names below a key are the user's, so that a configuration may lack some."""
    return ".kwargs" in key or any(key in kind.free_names for kind in section_types())


def _shown(value: Any) -> str:
    return "left out" if value is LEFT_OUT else repr(value)
