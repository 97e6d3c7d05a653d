"""An agent: an algorithm, its experience pool, and when it samples and trains. It knows nothing of the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.multiagent.trajectory import IMPORTANCE, Columns
from tmrl_core.training.updates.skipped_updates import SKIPPED

LOWEST_WEIGHT = 1e-6
"""Weight of an experience whose priority is 0. With the weight 0 it would never be sampled again."""


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
