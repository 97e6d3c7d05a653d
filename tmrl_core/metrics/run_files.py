"""Files of a run that a tracker can store beside its records: videos of evaluations, and the policy."""

# Theory of operation
#
# A sink sees records only, in a thread of its own, some time after they were made. So files are looked for when a
# record arrives, and a file is taken when nobody writes it any more: the worker ends a video after it has reported the
# evaluation's last episode, and a file that has not changed for a moment is complete. One that is not is taken with a
# later record, or at the end.
#
# Videos are on the disk of the worker that played them. They are found where worker and trainer share the run's folder,
# as with `--local`; a worker elsewhere keeps its own.

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container
from pathlib import Path

SETTLED_S = 2.0
"""Age of a complete file in seconds."""
_VIDEO = re.compile(r"evaluation-(\d+)\.mp4")


class RunFiles:
    """The files of a run that have not been taken yet. Videos that are there already belong to an earlier part of it.

    Args:
        folder: of the run.
        policy: file of the trainer's current weights.
        now: time in seconds since 1970.
    """

    def __init__(self, folder: Path, policy: Path, now: Callable[[], float] = time.time) -> None:
        self.policy = policy
        self._videos = folder / "worker" / "videos"
        self._now = now
        self._taken = {path for _, path in videos_in(self._videos)}

    def new_videos(self, evaluations: Container[int] | None) -> list[tuple[int, Path]]:
        """Return number and file of each new video that is complete, in order, and take them.

        Args:
            evaluations: numbers of the evaluations that have ended; None: the run has, so all videos are complete.
        """
        before = self._now() - SETTLED_S
        new = [
            (number, path)
            for number, path in videos_in(self._videos)
            if path not in self._taken
            and (evaluations is None or (number in evaluations and path.stat().st_mtime <= before))
        ]
        self._taken.update(path for _, path in new)
        return new


def videos_in(folder: Path) -> list[tuple[int, Path]]:
    """Return number and file of each evaluation's video in a folder, in order."""
    paths = folder.glob("evaluation-*.mp4")
    return sorted((int(match[1]), path) for path in paths if (match := _VIDEO.fullmatch(path.name)))


def latest_video(folder: Path) -> Path | None:
    """Return the latest complete video in a folder; None: there is none.

    One that is being written, or whose worker was killed, has no index: the encoder writes the box `moov` at the end.
    """
    return next((path for _, path in reversed(videos_in(folder)) if _has_index(path)), None)


def _has_index(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(16)) >= 8:
                box = int.from_bytes(head[:4], "big")
                long_box = int.from_bytes(head[8:], "big") if box == 1 else box
                if long_box < 8 or file.tell() - len(head) + long_box > size:
                    return False
                if head[4:8] == b"moov":
                    return True
                file.seek(long_box - len(head), os.SEEK_CUR)
    except OSError:  # removed meanwhile
        pass
    return False
