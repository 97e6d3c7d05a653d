"""Metrics of an episode from the environment's `info`: `is_success`, and the keys that the user names."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.samples.segments import IS_SUCCESS, MOST_METRIC_CHARACTERS, MOST_METRICS

logger = logging.getLogger(__name__)

MEAN = ":mean"
"""Suffix of a key whose metric is the mean over the steps."""


class InfoMetrics:
    """Collect numbers from the `info` dicts of each episode.

    Args:
        keys: keys of the info, besides `is_success` of the last step; `a/b` is the key `b` of the dict `a`. The metric
            is the episode's last value, or with the suffix `:mean` the mean over the steps that have the key.

    Raises:
        ConfigError: there are too many keys, or a key is too long.

    Attributes:
        each_step: True: call `add` with each step's info.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        keys = [keys] if isinstance(keys, str) else keys
        if len(keys) >= MOST_METRICS or any(not 0 < len(key) <= MOST_METRIC_CHARACTERS for key in keys):
            raise ConfigError(
                f"worker.info_metrics: found {len(keys)} keys, the longest of "
                f"{max(map(len, keys))} characters; allowed are {MOST_METRICS - 1} keys of 1 to "
                f"{MOST_METRIC_CHARACTERS} characters"
            )
        self.each_step = bool(keys)
        self._keys = {key: key.removesuffix(MEAN).split("/") for key in keys}
        self._sums: dict[str, tuple[float, int]] = {}
        self._warned: set[str] = set()

    def begin(self) -> None:
        """Begin an episode."""
        self._sums.clear()

    def add(self, info: Any) -> None:
        """Add the values of one step."""
        for key, path in self._keys.items():
            value = self._number(info, key, path)
            if value is not None:
                total, count = self._sums.get(key, (0.0, 0)) if key.endswith(MEAN) else (0.0, 0)
                self._sums[key] = total + value, count + 1

    def take(self, info: Any) -> dict[str, float]:
        """Return the metrics of the episode, given the info of its last step."""
        if not self._sums and type(info) is dict and IS_SUCCESS not in info:  # the most common case
            return {}
        metrics = {key.replace(MEAN, "_mean"): total / count for key, (total, count) in self._sums.items()}
        success = self._number(info, IS_SUCCESS, [IS_SUCCESS])
        if success is not None:
            metrics[IS_SUCCESS] = success
        return metrics

    def _number(self, info: Any, key: str, path: Sequence[str]) -> float | None:
        value = info
        for part in path:
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]
        numeric = isinstance(value, (bool, int, float, np.number, np.bool_))
        if numeric or (isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf"):
            number = float(value.item() if isinstance(value, np.ndarray) else value)
            if math.isfinite(number):
                return number
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(
                "info[%r] is %.60r of type %s, which is not a metric; it must be a finite number (worker.info_metrics)",
                "/".join(path),
                value,
                type(value).__name__,
            )
        return None
