"""What a run with `trainer.device: cuda` does, on a pretended device: no mixing of devices, and who waits for it.

These tests know nothing of streams, of pinned memory and of CUDA graphs, and need no GPU.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.training.pretended_device import CUDA, OnDevice, PretendedCuda, pretended_cuda
from tmrl_core import training
from tmrl_core.actor import TorchActorModule
from tmrl_core.samples import Buffer
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import ENDS, PLACES, Transitions
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.random_state import global_random_state, set_global_random_state
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.skipped_updates import SKIPPED

B = 16
VECTOR = gym.spaces.Box(-8, 8, (3,), np.float32)
NESTED = gym.spaces.Dict(
    {"place": gym.spaces.Discrete(4, start=2), "pair": gym.spaces.Tuple((VECTOR, gym.spaces.MultiDiscrete([2, 3])))}
)
IMAGES = gym.spaces.Box(0, 255, (4, 6, 6), np.uint8)
BYTES = gym.spaces.Box(np.array([0, 2, 5], np.uint8), np.array([9, 4, 6], np.uint8), dtype=np.uint8)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)
CHOICES = gym.spaces.Discrete(4, start=1)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 8), "compile": False}


class ImageActor(TorchActorModule):
    """A convolution that values actions."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.net = nn.Sequential(nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))

    def forward(self, obs: Tensor) -> Any:
        return self.net(obs.float() / 255.0)

    def index(self, action_B: Tensor) -> Tensor:
        return action_B - 1

    def act(self, obs: Any, test: bool = False) -> Any:
        return int(self(obs).argmax()) + 1


class ImageNetwork(nn.Module):
    """`ImageActor` as DQN's model."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.actor = ImageActor(observation_space, action_space)


Spaces = tuple[Any, Any]
AGENTS: dict[str, tuple[Callable[..., Any], Spaces, dict[str, Any]]] = {
    "sac": (training.SacAgent, (VECTOR, ACTIONS), SMALL),
    "sac, nested observations": (training.SacAgent, (NESTED, ACTIONS), SMALL),
    "sac, fixed temperature": (
        training.SacAgent,
        (VECTOR, ACTIONS),
        {**SMALL, "learn_entropy_coef": False, "optimizer_actor": "sgd", "optimizer_critic": "adamw"},
    ),
    "sac, bfloat16": (training.SacAgent, (VECTOR, ACTIONS), {**SMALL, "precision": "bfloat16"}),
    "redq": (training.REDQSACAgent, (VECTOR, ACTIONS), {**SMALL, "n": 4, "q_updates_per_policy_update": 2}),
    "td3": (training.TD3Agent, (VECTOR, ACTIONS), SMALL),
    "dqn": (training.DQNAgent, (VECTOR, CHOICES), {**SMALL, "target_interval": 2}),
    "dqn, single and dueling": (training.DQNAgent, (NESTED, CHOICES), {**SMALL, "double": False, "dueling": True}),
    "dqn, images": (training.DQNAgent, (IMAGES, CHOICES), {"model_cls": ImageNetwork, "compile": False}),
    "discrete sac": (training.DiscreteSacAgent, (VECTOR, CHOICES), SMALL),
    "dqn, bytes with bounds of each element": (training.DQNAgent, (BYTES, CHOICES), SMALL),
    "sac, built-in convolutions": (training.SacAgent, (IMAGES, ACTIONS), SMALL),
}


@pytest.fixture
def device() -> Iterator[PretendedCuda]:
    with pretended_cuda() as device:
        yield device


def make(name: str, where: str) -> Any:
    cls, (observations, actions), kwargs = AGENTS[name]
    torch.manual_seed(1)
    return cls(observations, actions, where, **kwargs)


def batch(spaces: Spaces, where: str, seed: int, extras: bool) -> tuple[Any, ...]:
    """As a memory makes it."""
    rng = np.random.default_rng(seed)

    def drawn(space: Any) -> Any:
        space.seed(int(rng.integers(1 << 30)))
        samples = [space.sample() for _ in range(B)]
        return pytree.tree_map(lambda *leaves: torch.as_tensor(np.stack(leaves)).to(where), *samples)

    def numbers() -> Tensor:
        return torch.as_tensor(rng.normal(size=B).astype(np.float32)).to(where)

    terminated = (numbers() > 1).float()
    rows = (drawn(spaces[0]), drawn(spaces[1]), numbers(), drawn(spaces[0]), terminated, torch.zeros(B, device=where))
    if not extras:
        return rows
    # Of the indices nothing but the memory knows.
    return (*rows, {"weights": numbers().abs(), "discount": 0.9 + 0 * numbers(), "indices": torch.arange(B)})


def on_cpu(tensor: Any) -> Tensor:
    return tensor.detach().to("cpu") if isinstance(tensor, Tensor) else torch.tensor(tensor)


@pytest.mark.parametrize(
    ("name", "extras"),
    [*((name, True) for name in AGENTS), ("sac", False), pytest.param("dqn", False, marks=pytest.mark.full)],
)
def test_an_update_does_not_wait_for_the_device_and_equals_one_on_a_cpu(
    name: str, extras: bool, device: PretendedCuda
) -> None:
    spaces = AGENTS[name][1]
    here, there = make(name, "cpu"), make(name, CUDA)
    assert all(isinstance(tensor, OnDevice) for tensor in agent_tensors(there))
    for number in range(3):
        batches = [batch(spaces, where, number, extras) for where in ("cpu", CUDA)]
        torch.manual_seed(number)
        expected = here.train(batches[0])
        torch.manual_seed(number)
        device.waits.clear()
        found = there.train(batches[1])
        assert device.waits == []
        assert all(isinstance(value, OnDevice) for value in found.values())
        assert not found.pop(SKIPPED)
        if "bfloat16" not in name:  # to autocast, it is no device that is faster with less
            for key, value in found.items():
                assert float(value) == pytest.approx(float(expected[key]), rel=1e-3, abs=1e-4)
    assert all(isinstance(tensor, OnDevice) for tensor in agent_tensors(there))
    assert (there.td_error_B is not None) == extras
    if "bfloat16" not in name:
        for a, b in zip(agent_tensors(here), agent_tensors(there), strict=True):
            torch.testing.assert_close(on_cpu(b), a, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", AGENTS)
def test_a_policy_on_the_device_acts_and_is_published(name: str, device: PretendedCuda) -> None:
    here, there = make(name, "cpu").get_actor(), make(name, CUDA).get_actor()
    observations = AGENTS[name][1][0]
    observations.seed(0)
    obs = observations.sample()
    np.testing.assert_allclose(there.act_(obs, test=True), here.act_(obs, test=True), rtol=1e-5)
    there.act_(obs)
    assert there.to_bytes() == here.to_bytes()
    there.from_bytes(here.to_bytes(), CUDA)
    assert all(isinstance(parameter, OnDevice) for parameter in there.parameters())


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("sac", True),
        ("td3", False),
        ("dqn", False),
        ("sac, fixed temperature", True),
        *(
            pytest.param(name, first, marks=pytest.mark.full)
            for name, first in (("sac", False), ("td3", True), ("dqn", True), ("sac, fixed temperature", False))
        ),
    ],
)
def test_an_update_with_nan_changes_no_bit_on_the_device(name: str, first: bool, device: PretendedCuda) -> None:
    agent = make(name, CUDA)
    rows = batch(AGENTS[name][1], CUDA, 0, False)
    if not first:
        agent.train(rows)
    before = {id(tensor): on_cpu(tensor).clone() for tensor in agent_tensors(agent)}
    bad = (*rows[:2], rows[2] * torch.inf, *rows[3:])
    device.waits.clear()
    skipped = agent.train(bad)[SKIPPED]
    assert device.waits == []
    assert bool(skipped)
    for tensor in agent_tensors(agent):
        after = on_cpu(tensor)
        # What optimizers have made in their first step begins with zeros.
        assert torch.equal(after, before.get(id(tensor), torch.zeros_like(after)))
    assert not bool(agent.train(rows)[SKIPPED])


class KeepsHere(SacAgent):
    """Counts on the CPU, whatever its device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = torch.zeros(())

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        self.seen += 1
        return super().update(transitions)


def test_tensors_on_other_devices_are_rolled_back(device: PretendedCuda) -> None:
    agent = KeepsHere(VECTOR, ACTIONS, CUDA, **SMALL)
    rows = batch((VECTOR, ACTIONS), CUDA, 0, False)
    for number, factor in enumerate([1.0, torch.inf, 1.0]):
        device.waits.clear()
        assert bool(agent.train((*rows[:2], rows[2] * factor, *rows[3:])).get(SKIPPED)) == (number == 1)
        assert device.waits
    assert agent.seen == 2


class Reads(SacAgent):
    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        metrics = super().update(transitions)
        return metrics if float(metrics["loss_actor"]) < 1e9 else {}


class Chooses(SacAgent):
    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        return {**super()._update_critics(t), "rewarded": t.reward_B[t.reward_B > -1e9].mean()}


class Sends(SacAgent):
    def _value(self, q_KB: Tensor) -> Tensor:
        return (q_KB * torch.tensor([0.5, 0.5]).to(q_KB.device)[:, None]).sum(0)


class Asks(SacAgent):
    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        return q_KB.amin(dim=0) if bool((q_KB < 1e9).all()) else q_KB[0]


class Mixes(SacAgent):
    def _value(self, q_KB: Tensor) -> Tensor:
        return (q_KB * torch.ones(2, 1)).mean(0)


@pytest.mark.parametrize("cls", [Reads, Chooses, Sends, Asks, Mixes])
def test_the_fake_device_notices_mistakes(cls: Any, device: PretendedCuda) -> None:
    agent = cls(VECTOR, ACTIONS, CUDA, **SMALL)
    found = batch((VECTOR, ACTIONS), CUDA, 0, False)
    device.waits.clear()
    if cls is Mixes:
        with pytest.raises(RuntimeError, match="on the CPU"):
            agent.train(found)
    else:
        agent.train(found)
        assert device.waits


# --- a run ------------------------------------------------------------------------------------------------------------


class Fed(LocalInterface):
    """Hands over an episode each time that it is asked."""

    def __init__(self, make_rows: Any, counter: int = 0) -> None:
        super().__init__(counter=counter)
        self._make_rows = make_rows
        self.published: list[bytes] = []
        self.asked = 0

    def receive(self) -> list[Any]:
        self.asked += 1
        buffer = Buffer(maxlen=None)
        buffer.extend([self._make_rows(1, self.asked, 0, 20, end="truncated")])
        self.put(buffer)
        return super().receive()

    def broadcast_model(self, actor: Any) -> tuple[int, int]:
        self.published.append(actor.to_bytes())
        return super().broadcast_model(actor)


def make_run(where: str, prioritized: bool = False, epochs: int = 2) -> Any:
    """A run whose batches are prepared in this thread: the device is pretended in this one only."""

    def memory(nb_steps: int, device: Any) -> Any:
        priority = {"alpha": 0.6} if prioritized else None
        return training.ReplayMemory(
            device, nb_steps, memory_size=1000, batch_size=B, seed=3, prefetch=0, priority=priority
        )

    def agent(**kwargs: Any) -> Any:
        return training.SacAgent(**kwargs, **SMALL)

    torch.manual_seed(1)
    run = training.TrainingOffline(
        (VECTOR, gym.spaces.Box(-2, 2, (1,), np.float32)), memory, agent, epochs=epochs, rounds=2, steps=3,
        update_model_interval=3, max_training_steps_per_env_step=1e9, device=where,
    )  # fmt: skip
    torch.manual_seed(2)
    return run


@pytest.mark.parametrize(
    "prioritized", [pytest.param(False, id="uniform", marks=pytest.mark.full), pytest.param(True, id="by priorities")]
)
def test_a_run_on_the_device_equals_one_on_a_cpu(prioritized: bool, make_rows: Any, device: PretendedCuda) -> None:
    runs = [make_run(where, prioritized, epochs=1) for where in ("cpu", CUDA)]
    interfaces = [Fed(make_rows), Fed(make_rows)]
    rows = []
    for run, interface in zip(runs, interfaces, strict=True):
        torch.manual_seed(2)
        rows.append(run.run_epoch(interface))
    for here, there in zip(*rows, strict=True):
        assert there["loss_critic"] == pytest.approx(here["loss_critic"], rel=1e-3)
        assert there["updates_skipped"] == 0
    for a, b in zip(agent_tensors(runs[0].agent), agent_tensors(runs[1].agent), strict=True):
        torch.testing.assert_close(on_cpu(b), a, rtol=1e-3, atol=1e-4)


def unchanged(*transition: Any) -> Any:
    return transition


MEMORIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "uniform": (training.ReplayMemory, {}),
    "prepared ahead": (training.ReplayMemory, {"prefetch": 2}),
    "by priorities": (training.ReplayMemory, {"priority": {"alpha": 0.6}}),
    "several steps": (training.ReplayMemory, {"n_step": 3, "gamma": 0.9, "priority": {"alpha": 0.6}}),
    "frames": (training.FrameStackMemory, {}),
    "frames by priorities": (training.FrameStackMemory, {"priority": {"alpha": 0.6}}),
}


def make_memory(name: str, where: str, make_rows: Any, make_buffer: Any) -> Any:
    """A memory with 59 transitions."""
    cls, settings = MEMORIES[name]
    frames = np.random.default_rng(0).integers(0, 256, (60, 6, 6)).astype(np.uint8)
    stacks = np.stack(
        [np.concatenate([np.repeat(frames[:1], max(0, 3 - i), 0), frames[max(0, i - 3) : i + 1]]) for i in range(60)]
    )
    seen = {"image": stacks, "place": np.arange(60, dtype=np.float32)[:, None]}
    memory = cls(where, 4, memory_size=1000, batch_size=B, seed=3, **{"prefetch": 0, **settings})
    observation = (lambda rows: seen) if cls is training.FrameStackMemory else None
    memory.append(make_buffer([make_rows(1, 1, 0, 60, end="truncated", observation=observation)]))
    return memory


@pytest.mark.parametrize("name", MEMORIES)
def test_batches_are_those_of_a_cpu_and_are_sent_without_waiting(
    name: str, make_rows: Any, make_buffer: Any, device: PretendedCuda
) -> None:
    here, there = (make_memory(name, where, make_rows, make_buffer) for where in ("cpu", CUDA))
    prepare, of_thread = there._reader._next_block, PretendedCuda()

    def next_block() -> Any:
        # What is pretended is so in one thread.
        if threading.current_thread() is threading.main_thread():
            return prepare()
        with of_thread:
            return prepare()

    there._reader._next_block = next_block
    try:
        for _ in range(6):
            device.waits.clear()
            expected, found = here.sample(), there.sample()
            assert device.waits == of_thread.waits == []
            assert all(isinstance(leaf, OnDevice) for leaf in pytree.tree_leaves(found[:6]))
            places = {key: value for key, value in found[6].items() if key != "indices"} if len(found) > 6 else {}
            assert all(isinstance(value, OnDevice) for value in places.values())
            for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
                assert torch.equal(a, on_cpu(b))
            if "priority" in MEMORIES[name][1]:
                device.waits.clear()
                for memory, one, where in ((here, expected, "cpu"), (there, found, CUDA)):
                    memory.update_priorities(one[6]["indices"], torch.linspace(0.1, 2, B).to(where))
                # Once it is sent there, in this test, and once its numbers are read: the next batch depends on them.
                assert len(device.waits) == 2
    finally:
        there.close()


@pytest.mark.parametrize(
    ("first", "then"), [(CUDA, "cpu"), ("cpu", CUDA), pytest.param(CUDA, CUDA, marks=pytest.mark.full)]
)
def test_a_checkpoint_is_of_no_device(
    first: str, then: str, make_rows: Any, tmp_path: Path, device: PretendedCuda
) -> None:
    run, straight = make_run(first), make_run(then)
    for one in (run, straight):
        torch.manual_seed(2)
        one.run_epoch(Fed(make_rows))
    torch.manual_seed(5)
    run.save(tmp_path / "saved")
    loaded = make_run(then)
    loaded.load(tmp_path / "saved")
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(5).get_state())
    is_there = then != "cpu"
    kept = agent_tensors(loaded.agent)
    assert [isinstance(tensor, OnDevice) for tensor in kept] == [is_there] * len(kept)
    for a, b in zip(agent_tensors(run.agent), kept, strict=True):
        assert torch.equal(on_cpu(a), on_cpu(b))
    results = []
    for one in (straight, loaded):
        torch.manual_seed(6)
        rows = one.run_epoch(Fed(make_rows, one.versions_before))
        results.append([rows[0]["loss_critic"], *(on_cpu(t) for t in agent_tensors(one.agent))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


class Remembers(SacAgent):
    """Keeps something that its constructor does not make."""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        self.remembered = transitions.reward_B.mean()
        return super().update(transitions)


@pytest.mark.parametrize(("first", "then"), [(CUDA, CUDA), (CUDA, "cpu")])
def test_restored_tensors_without_an_owner_go_to_the_device_of_the_run(
    first: str, then: str, device: PretendedCuda
) -> None:
    saved = Remembers(VECTOR, ACTIONS, first, **SMALL)
    saved.train(batch((VECTOR, ACTIONS), first, 0, False))
    state = capture(saved)
    agent = Remembers(VECTOR, ACTIONS, then, **SMALL)
    restore(agent, json.loads(json.dumps(state.tree).replace(CUDA, "cuda:7")), state.arrays)
    assert isinstance(agent.remembered, OnDevice) == (then != "cpu")
    assert float(agent.remembered) == float(saved.remembered)
    agent.train(batch((VECTOR, ACTIONS), then, 1, False))


def test_random_states_of_existing_devices_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three devices, and one with two; without a driver for either."""
    states = {number: torch.tensor([number, 0], dtype=torch.uint8) for number in range(3)}
    assert global_random_state()["cuda"] == [], "CUDA is not set up by looking"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states.values()))
    saved = global_random_state()
    set_: dict[int, Tensor] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, number: set_.update({number: state}))
    set_global_random_state(saved)
    assert {number: state.tolist() for number, state in set_.items()} == {0: [0, 0], 1: [1, 0]}


# --- PPO --------------------------------------------------------------------------------------------------------------


def ppo(where: str, actions: Any, **kwargs: Any) -> PPOAgent:
    torch.manual_seed(1)
    return PPOAgent(NESTED, actions, where, hidden_sizes=(8,), minibatch_size=16, update_epochs=2, **kwargs)


def a_round(actions: Any, where: str, steps: int = 64) -> tuple[Any, ...]:
    """As `RoundMemory` makes it, of two episodes."""
    generator = torch.Generator().manual_seed(0)
    tree = [batch((NESTED, actions), where, seed, False) for seed in range(steps // B)]
    rows = pytree.tree_map(lambda *leaves: torch.cat(leaves), *tree)
    ends = torch.zeros(steps)
    ends[[steps // 2, -1]] = 1.0
    places = torch.stack([torch.full((steps,), 7), torch.arange(steps) // 33, torch.arange(steps)], 1)
    extras = {"logp": -torch.rand(steps, generator=generator), ENDS: ends, PLACES: places}
    if isinstance(actions, gym.spaces.Box):
        extras["drawn"] = torch.randn(steps, 2, generator=generator)
    return (*rows[:4], ends.to(where), rows[5], {name: value.to(where) for name, value in extras.items()})


@pytest.mark.parametrize("actions", [ACTIONS, CHOICES], ids=["box", "discrete"])
def test_ppo_on_the_device_equals_ppo_on_a_cpu(actions: Any, device: PretendedCuda) -> None:
    settings = {"normalize_observations": True, "normalize_rewards": True, "target_kl": 1e9, "value_clip": 0.2}
    here, there = (ppo(where, actions, **settings) for where in ("cpu", CUDA))
    for _ in range(2):
        expected = here.train(a_round(actions, "cpu"))
        found_round = a_round(actions, CUDA)
        device.waits.clear()
        found = there.train(found_round)
        # By design: after each minibatch, of which there are eight, it looks at the gradient and at the divergence.
        assert 2 * 8 <= len(device.waits) <= 2 * 8 + 60
        assert found["updates"] == 8
        for key, value in expected.items():
            assert float(found[key]) == pytest.approx(float(value), rel=1e-3, abs=1e-4)
    for a, b in zip(here.model.state_dict().values(), there.model.state_dict().values(), strict=True):
        assert isinstance(b, OnDevice)
        torch.testing.assert_close(on_cpu(b), a, rtol=1e-3, atol=1e-4)
    NESTED.seed(0)
    obs = NESTED.sample()
    np.testing.assert_allclose(there.get_actor().act_(obs, test=True), here.get_actor().act_(obs, test=True), rtol=1e-4)
    _, extras = there.get_actor().act_with_extras(obs)
    assert set(extras) >= {"logp"}


def test_ppo_on_the_device_stops_at_its_divergence(device: PretendedCuda) -> None:
    agent = ppo(CUDA, CHOICES, target_kl=1e-9)
    assert agent.train(a_round(CHOICES, CUDA))["kl_stopped"] == 1.0


def test_batches_of_a_preprocessor_go_to_the_agents_device_completely(make_rows: Any, device: PretendedCuda) -> None:
    memory = training.ReplayMemory(
        CUDA,
        4,
        memory_size=1000,
        batch_size=B,
        seed=3,
        prefetch=0,
        priority={"alpha": 0.6},
        sample_preprocessor=as_it_is,
    )
    memory.append_chunk(make_rows(1, 0, 0, 40))
    *columns, extras = memory.sample()
    assert {str(column.device) for column in columns} == {str(extras["weights"].device)} == {CUDA}


def as_it_is(*transition: Any) -> tuple[Any, ...]:
    return transition


def test_where_the_agent_chooses_the_device_batches_go_there(device: PretendedCuda) -> None:
    def agent(observation_space: Any, action_space: Any, device: Any) -> SacAgent:
        assert device is None
        return SacAgent(observation_space, action_space, CUDA, **SMALL)

    looped = training.TrainingOffline(
        (VECTOR, ACTIONS), lambda nb_steps, device: training.ReplayMemory(device, nb_steps), agent
    )
    assert str(looped.memory.device) == CUDA
