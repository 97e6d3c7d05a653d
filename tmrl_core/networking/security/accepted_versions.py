"""The highest policy version that a worker has accepted in each run, in a small file beside its copy of the policy.

With it, a worker that restarts accepts no older version, even if a trainer has signed that. Several workers may share
the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.messages import MAX_NUMBER, Version
from tmrl_core.networking.security.secret_files import LINK_WAIT_S, read_record, write_record, writing

logger = logging.getLogger(__name__)

_MAX_RUNS = 1_000
"""Maximum number of runs in a file. The runs accepted longest ago make room."""

_Number = Annotated[int, Meta(ge=0, lt=MAX_NUMBER)]


@decodable
class _Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tmrl_core accepted versions"]
    runs: dict[str, tuple[_Number, _Number]]


class AcceptedVersions:
    """The highest accepted version of one run.

    Args:
        model_path: the worker's copy of the policy; None: a restarted worker accepts any version.
        run: name of the run.

    Raises:
        CredentialsError: the file is damaged, or cannot be read.

    Attributes:
        version: incarnation and counter; (0, 0): none yet.
    """

    def __init__(self, model_path: str | os.PathLike[str] | None, run: str) -> None:
        path = None if model_path is None else Path(model_path)
        self._file = None if path is None else path.with_name(f"{path.name}.accepted")
        self._run = run
        self._failed = False
        self.version: Version = self._read().get(run, (0, 0))

    def _read(self) -> dict[str, Version]:
        if self._file is None:
            return {}
        advice = "Delete it: the worker then accepts any version that a trainer of its run has signed, older ones too."
        found = read_record(self._file, _Accepted, advice)
        return {} if found is None else found.runs

    def accept(self, version: Version) -> None:
        """Store a higher version, before its policy is used. A failure is logged once, and the policy is used."""
        if version <= self.version:
            return
        self.version = version
        if self._file is None:
            return
        try:
            # Without the lock, a worker could replace what another has just stored.
            with writing(self._file.parent, mode=0o777, wait_s=LINK_WAIT_S, setting="worker.model_path"):
                runs = self._read()
                highest = max(version, runs.pop(self._run, version))  # another worker may have stored a later one
                kept = dict([*runs.items(), (self._run, highest)][-_MAX_RUNS:])
                write_record(self._file, _Accepted("tmrl_core accepted versions", kept), sync=False)
        except CredentialsError as exc:
            if not self._failed:
                logger.warning("after a restart, this worker will not recognise older policies: %s", exc)
            self._failed = True
        else:
            self._failed = False
