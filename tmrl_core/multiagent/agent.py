"""An agent: an algorithm, its experience pool, and when it samples and trains. It knows nothing of the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tmrl_core.config.algorithms import SEQUENCE_LENGTH
from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.multiagent.trajectory import IMPORTANCE, Columns
from tmrl_core.training.updates.skipped_updates import SKIPPED

LOWEST_WEIGHT = 1e-6
"""Weight of an experience whose priority is 0. With the weight 0 it would never be sampled again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentParameters:
    """Storage, sampling and training strategy of an agent.

    Args:
        capacity: maximum number of experiences in the pool that an assembly makes for the agent.
        overwrite: experiences that are replaced in a full pool: the oldest ones (`rolling`), or `random` ones.
        batch_size: experiences per update.
        sample_by: key of the weights by which experiences are sampled; None samples uniformly. An algorithm that
            returns `priorities` sets the weights of its batch; those that are not finite are ignored. New experiences
            without the key get the highest weight of the pool, so that all are sampled soon.
        importance_exponent: exponent of the importance weights of a batch sampled by weights, 0 to 1. Algorithms
            multiply the losses of its rows with them. 0: no correction; 1: the expected gradient is that of uniform
            sampling. Source: Schaul et al., arXiv:1511.05952, section 3.4; 0.5 as Castro et al., arXiv:1812.06110.
        min_experiences: experiences in the pool before training starts.
        updates_per_episode: updates after each episode.
        on_policy: instead, train on all experiences of the pool, each `epochs` times, then clear it. An algorithm that
            trains on rounds needs it, and gets all of them as one batch, once.
        epochs: passes over the experiences, on-policy only.
        sequence_length: ticks of a sequence. Agents with a recurrent policy and a replay memory learn from sequences:
            numbers of experiences in these parameters are then numbers of sequences.
        sequence_stride: ticks from the beginning of a sequence to that of the next one in its episode; None: half the
            length.

    Raises:
        ConfigError: a number is out of range, an on-policy agent samples by weights, or the stride exceeds the length.
    """

    capacity: int = 100_000
    overwrite: Literal["rolling", "random"] = "rolling"
    batch_size: int = 64
    sample_by: str | None = None
    importance_exponent: float = 0.5
    min_experiences: int = 1
    updates_per_episode: int = 1
    on_policy: bool = False
    epochs: int = 1
    sequence_length: int = SEQUENCE_LENGTH
    sequence_stride: int | None = None

    @property
    def stride(self) -> int:
        """Ticks from the beginning of a sequence to that of the next one."""
        return max(1, self.sequence_length // 2) if self.sequence_stride is None else self.sequence_stride

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        numbers = {
            "capacity": self.capacity,
            "batch_size": self.batch_size,
            "min_experiences": self.min_experiences,
            "updates_per_episode": self.updates_per_episode,
            "epochs": self.epochs,
            "sequence_length": self.sequence_length,
            "sequence_stride": self.stride,
        }
        for name, number in numbers.items():
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        if not 0 <= self.importance_exponent <= 1:
            raise ConfigError(f"importance_exponent must be 0 to 1, got {self.importance_exponent}")
        if self.min_experiences > self.capacity:
            raise ConfigError(
                f"min_experiences is {self.min_experiences}, but the pool holds at most {self.capacity} (capacity)"
            )
        if self.stride > self.sequence_length:
            raise ConfigError(
                f"sequence_stride is {self.stride}, allowed: at most sequence_length = {self.sequence_length}. A "
                "larger one leaves out the ticks between two sequences"
            )
        if self.on_policy and self.sample_by is not None:
            raise ConfigError(f"sample_by is {self.sample_by!r}, but on-policy training takes all: leave it out")


class Agent:
    """One agent of a scenario.

    Args:
        name: its id.
        algorithm: chooses actions and learns; agents may share it.
        experience_pool: agents may share it.
        params: storage, sampling and training strategy.

    Raises:
        ConfigError: the algorithm cannot train with the parameters.
    """

    def __init__(
        self, name: str, algorithm: AgentAlgorithm, experience_pool: SimpleStore, params: AgentParameters
    ) -> None:
        try:
            algorithm.check_parameters(params)
        except ConfigError as exc:
            raise ConfigError(f"the agent {name!r} has the algorithm {type(algorithm).__name__}: {exc}") from None
        self.name = name
        self.algorithm = algorithm
        self.experience_pool = experience_pool
        self.params = params
        self.updates = 0
        """Number of updates that `train` has made, with skipped ones."""
        self.updates_skipped = 0
        """Number of updates that the algorithm has skipped, because their results were not finite."""
        self._carried: Any = None
        """Recurrent state of the policy in the present episode; None: it begins."""

    def begin_episode(self) -> None:
        """Let the policy begin with its first recurrent state."""
        self._carried = None

    def choose_action(self, model_state: Any, epsilon: float) -> Any:
        """Return the model action for a model state."""
        if self.algorithm.recurrent:
            return self.choose_action_with_extras(model_state, epsilon)[0]
        return self.algorithm.choose_action(model_state, epsilon)

    def choose_action_with_extras(self, model_state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the model action, and further values of the policy that belong to the experience, such as `logp`."""
        algorithm = self.algorithm
        if not algorithm.recurrent:
            return algorithm.choose_action_with_extras(model_state, epsilon)
        algorithm.carried = self._carried
        chosen = algorithm.choose_action_with_extras(model_state, epsilon)
        self._carried = algorithm.carried
        return chosen

    def store_experiences(self, experiences: Columns) -> None:
        """Append the experiences of an episode to the pool.

        Raises:
            SampleRefusedError: they do not fit those that are stored.
        """
        if not len(experiences["reward"]):
            return  # in columns without rows, dtypes and shapes mean nothing
        try:
            self.experience_pool.put(self.rows_of(experiences))
        except SampleRefusedError as exc:
            raise SampleRefusedError(f"experiences of the agent {self.name!r}: {exc}") from exc

    def rows_of(self, experiences: Columns) -> Columns:
        """Return the rows that the pool stores: with the highest stored weight, if they need one and have none.

        Raises:
            SampleRefusedError: the algorithm cannot train on them.
        """
        rows = self.algorithm.rows_of(experiences, self.params, self.experience_pool.capacity)
        weights = self.params.sample_by
        if weights is None or weights in rows:
            return rows
        highest = self.experience_pool.highest(weights) or 1.0
        return {**rows, weights: np.full(len(rows["reward"]), highest)}

    def train(self) -> dict[str, float]:
        """Sample from the pool and update the algorithm, as the parameters say.

        Returns:
            The mean of each metric over the updates; empty if there are too few experiences.
        """
        pool, params = self.experience_pool, self.params
        if len(pool) < params.min_experiences:
            return {}
        updates = []
        for indexes, batch in self._batches():
            metrics = dict(self.algorithm.train_on_batch(batch))
            priorities = metrics.pop("priorities", None)
            if priorities is not None and params.sample_by is not None:
                weights = np.asarray(priorities, np.float64)
                weights = np.where(weights == 0, LOWEST_WEIGHT, weights)
                usable = np.isfinite(weights)
                dtype = np.asarray(batch[params.sample_by]).dtype
                pool.update(indexes[usable], {params.sample_by: weights[usable].astype(dtype)})
            updates.append(metrics)
            self.updates += 1
            self.updates_skipped += bool(metrics.get(SKIPPED))
        if params.on_policy:
            pool.clear()
        return mean_metrics(updates)

    def _batches(self) -> Iterator[tuple[NDArray[np.int64], Columns]]:
        """Yield the indexes and columns of each update's experiences."""
        pool, params = self.experience_pool, self.params
        if self.algorithm.trains_on_rounds:
            yield np.arange(len(pool)), pool.get()
        elif params.on_policy:
            # Batches of nearly equal size: a last one of few experiences would weigh as much as a whole one.
            parts = -(-len(pool) // params.batch_size)
            for _ in range(params.epochs):
                for indexes in np.array_split(pool.rng.permutation(len(pool)), parts):
                    yield indexes, pool.get(indexes)
        else:
            for _ in range(params.updates_per_episode):
                # Weights that are all 0, which a worker may send, exclude nothing.
                by = params.sample_by
                by = by if by is not None and pool.highest(by) > 0 else None
                indexes, batch = pool.sample(params.batch_size, by)
                yield indexes, batch if by is None else self._with_importance(batch, by)

    def _with_importance(self, batch: Columns, by: str) -> Columns:
        """Return a batch with importance weights, of which the largest is 1, unless the experiences have their own."""
        if IMPORTANCE in batch:
            return batch
        weights = np.asarray(batch[by], np.float64)  # proportional to the probabilities
        importance = (weights.min() / weights) ** self.params.importance_exponent
        return {**batch, IMPORTANCE: importance.astype(np.float32)}


def mean_metrics(several: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the dicts that have it."""
    values: dict[str, list[float]] = {}
    for metrics in several:
        for name, value in metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: float(np.mean(found)) for name, found in values.items()}
