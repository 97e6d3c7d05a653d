"""An environment in which agents decide in turn, and a policy with a table of numbers, both without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import WeightsError
from tmrl_core.multiagent import (
    AgentAlgorithm,
    AgentManager,
    AgentParameters,
    Assembly,
    EventEnvironment,
    KStepExperienceShaper,
    PolicySettings,
)
from tmrl_core.multiagent.manager import Mode
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob

IDS = ("a", "b", "c")
ACTIONS = 4


class Ring(EventEnvironment):
    """Agents decide in turn about random states. The reward is the action; an episode ends after `length` decisions.

    Args:
        length: decisions of an episode.
        ids: the agents.
        fault: called before each step with the number of decisions so far; it may raise, or return a result.

    Attributes:
        calls: all calls in order, with their arguments.
    """

    def __init__(self, length: int = 7, ids: Sequence[str] = IDS, fault: Callable[[int], Any] | None = None) -> None:
        self.length, self.ids, self.fault = length, ids, fault
        self.calls: list[Any] = []
        self._seed: int | None = None
        self._rng = np.random.default_rng()
        self._state = np.zeros(3, np.float32)  # one array that is changed in place, as some environments do
        self._begin()

    def _begin(self) -> None:
        self._decisions = 0
        self._total = 0.0

    def set_seed(self, seed: int) -> None:
        self.calls.append(("set_seed", seed))
        self._seed = seed

    def reset(self) -> None:
        self.calls.append("reset")
        self._begin()

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        self.calls.append(("step", action))
        if action is None:
            if self._seed is not None:
                self._rng = np.random.default_rng(self._seed)
                self._seed = None
        else:
            self._decisions += 1
            self._total += float(np.sum(action))
        if self.fault is not None:
            found = self.fault(self._decisions)
            if found is not None:
                return found  # type: ignore[no-any-return]
        self._state[:] = self._rng.random(3)
        event = {"agent": self.ids[self._decisions % len(self.ids)], "state": self._state, "tick": self._decisions}
        reward = 0.0 if action is None else float(np.sum(action))
        return {"reward": reward, "tick": self._decisions}, event, self._decisions >= self.length

    @property
    def snapshot_list(self) -> Any:
        return f"snapshots until {self._decisions}"

    @property
    def metrics(self) -> Any:
        self.calls.append("metrics")
        return {"score": self._total, "decisions": self._decisions}


class Table(AgentAlgorithm):
    """Acts by a matrix of scores; an update adds 1 to it.

    Attributes:
        acted: the epsilon of each action, and if it was deterministic.
        batches: the batches of all updates.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scores = scale * np.arange(3 * ACTIONS, dtype=np.float64).reshape(3, ACTIONS) % 5
        self.acted: list[tuple[float, bool]] = []
        self.batches: list[Columns] = []

    def choose_action(self, state: Any, epsilon: float) -> Any:
        self.acted.append((epsilon, self.deterministic))
        if self.rng.random() < epsilon:
            return int(self.rng.integers(ACTIONS))
        return int(np.argmax(state @ self.scores))

    def train_on_batch(self, batch: Columns) -> dict[str, Any]:
        self.batches.append(batch)
        self.scores = self.scores + 1
        return {"loss": float(len(self.batches))}

    def get_model(self) -> Blob:
        return Blob("table", self.scores.tobytes())

    def load_model(self, model: Blob) -> None:
        if model.format != "table":
            raise WeightsError(f"the weights have the format {model.format!r}; 'table' is wanted")
        self.scores = np.frombuffer(model.data).reshape(3, ACTIONS)


def assembly(algorithm: Callable[[], AgentAlgorithm] = Table, **parameters: Any) -> Assembly:
    """Agents a and b share the policy `two`; c has the policy `one`."""
    settings = PolicySettings(algorithm=algorithm, parameters=AgentParameters(**parameters))
    return Assembly(agents={"a": "two", "b": "two", "c": "one"}, policies={"two": settings, "one": settings})


def manager(mode: Mode, config: Assembly | None = None, **arguments: Any) -> AgentManager:
    arguments.setdefault("experience_shaper", KStepExperienceShaper(lambda metrics: metrics["reward"], gamma=0.9))
    return AgentManager(mode, IDS, config=config or assembly(), **arguments)


def algorithm_of(agents: AgentManager, agent: str) -> Table:
    algorithm = agents.agents[agent].algorithm
    assert isinstance(algorithm, Table)
    return algorithm


def array(columns: Columns, key: str) -> NDArray[Any]:
    found = columns[key]
    assert isinstance(found, np.ndarray)
    return found
