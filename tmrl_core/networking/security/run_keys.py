"""A trainer's keys of its runs, and the highest incarnation that it has used in each, in its credentials folder.

    run_keys/NAME-XXXXXXXX.key          the private key of one run: workers encrypt or authenticate samples for it
    run_keys/NAME-XXXXXXXX.incarnation  the highest incarnation of a trainer of that run on this machine; if several
                                        processes are one trainer, NAME-XXXXXXXX.1.incarnation is the second one's
    run_keys/older/*.key                keys of runs that were copied from other machines, for samples sealed for them

The key is made once and never replaced, because the Server's spool may hold messages for it. It is never part of a
checkpoint. The incarnation is written before it is used, so that a restarted trainer never uses it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.messages import MAX_NUMBER
from tmrl_core.networking.security.secret_files import folder_of, read_record, write_record, writing

FOLDER, OLDER = "run_keys", "older"
_KEY_BYTES = 32
_NAME_CHARACTERS = 64


@decodable
class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tmrl_core run key"]
    run: str
    key: Annotated[bytes, Meta(min_length=_KEY_BYTES, max_length=_KEY_BYTES)]

    def __repr__(self) -> str:
        return f"_Key(run={self.run!r}, ...)"


@decodable
class _Incarnation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tmrl_core incarnation"]
    run: str
    incarnation: Annotated[int, Meta(ge=0, lt=MAX_NUMBER)]


class RunKeyFiles:
    """The key of one run, made if there is none, and the highest incarnation used.

    Args:
        directory: the credentials folder, or a bundle file, beside which the key is kept.
        run: name of the run.
        part: number of this process among those that are one trainer together. They use the same incarnations.

    Raises:
        CredentialsError: a file is damaged, of another run, or cannot be read or written.

    Attributes:
        file: file of the key.
        private: the X25519 private key, 32 bytes.
    """

    def __init__(self, directory: str | os.PathLike[str], run: str, part: int = 0) -> None:
        self._run = run
        self._folder = folder_of(directory)
        self.file = self._folder / FOLDER / f"{_file_name(run)}.key"
        self._incarnation_file = self.file.with_suffix(f".{part}.incarnation" if part else ".incarnation")
        self.private = self._load() or self._make()

    def __repr__(self) -> str:
        return f"RunKeyFiles({str(self.file)!r})"

    def _load(self) -> bytes | None:
        advice = (
            "Restore it from a copy: samples that the Server's spool holds for this run cannot be opened without it. "
            "If there are none, delete the file; a new key is made."
        )
        found = read_record(self.file, _Key, advice, private=True)
        if found is None:
            return None
        if found.run != self._run:
            raise CredentialsError(f"{self.file} holds the key of run {found.run!r}, not of {self._run!r}. {advice}")
        return found.key

    @property
    def older(self) -> list[bytes]:
        """Return the private keys of this run that were copied from other machines.

        Raises:
            CredentialsError: a file is damaged, or cannot be read.
        """
        advice = "Copy it again, or delete it."
        files = sorted((self.file.parent / OLDER).glob("*.key"))
        found = [read_record(file, _Key, advice, private=True) for file in files]
        return [one.key for one in found if one is not None and one.run == self._run]

    def _make(self) -> bytes:
        with self._writing():
            made = self._load()
            if made is None:  # otherwise another process was faster
                # Any 32 bytes are a private key of X25519 (RFC 7748, section 5).
                made = secrets.token_bytes(_KEY_BYTES)
                write_record(self.file, _Key("tmrl_core run key", self._run, made), private=True)
            self.file.parent.chmod(0o700)
        return made

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with writing(self._folder):
                yield
        except CredentialsError as exc:
            raise CredentialsError(
                f"{str(exc).rstrip('.')}. The trainer keeps the keys of its runs there: make the folder writable, or "
                "set network.end_to_end: off on all machines of the run."
            ) from exc

    @property
    def highest(self) -> int:
        """Return the highest incarnation used on this machine; 0: none.

        Raises:
            CredentialsError: the file is damaged, or cannot be read.
        """
        advice = "Delete it: the trainer then continues above the incarnations that the workers of its run know."
        found = read_record(self._incarnation_file, _Incarnation, advice, private=True)
        return 0 if found is None or found.run != self._run else found.incarnation

    def hold(self, incarnation: int) -> None:
        """Store that this incarnation is used, before it is.

        Raises:
            CredentialsError: another trainer of this run has used it, or the file cannot be written.
        """
        with self._writing():
            highest = self.highest
            if incarnation > highest:
                record = _Incarnation("tmrl_core incarnation", self._run, incarnation)
                write_record(self._incarnation_file, record, private=True)
        if incarnation <= highest:
            # Both would sign messages of the same incarnation with the same key, which workers would take for one
            # trainer's.
            raise CredentialsError(
                f"another trainer of run {self._run!r} with the credentials in {self._folder} has used incarnation "
                f"{highest}. Stop it, then start this one again."
            )


def _file_name(run: str) -> str:
    """Return a readable file name. The digest separates names that differ in letter case, or in their ends only."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:8]
    return f"{quote(run, safe='').lstrip('.')[:_NAME_CHARACTERS] or 'run'}-{digest}"
