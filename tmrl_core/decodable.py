"""Structures that several threads may decode."""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def decodable(kind: type[S]) -> type[S]:
    """Build msgspec's description of a structure now; a decorator.

    msgspec builds it at the first use otherwise. A second thread that uses the structure meanwhile reads a description
    with empty places, and the process dies (a segmentation fault). A structure needs no decorator if its module builds
    a decoder of it.
    """
    msgspec.json.Decoder(kind)
    return kind
