"""SameStart: notices an environment that begins elsewhere with the same seed."""

from __future__ import annotations

import logging
from typing import Any
from zlib import crc32

import numpy as np

from tmrl_core.samples.columns import leaves

logger = logging.getLogger(__name__)

MOST_SEEDS = 100
"""Number of seeds that are remembered. Those of evaluations come again; others, one after each evaluation, do not."""


class SameStart:
    """Compare the first observations of resets with one seed, and log the first difference.

    Evaluations of a run are compared with each other because their seeds are the same. Many environments ignore the
    seed of a reset, without an error (docs/environments.md).
    """

    def __init__(self) -> None:
        self._checksums: dict[int, int] = {}
        self._logged = False

    def note(self, seed: int, obs: Any) -> None:
        """Take the first observation of an episode. Numbers alone are compared."""
        if self._logged:
            return
        checksum = 0
        for leaf in map(np.asarray, leaves(obs)):
            if leaf.dtype.kind in "biuf":
                checksum = crc32(leaf.tobytes(), checksum)
        if len(self._checksums) < MOST_SEEDS:
            self._checksums.setdefault(seed, checksum)
        if self._checksums.get(seed, checksum) != checksum:
            self._logged = True
            logger.warning(
                "the environment began at another observation than before with the seed %d: it does not follow "
                "reset(seed=...), so that evaluations differ in where their episodes begin. More of them "
                "(trainer.evaluation.episodes) make their mean more exact.",
                seed,
            )
