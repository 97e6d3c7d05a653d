"""Means of episode metrics other than returns, taken from the environment's infos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tmrl_core.networking.protocol.messages import plain
from tmrl_core.samples.segments import IS_SUCCESS, MOST_METRIC_CHARACTERS, MOST_METRICS
from tmrl_core.training.loops.evaluation import mean_of


def plain_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under printable names. A worker may send any name."""
    return {plain(name, MOST_METRIC_CHARACTERS): value for name, value in metrics.items()}


def info_means(group: str, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it.

    The number of metrics is limited to that of one episode.

    `is_success` is always included, so that invented metrics of one worker cannot displace it.

    Args:
        group: prefix of the names: `rollout` or `eval`.
        episodes: metrics of each episode.

    Returns:
        `<group>/success_rate` and `<group>/info/<key>`.
    """
    found: dict[str, list[float]] = {IS_SUCCESS: []}
    for metrics in episodes:
        for name, value in plain_names(metrics).items():
            if name in found or len(found) <= MOST_METRICS:
                found.setdefault(name, []).append(value)
    return {
        f"{group}/success_rate" if name == IS_SUCCESS else f"{group}/info/{name}": mean_of(values)
        for name, values in found.items()
        if values
    }
