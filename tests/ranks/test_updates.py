"""Ranks with parts of a batch learn as one process with the whole, and roll back bad updates together."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from rank_updates import FixedStream, agent_of, distance, in_dtype, parameters

from tmrl_core.errors import RankLostError
from tmrl_core.ranks.interface import reduced
from tmrl_core.ranks.thread_group import ThreadGroup, thread_groups
from tmrl_core.ranks.trainer import digest_of
from tmrl_core.training import DDPGAgent, DiscreteSacAgent, DQNAgent, PPOAgent, TD3Agent, TQCAgent
from tmrl_core.training.agents.running_moments import RunningMoments
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import Transitions
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.skipped_updates import SKIPPED

T = TypeVar("T")
_RANDN = torch.randn


def on_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """Run one function on each rank of a group of threads; return the results in order."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(group: ThreadGroup) -> None:
        RANK_GROUP.set(group)
        try:
            results[group.rank] = work(group)
        except BaseException as exc:
            errors.append(exc)
            group.leave()

    threads = [
        threading.Thread(target=contextvars.Context().run, args=(run, group)) for group in thread_groups(size, 20.0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, RankLostError):
            raise error
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[..., Tensor]]:
    """Noise of each thread: `FixedStream.noise` would change it for all."""
    of_thread: dict[int, Callable[..., Tensor]] = {}
    monkeypatch.setattr(torch, "randn", lambda *args, **kw: of_thread.get(threading.get_ident(), _RANDN)(*args, **kw))
    return of_thread


@pytest.mark.parametrize(
    ("kind", "size"), [("sac", 2), ("sac", 4), ("crossq", 2), ("crossq", 4), ("flashsac", 2), ("ppo", 2), ("ppo", 4)]
)
def test_ranks_learn_as_one_process(kind: str, size: int, noise: dict[int, Callable[..., Tensor]]) -> None:
    lock = threading.Lock()

    def train(group: ThreadGroup | None) -> tuple[np.ndarray, bytes]:
        with lock:  # the generator of torch belongs to all threads
            agent = agent_of(kind, 64 // (1 if group is None else group.size), torch.float64)
        if group is not None:
            group.exchange(b"")  # so that no rank draws random numbers while another one makes its agent
        stream = FixedStream(64, torch.float64)
        noise[threading.get_ident()] = stream.split
        for update in range(8):
            agent.train(stream.take_round(update, agent) if isinstance(agent, PPOAgent) else stream.take(update))
        return parameters(agent), digest_of(agent)

    with in_dtype(torch.float64):
        alone, _ = train(None)
        found = on_ranks(size, train)
    assert len({digest for _, digest in found}) == 1
    assert distance(found[0][0], alone) < 1e-12


BOX, CHOICE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)


@pytest.mark.parametrize(
    ("agent_cls", "actions"),
    [(TD3Agent, BOX), (DDPGAgent, BOX), (TQCAgent, BOX), (DQNAgent, CHOICE), (DiscreteSacAgent, CHOICE)],
)
def test_weights_stay_equal_with_different_batches(agent_cls: type[SacAgent], actions: spaces.Space[Any]) -> None:
    lock = threading.Lock()

    def train(group: ThreadGroup) -> bytes:
        with lock:
            torch.manual_seed(1)
            agent = agent_cls(spaces.Box(-1, 1, (8,), np.float32), actions, "cpu", hidden_sizes=(8, 8), compile=False)
        group.exchange(b"")
        stream = FixedStream(32, torch.float32)
        for update in range(4):
            obs, action, *others = stream.take(update)
            agent.train((obs, (obs[:, 0] > 0).long() if actions is CHOICE else action, *others))
        return digest_of(agent)

    assert len(set(on_ranks(2, train))) == 1


class StrangeMetric(SacAgent):
    """An agent whose first rank finds one update bad, although the gradients of all ranks are finite."""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        group = RANK_GROUP.get()
        bad = self.updates_asked == 2 and group is not None and group.rank == 0
        return {**super().update(transitions), "strange": torch.tensor(torch.nan if bad else 1.0)}


def test_an_update_that_is_bad_on_one_rank_is_rolled_back_on_all() -> None:
    def train(group: ThreadGroup) -> list[bool]:
        agent = StrangeMetric(spaces.Box(-1, 1, (8,), np.float32), BOX, "cpu", hidden_sizes=(8, 8), compile=False)
        group.copy_first(agent_tensors(agent))
        stream, digests, skipped = FixedStream(16, torch.float32), [digest_of(agent)], []
        for update in range(3):
            skipped.append(SKIPPED in agent.train(stream.take(update)))
            digests.append(digest_of(agent))
        assert len(set(group.exchange(digests[-1]))) == 1
        return [*skipped, digests[1] == digests[2]]

    assert on_ranks(2, train) == [[False, True, False, True]] * 2


def test_a_bad_round_of_one_rank_is_skipped_by_all() -> None:
    def train(group: ThreadGroup) -> object:
        agent = agent_of("ppo", 8, torch.float32)
        assert isinstance(agent, PPOAgent)
        batch = FixedStream(16, torch.float32).take_round(0, agent)
        if group.rank == 1:
            batch[2][3] = torch.inf
        return agent.train(batch)[SKIPPED]

    assert on_ranks(2, train) == [True, True]


def test_moments_are_those_of_all_rows() -> None:
    rows = torch.rand((30, 3), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = RunningMoments(3)
    whole.see(rows[:20])
    whole.see(rows[20:])

    def see(group: ThreadGroup) -> RunningMoments:
        part = RunningMoments(3)
        part.see(rows[:20][5 * group.rank : 5 + 15 * group.rank])
        part.see(rows[20:] if group.rank else rows[:0])  # a rank may have no row
        return part

    for part in on_ranks(2, see):
        assert part.count == 30
        torch.testing.assert_close(part.mean, whole.mean, rtol=1e-13, atol=0)
        torch.testing.assert_close(part.variance, whole.variance, rtol=1e-12, atol=0)


def test_a_rank_that_ends_ends_the_others() -> None:
    def work(group: ThreadGroup) -> None:
        if group.rank == 0:
            group.leave()
        else:
            group.exchange(b"")

    with pytest.raises(RankLostError):
        on_ranks(2, work)


def test_the_values_of_a_round_are_reduced() -> None:
    rows = [
        {"updates": 200.0, "memory_len": 10.0, "loss_actor": 1.0, "policy_lag_max": 3.0, "return_train": float("nan")},
        {"updates": 200.0, "memory_len": 30.0, "loss_actor": 2.0, "policy_lag_max": 1.0, "return_train": -5.0},
    ]
    found = reduced(rows)
    assert found == {
        "updates": 200, "memory_len": 40.0, "loss_actor": 1.5, "policy_lag_max": 3.0, "return_train": -5,
    }  # fmt: skip
    assert isinstance(found["updates"], int)
