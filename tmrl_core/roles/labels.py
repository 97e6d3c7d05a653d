"""Labels of workers without a configured name."""

from __future__ import annotations

import itertools
import os
import socket
from typing import NamedTuple
from urllib.parse import quote

from tmrl_core.config import data_folder
from tmrl_core.errors import ConfigError, FolderLockedError, StorageError
from tmrl_core.storage import FolderLock


class Label(NamedTuple):
    """Label of a worker in logs and metrics.

    Args:
        text: the label.
        seeding: text to mix into the seed. It includes the machine's name if other machines may use the label.
        claim: held while the label is in use on this machine; None: not needed.
    """

    text: str
    seeding: str
    claim: FolderLock | None = None


def own_label(name: str | None) -> Label:
    """Return a label that no other worker of this user has on this machine: `name`, `name-2`, `name-3`, ...

    Args:
        name: name in the worker's certificate; None: the host's name.
    """
    host = socket.gethostname()
    base = name or host
    for number in itertools.count(1):
        text = base if number == 1 else f"{base}-{number}"
        try:
            claim = FolderLock(data_folder() / "workers" / quote(text, safe=""), "the name of a worker")
        except FolderLockedError:
            continue
        except (StorageError, ConfigError):  # it cannot be written, or this user has none
            text = f"{base}-{os.getpid()}"
            return Label(text, text)
        return Label(text, f"{text}@{host}", claim)
    raise AssertionError("there is always a next number")
