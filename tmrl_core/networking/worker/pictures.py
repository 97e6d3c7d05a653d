"""Worker's end of its pictures: they leave in pieces, beside the samples. Sans-I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tmrl_core.networking.protocol.messages import Film, encode_body
from tmrl_core.networking.protocol.pictures import PIECE_S, Picture, Piece, pieces

if TYPE_CHECKING:  # loaded only where authentication is on
    from tmrl_core.networking.worker.seal import WorkerSeal

SECRET = (
    "this run encrypts what its workers send (network.end_to_end: encrypt), and a viewer has no key of it: pictures "
    "stay on the worker's machine"
)


class OutgoingPictures:
    """Pictures that wait to be sent: one of the camera, and one video.

    Args:
        run: name of the run.
        seal: returns the worker's end of the authentication; None: nothing is signed.

    Attributes:
        due_at: time of the next piece, in seconds of the connection's clock; infinite: there is none.
    """

    def __init__(self, run: str, seal: Callable[[], WorkerSeal | None]) -> None:
        self._run = run
        self._seal = seal
        self._frame: Piece | None = None
        self._video: deque[Piece] = deque()
        self._video_at = float("-inf")
        """Time from which the next piece of the video may be sent."""
        self.due_at = float("inf")

    def show(self, picture: Picture) -> None:
        """Send a picture in place of an earlier one of its kind that waits."""
        seal = self._seal()
        if seal is not None and seal.mode == "encrypt":
            picture = picture._replace(content=b"", text=SECRET)
        parts = pieces(self._run, picture)
        if picture.kind == "camera":
            (self._frame,) = parts
        else:
            self._video = deque(parts)
        self._plan()

    def take(self, now: float) -> list[Film]:
        """Return the pieces to send now."""
        due = [] if self._frame is None else [self._frame]
        self._frame = None
        if self._video and now >= self._video_at:
            due.append(self._video.popleft())
            self._video_at = now + PIECE_S
        self._plan()
        return [Film(piece.kind, piece.part, encode_body(self._signed(piece))) for piece in due]

    def clear(self) -> None:
        """Forget what waits, because the link has ended: it would be old in the next one."""
        self._frame = None
        self._video.clear()
        self._plan()

    def _plan(self) -> None:
        video_at = self._video_at if self._video else float("inf")
        self.due_at = float("-inf") if self._frame is not None else video_at

    def _signed(self, piece: Piece) -> Piece:
        seal = self._seal()
        return piece if seal is None else seal.sign_piece(piece)
