"""Viewer's end of pictures: pieces become pictures, and each replaces an older one. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping

from tmrl_core.networking.protocol.messages import plain
from tmrl_core.networking.protocol.pictures import TEXT_CHARACTERS, Kind, Picture, Piece

MAX_SHOWN = 16
"""Maximum number of pictures that are kept: at most 8 MB."""

_Key = tuple[str, str, Kind]
"""Name in the certificate, label, and kind."""


class ArrivingPictures:
    """Pictures of a run's workers.

    Attributes:
        shown: complete pictures by label and kind; replaced as a whole, so that any thread may read it.
    """

    def __init__(self) -> None:
        self.shown: Mapping[tuple[str, Kind], Picture] = {}
        self._numbers: dict[_Key, int] = {}
        """Number of the latest complete picture of each."""
        self._parts: dict[_Key, tuple[int, dict[int, bytes]]] = {}
        """Number and pieces of the picture of each that is not complete."""

    def add(self, piece: Piece, origin: str = "") -> bool:
        """Add a piece. Return True if a picture is complete now.

        Args:
            piece: it may be of any run and age.
            origin: name in the worker's certificate; empty: nothing proves one.
        """
        worker = plain(piece.worker, 300)
        key = origin, worker, piece.kind
        if piece.number <= self._numbers.get(key, -1) or piece.part >= piece.parts:
            return False
        number, parts = self._parts.pop(key, (piece.number, {}))
        if piece.number < number:
            self._parts[key] = number, parts
            return False
        if piece.number > number:
            number, parts = piece.number, {}
        parts[piece.part] = piece.content
        if len(parts) < piece.parts:
            self._parts[key] = number, parts  # the latest is at the end
            while len(self._parts) > MAX_SHOWN:
                del self._parts[next(iter(self._parts))]
            return False
        content = b"".join(parts[part] for part in range(piece.parts) if part in parts)
        text = plain(piece.text, TEXT_CHARACTERS)
        self._numbers.pop(key, None)
        self._numbers[key] = number
        while len(self._numbers) > 4 * MAX_SHOWN:
            del self._numbers[next(iter(self._numbers))]
        shown = {place: one for place, one in self.shown.items() if place != (worker, piece.kind)}
        shown[worker, piece.kind] = Picture(worker, piece.kind, number, content, text, origin)
        self.shown = dict(list(shown.items())[-MAX_SHOWN:])
        return True
