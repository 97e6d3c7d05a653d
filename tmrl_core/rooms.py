"""Parts that can be taken away or added: algorithms, commands, roles, sections, sinks, ..., found by their names."""

# Theory of operation
#
# A room is a folder of this package with a file `room.py`, which imports nothing heavy and names, by kind, the objects
# that the room adds, as references `package.module:Name`:
#
#     TRANSPORTS = {"tls": "tmrl_core.networking.transports.tls_access:TlsKind"}
#
# Another package adds the same by entry points, in groups named after the kinds:
#
#     [project.entry-points."tmrl_core.transports"]
#     quic = "my_package.quic:QuicKind"
#
# This file knows names, never objects: which kinds there are is decided here, what an object of a kind must be able to
# do is decided by the module that uses the kind (`roles/role.py`, `roles/command.py`, ...). The core asks for a kind
# and a name and never names a room, so a folder can be deleted and the rest still works.
#
# Order. The rooms' own files are read once, at the first question; an object is imported when its name is used, not
# before, because `--help` and `import tmrl_core` must stay fast. A room goes before an installed package of the same
# name, so that no package can replace a part of this one by being installed. The metadata of installed packages is
# searched only for a name that no room has, because reading it takes longer than the start of a role may.
#
# Failures. A room whose file cannot be imported is left out with a warning: a broken part must not keep a robot from
# running without it. An object that cannot be imported is an error when its name is used, which names the package, the
# entry and the remedy. Two packages that add the same name are an error, because an order of installation must not
# decide.

from __future__ import annotations

import functools
import importlib
import logging
import os
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from tmrl_core.errors import ConfigError, TmrlError

logger = logging.getLogger(__name__)

Kind = Literal[
    "agents",
    "commands",
    "credential_files",
    "credentials",
    "exports",
    "pages",
    "roles",
    "sections",
    "session_formats",
    "sinks",
    "trainers",
    "transports",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ROOT = Path(__file__).parent
DEPTH = 3
"""Most folders between the package and a room's file, as for a transport that is a folder."""


class Entry(NamedTuple):
    """A name of a room or of an installed package, and the object that it stands for, as `package.module:Name`."""

    kind: Kind
    name: str
    reference: str
    package: str

    def load(self) -> Any:
        """Import the object.

        Raises:
            ConfigError: it cannot be imported; the message has the package, the entry and the remedy.
            TmrlError: the package's own, such as MissingExtraError.
        """
        module, _, name = self.reference.partition(":")
        try:
            return functools.reduce(getattr, name.split("."), importlib.import_module(module))
        except TmrlError:
            raise
        except Exception as exc:
            raise ConfigError(
                f"{self.name}: the package {self.package} adds it to {self.kind} as {self.reference!r}, which cannot "
                f"be imported: {type(exc).__name__}: {exc}. Repair or update {self.package}, or use another name."
            ) from exc


@functools.cache
def _rooms() -> dict[Kind, dict[str, Entry]]:
    """Return the entries of all rooms of this package, by kind and name. A room that is broken is left out."""
    found: dict[Kind, dict[str, Entry]] = {kind: {} for kind in KINDS}
    for package in _packages_with_rooms():
        try:
            # By its file: importing the packages around a room may be slow, as that of Gymnasium.
            file = ROOT.parent.joinpath(*package.split("."), "room.py")
            room = runpy.run_path(str(file))
        except Exception as exc:
            logger.warning("%s is left out, because it cannot be imported: %s", package, exc)
            continue
        for kind, entries in found.items():
            for name, reference in room.get(kind.upper(), {}).items():
                entries[name] = Entry(kind, name, reference, package)
    return found


def _packages_with_rooms() -> Iterator[str]:
    for folder, inner, files in os.walk(ROOT):
        parts = Path(folder).relative_to(ROOT.parent).parts
        inner[:] = sorted(name for name in inner if name.isidentifier() and not name.startswith("__"))
        if len(parts) > DEPTH:
            inner.clear()
        if "room.py" in files:
            yield ".".join(parts)


def entries(kind: Kind) -> Mapping[str, Entry]:
    """Return the entries of this package's rooms by name. Nothing but the rooms' own files is imported."""
    return _rooms()[kind]


def exports(package: str) -> dict[str, str]:
    """Return the public names that rooms add to a package, with their modules as `lazy_names` needs them."""
    found = ((name.rpartition("."), entry.reference) for name, entry in entries("exports").items())
    return {
        name: reference.partition(":")[0].removeprefix(ROOT.name)
        for (home, _, name), reference in found
        if home == package
    }


def added(kind: Kind, name: str | None = None) -> list[Entry]:
    """Return the entries of this name of installed packages, or of all names, from their metadata."""
    from importlib.metadata import entry_points

    found = {
        Entry(kind, each.name, f"{each.module}:{each.attr}", each.dist.name if each.dist is not None else each.module)
        for each in entry_points(group=f"tmrl_core.{kind}")
        if name in (None, each.name)
    }
    return sorted(found)


def find(kind: Kind, name: str) -> Entry | None:
    """Return the entry of this name: a room's, else an installed package's, else None.

    Raises:
        ConfigError: several installed packages add this name.
    """
    if (own := entries(kind).get(name)) is not None:
        return own
    found = added(kind, name)
    if len(found) > 1:
        packages = " and ".join(entry.package for entry in found)
        raise ConfigError(f"{name}: the packages {packages} both add it to {kind}. Uninstall one of them.")
    return found[0] if found else None
