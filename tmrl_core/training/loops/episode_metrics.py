"""Means of what episodes' records say besides returns: numbers out of the environment's infos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tmrl_core.networking.protocol.messages import plain
from tmrl_core.samples.segments import IS_SUCCESS, MOST_METRIC_CHARACTERS, MOST_METRICS
from tmrl_core.training.loops.evaluation import mean_of


def plain_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under names that can be shown, whatever a worker calls them."""
    return {plain(name, MOST_METRIC_CHARACTERS): value for name, value in metrics.items()}


def info_means(group: str, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it, at most as many metrics as one episode has.

    `is_success` is always among them: metrics that one worker makes up do not take its place.

    Args:
        group: of the names: `rollout` or `eval`.
        episodes: of each its metrics.

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
