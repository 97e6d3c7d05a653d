"""Means of episode metrics other than returns, taken from the environment's infos."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tmrl_core.bounded_texts import BoundedTexts
from tmrl_core.networking.protocol.messages import plain
from tmrl_core.samples.segments import (
    INTERVENTION_RATE,
    IS_SUCCESS,
    MOST_METRIC_CHARACTERS,
    MOST_METRICS,
    TAKEOVERS,
)
from tmrl_core.training.loops.evaluation import mean_of

logger = logging.getLogger(__name__)

MAX_NAMES, MAX_NAMES_EACH = 1_024, 256
"""Maximum number of names of episode metrics in the life of a process, and of those that one source introduces: sinks
keep a series for each name for ever."""

OWN = {IS_SUCCESS: "success_rate", INTERVENTION_RATE: INTERVENTION_RATE, TAKEOVERS: TAKEOVERS}
"""Metrics of this package, with the names of their means. Those of users have the group `info`."""


class MetricNames:
    """Names of episode metrics that are recorded. Further ones are left out, which is logged once."""

    def __init__(self) -> None:
        self._names = BoundedTexts(MAX_NAMES, MAX_NAMES_EACH)
        self._logged = False

    def recorded(self, metrics: Mapping[str, float], source: str) -> dict[str, float]:
        """Return the metrics that are recorded, under printable names.

        Args:
            metrics: the metrics of one episode.
            source: name in the certificate of its worker. One source leaves room for the names of others.
        """
        found = {}
        for name, value in plain_names(metrics).items():
            if name in OWN or self._names.keep(name, source) is not None:
                found[name] = value
            else:
                self._log_once(source)
        return found

    def _log_once(self, source: str) -> None:
        if not self._logged:
            self._logged = True
            logger.warning(
                "episodes of %s have too many different metrics: %d names are recorded, at most %d of one worker. "
                "Later ones are left out. Use a fixed set of keys in worker.info_metrics",
                plain(source),
                MAX_NAMES,
                MAX_NAMES_EACH,
            )


def plain_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under printable names. A worker may send any name."""
    return {plain(name, MOST_METRIC_CHARACTERS): value for name, value in metrics.items()}


def info_means(group: str, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it.

    The number of metrics is limited to that of one episode.

    Those of this package are always included, so that invented metrics of one worker cannot displace them.

    Args:
        group: prefix of the names: `rollout` or `eval`.
        episodes: metrics of each episode.

    Returns:
        `<group>/success_rate`, `<group>/intervention_rate`, `<group>/takeovers` and `<group>/info/<key>`.
    """
    found: dict[str, list[float]] = {name: [] for name in OWN}
    for metrics in episodes:
        for name, value in plain_names(metrics).items():
            if name in found or len(found) < MOST_METRICS + len(OWN):
                found.setdefault(name, []).append(value)
    return {
        f"{group}/{OWN[name]}" if name in OWN else f"{group}/info/{name}": mean_of(values)
        for name, values in found.items()
        if values
    }
