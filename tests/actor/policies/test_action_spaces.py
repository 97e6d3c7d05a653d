"""Actions of each policy in Boxes of any shape, and of several choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._pytree import tree_map

from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.config.algorithms import ACTORS
from tmrl_core.errors import ConfigError, ObservationError

OBS = spaces.Box(-1, 1, (3,), np.float32)
SHAPES: list[tuple[int, ...]] = [(), (1,), (2, 3)]
BOX_POLICIES = sorted(name for name, kinds in ACTORS.items() if "box" in kinds)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", BOX_POLICIES)
def test_an_action_has_the_shape_and_dtype_of_its_box(name: str, backend: str, shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.float64):
        space = spaces.Box(-2, 3, shape, dtype)
        runner = PolicyRunner(choose_actor(f"tmrl_core.actor:{name}", backend=backend), OBS, space, seed=0)
        for exploration in ({"random": 0.0}, {"random": 1.0}):
            runner.actor.set_exploration(exploration)
            for test in (False, True):
                runner.reset()
                obs = OBS.sample()
                for action in (runner.decide(obs, test, True)[0], runner.act(obs, test)):
                    assert isinstance(action, np.ndarray)
                    assert space.contains(action)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BOX_POLICIES)
def test_a_batch_of_actions_has_the_shape_of_its_box(name: str, shape: tuple[int, ...]) -> None:
    policy: Any = choose_actor(f"tmrl_core.actor:{name}", backend="torch")(OBS, spaces.Box(-2, 3, shape, np.float32))
    obs_B = torch.zeros(5, *OBS.shape)
    for deterministic in (False, True):
        action_B, _ = policy.step(obs_B, policy.initial_state(5), deterministic)
        assert action_B.shape == (5, *shape)
        assert bool(((action_B >= -2) & (action_B <= 3)).all())
    outputs_BT, _ = policy.unroll(obs_B[:, None], policy.initial_state(5))
    if (log_prob_BT := policy.log_prob(outputs_BT, action_B[:, None])) is not None:
        assert log_prob_BT.shape == (5, 1)


CHOICES: list[Any] = [
    spaces.MultiDiscrete([3, 2, 4]),
    spaces.MultiDiscrete([3, 3], start=[-1, 2]),
    spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
]
CATEGORICAL = ["CategoricalMLPActor", "CategoricalRNNActor"]


def both_of_choices(name: str, space: Any, observation_space: Any = OBS) -> tuple[Any, Any]:
    """The torch and the NumPy backend of a policy with equal weights, whose choices differ."""
    torch.manual_seed(0)
    with_torch, with_numpy = (
        choose_actor(f"tmrl_core.actor:{name}", {"hidden_sizes": [8]}, backend=backend)(observation_space, space)
        for backend in ("torch", "numpy")
    )
    with torch.no_grad():
        for parameter in with_torch.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return with_torch, with_numpy.from_bytes(with_torch.to_bytes(), "cpu")


def choices_of(policy: Any, obs: Any) -> list[Any]:
    """The distribution of each choice, made with torch's own class from the logits of the policy."""
    batch = tree_map(lambda leaf: torch.as_tensor(leaf)[None, None], obs)
    logits_N = policy.unroll(batch, policy.initial_state(1))[0]["logits"][0, 0].detach()
    counts = choice_counts(policy.action_space)
    make: Any = torch.distributions.Categorical
    return [make(logits=part) for part in logits_N.split(counts)]


def log_prob_of(policy: Any, obs: Any, action: Any) -> float:
    """The log-probability of an action: the sum of those of its choices."""
    first = np.broadcast_to(getattr(policy.action_space, "start", 0), policy.action_space.shape)
    indices = (np.asarray(action) - first).ravel().tolist()
    chances = zip(choices_of(policy, obs), indices, strict=True)
    return sum(float(chance.log_prob(torch.tensor(index))) for chance, index in chances)


@pytest.mark.parametrize("space", CHOICES, ids=str)
@pytest.mark.parametrize("name", CATEGORICAL)
def test_both_backends_take_the_likeliest_value_of_each_choice(name: str, space: Any) -> None:
    policies = both_of_choices(name, space)
    OBS.seed(1)
    for _ in range(5):
        obs = OBS.sample()
        expected = [int(chance.logits.argmax()) for chance in choices_of(policies[0], obs)]
        for policy in policies:
            policy.begin_episode()
            action, extras = policy.act_with_extras(obs, test=True) if "RNN" in name else (policy.act_(obs, True), {})
            assert isinstance(action, np.ndarray)
            assert action.dtype == space.dtype
            assert space.contains(action)
            assert (action - getattr(space, "start", 0)).ravel().tolist() == expected
            if extras:
                assert float(extras["logp"]) == pytest.approx(log_prob_of(policies[0], obs, action), abs=1e-4)


@pytest.mark.parametrize("space", CHOICES, ids=str)
@pytest.mark.parametrize("name", CATEGORICAL)
def test_log_probabilities_and_entropies_of_choices_add_up(name: str, space: Any) -> None:
    policies = both_of_choices(name, space)
    policy = policies[0]
    OBS.seed(2)
    for _ in range(5):
        obs = OBS.sample()
        batch = torch.as_tensor(obs)[None, None]
        for actor in policies:
            actor.begin_episode()
            action, extras = actor.act_with_extras(obs)
            assert space.contains(action)
            expected = log_prob_of(policy, obs, action)
            assert float(extras["logp"]) == pytest.approx(expected, abs=1e-4)
            action_BT = torch.as_tensor(action)[None, None]
            with torch.no_grad():
                outputs, _ = policy.unroll(batch, policy.initial_state(1))
                found = policy.log_prob(outputs, action_BT)
                known_B = policy.trained_action(action_BT[0], {})
                log_prob_B, entropy_B = policy.density({"logits": outputs["logits"][0]}, known_B)
            entropy = sum(float(chance.entropy()) for chance in choices_of(policy, obs))
            for one, value in ((found, expected), (log_prob_B, expected), (entropy_B, entropy)):
                assert one.item() == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.parametrize("backend", [0, 1], ids=["torch", "numpy"])
def test_values_of_choices_are_sampled_with_their_probabilities(name: str, backend: int) -> None:
    space = spaces.MultiDiscrete([3, 2, 4])
    policies = both_of_choices(name, space)
    obs = np.array([0.5, -1.0, 1.0], np.float32)
    policy, number = policies[backend], 2000
    policy.seed(0)
    runner = PolicyRunner(lambda **_: policy, OBS, space, seed=0)
    drawn = []
    for _ in range(number):
        runner.reset()
        drawn.append(runner.act(obs))
    for column, chance in enumerate(choices_of(policies[0], obs)):
        found = np.bincount(np.stack(drawn)[:, column], minlength=len(chance.probs)) / number
        np.testing.assert_allclose(found, chance.probs.numpy(), atol=0.06)


MASKED_CHOICES = spaces.MultiDiscrete([3, 2], start=[1, 0])
MASKS = {
    "tuple": spaces.Tuple([spaces.Box(0, 1, (3,), np.int8), spaces.MultiBinary(2)]),
    "array": spaces.MultiBinary(5),
}


def masked(form: str, *masks: list[int]) -> dict[str, Any]:
    arrays = tuple(np.array(mask, np.int8) for mask in masks)
    return {"x": np.array([0.1, 0.2, 0.3], np.float32), ACTION_MASK: arrays if form == "tuple" else np.hstack(arrays)}


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("name", CATEGORICAL)
def test_a_mask_of_each_choice_limits_it(name: str, form: str) -> None:
    observation_space = spaces.Dict({"x": OBS, ACTION_MASK: MASKS[form]})
    policies = both_of_choices(name, MASKED_CHOICES, observation_space)
    obs = masked(form, [0, 1, 1], [1, 0])
    assert observation_space.contains(obs)
    for policy in policies:
        seen = set()
        for test in [True] + [False] * 100:
            policy.begin_episode()
            action, extras = policy.act_with_extras(obs, test)
            assert float(extras["logp"]) == pytest.approx(log_prob_of(policies[0], obs, action), abs=1e-4)
            seen.add(tuple(action.tolist()))
        assert seen == {(2, 0), (3, 0)}
        for masks in (([0, 0, 0], [1, 1]), ([1, 1, 1], [0, 0])):
            with pytest.raises(ObservationError, match="no action is allowed"):
                policy.act_(masked(form, *masks))


def test_a_mask_of_another_form_is_refused_with_those_that_fit() -> None:
    for mask in (spaces.MultiBinary(4), spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])):
        with pytest.raises(ConfigError, match=r"\(5,\), np.int8\), or a Tuple of 2 arrays.* the lengths \(3, 2\)\."):
            is_masked(spaces.Dict({"x": OBS, ACTION_MASK: mask}), MASKED_CHOICES)
