"""Files that rooms keep in the credentials folder, beside those of the transport `tls`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from tmrl_core import rooms


class AddedFiles(ABC):
    """Files of one room, registered as an entry of `credential_files`, see `tmrl_core.rooms`.

    Bundles carry their texts by names of the room, which alone knows them.
    """

    about: ClassVar[str]
    """Description of the texts that differ between two sets, for messages."""
    certificate: ClassVar[str]
    """Name of the certificate's file."""
    hostname: ClassVar[str]
    """Name in that certificate by which it is recognized; no host of TLS has it."""
    secrets: ClassVar[tuple[str, ...]]
    """Names of the files that hold no certificate."""

    @abstractmethod
    def make(self, folder: Path, hosts: Iterable[str], not_after: datetime, *, overwrite: bool = False) -> bool:
        """Create missing files. Return True if any were missing. The caller must hold the folder's lock."""

    @abstractmethod
    def bundled(self, folder: Path, *, server: bool) -> dict[str, str]:
        """Return the texts of this folder for a bundle; none: the folder has no such files."""

    @abstractmethod
    def install(self, texts: Mapping[str, str], folder: Path) -> list[Path]:
        """Write a bundle's files and return them.

        Raises:
            CredentialsError: the bundle has other texts than the room's.
        """

    @abstractmethod
    def conflict(self, texts: Mapping[str, str], folder: Path) -> bool:
        """Return True if a bundle's texts would replace different ones in this folder."""


@functools.cache
def added_files() -> dict[str, AddedFiles]:
    """Return the files of all rooms, by the room's name."""
    return {name: entry.load()() for name, entry in rooms.entries("credential_files").items()}


def room_of_certificate(names: Iterable[str]) -> str | None:
    """Return the name of the room whose certificate has one of these names; None: it is none of a room."""
    return next((name for name, files in added_files().items() if files.hostname in names), None)
