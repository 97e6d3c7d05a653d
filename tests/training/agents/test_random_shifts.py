from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.training.updates.test_compiled import interpreted
from tmrl_core.actor.policies.flattening import images_of, layout_of
from tmrl_core.errors import CheckpointError, ConfigError
from tmrl_core.training import BehaviorCloningAgent, CrossQAgent, DQNAgent, FlashSACAgent, SacAgent
from tmrl_core.training.agents.random_shifts import PAPER_PIXELS, drawn, greatest, shifted
from tmrl_core.training.agents.recurrent_sac_settings import RecurrentSacSettings
from tmrl_core.training.batches import SHOWN, transitions_of
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.updates.compiled import Compiler
from tmrl_core.training.updates.rollback import agent_tensors

ROWS = 6
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def picture(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


TWO = spaces.Dict({"wrist": picture(8, 10, 3), "arm": spaces.Box(-1, 1, (2,), np.float32), "front": picture(3, 9, 8)})
SPACES: dict[str, spaces.Space[Any]] = {
    "grey": picture(8, 10),
    "channels last": picture(8, 10, 3),
    "channels first": picture(3, 8, 10),
    "a stack": picture(4, 8, 10),
    "a stack of colours": picture(4, 8, 10, 3),
    "cameras in a Dict": TWO,
    "nested": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"camera": picture(8, 8, 1)}))),
}
SIDES = {(8, 10): (0, 1), (8, 10, 3): (0, 1), (3, 8, 10): (1, 2), (4, 8, 10): (1, 2), (4, 8, 10, 3): (1, 2)} | {
    (3, 9, 8): (1, 2),
    (8, 8, 1): (0, 1),
}


def leaves(obs: Any) -> list[Any]:
    if isinstance(obs, dict):
        return [leaf for value in obs.values() for leaf in leaves(value)]
    return [leaf for value in obs for leaf in leaves(value)] if isinstance(obs, tuple) else [obs]


def batch_of(space: spaces.Space[Any], actions: spaces.Space[Any], seed: int = 0, rows: int = ROWS) -> tuple[Any, ...]:
    def stacked(samples: list[Any]) -> Any:
        first = samples[0]
        if isinstance(first, dict):
            return {key: stacked([sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple):
            return tuple(stacked(list(parts)) for parts in zip(*samples, strict=True))
        return torch.as_tensor(np.stack(samples))

    space.seed(seed)
    actions.seed(seed)
    torch_random = torch.Generator().manual_seed(seed)
    obs, next_obs = (stacked([space.sample() for _ in range(rows)]) for _ in range(2))
    reward_B = torch.randn(rows, generator=torch_random)
    shown = {SHOWN: torch.arange(rows) % 2.0}
    zeros_B = torch.zeros(rows)
    return (obs, stacked([actions.sample() for _ in range(rows)]), reward_B, next_obs, zeros_B, zeros_B, shown)


@pytest.mark.parametrize("name", SPACES)
def test_images_are_windows_of_themselves_with_a_repeated_border(name: str) -> None:
    """The reference pads each image of each row and cuts out a window, as the paper describes it."""
    space, pad = SPACES[name], 3
    images = images_of(layout_of(space))
    plain = transitions_of(batch_of(space, ACTIONS), 0.99)
    shifts = drawn(np.random.default_rng(1), pad, ROWS, len(images))
    found = shifted(plain._replace(shifts=shifts), images, pad)
    assert found.shifts is None
    of_images = {image.path: number for number, image in enumerate(images)}
    assert of_images
    for which, (before, after) in enumerate(((plain.obs, found.obs), (plain.next_obs, found.next_obs))):
        number = 0
        assert type(before) is type(after)
        assert not isinstance(before, dict) or list(before) == list(after)
        for leaf, moved in zip(leaves(before), leaves(after), strict=True):
            if tuple(leaf.shape[1:]) not in SIDES:
                assert torch.equal(leaf, moved)
                continue
            assert (leaf.shape, leaf.dtype) == (moved.shape, moved.dtype)
            for row in range(ROWS):
                sides = SIDES[tuple(leaf.shape[1:])]
                border = [(pad, pad) if axis in sides else (0, 0) for axis in range(leaf.dim() - 1)]
                padded = np.pad(leaf[row].numpy(), border, mode="edge")
                window = [slice(None)] * padded.ndim
                for axis, side in enumerate(sides):
                    start = pad + int(shifts[row, which, number, axis])
                    window[side] = slice(start, start + leaf.shape[1 + side])
                np.testing.assert_array_equal(moved[row].numpy(), padded[tuple(window)])
            number += 1


def test_shifts_are_uniform_and_independent() -> None:
    found = drawn(np.random.default_rng(0), greatest(True), 20_000, 2)
    values, counts = np.unique(found.numpy(), return_counts=True)
    assert values.tolist() == list(range(-PAPER_PIXELS, PAPER_PIXELS + 1))
    np.testing.assert_allclose(counts / found.numel(), 1 / 9, atol=4e-3)
    correlations = torch.corrcoef(found.reshape(len(found), -1).T.double())
    assert (correlations - torch.eye(8)).abs().max() < 0.03
    assert drawn(np.random.default_rng(0), 1, 99, 1).abs().max() == 1


SMALL: dict[str, Any] = {"hidden_sizes": (8,), "convolutions": [[4, 4, 4]], "compile": False}
AGENTS: dict[str, Callable[..., Any]] = {
    "sac": partial(SacAgent, imitation_coef=0.5, **SMALL),
    "crossq": partial(CrossQAgent, critic_sizes=(8,), **SMALL),
    "flashsac": partial(FlashSACAgent, width=8, critic_width=8, blocks=1, bins=11, convolutions=[[4, 4, 4]]),
    "dqn": partial(DQNAgent, target_interval=1000, **SMALL),
    "cloning": partial(BehaviorCloningAgent, **SMALL),
}


def agent_of(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    return AGENTS[name](TWO, actions_of(name), "cpu", **{"random_shifts": 2, **settings})


def actions_of(name: str) -> spaces.Space[Any]:
    return spaces.Discrete(3) if name == "dqn" else ACTIONS


def batches_for(name: str, count: int) -> list[tuple[Any, ...]]:
    return [batch_of(TWO, actions_of(name), seed) for seed in range(count)]


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(agent_tensors(one), agent_tensors(other), strict=True))


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_learns_from_shifted_images(name: str) -> None:
    """Its updates are those of an agent without shifts on batches that were moved before."""
    ours, plain = agent_of(name), agent_of(name, random_shifts=False)
    assert plain.random_shifts_rng is None
    images = images_of(layout_of(TWO))
    rng = np.random.default_rng()
    rng.bit_generator.state = ours.random_shifts_rng.bit_generator.state
    torch.manual_seed(1)
    metrics = [ours.train(batch) for batch in batches_for(name, 3)]
    torch.manual_seed(1)
    for batch, found in zip(batches_for(name, 3), metrics, strict=True):
        moved = shifted(transitions_of(batch, 0.99)._replace(shifts=drawn(rng, 2, ROWS, 2)), images, 2)
        expected = plain.train((moved.obs, *batch[1:3], moved.next_obs, *batch[4:]))
        assert found.keys() == expected.keys()
    assert equal(ours, plain)


@pytest.mark.parametrize("name", ["dqn", *(pytest.param(name, marks=pytest.mark.full) for name in ("sac", "crossq"))])
def test_compiled_updates_have_the_same_shifts(name: str) -> None:
    plain, fast, together = agent_of(name), agent_of(name, compile=True), agent_of(name, compile=True)
    for agent in (fast, together):
        agent.compiler = Compiler(agent, interpreted)
    batches = batches_for(name, 3)
    for agent in (plain, fast):
        torch.manual_seed(3)
        for batch in batches:
            agent.train(batch)
    torch.manual_seed(3)
    together.train_steps(batches)
    assert fast.compiler._graphs
    assert equal(fast, together)
    for a, b in zip(agent_tensors(fast), agent_tensors(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert fast.random_shifts_rng.bit_generator.state == plain.random_shifts_rng.bit_generator.state


def test_a_resumed_agent_continues_with_the_next_shifts(tmp_path: Path) -> None:
    def make(seed: int, **settings: Any) -> Any:
        torch.manual_seed(seed)
        agent = partial(SacAgent, **SMALL, **{"random_shifts": True, **settings})
        return TrainingOffline((TWO, ACTIONS), partial(ReplayMemory, memory_size=9), agent, device="cpu")

    first, *rest = batches_for("sac", 3)
    training = make(0)
    training.agent.train(first)
    training.save(tmp_path / "saved")
    for batch in rest:
        training.agent.train(batch)
    resumed = make(5)
    resumed.load(tmp_path / "saved")
    for batch in rest:
        resumed.agent.train(batch)
    assert equal(resumed.agent, training.agent)
    without = make(6, random_shifts=False)
    with pytest.raises(CheckpointError, match=r"agent\.random_shifts_rng was of type .*Generator and is of type"):
        without.load(tmp_path / "saved")
    without.save(tmp_path / "without")
    begun = make(7)  # shifts may begin where a run resumes
    begun.load(tmp_path / "without")
    begun.agent.train(first)


def test_shifts_without_an_image_are_refused() -> None:
    vector = spaces.Box(-1, 1, (3,), np.float32)
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.random_shifts: found True, and the .* has no image"):
        SacAgent(vector, ACTIONS, "cpu", random_shifts=True)
    with pytest.raises(ConfigError, match=r"random_shifts: found 2, and the .* has no image"):
        SacAgent(TWO, ACTIONS, "cpu", random_shifts=2, convolutions="none")


def test_impossible_shifts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.random_shifts: found -1, allowed: 0 or more"):
        SacAgent(TWO, ACTIONS, "cpu", random_shifts=-1)
    with pytest.raises(ConfigError, match=r"random_shifts: found True, allowed for recurrent agents: false"):
        RecurrentSacSettings(random_shifts=True)
