from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor import NumpySquashedGaussianResidualActor, SquashedGaussianResidualActor
from tmrl_core.actor.policies.numpy.residual import MOST_STEPS
from tmrl_core.actor.rollout.runner import PolicyRunner

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACT = spaces.Box(-2, 2, (2,), np.float32)
SMALL: dict[str, Any] = {"width": 8, "blocks": 2, "random": 0.0}


def both() -> tuple[Any, Any]:
    with_torch = SquashedGaussianResidualActor(OBS, ACT, **SMALL)
    with_numpy = NumpySquashedGaussianResidualActor(OBS, ACT, **SMALL, seed=1)
    with_numpy.from_bytes(with_torch.to_bytes())
    return with_torch, with_numpy


def held(policy: Any, steps: int, rows: int = 1) -> np.ndarray:
    """The noise [steps, rows, A] with which a policy acts."""
    rng, state, noise = np.random.default_rng(0), policy.initial_state(rows), []
    obs_B = np.zeros((rows, 3), np.float32)
    for _ in range(steps):
        _, state, _ = policy.act_batch(obs_B, state, rng, False)
        noise.append(state["noise"])
    return np.stack(noise)


def test_both_backends_act_alike_with_equal_state() -> None:
    rngs = [np.random.default_rng(5) for _ in range(2)]
    policies = both()
    states = [policy.initial_state(4) for policy in policies]
    observed = np.random.default_rng(1)
    for _ in range(40):
        obs_B = observed.uniform(-1, 1, (4, 3)).astype(np.float32)
        acted = [p.act_batch(obs_B, s, rng, False) for p, s, rng in zip(policies, states, rngs, strict=True)]
        np.testing.assert_allclose(acted[0][0], acted[1][0], rtol=1e-5, atol=1e-5)
        states = [state for _, state, _ in acted]
        for name in ("noise", "left"):
            np.testing.assert_array_equal(states[0][name], states[1][name])


def test_noise_is_held_as_long_as_a_zeta_distribution_says() -> None:
    noise = held(both()[1], 20_000)[:, 0, 0]
    starts = np.flatnonzero(np.diff(noise, prepend=np.nan) != 0)
    durations = np.diff(starts)
    assert durations.max() == MOST_STEPS
    shares = 1 / np.arange(1, MOST_STEPS + 1) ** 2
    shares /= shares.sum()
    for steps in (1, 2, 3):
        assert np.mean(durations == steps) == pytest.approx(shares[steps - 1], abs=0.02)
    assert noise[starts].std() == pytest.approx(1.0, abs=0.03)


def test_rows_hold_their_noise_apart() -> None:
    noise = held(both()[1], 200, rows=2)
    changes = np.any(np.diff(noise, axis=0) != 0, axis=-1)
    assert changes.any(axis=0).all()
    assert (changes[:, 0] != changes[:, 1]).any()


def test_a_test_keeps_the_state_and_states_are_not_changed_in_place() -> None:
    policy = both()[1]
    rng, obs_B = np.random.default_rng(0), np.zeros((1, 3), np.float32)
    before = policy.initial_state(1)
    _, after, _ = policy.act_batch(obs_B, before, rng, False)
    assert not before["noise"].any()
    assert after["noise"].any()
    assert policy.act_batch(obs_B, after, rng, True)[1] is after


@pytest.mark.parametrize("backend", [0, 1])
def test_new_weights_go_on_with_the_noise_and_an_episode_begins_with_new_noise(backend: int) -> None:
    policy = both()[backend]
    runner = PolicyRunner(lambda **_: policy, OBS, ACT, seed=3)
    obs = np.zeros(3, np.float32)
    while True:
        runner.act(obs)
        noise, left = (runner.carried[0][name].copy() for name in ("noise", "left"))
        if left[0]:
            break
    runner.actor = both()[backend]
    runner.act(obs)
    np.testing.assert_array_equal(runner.carried[0]["noise"], noise)
    runner.reset()
    assert runner.carried[0]["left"][0] == 0
    runner.act(obs)
    assert (runner.carried[0]["noise"] != noise).all()


@pytest.mark.parametrize("backend", [0, 1])
def test_act_carries_a_state_of_its_own(backend: int) -> None:
    first, second = both()[backend], both()[backend]
    second.from_bytes(first.to_bytes())
    obs = np.zeros(3, np.float32)
    for policy in (first, second):
        policy.seed(4)
        policy.begin_episode()
    actions = [first.act_(obs) for _ in range(50)]
    rng, state = np.random.default_rng(4), second.initial_state(1)
    for action in actions:
        action_B, state, _ = second.act_batch(obs[None], state, rng, False)
        np.testing.assert_array_equal(action, action_B[0])
    assert any((one == other).all() for one, other in itertools.pairwise(actions))
    assert ACT.contains(actions[0])


def test_a_share_of_actions_is_uniform() -> None:
    policy = both()[1]
    policy.set_exploration({"random": 1.0})
    rng, state = np.random.default_rng(0), policy.initial_state(1000)
    action_B, _, _ = policy.act_batch(np.zeros((1000, 3), np.float32), state, rng, False)
    assert action_B.std(axis=0) == pytest.approx([4 / 12**0.5] * 2, rel=0.05)
