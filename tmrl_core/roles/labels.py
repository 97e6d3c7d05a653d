"""Labels of workers without a configured name."""

# Theory of operation
#
# Names that workers choose are labels only; an identity is the role and name of a certificate, or the token of a role.
# Without `worker.name`, the label is the name in the certificate, else the host name. Further workers of one user on
# one machine get `-2`, `-3`, ...: each number is a lock in the data folder, which is free again when its process ends,
# also when it is killed.
#
# The same label of two linked workers of the same credentials (one bundle on two machines) is the Server's affair: it
# numbers the later one. Another certificate's label never changes one's own, because certificates are shown with
# labels.
#
# The seed of episodes is mixed with `worker.name`, else with the label and the host name: one worker plays the same
# episodes in each run. If workers of one run have chosen one name, the Server tells the later ones their number
# (`Place`), which they mix into their seed at the next reset. Rejected: a number in `Welcome` before the environment is
# seeded, because a worker may play before it has reached a Server.

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
