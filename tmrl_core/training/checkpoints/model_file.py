"""The file of the current weights, written during training."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from pathlib import Path

from tmrl_core.training.contracts import LoopLike, actor_of

logger = logging.getLogger(__name__)

MODEL_FILE_S = 10.0
"""Shortest interval in seconds between two writes of the current weights during training."""


class ModelFile:
    """The file of a training object's current weights.

    Args:
        path: of the file; None: nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._written = -MODEL_FILE_S

    def write(self, training: LoopLike, now: bool = False) -> str:
        """Write the current weights, not more often than every few seconds unless `now`.

        Returns:
            The reason of a failure, which is logged; empty otherwise.
        """
        if self.path is None or (not now and time.monotonic() - self._written < MODEL_FILE_S):
            return ""
        self._written = time.monotonic()
        problem = self._save(training, self.path)
        if problem:
            logger.warning("the current weights could not be written to %s: %s", self.path, problem)
        return problem

    def check(self, training: LoopLike) -> str:
        """Check that the weights can be written, without leaving a file.

        Returns:
            The reason of a failure; empty otherwise.
        """
        return "" if self.path is None else self._save(training, self.path, keep=False)

    def _save(self, training: LoopLike, path: Path, keep: bool = True) -> str:
        actor = actor_of(training)
        if actor is None:
            return ""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # nobody can prepare it as a link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            actor.save(temporary)
            if keep:
                os.replace(temporary, path)
        except OSError as exc:
            return str(exc)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return ""
