"""An actor with a hidden state through a whole pipeline: worker, TLS, Server, trainer, and its weights back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.actor.module import BatchActor, State
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.config import from_values
from tmrl_core.envs import DelayedCue
from tmrl_core.networking import RolloutWorker, Server, Trainer
from tmrl_core.networking.security import credentials
from tmrl_core.training import TrainingLockstep
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.recurrent_ppo import RecurrentPPOAgent, RoundSequences
from tmrl_core.training.batches import ENDS

OBS = spaces.Box(-100, 100, (2,), np.float32)
ACT = spaces.Box(-1, 1, (2,), np.float32)
LENGTH = 5
STEPS = 12


class Cell(BatchActor):
    """A recurrent cell with one weight: h' = tanh(h + weight * obs), and h' is the action. h travels as an extra."""

    def __init__(self, observation_space: Any, action_space: Any, weight: float = 0.1) -> None:
        super().__init__(observation_space, action_space)
        self.weight = np.float32(weight)

    def initial_state(self, batch: int) -> State:
        return {"h": np.zeros((batch, 2), np.float32)}

    def act_batch(self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool) -> Any:
        after = next_state(obs_B, state_B["h"], self.weight)
        return after, {"h": after}, {"h": state_B["h"]}

    def reset_extras(self) -> dict[str, Any]:
        return {"h": np.zeros(2, np.float32)}

    def save(self, path: str | Path) -> None:
        Path(path).write_text(str(float(self.weight)))

    def load(self, path: str | Path, device: Any) -> Cell:
        self.weight = np.float32(Path(path).read_text())
        return self


def next_state(obs: np.ndarray, h: np.ndarray, weight: np.float32) -> np.ndarray:
    after: np.ndarray = np.tanh(h + weight * obs).astype(np.float32)
    return after


class Steps(gymnasium.Env[Any, Any]):
    """Observes the number of the step and the last action; ends after `LENGTH` steps."""

    observation_space, action_space = OBS, ACT

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.number += 1
        return np.array([self.number, action[0]], np.float32), 0.0, self.number == LENGTH, False, {}


class Keeping(TrainingAgent):
    """Keeps each round's batch, with the weight that acted in it, and doubles the weight."""

    wants_extras = True

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.actor = Cell(observation_space, action_space)
        self.rounds: list[tuple[np.float32, Any]] = []

    def train(self, batch: Any) -> dict[str, Any]:
        prev_obs, action, *_, extras = batch
        self.rounds.append((self.actor.weight, (prev_obs.numpy(), action.numpy(), extras["h"].numpy())))
        self.actor.weight *= np.float32(2)
        return {}

    def get_actor(self) -> Cell:
        return self.actor


def test_the_state_is_reset_with_each_episode_and_stored_with_each_sample(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    credentials.ensure(keys)
    values: dict[str, Any] = {
        "run": {"folder": str(tmp_path)},
        "network": {"credentials_dir": str(keys), "backoff_min_s": 0.01, "backoff_max_s": 0.05},
        "worker": {"when_full": "block", "drain_timeout_s": 5.0},
        "metrics": {"console": False},
    }
    with Server(port=0, config=from_values(values)) as server:
        config = from_values({**values, "server": {"port": server.port}})
        worker = RolloutWorker(Steps, Cell, model_path=None, config=config)

        def run() -> None:
            worker.run_lockstep()
            worker.close()  # otherwise the trainer would wait for it at the end of the run

        thread = threading.Thread(target=run)
        thread.start()
        training = partial(
            TrainingLockstep,
            env_cls=(OBS, ACT),
            training_agent_cls=Keeping,
            epochs=1,
            rounds=3,
            steps_per_round=STEPS,
            device="cpu",
        )
        with Trainer(training_cls=training, checkpoint_path=None, model_path=None, config=config) as trainer:
            trainer.run()
            rounds = trainer.training.agent.rounds
        thread.join(20)
        assert not thread.is_alive()
    assert [float(weight) for weight, _ in rounds] == [float(np.float32(0.1) * 2**n) for n in range(3)]
    expected = np.zeros(2, np.float32)
    numbers: list[int] = []
    for weight, (prev_obs, actions, states) in rounds:
        assert len(actions) == STEPS
        for obs, action, h in zip(prev_obs, actions, states, strict=True):
            numbers.append(int(obs[0]))
            if obs[0] == 0:
                expected = np.zeros(2, np.float32)
            np.testing.assert_array_equal(h, expected)
            expected = next_state(obs, h, weight)
            np.testing.assert_array_equal(action, expected)
    assert numbers == [step % LENGTH for step in range(3 * STEPS)]


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # importing it raises
from tmrl_core.actor import choose_actor
from tmrl_core.config import from_values
from tmrl_core.envs import DelayedCue
from tmrl_core.networking import RolloutWorker
values, kwargs = map(json.loads, sys.argv[1:])
make = choose_actor("tmrl_core.actor:CategoricalRNNActor", kwargs)
with RolloutWorker(lambda: DelayedCue(7), make, model_path=None, config=from_values(values)) as worker:
    worker.run_lockstep()
"""


class Checking(RecurrentPPOAgent):
    """Compares the log-densities of each round with those of its sequences, before it trains on them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gaps: list[float] = []

    def train(self, batch: Any) -> Any:
        obs, action, _, next_obs, *_, extras = batch
        layout, after = self.model.actor.layout, next_obs[extras[ENDS] > 0]
        known = self.model.actor.trained_action(action, extras)
        rows = self.model.rows(flatten_batch(layout, obs), flatten_batch(layout, after), known, extras)
        assert isinstance(rows, RoundSequences)
        with torch.no_grad():
            log_prob_B, _, _ = rows.evaluate(torch.arange(len(rows.flat_SLD)))
        self.gaps.append((log_prob_B - extras["logp"]).abs().max().item())
        return super().train(batch)


def test_a_worker_without_torch_sends_the_states_that_sequences_begin_with(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    credentials.ensure(keys)
    values: dict[str, Any] = {
        "run": {"folder": str(tmp_path)},
        "network": {"credentials_dir": str(keys), "backoff_min_s": 0.01, "backoff_max_s": 0.05},
        "worker": {"when_full": "block", "drain_timeout_s": 5.0},
        "metrics": {"console": False},
    }
    kwargs = {"hidden_sizes": [8], "cell": "lstm", "cell_size": 6, "state_interval": 3}
    with Server(port=0, config=from_values(values)) as server:
        values["server"] = {"port": server.port}
        command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(values), json.dumps(kwargs)]
        training = partial(
            TrainingLockstep,
            env_cls=lambda: DelayedCue(7),
            training_agent_cls=partial(Checking, **kwargs, lr=1e-2),
            epochs=1,
            rounds=3,
            steps_per_round=40,  # no multiple of the episodes' length: rounds begin within one
            device="cpu",
        )
        with (
            Trainer(
                training_cls=training, checkpoint_path=None, model_path=None, config=from_values(values)
            ) as trainer,
            subprocess.Popen(command) as worker,
        ):
            try:
                trainer.run()
                assert worker.wait(60) == 0
            finally:
                worker.kill()
            gaps = trainer.training.agent.gaps
    assert len(gaps) == 3
    assert max(gaps) < 1e-4
