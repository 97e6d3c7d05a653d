from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.prioritized import PERIOD_UPDATES, Priorities, Prioritization, PrioritizedSampler


class Slow:
    """The paper's algorithm 1 in lists and loops, over absolute indices."""

    def __init__(self, capacity: int, settings: Prioritization) -> None:
        self.capacity, self.settings = capacity, settings
        self.priorities: dict[int, float] = {}
        self.highest = 1.0
        self.batches = 0

    def add(self, start: int, stop: int) -> None:
        for index in range(start, stop):
            self.priorities[index] = self.highest
            self.priorities.pop(index - self.capacity, None)

    def update(self, indices: list[int], errors: list[float]) -> None:
        for index, error in zip(indices, errors, strict=True):
            if index in self.priorities:
                self.priorities[index] = abs(error) + self.settings.epsilon
                self.highest = max(self.highest, self.priorities[index])

    def sample(self, generator: np.random.Generator, size: int) -> tuple[list[int], list[float]]:
        # Equal shares of the sum, walked through in the order of the ring.
        places = sorted(self.priorities, key=lambda index: index % self.capacity)
        shares = [self.priorities[index] ** self.settings.alpha for index in places]
        total = sum(shares)
        indices, weights = [], []
        beta = self.settings.beta + min(1.0, self.batches / self.settings.beta_batches) * (
            self.settings.beta_final - self.settings.beta
        )
        for k, noise in enumerate(generator.random(size)):
            value, running = (k + noise) * total / size, 0.0
            for index, share in zip(places, shares, strict=True):
                running += share
                if running > value:
                    indices.append(index)
                    weights.append((len(places) * share / total) ** -beta)
                    break
        self.batches += 1
        return indices, [weight / max(weights) for weight in weights]


def test_prioritized_replay_equals_a_slow_implementation() -> None:
    settings = Prioritization(alpha=0.7, beta=0.3, beta_batches=20)
    fast, slow = Priorities(50, settings), Slow(50, settings)
    generator = np.random.default_rng(0)
    sampled = np.random.default_rng(1), np.random.default_rng(1)
    stop = 0
    for _ in range(40):
        new = int(generator.integers(1, 9))
        fast.add(stop, stop + new)
        slow.add(stop, stop + new)
        stop += new
        indices, weights = fast.sample(sampled[0], 16)
        expected, expected_weights = slow.sample(sampled[1], 16)
        assert indices.tolist() == expected
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)
        _, first = np.unique(indices, return_index=True)
        errors = generator.standard_normal(len(first)) * 3
        fast.update(indices[first], errors)
        slow.update(indices[first].tolist(), errors.tolist())
    assert fast.highest == pytest.approx(slow.highest)
    assert fast.beta == settings.beta_final


def test_sampling_is_proportional_to_priorities() -> None:
    fast = Priorities(8, Prioritization(alpha=1.0, epsilon=1e-12))
    fast.add(0, 8)
    fast.update(np.arange(8), np.arange(8.0))
    generator = np.random.default_rng(0)
    counts = np.zeros(8)
    for _ in range(4000):
        np.add.at(counts, fast.sample(generator, 4)[0], 1)
    np.testing.assert_allclose(counts / counts.sum(), np.arange(8) / 28, atol=0.01)


def test_an_absurd_error_is_forgotten_also_after_a_restart() -> None:
    priorities = Priorities(100, Prioritization())
    priorities.add(0, 90)
    priorities.update(np.arange(90), np.r_[1e18, np.ones(89)])
    restored = Priorities(100, Prioritization())
    for number in range(2 * PERIOD_UPDATES):
        if number == PERIOD_UPDATES // 2:
            restored.load_state_dict(priorities.state_dict())
            priorities = restored
        priorities.update(np.array([number % 90]), np.array([3.0]))
    priorities.add(90, 100)
    indices, _ = priorities.sample(np.random.default_rng(0), 1000)
    assert (indices >= 90).sum() == pytest.approx(100, abs=2)


def test_errors_of_removed_transitions_and_nan_change_nothing() -> None:
    fast = Priorities(4, Prioritization(alpha=1.0))
    fast.add(0, 6)
    before = fast.of(np.arange(2, 6)).copy()
    fast.update(np.array([0, 1]), np.array([5.0, 6.0]))
    fast.update(np.array([3, 4]), np.array([np.nan, np.inf]))
    np.testing.assert_array_equal(fast.of(np.arange(2, 6)), before)
    assert fast.highest == 1.0


def test_excluded_transitions_stay_excluded_after_later_errors() -> None:
    fast = Priorities(8, Prioritization())
    fast.add(0, 8)
    fast.remove(2, 4)
    again = Priorities(8, Prioritization())
    again.load_state_dict(fast.state_dict())
    for priorities in (fast, again):
        priorities.update(np.arange(8), np.full(8, 5.0))
        assert (priorities.of(np.arange(8)) > 0).tolist() == [True] * 2 + [False] * 2 + [True] * 4
        assert not {2, 3} & set(priorities.sample(np.random.default_rng(0), 64)[0].tolist())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", -0.1),
        ("beta", 1.5),
        ("beta_final", 2.0),
        ("beta_batches", 0),
        ("epsilon", 0.0),
    ],
)
def test_a_setting_out_of_its_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"memory\.priority\.{name}: found"):
        Prioritization(**{name: value})


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def made(name: str = "memory", **kwargs: Any) -> Any:
        on_disk: Any = {"storage": "disk", "folder": tmp_path / name} if request.param == "disk" else {}
        settings = {"memory_size": 40, "batch_size": 16, "seed": 3, "priority": {"alpha": 1.0}, **kwargs}
        return ReplayMemory(**settings, **on_disk)

    return made


def test_a_batch_has_indices_and_importance_weights(make: Any, make_rows: Any) -> None:
    memory = make()
    for episode in range(5):
        memory.append_chunk(make_rows(1, episode, 0, 13, end="terminated"))
    for _ in range(5):
        batch = memory.sample()
        extras = batch[6]
        assert (extras["indices"].dtype, extras["weights"].dtype) == (torch.int64, torch.float32)
        for row, index in enumerate(extras["indices"].tolist()):
            assert batch[3][row].tolist() == memory.get_transition(index - (memory.written - len(memory)))[3].tolist()
        memory.update_priorities(extras["indices"], batch[2] * 0)
    surprising = memory.written - 1
    memory.update_priorities(torch.tensor([surprising]), torch.tensor([1e6]))
    assert (memory.sample()[6]["indices"] == surprising).sum() >= 15, "the next batch follows the priorities at once"
    memory.close()


def test_a_restored_memory_samples_identically(make: Any, make_rows: Any) -> None:
    memory = make("one", n_step=2)
    for episode in range(5):
        memory.append_chunk(make_rows(1, episode, 0, 13, end="terminated"))
    for _ in range(4):
        batch = memory.sample()
        memory.update_priorities(batch[6]["indices"], batch[2])
    state = memory.state_dict()
    order = [np.roll(ring, -(memory.written % 40), axis=0).copy() for ring in memory.row_arrays]
    after = [memory.sample() for _ in range(3)]
    memory.close()
    other = make("one", n_step=2)
    other.load_state_dict(state, order)
    for expected in after:
        batch = other.sample()
        assert all(torch.equal(left, right) for left, right in zip(batch[:6], expected[:6], strict=True))
        assert all(torch.equal(batch[6][name], expected[6][name]) for name in expected[6])
    other.close()


def test_uniform_batches_have_no_extras_and_take_no_priorities(make: Any, make_rows: Any) -> None:
    memory = make(priority=None)
    memory.append_chunk(make_rows(1, 0, 0, 5))
    assert len(memory.sample()) == 6
    memory.update_priorities(torch.tensor([0]), torch.tensor([1.0]))
    memory.close()


def test_batches_of_a_preprocessor_have_extras(make: Any, make_rows: Any) -> None:
    memory = make(n_step=2, sample_preprocessor=lambda *values: values)
    memory.append_chunk(make_rows(1, 0, 0, 5, end="terminated"))
    assert set(memory.sample()[6]) == {"discount", "indices", "weights"}
    memory.close()


def test_priorities_of_lost_transitions_are_dropped(tmp_path: Path, make_rows: Any) -> None:
    """After the machine has gone down, a checkpoint may know of more than the disk holds."""

    def make(name: str) -> ReplayMemory:
        return ReplayMemory(
            memory_size=50, batch_size=8, seed=1, priority={}, storage="disk", folder=tmp_path / name
        )  # fmt: skip

    memory = make("whole")
    memory.append_chunk(make_rows(1, 0, 0, 11))
    memory.update_priorities(np.arange(10), np.arange(1.0, 11.0))
    memory.close()
    shutil.copytree(tmp_path / "whole", tmp_path / "lost")
    memory = make("whole")
    memory.append_chunk(make_rows(1, 0, 11, 9))
    state = memory.state_dict()
    memory.close()
    memory = make("lost")
    memory.load_state_dict(state)
    for rows in (0, 5):
        if rows:
            assert memory.append_chunk(make_rows(1, 0, 11, rows)) == rows
        for _ in range(20):
            batch = memory.sample()
            assert batch[6]["indices"].max() < 10 + rows
            assert (batch[3][:, 2] == batch[6]["indices"] + 1).all()
    memory.close()


def test_transitions_beyond_the_checkpoint_begin_with_its_highest_priority(tmp_path: Path, make_rows: Any) -> None:
    def make() -> ReplayMemory:
        return ReplayMemory(memory_size=50, batch_size=8, seed=1, priority={}, storage="disk", folder=tmp_path)

    memory = make()
    memory.append_chunk(make_rows(1, 0, 0, 6))
    memory.update_priorities(np.arange(5), np.full(5, 99.0))
    state = memory.state_dict()
    memory.append_chunk(make_rows(1, 0, 6, 5))
    memory.close()
    memory = make()
    memory.load_state_dict(state)
    assert isinstance(memory.sampler, PrioritizedSampler)
    assert len(set(memory.sampler.priorities.of(np.arange(10)).tolist())) == 1
    memory.close()
