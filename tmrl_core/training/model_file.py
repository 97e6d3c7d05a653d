"""The file of the current weights, written beside training."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from tmrl_core.training.agent import actor_of

logger = logging.getLogger(__name__)

MODEL_FILE_S = 10.0
"""Shortest time in seconds between two writings of the current weights while training."""


class ModelFile:
    """The file of a training object's current weights.

    Args:
        path: where; None: nowhere, and nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._written = -MODEL_FILE_S

    def write(self, training: Any, now: bool = False) -> str:
        """Write the current weights, not more often than every few seconds unless `now`.

        Returns:
            Why they could not be written, which is logged; empty otherwise.
        """
        if self.path is None or (not now and time.monotonic() - self._written < MODEL_FILE_S):
            return ""
        actor = actor_of(training)
        if actor is None:
            return ""
        self._written = time.monotonic()
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            actor.save(temporary)
            os.replace(temporary, self.path)
        except OSError as exc:
            logger.warning("the current weights could not be written to %s: %s", self.path, exc)
            return str(exc)
        return ""
