"""Number of updates that an agent makes in one call."""

from __future__ import annotations

from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.contracts import TrainingMemory

AT_ONCE_S = 0.05
"""Approximate maximum time in seconds of a batch of updates, during which the loop checks nothing else."""
MAX_AT_ONCE = 16


class UpdatesAtOnce:
    """Choose the number of updates in one call by their measured time.

    Args:
        agent: an agent without `train_steps` computes one update at a time, because batches would gain nothing.

    Attributes:
        gains: False: one update at a time.
    """

    def __init__(self, agent: TrainingAgent) -> None:
        self.gains = type(agent).train_steps is not TrainingAgent.train_steps
        self._most = 1

    def note(self, updates: int, seconds: float) -> None:
        """Record the duration of a number of updates."""
        self._most = max(1, min(MAX_AT_ONCE, int(AT_ONCE_S * updates / max(seconds, 1e-6))))

    def most(self, memory: TrainingMemory) -> int:
        """Return the number of updates to run together, given the batches that are already sampled.

        The number never exceeds those batches, so that sampling does not depend on it.
        """
        return min(self._most, 1 + memory.prefetched) if self.gains else 1
