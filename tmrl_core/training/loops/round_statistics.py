"""Statistics of a round of training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tmrl_core.training.value_types import Metrics, Tree


class RoundStatistics:
    """Counts and means over one round.

    Metrics are stored unread, because reading a tensor makes the processor wait for its device.

    Args:
        clock: seconds.

    Attributes:
        idle_s: seconds in which training waited for samples.
        sampling_s: seconds of sampling batches.
        training_s: seconds of updates.
        updates: number of updates.
        samples: environment steps received.
        lag_max: maximum policy lag of a received sample, in versions.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self.idle_s = 0.0
        self.sampling_s = 0.0
        self.training_s = 0.0
        self.updates = 0
        self.samples = 0
        self.lag_max = 0
        self._lag_sum = 0
        self._lag_samples = 0
        self._metrics: dict[str, list[Tree]] = {}

    def add(self, *made: Metrics) -> None:
        """Record the metrics of each update: numbers, or tensors with one element."""
        self.updates += len(made)
        for metrics in made:
            for name, value in metrics.items():
                self._metrics.setdefault(name, []).append(value)

    def note_lag(self, lag: int, samples: int) -> None:
        """Record the number of received samples from a policy that is `lag` versions behind."""
        self._lag_sum += lag * samples
        self._lag_samples += samples
        self.lag_max = max(self.lag_max, lag)

    def row(self) -> dict[str, float]:
        """Return times in seconds, rates per second and means of metrics.

        The times of sampling and updating are those of one update. The policy lag is included only if samples have
        arrived.
        """
        round_s = self._clock() - self._started
        updates = max(1, self.updates)
        row: dict[str, float] = {
            "round_time": round_s,
            "idle_time": self.idle_s,
            "sampling_duration": self.sampling_s / updates,
            "training_step_duration": self.training_s / updates,
            "samples_per_s": self.samples / round_s if round_s > 0 else 0.0,
            "updates_per_s": self.updates / round_s if round_s > 0 else 0.0,
            **{name: _mean(values) for name, values in self._metrics.items()},
        }
        if self._lag_samples:
            row["policy_lag_mean"] = self._lag_sum / self._lag_samples
            row["policy_lag_max"] = self.lag_max
        return row


def _mean(values: list[Tree]) -> float:
    torch = sys.modules.get("torch")
    if torch is not None and all(issubclass(kind, torch.Tensor) for kind in set(map(type, values))):
        return float(torch.stack([value.detach().float().reshape(()) for value in values]).mean())
    return float(sum(float(value) for value in values) / len(values))
