"""An environment for `fleet_kills.py`, whose processes a scheduler starts: it takes a number for its life by itself."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

from chaos_parts import NumberedEnv

_HEAD = struct.Struct("<QQQ")


class Life(NamedTuple):
    """A worker process, as its environment has noted it."""

    number: int
    name: str
    """Of the worker, as its command line says."""
    pid: int
    made: int
    """Observations, those of resets too."""
    ended: bool
    """True: the worker ended in order."""


class CountedEnv(NumberedEnv):
    """A `NumberedEnv` that writes its account into a folder, a file for each life.

    Args:
        folder: of the accounts; processes may share it.
        rate: steps a second.
    """

    def __init__(self, folder: str, rate: float) -> None:
        life = 0
        while True:
            try:
                self._file = os.open(Path(folder) / f"life-{life}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                break
            except FileExistsError:
                life += 1
        super().__init__(life, rate)
        names = [word.partition("=")[2] for word in sys.argv if word.startswith("worker.name=")]
        self._name = (names or [""])[-1].encode()
        self._write()

    def _write(self, ended: bool = False) -> None:
        os.pwrite(self._file, _HEAD.pack(os.getpid(), self.number + 1, ended) + self._name, 0)

    def _next(self) -> Any:
        seen = super()._next()
        self._write()
        return seen

    def close(self) -> None:
        """Note the end in order."""
        self._write(ended=True)


def read_lives(folder: Path) -> list[Life]:
    """All lives until now, by number."""
    lives = []
    for number in range(len(list(folder.glob("life-*")))):
        data = (folder / f"life-{number}").read_bytes()
        if len(data) < _HEAD.size:
            data = bytes(_HEAD.size)  # it has just been created
        pid, made, ended = _HEAD.unpack(data[: _HEAD.size])
        lives.append(Life(number, data[_HEAD.size :].decode(), pid, made, bool(ended)))
    return lives
