"""BLAS has one thread while a worker or a policy acts, and as many as before afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.actor.rollout.composing import compose
from tmrl_core import blas_threads
from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.actor.policies.numpy.mlp import NumpyPolicy
from tmrl_core.actor.policies.numpy.squashed_gaussian import NumpySquashedGaussianRNNActor
from tmrl_core.blas_threads import THREAD_VARIABLES, OneThread, one_blas_thread, thread_functions

BLAS = thread_functions()
pytestmark = pytest.mark.skipif(BLAS is None, reason="another BLAS")
MANY = 3


def threads() -> int:
    assert BLAS is not None
    return BLAS[0]()


@pytest.fixture(autouse=True)
def _many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let BLAS have several threads, as without the variables of the command line."""
    assert BLAS is not None
    before = threads()
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(one_blas_thread, "_looked", False)
    monkeypatch.setattr(one_blas_thread, "wanted", True)
    BLAS[1](MANY)
    yield
    BLAS[1](before)


def test_the_last_block_to_end_restores_the_number() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_blas_thread:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    try:
        with one_blas_thread, one_blas_thread:
            thread.start()
            assert entered.wait(10)
            assert threads() == 1
            raise KeyError
    except KeyError:
        assert threads() == 1, "the other block goes on"
    leave.set()
    thread.join()
    assert threads() == MANY


def test_a_number_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREAD_VARIABLES[1], str(MANY))
    with OneThread():
        assert threads() == MANY


def test_an_unknown_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_NAMES", (("no_such_get", "no_such_set"),))
    with OneThread():
        assert threads() == MANY


def test_a_block_is_wanted_where_it_limits_something(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = OneThread()
    wanted = [limit.wanted]
    with limit:
        wanted.append(limit.wanted)
        with limit:
            pass
        wanted.append(limit.wanted)
    assert [*wanted, limit.wanted] == [True, False, False, True]
    monkeypatch.setenv(THREAD_VARIABLES[1], str(MANY))
    limit = OneThread()
    with limit:
        pass
    assert not limit.wanted, "the user has set the number"


class Counting(gymnasium.Env[Any, Any]):
    """Notes the threads of each call."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.seen: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seen.append(threads())
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seen.append(threads())
        return np.zeros(3, np.float32), 0.0, False, len(self.seen) % 4 == 0, {}


@pytest.mark.parametrize(
    "play",
    [
        lambda worker: worker.collect_train_episode(),
        lambda worker: worker.run_episode(),
        lambda worker: worker.run_episodes(nb_episodes=2),
        lambda worker: worker.run(nb_episodes=2, verbose=False),
        lambda worker: worker.run_env_benchmark(5, verbose=False),
    ],
)
def test_a_worker_plays_with_one_thread(play: Callable[[Any], object]) -> None:
    env = Counting()
    worker = compose(lambda: env, NumpySquashedGaussianMLPActor)
    play(worker)
    assert set(env.seen) == {1}
    assert threads() == MANY


@pytest.mark.parametrize(
    ("policy", "shape", "hidden_sizes", "acts_with"),
    [
        (NumpySquashedGaussianMLPActor, (3,), (256, 256), 1),
        (NumpySquashedGaussianMLPActor, (3,), (8,), MANY),  # BLAS has one thread for so small a matrix in any case
        (NumpySquashedGaussianMLPActor, (3, 64, 64), (8,), 1),
        (NumpySquashedGaussianRNNActor, (3,), (256,), 1),
    ],
)
def test_a_policy_acts_with_one_thread(
    policy: type[Any], shape: tuple[int, ...], hidden_sizes: tuple[int, ...], acts_with: int, monkeypatch: Any
) -> None:
    image = len(shape) == 3
    space = spaces.Box(0, 255, shape, np.uint8) if image else spaces.Box(-1.0, 1.0, shape, np.float64)
    seen: list[int] = []
    encode = NumpyPolicy._encode

    def noting(self: Any, obs: Any, vector: Any) -> None:
        seen.append(threads())
        encode(self, obs, vector)

    monkeypatch.setattr(NumpyPolicy, "_encode", noting)
    actor = policy(spaces.Dict(camera=space), Counting.action_space, hidden_sizes=hidden_sizes)
    obs = {"camera": np.zeros(shape, space.dtype)}
    if policy is NumpySquashedGaussianRNNActor:
        actor.act_batch({"camera": obs["camera"][None]}, actor.initial_state(1), np.random.default_rng(0), False)
    else:
        actor.act(obs, test=True)
    assert seen == [acts_with]
    assert threads() == MANY
