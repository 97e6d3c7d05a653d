"""Pictures on the page: those that workers send, and the latest video in the run's folder."""

# Theory of operation
#
# Beside the run's folder (`--local`, `--folder`, or a page on the worker's machine) the latest video is a file, and
# nobody needs to be asked for it. From elsewhere an operator orders it, and it comes with the camera's pictures over
# the link (`networking/protocol/pictures.py`).
#
# A worker shows its camera for a minute after an order. While a browser takes its pictures, the order is repeated each
# half minute, so the camera goes on as long as somebody looks and stops soon after: no browser has to say that it went.

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tmrl_core.dashboard.source import Source
from tmrl_core.metrics.run_files import latest_video
from tmrl_core.networking.protocol.pictures import CAMERA_S, Kind, Picture
from tmrl_core.networking.protocol.telemetry import Order

MAX_FILE_BYTES = 32 << 20
"""Maximum size of a video of the run's folder; a larger one is named only."""
_LOOK_S = 1.0
"""Seconds between two looks at the folder."""


class Shown(msgspec.Struct, frozen=True):
    """A picture as the page lists it; see `Picture`. An empty `worker`: it is of the run's folder."""

    worker: str
    kind: Kind
    number: int
    size: int
    text: str
    origin: str


class Pictures:
    """The latest pictures of a run.

    Args:
        source: of those of workers; it takes orders.
        folder: of the run, if it is on this machine.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        source: Source,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._folder = folder / "worker" / "videos"
        self._clock = clock
        self._looked_at = float("-inf")
        self._file: tuple[int, Path] | None = None
        """Time of the latest video in microseconds since 1970, and its path."""
        self._ordered: dict[str, float] = {}
        """Times of this page's latest orders for a camera."""

    def list(self) -> list[Shown]:
        """Return what is there, without the content."""
        found = [
            Shown(one.worker, one.kind, one.number, len(one.content), one.text, one.origin)
            for one in self._source.pictures.values()
        ]
        if (file := self._latest_file()) is not None:
            number, path = file
            size = path.stat().st_size if path.exists() else 0
            if size > MAX_FILE_BYTES:
                text, size = f"{path} has {size / 1e6:,.0f} MB; open it there", 0
            else:
                text = path.name
            found.append(Shown("", "video", number, size, text, ""))
        return found

    def _latest_file(self) -> tuple[int, Path] | None:
        if self._clock() - self._looked_at >= _LOOK_S:
            self._looked_at = self._clock()
            path = latest_video(self._folder)
            self._file = None if path is None else (int(1e6 * path.stat().st_mtime), path)
        return self._file

    def content(self, worker: str, kind: str) -> bytes:
        """Return the file of a picture; empty: there is none."""
        if worker:
            pictures = self._source.pictures.values()
            found: Picture | None = next((one for one in pictures if (one.worker, one.kind) == (worker, kind)), None)
            return b"" if found is None else found.content
        file = self._latest_file()
        if kind != "video" or file is None or file[1].stat().st_size > MAX_FILE_BYTES:
            return b""
        return file[1].read_bytes()

    def ordered(self, order: Order) -> None:
        """Note an order that this page has sent."""
        if order.kind == "camera":
            self._ordered[order.worker] = self._clock()

    def repeat(self, worker: str, kind: str) -> None:
        """Repeat the order for a camera, whose picture a browser has taken, if it ends soon.

        Raises:
            TmrlError: it cannot be sent.
        """
        at = self._ordered.get(worker)
        if kind == "camera" and at is not None and self._clock() - at >= CAMERA_S / 2:
            self._ordered[worker] = self._clock()
            self._source.order(Order(kind="camera", worker=worker))
