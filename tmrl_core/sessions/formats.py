"""Formats of datasets of other tools, which rooms and installed packages add under `session_formats`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tmrl_core import rooms
from tmrl_core.errors import StorageError
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces

Options: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""Options of a command by their flags, with the arguments of `argparse.ArgumentParser.add_argument`. Options that are
given become keyword arguments of `read` or `write`, which have the defaults."""


@dataclass(frozen=True, kw_only=True)
class SessionFormat:
    """A format that sessions are read from and written to.

    Args:
        title: name of the tool.
        sign: files by which people know a dataset of this format, in messages.
        needs: extras of this package that the format needs, in the help.
        recognizes: returns True for the path of such a dataset.
        read: reads a dataset, with the path, `of` (spaces of observations and actions instead of its own, or None) and
            `skip_bad`; returns its spaces and its sessions.
        write: writes a dataset, with the path, sessions and their spaces; returns the number of sessions.
        read_options: further keyword arguments of `read`, as options.
        write_options: likewise, of `write`.
        bounds: option of `read` that gives bounds to actions without any; "": there is none.
    """

    title: str
    sign: str
    needs: str
    recognizes: Callable[[str | os.PathLike[str]], bool]
    read: Callable[..., tuple[Spaces, Iterator[Session]]]
    write: Callable[..., int]
    read_options: Options = field(default_factory=dict)
    write_options: Options = field(default_factory=dict)
    bounds: str = ""


def session_formats() -> dict[str, SessionFormat]:
    """Return all formats by name.

    Raises:
        ConfigError: an installed package adds a format that cannot be imported.
    """
    found = [*rooms.added("session_formats"), *rooms.entries("session_formats").values()]
    return {entry.name: entry.load() for entry in found}


def format_of(dataset: str | os.PathLike[str], known: Mapping[str, SessionFormat]) -> SessionFormat:
    """Return the format of a dataset.

    Raises:
        StorageError: it is of no known format.
    """
    for one in known.values():
        if one.recognizes(dataset):
            return one
    signs = "; ".join(f"{one.title}: {one.sign}" for one in known.values()) or "none: no room adds one"
    raise StorageError(f"{dataset} is a dataset of no known format ({signs}). Check the path")
