"""The worker's own copy of the policy, and dated copies of it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from pathlib import Path

from tmrl_core.storage import write_whole


class PolicyFiles:
    """Keep the latest policy in one file and, at intervals, a dated copy.

    Args:
        path: file of the latest policy; None: it is not stored.
        history: folder and name prefix of the dated copies; None: no copies.
        every: number of published versions between two dated copies; 0 or less: no copies. Skipped versions count too.
        now: returns the local time, for the copies' names.

    Attributes:
        since: number of versions since the latest dated copy.
    """

    def __init__(
        self,
        path: Path | None,
        history: str | None = None,
        every: int = 0,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self.path = path
        self.history = history
        self.every = every
        self.since = 0
        self._now = now

    def keep(self, content: Callable[[], bytes], versions: int = 1) -> Path | None:
        """Store the weights of a version. Return the path of the dated copy if one was made.

        Args:
            content: returns the weights; called if they are stored.
            versions: number of versions published since the last call, this one included.

        Raises:
            OSError: a file cannot be written.
        """
        copies = self.history is not None and self.every > 0
        if self.path is None and not copies:
            return None
        data = content()
        if self.path is not None:
            write_whole(self.path, data, 0o600)
        if not copies:
            return None
        self.since += versions
        if self.since < self.every:
            return None
        self.since %= self.every
        return self._dated_copy(data)

    def _dated_copy(self, data: bytes) -> Path:
        stem = f"{self.history}{self._now().strftime('%d_%m_%Y_%H_%M_%S')}"
        Path(stem).parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            path = Path(f"{stem}_{number}.tmod" if number else f"{stem}.tmod")
            try:
                with path.open("xb") as file:  # "x": a copy made in the same second is not overwritten
                    file.write(data)
            except FileExistsError:
                continue
            return path
        raise AssertionError("itertools.count never ends")
