from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import CategoricalMLPActor, choose_actor
from tmrl_core.actor.interventions import IS_INTERVENTION
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.envs import DelayedCue
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.recurrent_ppo import RecurrentActorCritic, RecurrentPPOAgent, RoundSequences
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.restore import restore

OBSERVATION = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = {"CategoricalRNNActor": spaces.Discrete(3, start=1), "GaussianRNNActor": spaces.Box(-1, 1, (2,), np.float32)}
INTERVAL = 4


class Worker:
    """Plays with the agent's policy, on NumPy, and returns rounds as a lockstep trainer's memory does."""

    def __init__(self, agent: PPOAgent, env: Any, seed: int = 0) -> None:
        self.agent, self.env = agent, env
        policy = agent.get_actor()
        kwargs: dict[str, Any] = {"hidden_sizes": (8,)}
        if isinstance(agent, RecurrentPPOAgent):
            kwargs |= {name: getattr(policy, name) for name in ("cell", "cell_size", "state_interval")}
            kwargs["normalize_observations"] = policy.normalizes
        make = choose_actor(f"tmrl_core.actor:{type(policy).__name__}", kwargs, backend="numpy")
        self.runner = PolicyRunner(make, env.observation_space, env.action_space, seed=seed)
        self.seed: int | None = seed
        self.episode = self.step = 0
        self.done = True

    def round(self, steps: int) -> tuple[Any, ...]:
        self.runner.load(*self.agent.get_actor().to_blob())
        rows: list[tuple[Any, ...]] = []
        for _ in range(steps):
            if self.done:
                self.obs, _ = self.env.reset(seed=self.seed)
                self.seed = None
                self.runner.reset()
                self.episode, self.step = self.episode + 1, 0
            action, extras = self.runner.decide(self.obs, False, True)
            assert extras is not None
            new_obs, reward, terminated, truncated, _ = self.env.step(action)
            self.step += 1
            self.done = terminated or truncated
            place = np.array([7, self.episode, self.step])
            rows.append((self.obs, action, reward, new_obs, terminated, truncated, {**extras, PLACES: place}))
            self.obs = new_obs
        *columns, extras_T = zip(*rows, strict=True)
        tensors = [torch.from_numpy(np.stack([np.asarray(value) for value in column])) for column in columns]
        tensors[2:3] = [tensors[2].float()]
        tensors[4:] = [tensors[4].float(), tensors[5].float()]
        extras = {name: torch.from_numpy(np.stack([one[name] for one in extras_T])) for name in extras_T[0]}
        extras[ENDS] = torch.maximum(tensors[4], tensors[5])
        extras[ENDS][-1] = 1.0
        return (*tensors, extras)


class Walk:
    """Random observations; episodes of 1 to 11 steps, each second one truncated."""

    def __init__(self, action_space: Any) -> None:
        self.observation_space, self.action_space = OBSERVATION, action_space
        self.rng = np.random.default_rng(0)
        self.episodes = 0

    def _observe(self) -> Any:
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, seed: int | None = None) -> Any:
        self.left = int(self.rng.integers(1, 12))
        self.episodes += 1
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        over = self.left == 0
        odd = self.episodes % 2 == 1
        return self._observe(), float(self.rng.normal()), over and odd, over and not odd, {}


def make(name: str = "CategoricalRNNActor", cell: str = "gru", **kwargs: Any) -> RecurrentPPOAgent:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"cell_size": 6, "state_interval": INTERVAL, "minibatch_size": 16, **kwargs}
    agent = RecurrentPPOAgent(OBSERVATION, ACTIONS[name], hidden_sizes=(8,), cell=cell, **settings)
    with torch.no_grad():
        for parameter in agent.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return agent


def sequences_of(agent: RecurrentPPOAgent, batch: Any) -> RoundSequences:
    obs, action, _, next_obs, *_, extras = batch
    known = agent.model.actor.trained_action(action, extras)
    rows = agent.model.rows(obs, next_obs[extras[ENDS] > 0], known, extras)
    assert isinstance(rows, RoundSequences)
    return rows


each_policy = pytest.mark.parametrize("name", ACTIONS)
each_cell = pytest.mark.parametrize("cell", ["gru", "lstm"])


@pytest.mark.parametrize(("name", "cell"), [("CategoricalRNNActor", "gru"), ("GaussianRNNActor", "lstm")])
def test_sequences_begin_with_the_states_that_the_worker_had(name: str, cell: str) -> None:
    agent = make(name, cell)
    worker = Worker(agent, Walk(ACTIONS[name]))
    for _ in range(3):  # the later rounds begin within an episode, with new weights
        batch = worker.round(50)
        rows = sequences_of(agent, batch)
        every = torch.arange(len(rows.flat_SLD))
        assert rows.rows_of(every).tolist() == list(range(50))
        log_prob_T, _, _ = rows.evaluate(every)
        torch.testing.assert_close(log_prob_T, batch[-1]["logp"], atol=2e-5, rtol=0)
        agent.train(batch)


@each_cell
def test_values_are_those_of_a_loop_over_the_rows(cell: str) -> None:
    agent = make(cell=cell)
    batch = Worker(agent, Walk(ACTIONS["CategoricalRNNActor"])).round(40)
    obs, _, _, next_obs, *_, extras = batch
    value_T, value_E = sequences_of(agent, batch).values()
    assert isinstance(agent.model, RecurrentActorCritic)
    actor, critic = agent.model.actor, agent.model.critic
    expected, after = [], []
    state: Any = actor.initial_state(1)
    for row in range(40):
        _, state = actor.step(obs[row : row + 1], state)
        expected.append(critic(state["h"]).item())
        if extras[ENDS][row]:
            after.append(critic(actor.step(next_obs[row : row + 1], state)[1]["h"]).item())
            state = actor.initial_state(1)
    np.testing.assert_allclose(value_T.detach(), expected, atol=1e-5)
    np.testing.assert_allclose(value_E.detach(), after, atol=1e-5)


@each_policy
@each_cell
def test_padded_ticks_change_neither_the_loss_nor_any_gradient(name: str, cell: str) -> None:
    agent = make(name, cell)
    batch = Worker(agent, Walk(ACTIONS[name])).round(40)
    rows = sequences_of(agent, batch)
    assert rows.padding_SL.any()
    noise_T = torch.randn(40)
    found = []
    for padding in (0.0, 5.0):
        rows.flat_SLD[rows.padding_SL] = padding
        minibatch = torch.arange(0, len(rows.flat_SLD), 2)
        row_B = rows.rows_of(minibatch)
        loss, _ = agent._loss(
            rows.evaluate(minibatch), batch[-1]["logp"][row_B] + 0.1, noise_T[row_B], noise_T[row_B], noise_T[row_B]
        )
        agent.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        values = [value.detach() for value in rows.values()]
        found.append([loss.detach(), *values, *(parameter.grad for parameter in agent.model.parameters())])
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_a_pass_trains_each_row_once_in_minibatches_of_whole_sequences() -> None:
    agent = make()
    rows = sequences_of(agent, Worker(agent, Walk(ACTIONS["CategoricalRNNActor"])).round(100))
    seen = [rows.rows_of(minibatch).tolist() for minibatch in rows.minibatches(16, torch.Generator().manual_seed(0))]
    assert sorted(row for part in seen for row in part) == list(range(100))
    assert all(16 - INTERVAL < len(part) < 16 + INTERVAL for part in seen[:-1])


def learned(agent: PPOAgent, rounds: int, enough: float) -> float:
    """Train on the delayed cue; return the mean return of 100 episodes without exploration."""
    worker = Worker(agent, DelayedCue())
    for _ in range(rounds):
        batch = worker.round(400)
        agent.train(batch)
        if float(batch[2].sum()) / 40 > enough:
            break
    worker.runner.load(*agent.get_actor().to_blob())
    total = 0.0
    for episode in range(100):
        obs, _ = worker.env.reset(seed=episode)
        worker.runner.reset()
        done = False
        while not done:
            obs, reward, done, _, _ = worker.env.step(worker.runner.act(obs, test=True))
            total += reward
    return total / 100


def test_memory_answers_the_cue_and_without_memory_it_is_chance() -> None:
    spaces_of = DelayedCue()
    settings: dict[str, Any] = {"hidden_sizes": (8,), "lr": 1e-2, "minibatch_size": 200, "update_epochs": 4}
    torch.manual_seed(0)
    recurrent = RecurrentPPOAgent(
        spaces_of.observation_space, spaces_of.action_space, cell_size=16, entropy_coef=0.01, **settings
    )
    assert learned(recurrent, 60, 0.97) > 0.95
    plain = PPOAgent(spaces_of.observation_space, spaces_of.action_space, **settings)
    assert learned(plain, 10, 0.97) < 0.3


def test_the_same_seed_makes_the_same_weights_also_after_a_checkpoint() -> None:
    found = []
    for interrupted in (False, True):
        agent = make("GaussianRNNActor", normalize_rewards=True, normalize_observations=True)
        worker = Worker(agent, Walk(ACTIONS["GaussianRNNActor"]))
        batches = [worker.round(30) for _ in range(2)]
        for batch in batches:
            agent.train(batch)
            if interrupted:
                captured = capture(SimpleNamespace(agent=agent))
                agent = make("GaussianRNNActor", normalize_rewards=True, normalize_observations=True)
                restore(SimpleNamespace(agent=agent), captured.tree, captured.arrays)
        found.append([parameter.clone() for parameter in agent.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_samples_without_states_are_refused() -> None:
    agent = make(cell="lstm")
    batch = Worker(agent, Walk(ACTIONS["CategoricalRNNActor"])).round(10)
    del batch[-1]["state.c"]
    with pytest.raises(ConfigError, match=r"actor\.cls: the samples come without state\.c\. Use .*cell: lstm"):
        agent.train(batch)


def test_policies_without_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor_cls: found a \w+, allowed: CategoricalRNNActor and GaussianRNNActor"):
        RecurrentPPOAgent(
            OBSERVATION,
            ACTIONS["CategoricalRNNActor"],
            actor_cls=lambda observing, acting, **_: CategoricalMLPActor(observing, acting),
        )


@each_policy
def test_a_person_may_take_over_between_the_states_that_are_stored(name: str) -> None:
    agent = make(name, update_epochs=1)
    batch = Worker(agent, Walk(ACTIONS[name])).round(40)
    taken_T = torch.zeros(40)
    taken_T[[5, 6, 21]] = 1.0
    metrics = agent.train((*batch[:6], {**batch[6], IS_INTERVENTION: taken_T}))
    assert metrics["updates"] >= 2
    assert np.isfinite(float(metrics["loss_actor"]))
