from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import (
    CategoricalMLPActor,
    GaussianMLPActor,
    NumpyCategoricalMLPActor,
    NumpyGaussianMLPActor,
    numpy_backend_of,
)
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.errors import ConfigError, WeightsError

OBSERVATION = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (3,), np.float32), "n": spaces.Discrete(4, start=2)})
FEW = spaces.Discrete(3, start=-1)
BOX = spaces.Box(np.array([-0.1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32))

PAIRS = [(CategoricalMLPActor, NumpyCategoricalMLPActor, FEW), (GaussianMLPActor, NumpyGaussianMLPActor, BOX)]


def pair(torch_cls: Any, numpy_cls: Any, space: Any, **kwargs: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    policy = torch_cls(OBSERVATION, space, **kwargs)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
        for name, buffer in policy.named_buffers():
            buffer.add_(0.3 * torch.randn(buffer.shape) if name == "obs_mean" else torch.rand(buffer.shape))
    numpy_actor = numpy_cls(OBSERVATION, space, **kwargs).from_bytes(policy.to_bytes())
    return policy, numpy_actor


def observations(number: int) -> list[Any]:
    OBSERVATION.seed(1)
    return [OBSERVATION.sample() for _ in range(number)]


@pytest.mark.parametrize("pieces", PAIRS)
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"hidden_sizes": []}, {"hidden_sizes": [7], "activation": "relu"}, {"normalize_observations": True}],
)
def test_the_numpy_backend_chooses_equal_actions(pieces: Any, kwargs: Any) -> None:
    policy, numpy_actor = pair(*pieces, **kwargs)
    assert numpy_actor.to_bytes() == policy.to_bytes()
    for obs in observations(20):
        action, known = policy.act_(obs, test=True), numpy_actor.act(obs, test=True)
        np.testing.assert_allclose(action, known, atol=1e-5)
        assert np.asarray(action).dtype == np.asarray(known).dtype == pieces[2].dtype
        assert pieces[2].contains(known)


@pytest.mark.parametrize("pieces", PAIRS)
def test_the_stored_log_density_is_that_of_the_action(pieces: Any) -> None:
    for actor in pair(*pieces):
        actor.seed(5)
        policy = pair(*pieces)[0]
        for obs in observations(20):
            action, extras = actor.act_with_extras(obs)
            assert pieces[2].contains(action)
            assert {name: (value.dtype, value.shape) for name, value in extras.items()} == {
                name: (value.dtype, value.shape) for name, value in actor.reset_extras().items()
            }
            batch = {"x": torch.from_numpy(obs["x"])[None], "n": torch.tensor([obs["n"]])}
            tensors = {name: torch.from_numpy(np.asarray(value))[None] for name, value in extras.items()}
            known = policy.trained_action(torch.from_numpy(np.asarray(action))[None], tensors)
            logp, _ = policy.log_prob_and_entropy(flatten_batch(policy.layout, batch), known)
            assert logp.item() == pytest.approx(float(extras["logp"]), abs=2e-5)


def test_categories_are_sampled_with_their_probabilities() -> None:
    policy, numpy_actor = pair(*PAIRS[0])
    obs = observations(1)[0]
    batch = {"x": torch.from_numpy(obs["x"])[None], "n": torch.tensor([obs["n"]])}
    expected = policy.log_probs(flatten_batch(policy.layout, batch))[0].exp().tolist()
    for actor, number in ((policy, 3000), (numpy_actor, 20_000)):
        actor.seed(1)
        found = Counter(int(actor.act_with_extras(obs)[0]) for _ in range(number))
        for index, probability in enumerate(expected):
            slack = 5 * math.sqrt(probability * (1 - probability) / number)
            assert found[index - 1] / number == pytest.approx(probability, abs=slack)


def test_gaussian_actions_have_the_standard_deviation_and_only_executed_ones_are_clipped() -> None:
    policy, numpy_actor = pair(*PAIRS[1], log_std=0.5)
    obs = observations(1)[0]
    std = policy.log_std.exp().detach().numpy()
    for actor, number in ((policy, 2000), (numpy_actor, 10_000)):
        actor.seed(2)
        played = [actor.act_with_extras(obs) for _ in range(number)]
        drawn = np.stack([extras["drawn"] for _, extras in played])
        np.testing.assert_allclose(drawn.std(axis=0), std, rtol=0.1)
        actions = np.stack([action for action, _ in played])
        np.testing.assert_allclose(actions[:, 1], drawn[:, 1])
        np.testing.assert_allclose(actions[:, 0], np.clip(drawn[:, 0], -0.1, 0.1), atol=1e-7)


@pytest.mark.parametrize("pieces", PAIRS)
def test_the_same_seed_gives_the_same_exploration(pieces: Any) -> None:
    for actor in pair(*pieces):
        found = []
        for _ in range(2):
            actor.seed(9)
            found.append([np.asarray(actor.act_with_extras(obs)[0]).tolist() for obs in observations(10)])
        assert found[0] == found[1]


def test_the_entropy_is_that_of_torchs_distributions() -> None:
    flat = torch.randn(5, 7)
    policy, _ = pair(*PAIRS[0])
    _, entropy = policy.log_prob_and_entropy(flat, torch.zeros(5, dtype=torch.int64))
    chances: Any = torch.distributions.Categorical(logits=policy.log_probs(flat))
    torch.testing.assert_close(entropy, chances.entropy())
    policy, _ = pair(*PAIRS[1])
    _, entropy = policy.log_prob_and_entropy(flat, torch.zeros(5, 2))
    density: Any = torch.distributions.Normal(torch.zeros(5, 2), policy.log_std.exp().expand(5, 2))
    torch.testing.assert_close(entropy, density.entropy().sum(-1))


def test_numpy_backends_are_found_by_name() -> None:
    assert numpy_backend_of("tmrl_core.actor:CategoricalMLPActor") is NumpyCategoricalMLPActor
    numpy_actor = numpy_backend_of(GaussianMLPActor, {"log_std": -1.0, "hidden_sizes": [4]})
    assert numpy_actor is not None
    assert numpy_actor.func is NumpyGaussianMLPActor  # type: ignore[attr-defined]
    assert numpy_backend_of(CategoricalMLPActor, {"log_std": -1.0}) is None
    assert numpy_backend_of(GaussianMLPActor, {"seed": 1}) is None


def test_spaces_and_weights_that_do_not_fit_are_refused() -> None:
    for torch_cls, numpy_cls, _ in PAIRS:
        for cls in (torch_cls, numpy_cls):
            with pytest.raises(ConfigError, match=r"action space is Tuple.* No policy here acts in it"):
                cls(OBSERVATION, spaces.Tuple([FEW]))
    with pytest.raises(ConfigError, match="without torch"):
        NumpyCategoricalMLPActor(OBSERVATION, FEW, activation="gelu")
    policy, numpy_actor = pair(*PAIRS[0])
    before = numpy_actor.to_bytes()
    for data in (b"nothing", pair(*PAIRS[1])[0].to_bytes(), pair(*PAIRS[0], activation="relu")[0].to_bytes()):
        with pytest.raises(WeightsError):
            numpy_actor.from_bytes(data)
    assert numpy_actor.to_bytes() == before == policy.to_bytes()


@pytest.mark.parametrize("pieces", PAIRS)
def test_observations_are_normalized_with_the_statistics_in_the_weights(pieces: Any) -> None:
    policy, numpy_actor = pair(*pieces, normalize_observations=True)
    plain, _ = pair(*pieces)
    with torch.no_grad():
        policy.obs_mean[:] = torch.arange(7.0)
        policy.obs_std[:] = 0.5
        flat = torch.arange(7.0) + 1.0
        plain.load_state_dict({name: value for name, value in policy.state_dict().items() if "obs" not in name})
        torch.testing.assert_close(policy.normalized(flat[None]), torch.full((1, 7), 2.0))
        torch.testing.assert_close(policy.normalized(1e6 * flat[None]), torch.full((1, 7), 10.0))
        found, expected = policy.outputs_at(flat[None]), plain.outputs_at(torch.full((1, 7), 2.0))
        torch.testing.assert_close(found, expected, check_dtype=False)
    # Weights that say nothing of it are not for a policy that needs it, nor the other way round.
    for policy_, weights in ((numpy_actor, plain), (plain, policy)):
        with pytest.raises(WeightsError, match="obs_mean"):
            policy_.from_bytes(weights.to_bytes(), "cpu")
