"""API keys of the gateway's clients, and the token of the gateway's owner.

`gateway_keys.json` in the credentials folder (or in the folder of the bundle file) lists the keys: id, agent and
SHA-256, never the key itself. A key is `key-ID.SECRET`, so that a check is one comparison in constant time. The list is
replaced in one step and read again when it changes. Keys and tokens are 256 random bits, so a plain hash is enough.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.secret_files import (
    folder_of,
    read_record,
    read_secret,
    write_file,
    write_record,
    writing,
)
from tmrl_core.networking.security.tls_contexts import token_hash

logger = logging.getLogger(__name__)

KEYS_FILE = "gateway_keys.json"
OWNER_FILE = "gateway_owner.token"

MAX_KEYS = 10_000
"""Maximum number of keys in the file."""
_MAX_KEY_CHARACTERS = 128
_SECRET_BYTES = 32
_PREFIX = "key-"
"""First characters of a key, and not of its id, so that nobody takes the id for the key."""
_NO_HASH = "-" * 64
"""Value to compare with if no key has the id. No SHA-256 equals it."""

T = TypeVar("T")


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of one API key in the file.

    Attributes:
        id: the key's public name, a part of the key's text.
        agent: name of the agent that its sessions train.
        sha256: hash of the key's text.
        made: time of its creation.
    """

    id: str
    agent: str
    sha256: str
    made: datetime


@decodable
class _Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tmrl_core gateway keys"]
    keys: Annotated[tuple[ApiKey, ...], msgspec.Meta(max_length=MAX_KEYS)]


def read_keys(directory: str | os.PathLike[str]) -> tuple[ApiKey, ...]:
    """Return the keys of a credentials folder; none without a file.

    Raises:
        CredentialsError: the file cannot be read, or is damaged.
    """
    file = folder_of(directory) / KEYS_FILE
    advice = "Restore it from a copy, or delete it and make new keys."
    content = read_record(file, _Keys, advice, private=True)
    keys = () if content is None else content.keys
    if len({key.id for key in keys}) < len(keys):
        raise CredentialsError(f"{file} is damaged (two keys have one id). {advice}")
    return keys


def make_key(directory: str | os.PathLike[str], agent: str) -> tuple[ApiKey, str]:
    """Create a key for the sessions of an agent. Return its entry and its text, which is not stored.

    Raises:
        CredentialsError: the file cannot be read or written, or is full.
    """
    folder = folder_of(directory)
    with writing(folder):
        keys = read_keys(folder)
        if len(keys) >= MAX_KEYS:
            raise CredentialsError(
                f"{folder / KEYS_FILE} has {len(keys)} keys, at most {MAX_KEYS} are allowed. End those that are no "
                "longer used: `python -m tmrl_core --credentials revoke ID`."
            )
        known = {key.id for key in keys}
        while (name := secrets.token_hex(4)) in known:
            pass
        text = f"{_PREFIX}{name}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        key = ApiKey(name, agent, token_hash(text), datetime.now(timezone.utc))
        _write(folder, (*keys, key))
    return key, text


def revoke_key(directory: str | os.PathLike[str], name: str) -> ApiKey | None:
    """Revoke the key with this id and return its entry; None: there is none. A running gateway ends its sessions.

    Raises:
        CredentialsError: the file cannot be read or written.
    """
    folder = folder_of(directory)
    if all(key.id != name for key in read_keys(folder)):
        return None
    with writing(folder):
        keys = read_keys(folder)
        _write(folder, tuple(key for key in keys if key.id != name))
    return next((key for key in keys if key.id == name), None)


def _write(folder: Path, keys: tuple[ApiKey, ...]) -> None:
    write_record(folder / KEYS_FILE, _Keys("tmrl_core gateway keys", keys), private=True)


def make_owner_token(directory: str | os.PathLike[str]) -> Path:
    """Return the file of the owner's token. Create the file if it is missing.

    Raises:
        CredentialsError: the file cannot be written.
    """
    folder = folder_of(directory)
    file = folder / OWNER_FILE
    if not file.exists():
        with writing(folder):
            if not file.exists():  # another process was faster
                write_file(file, secrets.token_urlsafe(_SECRET_BYTES) + "\n", private=True)
    return file


class _Followed(Generic[T]):
    """The content of a file, read again when the file changes."""

    def __init__(self, file: Path, read: Callable[[], T]) -> None:
        self._file = file
        self._read = read
        self._stamp = _stamp(file)
        self._content = read()

    @property
    def content(self) -> T:
        # A look costs microseconds, so there is no interval in which a revoked key still counts.
        if (stamp := _stamp(self._file)) != self._stamp:
            self._stamp = stamp  # before it is read: a damaged file is reported once, and not at each request
            try:
                self._content = self._read()
            except CredentialsError as exc:
                logger.error("the former content of %s stays in use: %s", self._file.name, exc)
        return self._content


class ApiKeys:
    """The keys and the owner's token of a credentials folder, read again when their files change.

    A file that becomes unreadable while the gateway runs is logged once, and its former content stays in use. A deleted
    file counts as empty.

    Args:
        directory: credentials folder, or bundle file.

    Raises:
        CredentialsError: a file cannot be read, or is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        folder = self._folder = folder_of(directory)
        self._keys = _Followed(folder / KEYS_FILE, lambda: {key.id: key for key in read_keys(folder)})
        self._owner = _Followed(folder / OWNER_FILE, lambda: read_secret(folder / OWNER_FILE))

    def __repr__(self) -> str:
        return f"ApiKeys({str(self._folder)!r}, {len(self._keys.content)} keys)"

    @property
    def agents(self) -> frozenset[str]:
        """Names of the agents that have a key."""
        return frozenset(key.agent for key in self._keys.content.values())

    def check(self, text: str) -> ApiKey | None:
        """Return the entry of this key; None: it is not valid.

        The duration of the check reveals nothing about the secret part.
        """
        keys = self._keys.content
        if len(text) > _MAX_KEY_CHARACTERS:
            return None
        key = keys.get(text.removeprefix(_PREFIX).partition(".")[0])
        return key if _matches(text, _NO_HASH if key is None else key.sha256) else None

    def holds(self, name: str) -> bool:
        """Return True if a key with this id is valid."""
        return name in self._keys.content

    def is_owner(self, token: str) -> bool:
        """Return True for the owner's token, compared in constant time."""
        wanted = self._owner.content
        return len(token) <= _MAX_KEY_CHARACTERS and _matches(token, token_hash(wanted) if wanted else _NO_HASH)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        info = file.stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def _matches(text: str, digest: str) -> bool:
    # JSON may contain a lone surrogate, which has no UTF-8 form.
    found = token_hash(text.encode("utf-8", "replace").decode("utf-8"))
    return hmac.compare_digest(found, digest)
