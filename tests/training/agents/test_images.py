"""Every agent takes images without a network of the user's own, and learns from a rendered environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import AddRenderObservation

from tests.training.agents.test_masked_learning import Collector, batch_of, tensors
from tests.training.agents.test_recurrent_ppo import Worker
from tmrl_core import training
from tmrl_core.actor import choose_actor
from tmrl_core.samples import Buffer
from tmrl_core.training.agents.recurrent_ppo import RecurrentPPOAgent

SIDE, PLACES = 12, 3


class Pointer(gymnasium.Env[Any, Any]):
    """A light is on the left, in the middle or on the right. The action points at it, for one step or some."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # Gymnasium's own
    render_mode = "rgb_array"
    observation_space = spaces.Discrete(PLACES)

    def __init__(self, discrete: bool, steps: int = 1) -> None:
        self.action_space: Any = spaces.Discrete(PLACES) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.steps
        self.place = int(self.np_random.integers(PLACES))
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        found = float(action) if isinstance(self.action_space, spaces.Discrete) else float(action[0]) + 1.0
        reward = 1.0 - abs(found - self.place)
        self.place = int(self.np_random.integers(PLACES))
        self.left -= 1
        return self.place, reward, self.left == 0, False, {}

    def render(self) -> Any:
        image = np.full((SIDE, SIDE, 3), 30, np.uint8)
        column = self.place * SIDE // PLACES
        image[4:8, column : column + 4] = (250, 200, 40)
        return image


def rendered(discrete: bool, with_place: bool = False, steps: int = 1) -> Any:
    """An environment whose observation is its picture, alone or beside its state."""
    env = Pointer(discrete, steps)
    return AddRenderObservation(env, render_only=not with_place, render_key="camera", obs_key="place")


OFF_POLICY: dict[str, tuple[Any, bool]] = {
    "sac": (training.SacAgent, False),
    "redq": (training.REDQSACAgent, False),
    "tqc": (training.TQCAgent, False),
    "crossq": (training.CrossQAgent, False),
    "td3": (training.TD3Agent, False),
    "ddpg": (training.DDPGAgent, False),
    "dqn": (training.DQNAgent, True),
    "discrete sac": (training.DiscreteSacAgent, True),
    "cloning": (training.BehaviorCloningAgent, False),
    "cloning, discrete": (training.BehaviorCloningAgent, True),
}


def convolutions_in(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters() if "encoder.images" in name}


def assert_all_learn(agent: Any, before: dict[str, torch.Tensor]) -> None:
    after = convolutions_in(agent.model)
    assert before
    assert all(not torch.equal(before[name], after[name]) for name in after)


def assert_numpy_acts_alike(agent: Any, name: str, env: Any, **kwargs: Any) -> None:
    trained = agent.get_actor()
    make = choose_actor(f"tmrl_core.actor:{name}", kwargs, backend="numpy")
    acting = make(observation_space=env.observation_space, action_space=env.action_space)
    acting.from_bytes(trained.to_bytes())
    for _ in range(3):
        obs, _ = env.reset()
        np.testing.assert_allclose(acting.act_(obs, test=True), trained.act_(obs, test=True), atol=1e-4)


@pytest.mark.parametrize("with_place", [False, True], ids=["image", "image and state"])
@pytest.mark.parametrize("name", OFF_POLICY)
def test_policy_and_critics_have_convolutions_that_learn(name: str, with_place: bool) -> None:
    torch.manual_seed(0)
    cls, discrete = OFF_POLICY[name]
    env = rendered(discrete, with_place)
    env.reset(seed=0)
    agent = cls(env.observation_space, env.action_space, "cpu", hidden_sizes=(16,), convolutions=[[4, 4, 4], [4, 3, 1]])
    before = convolutions_in(agent.model)
    acting = agent.get_actor().name
    rows = Collector(env).rows(agent.get_actor(), 16)
    for _ in range(4):
        metrics = agent.train(batch_of(rows))
        assert all(np.isfinite(float(value)) for value in metrics.values())
    assert_all_learn(agent, before)
    assert_numpy_acts_alike(agent, acting, env, hidden_sizes=(16,), convolutions=[[4, 4, 4], [4, 3, 1]])


def round_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    extras = {name: tensors([row[6][name] for row in rows]) for name in rows[0][6]}
    return (*batch_of(rows), {**extras, "ends": torch.tensor([float(row[-1]) for row in rows])})


PPO_ROWS = [
    (kind, discrete, normalize)
    for kind in ("image", "image and state", "recurrent")
    for discrete in (False, True)
    for normalize in (False, True)
]
IN_EACH_CHANGE = [
    ("image", False, True), ("image and state", True, False), ("recurrent", False, False), ("recurrent", True, True)
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "discrete", "normalize"),
    [row if row in IN_EACH_CHANGE else pytest.param(*row, marks=pytest.mark.full) for row in PPO_ROWS],
)
def test_ppo_takes_images(kind: str, discrete: bool, normalize: bool) -> None:
    torch.manual_seed(0)
    env = rendered(discrete, kind == "image and state", steps=5)
    env.reset(seed=0)
    cls = RecurrentPPOAgent if kind == "recurrent" else training.PPOAgent
    agent = cls(env.observation_space, env.action_space, "cpu", hidden_sizes=(8,), normalize_observations=normalize)
    before = convolutions_in(agent.model)
    if kind == "recurrent":
        batch = Worker(agent, env).round(64)
    else:
        batch = round_of(Collector(env).rows(agent.get_actor(), 64))
    metrics = agent.train(batch)
    assert metrics["updates"]
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert_all_learn(agent, before)


def episode_of(env: Any, number: int) -> Buffer:
    buffer = Buffer(maxlen=None)
    buffer.start_episode(number, (1, 1))
    obs, _ = env.reset(seed=number)
    buffer.append_sample((None, obs, 0.0, False, False, {}))
    ends = False
    while not ends:
        action = env.action_space.sample()
        obs, reward, ends, _, _ = env.step(action)
        buffer.append_sample((action, obs, reward, ends, False, {}))
    return buffer


@pytest.mark.parametrize("cls", [training.RecurrentSacAgent, training.RecurrentDQNAgent])
def test_recurrent_agents_take_sequences_of_images(cls: Any) -> None:
    torch.manual_seed(0)
    discrete = cls is training.RecurrentDQNAgent
    env = rendered(discrete, with_place=True, steps=8)
    memory = training.SequenceMemory(memory_size=64, batch_size=8, length=4, stride=2, seed=0)
    agent = cls(env.observation_space, env.action_space, "cpu", hidden_sizes=(8,), cell_size=8, burn_in=1)
    before = convolutions_in(agent.model)
    for episode in range(4):
        memory.append(episode_of(env, episode))
    for _ in range(3):
        metrics = agent.train(memory.sample())
        assert all(np.isfinite(float(value)) for value in metrics.values())
    assert_all_learn(agent, before)


def played(agent: Any, env: Any) -> float:
    """The mean return of 20 episodes without exploration."""
    returns = []
    for _ in range(20):
        obs, _ = env.reset()
        returns.append(env.step(agent.get_actor().act_(obs, test=True))[1])
    return float(np.mean(returns))


@pytest.mark.parametrize("name", [pytest.param("sac", marks=pytest.mark.full), "dqn"])
def test_it_learns_from_pictures_alone(name: str) -> None:
    torch.manual_seed(0)
    cls, discrete = OFF_POLICY[name]
    env = rendered(discrete)
    env.reset(seed=0)
    rates = (
        {"lr": 3e-3, "epsilon_updates": 50, "target_interval": 10} if discrete else {"lr_actor": 3e-3, "alpha": 0.02}
    )
    agent = cls(env.observation_space, env.action_space, "cpu", hidden_sizes=(32,), **rates)
    agent.get_actor().seed(1)
    collector, rng, kept = Collector(env), np.random.default_rng(0), []
    for _ in range(20 if discrete else 30):
        kept += collector.rows(agent.get_actor(), 20)
        for _ in range(5):
            agent.train(batch_of([kept[at] for at in rng.integers(len(kept), size=32)]))
    assert played(agent, env) > 0.8


def test_ppo_learns_from_pictures_alone() -> None:
    torch.manual_seed(0)
    env = rendered(discrete=True)
    env.reset(seed=0)
    agent = training.PPOAgent(env.observation_space, env.action_space, "cpu", hidden_sizes=(32,), lr=3e-3)
    agent.get_actor().seed(1)
    collector = Collector(env)
    for _ in range(4):
        agent.train(round_of(collector.rows(agent.get_actor(), 128)))
    assert played(agent, env) > 0.8


@pytest.mark.parametrize("high", [1, 9, 255])
def test_cloning_learns_from_boards_of_any_bounds(high: int) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    observations, actions = spaces.Box(0, high, (6, 6, 2), np.uint8), spaces.Discrete(2)
    agent = training.BehaviorCloningAgent(observations, actions, "cpu", hidden_sizes=(64,), lr=3e-3)
    for _ in range(60):
        columns_B2 = np.array([rng.permutation(6)[:2] for _ in range(64)])
        obs_B = np.zeros((64, *observations.shape), np.uint8)
        for number, (own, goal) in enumerate(columns_B2):
            obs_B[number, rng.integers(6), own, 0] = obs_B[number, rng.integers(6), goal, 1] = high
        act_B = torch.as_tensor(columns_B2[:, 0] < columns_B2[:, 1]).long()
        zeros_B = torch.zeros(64)
        seen_B = torch.as_tensor(obs_B)
        metrics = agent.train((seen_B, act_B, zeros_B, seen_B, zeros_B, zeros_B))
    assert float(metrics["loss_actor"]) < 0.4  # ln 2 = 0.69 without learning
