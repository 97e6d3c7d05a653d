"""A small scenario of two agents that draws from every generator, for processes of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tmrl_core.actor.policies.weights import SAFETENSORS_FORMAT, decode_arrays, encode_arrays
from tmrl_core.multiagent import (
    AgentAlgorithm,
    AgentManager,
    AgentParameters,
    Assembly,
    EventEnvironment,
    KStepExperienceShaper,
    LinearExplorer,
    PolicySettings,
)
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob

AGENTS = ("north", "south")
STEPS = 12


class Event(NamedTuple):
    agent: str
    state: dict[str, Any]


class Stocks(EventEnvironment):
    """Two agents decide in turn whether to raise a stock, of which random demand takes.

    Args:
        hang_in: a folder. If it holds a file `hang`, the first process that removes it stops for good in an episode,
            and leaves its number in the file `hangs`.
    """

    def __init__(self, hang_in: str | None = None) -> None:
        self._rng = np.random.default_rng()
        self._folder = None if hang_in is None else Path(hang_in)
        self.reset()

    def set_seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        self._stock = np.zeros(2, np.float32)
        self._history: list[Any] = []
        self._shortage = 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        if self._folder is not None:
            self._hang(self._folder)
        turn = len(self._history)
        if action is not None:
            agent = (turn - 1) % 2
            self._stock[agent] += action - self._rng.random(dtype=np.float32)
            self._shortage += float(max(0.0, -self._stock[agent]))
        self._history.append(self._stock.copy())
        metrics = {"stock": self._stock.copy(), "truncated": True}
        state = {"stock": self._stock.copy(), "action_mask": np.array([1, 1], np.int8)}
        return metrics, Event(AGENTS[turn % 2], state), turn == STEPS

    def _hang(self, folder: Path) -> None:
        try:
            (folder / "hang").unlink()
        except FileNotFoundError:
            return
        (folder / "hangs").write_text(str(os.getpid()))
        import signal

        os.kill(os.getpid(), signal.SIGSTOP)

    @property
    def snapshot_list(self) -> Any:
        return self._history

    @property
    def metrics(self) -> Any:
        return {"score": -self._shortage, "stock": self._stock.tolist()}


class Weights(AgentAlgorithm):
    """Two weights that move with the rewards and with random numbers. Needs no torch."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.weights = np.array([bias, 0.0])

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.copy(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = np.asarray(state["weights"]).copy()
        self.rng.bit_generator.state = state["rng"]

    def choose_action(self, state: Any, epsilon: float) -> int:
        if self.rng.random() < epsilon:
            return int(self.rng.integers(2))
        return int(state["stock"].sum() * self.weights[1] + self.weights[0] < self.rng.random() - 0.5)

    def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[int, Mapping[str, Any]]:
        return self.choose_action(state, epsilon), {"epsilon": np.float64(epsilon)}

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        reward = float(np.mean(np.asarray(batch["reward"])))
        self.weights += 0.01 * self.rng.normal(size=2) + 0.01 * reward
        return {"loss": reward}

    def get_model(self) -> Blob:
        return Blob(SAFETENSORS_FORMAT, encode_arrays({"weights": self.weights}, {}))

    def load_model(self, model: Blob) -> None:
        self.weights = decode_arrays(model.data)[0]["weights"].copy()


class Manager(AgentManager):
    """The manager of both agents, with all parts."""

    def __init__(self, mode: Any, agent_ids: Any = AGENTS, **kwargs: Any) -> None:
        shaper = KStepExperienceShaper(reward=lambda metrics: float(metrics["stock"].sum()), k=2, gamma=0.9)
        super().__init__(mode, agent_ids, experience_shaper=shaper, **kwargs)


class SingleSteps(Manager):
    """The manager with experiences of single steps."""

    def __init__(self, mode: Any, agent_ids: Any = AGENTS, **kwargs: Any) -> None:
        super().__init__(mode, agent_ids, **kwargs)
        self.experience_shaper = KStepExperienceShaper(reward=lambda metrics: float(metrics["stock"].sum()))


def assembly(**parameters: Any) -> Assembly:
    """Return the assembly of a policy for each agent, in one memory."""
    own = AgentParameters(**{"capacity": 500, "batch_size": 8, "updates_per_episode": 2, **parameters})
    policies = {name: PolicySettings(algorithm=Weights, memory="all", parameters=own) for name in ("a", "b")}
    return Assembly(agents={"north": "a", "south": "b"}, policies=policies)


def manager(mode: Any) -> Manager:
    """Return a manager without a configuration."""
    explorer = LinearExplorer(AGENTS, initial={"north": 0.9, "south": 0.5}, final=0.1, episodes=7)
    return Manager(mode, config=assembly(), explorer=explorer)
