from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core import actor as actors
from tmrl_core.actor.policies.masks import ACTION_MASK, ALLOWED, allowed_indices, is_masked, limited_choice
from tmrl_core.errors import ConfigError, ObservationError

ACTIONS = spaces.Discrete(4, start=3)
MASK = spaces.Box(0, 1, (4,), np.int8)
MASKED = spaces.Dict({"observation": spaces.Box(-1, 1, (3,), np.float32), ACTION_MASK: MASK})
POLICIES: dict[str, dict[str, Any]] = {
    "QValueMLPActor": {"hidden_sizes": (8,), "dueling": True},
    "CategoricalMLPActor": {"hidden_sizes": (8,), "normalize_observations": True},
    "QValueRNNActor": {"hidden_sizes": (8,), "cell_size": 4},
    "CategoricalRNNActor": {"hidden_sizes": (8,), "cell_size": 4, "cell": "lstm"},
}
MASKS = [np.array([n >> bit & 1 for bit in range(4)], np.int8) for n in range(1, 16)]


def both(name: str) -> tuple[Any, Any]:
    """The torch policy, with a preference for each of its actions in some state, and the NumPy one with its weights."""
    torch.manual_seed(3)
    with_torch = getattr(actors, name)(MASKED, ACTIONS, **POLICIES[name])
    with torch.no_grad():
        for parameter in with_torch.parameters():
            parameter.mul_(6.0)
    with_numpy = getattr(actors, f"Numpy{name}")(MASKED, ACTIONS, **POLICIES[name], seed=5)
    with_numpy.from_blob(*with_torch.to_blob(), device="cpu")
    return with_torch, with_numpy


def observations() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [{"observation": generator.uniform(-1, 1, 3).astype(np.float32), ACTION_MASK: m} for m in MASKS * 3]


def is_allowed(action: Any, obs: dict[str, np.ndarray]) -> bool:
    return bool(obs[ACTION_MASK][int(action) - 3])


@pytest.mark.parametrize("name", POLICIES)
def test_both_backends_choose_the_same_allowed_actions_with_the_same_extras(name: str) -> None:
    with_torch, with_numpy = both(name)
    seen = set()
    for obs in observations():
        for test in (True, False):
            for policy in (with_torch, with_numpy):
                policy.begin_episode()
            expected, extras = with_torch.act_with_extras(obs, test)
            found, found_extras = with_numpy.act_with_extras(obs, test)
            assert is_allowed(expected, obs)
            assert is_allowed(found, obs)
            assert extras.keys() == found_extras.keys()
            if test:
                assert found == expected
                for key, value in extras.items():
                    np.testing.assert_allclose(found_extras[key], value, atol=1e-5)
                seen.add(int(found))
                with_torch.begin_episode()
                assert with_torch.act_(obs, True) == expected
    assert seen == {3, 4, 5, 6}


@pytest.mark.parametrize("name", ["QValueMLPActor", "QValueRNNActor"])
@pytest.mark.parametrize("backend", [0, 1], ids=["torch", "numpy"])
def test_random_actions_are_uniform_among_those_allowed(name: str, backend: int) -> None:
    policy = both(name)[backend]
    policy.seed(0)
    policy.set_exploration({"epsilon": 1.0})
    obs = {"observation": np.zeros(3, np.float32), ACTION_MASK: np.array([0, 1, 0, 1], np.int8)}
    counts = np.bincount([int(policy.act_(obs)) - 3 for _ in range(400)], minlength=4)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert min(counts) == 0
    assert abs(counts[1] - 200) < 60


@pytest.mark.parametrize("name", ["CategoricalMLPActor", "CategoricalRNNActor"])
@pytest.mark.parametrize("backend", [0, 1], ids=["torch", "numpy"])
def test_probabilities_are_those_of_a_softmax_over_the_allowed_actions(name: str, backend: int) -> None:
    policy = both(name)[backend]
    obs = observations()[6]
    free = {**obs, ACTION_MASK: np.ones(4, np.int8)}

    def log_probs(of: Any) -> dict[int, float]:
        found: dict[int, float] = {}
        for _ in range(300):
            policy.begin_episode()
            action, extras = policy.act_with_extras(of)
            found[int(action) - 3] = float(extras["logp"])
        return found

    allowed = np.flatnonzero(obs[ACTION_MASK]).tolist()
    every = log_probs(free)
    total = math.log(sum(math.exp(every[index]) for index in allowed if index in every))
    found = log_probs(obs)
    assert set(found) <= set(allowed)
    for index in found.keys() & every.keys():
        assert found[index] == pytest.approx(every[index] - total, abs=1e-4)


@pytest.mark.parametrize("name", POLICIES)
def test_the_mask_is_no_input_of_the_network(name: str) -> None:
    with_torch, with_numpy = both(name)
    plain = getattr(actors, name)(spaces.Dict({"observation": MASKED["observation"]}), ACTIONS, **POLICIES[name])
    assert with_torch.architecture() == with_numpy.architecture() == plain.architecture()
    # Weights of a policy without a mask can be used with one.
    with_numpy.from_blob(*plain.to_blob(), device="cpu")
    obs = observations()[4]
    assert is_allowed(with_numpy.act(obs), obs)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("backend", [0, 1], ids=["torch", "numpy"])
def test_acting_where_no_action_is_allowed_is_an_error(name: str, backend: int) -> None:
    policy = both(name)[backend]
    nothing = {"observation": np.zeros(3, np.float32), ACTION_MASK: np.zeros(4, np.int8)}
    for act in (policy.act_, policy.act_with_extras):
        with pytest.raises(ObservationError, match="no action is allowed by the observation's action_mask"):
            act(nothing)


@pytest.mark.parametrize("name", ["QValueRNNActor", "CategoricalRNNActor"])
def test_sequences_give_the_outputs_of_single_ticks(name: str) -> None:
    with_torch, with_numpy = both(name)
    seen = observations()[:6]
    obs_BT = {key: np.stack([obs[key] for obs in seen])[None] for key in MASKED}
    expected, _ = with_numpy.unroll(obs_BT, with_numpy.initial_state(1))
    tensors = {key: torch.from_numpy(value) for key, value in obs_BT.items()}
    found, _ = with_torch.unroll(tensors, with_torch.initial_state(1))
    states, _ = with_torch.unroll_states(tensors, with_torch.initial_state(1))
    assert found.keys() == expected.keys() == states.keys()
    assert ALLOWED in found
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].detach().numpy(), value, atol=1e-4)
        assert torch.equal(found[key], states[key]) or torch.allclose(found[key], states[key], atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
def test_batches_of_sessions_get_allowed_actions_with_their_log_probabilities(name: str) -> None:
    policy, _ = both(name)
    policy.seed(0)
    policy.set_exploration({"epsilon": 0.5})
    seen = observations()
    nothing = {**seen[0], ACTION_MASK: np.zeros(4, np.int8)}  # a session that has ended goes on in its batch
    obs_B = {key: torch.from_numpy(np.stack([obs[key] for obs in [*seen, nothing]])) for key in MASKED}
    state_B = policy.initial_state(len(seen) + 1)
    for deterministic in (True, False):
        action_B, _ = policy.step(obs_B, state_B, deterministic)
        assert all(is_allowed(action, obs) for action, obs in zip(action_B[:-1], seen, strict=True))
    obs_B1 = {key: value[:, None] for key, value in obs_B.items()}
    outputs, _ = policy.unroll(obs_B1, state_B)
    probability = torch.stack(
        [policy.log_prob(outputs, torch.full((len(seen) + 1, 1), action))[:-1, 0].exp() for action in range(3, 7)], 1
    )
    torch.testing.assert_close(probability.sum(dim=1), torch.ones(len(seen)))
    allowed = torch.from_numpy(np.stack([obs[ACTION_MASK] for obs in seen])) > 0
    assert not probability[~allowed].any()


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 1, (3,), np.int8), spaces.Discrete(4), spaces.MultiBinary((4, 1)), spaces.Text(4)]
)
@pytest.mark.parametrize("make", [actors.QValueMLPActor, actors.NumpyCategoricalMLPActor])
def test_a_mask_of_another_shape_is_refused(space: Any, make: Any) -> None:
    observation_space = spaces.Dict({"observation": MASKED["observation"], ACTION_MASK: space})
    with pytest.raises(ConfigError, match=r"action_mask is of the space .* the action space is Discrete\(4, start=3\)"):
        make(observation_space, ACTIONS)


def test_masks_belong_to_discrete_actions_only() -> None:
    box = spaces.Box(-1, 1, (4,), np.float32)
    assert is_masked(MASKED, ACTIONS)
    assert is_masked(spaces.Dict({"x": box, ACTION_MASK: spaces.MultiBinary(4)}), ACTIONS)
    assert not is_masked(MASKED, box)
    assert not is_masked(MASKED["observation"], ACTIONS)
    policy = actors.NumpySquashedGaussianMLPActor(MASKED, box, hidden_sizes=(8,))
    assert policy.architecture()["shapes"]["net.0.weight"] == [8, 7]  # an observation like any other


def test_a_mask_that_does_not_have_one_number_for_each_action_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\), not \(4,\)"):
        allowed_indices({ACTION_MASK: np.ones(3)}, 4)


def test_each_allowed_action_is_chosen_as_often_as_the_others() -> None:
    allowed_BN = np.tile([True, False, True, True, False], (3000, 1))
    allowed_BN[0] = False
    index_B = limited_choice(allowed_BN, np.random.default_rng(0))
    assert index_B[0] == 0
    counts = np.bincount(index_B[1:], minlength=5)
    assert counts[[1, 4]].tolist() == [0, 0]
    assert (np.abs(counts[[0, 2, 3]] - 1000) < 120).all()
