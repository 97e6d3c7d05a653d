"""Pictures of a worker for viewers: its camera, and the video of its latest evaluation. Sans-I/O."""

# Theory of operation
#
# Pictures are on the machine of a worker, and whoever looks is elsewhere. They go worker -> relay -> viewers of its
# run, past the trainer, which has no use for them:
#
#     an operator's order (`camera`, `video`) -> trainer -> `Directive.wanted` -> worker
#     worker -> `Film`, each with a `Piece` -> relay -> all viewers of the run
#
# The relay keeps nothing, and a viewer that reads slowly holds one camera picture and one video, whose pieces replace
# those of an earlier one. Bounds:
#
#     a camera picture    one piece, at most `PIECE_BYTES`; two a second, for `CAMERA_S` after the latest order
#     a video             at most `MAX_VIDEO_BYTES` in `MAX_PIECES` pieces, one each `PIECE_S` seconds; once an order
#     a relay             forwards `PIECES_PER_S` of one worker, after a burst
#
# So nothing is sent that nobody has asked for, and what nobody asks for again stops by itself.
#
# Origin. Each piece is signed with the worker's certificate, and a viewer with a certificate of its own believes no
# other. A piece of the same worker that is not newer is ignored, so the relay cannot show an old picture as a new one
# to a viewer that goes on looking. With `encrypt` the relay must not read them and a viewer has no key: the worker
# sends that sentence in place of a picture.
#
# Example: a video of 120 kB has 3 pieces. The first arrives as (video, 17, part 0 of 3), and after the third, half a
# second later, the viewer shows 17 in place of 12. A piece of 12 that comes now changes nothing.

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec

from tmrl_core.decodable import decodable

CAMERA_S = 60.0
"""Seconds for which a worker shows its camera after an order."""
FRAME_S = 0.5
"""Seconds between two camera pictures."""
PIECE_BYTES = 50_000
"""Maximum content of a piece; the message then always fits one frame."""
MAX_PIECES = 10
MAX_VIDEO_BYTES = MAX_PIECES * PIECE_BYTES
"""Maximum size of a video on its way."""
PIECE_S = 0.25
"""Seconds between two pieces of a video, so that samples have the rest of a thin link."""
PIECES_PER_S, PIECES_AT_ONCE = 8.0, 2 * MAX_PIECES
"""Maximum rate of pieces of one worker, after a burst. What comes faster is not forwarded."""

Kind = Literal["camera", "video"]
TEXT_CHARACTERS = 500


@decodable
class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """Wish of an operator to see a worker, in `Directive.wanted`.

    Args:
        label: label by which viewers know the worker.
        camera: grows with each order for the camera; 0: there was none.
        video: the same for the video.
    """

    label: str
    camera: int = 0
    video: int = 0


@decodable
class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a picture on its way.

    Args:
        run: name of the run.
        worker: label, as in `Wanted.label`.
        kind: `camera`: a JPEG; `video`: an MP4.
        number: grows with each picture of a worker and kind: the worker's time in microseconds since 1970.
        part, parts: place among the parts, from 0, and number of the parts.
        content: the bytes.
        text: reason why there is no picture, or a remark; for people.
        certificate, proof: the worker's, and its signature; empty: not signed.
    """

    run: Annotated[str, msgspec.Meta(max_length=200)]
    worker: Annotated[str, msgspec.Meta(max_length=300)]
    kind: Kind
    number: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    part: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PIECES)]
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PIECES)]
    content: Annotated[bytes, msgspec.Meta(max_length=PIECE_BYTES)]
    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS)] = ""
    certificate: Annotated[bytes, msgspec.Meta(max_length=8_192)] = b""
    proof: Annotated[bytes, msgspec.Meta(max_length=64)] = b""


class Picture(NamedTuple):
    """A complete picture.

    Args:
        worker: label.
        kind: `camera` or `video`.
        number: as in `Piece`.
        content: the file; empty: there is none, and `text` says why.
        text: for people.
        origin: name in the worker's certificate; empty: nothing proves one.
    """

    worker: str
    kind: Kind
    number: int
    content: bytes
    text: str = ""
    origin: str = ""


def pieces(run: str, picture: Picture) -> list[Piece]:
    """Return the pieces of a picture.

    Raises:
        ValueError: it is too large.
    """
    content = picture.content
    if len(content) > MAX_VIDEO_BYTES:
        raise ValueError(f"a picture of {len(content)} bytes; at most {MAX_VIDEO_BYTES} are shown")
    parts = max(1, -(-len(content) // PIECE_BYTES))
    return [
        Piece(
            run,
            picture.worker,
            picture.kind,
            picture.number,
            part,
            parts,
            content[part * PIECE_BYTES : (part + 1) * PIECE_BYTES],
            picture.text[:TEXT_CHARACTERS],
        )
        for part in range(parts)
    ]
