from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import tmrl_core.actor
from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor, choose_actor, numpy_backend_of
from tmrl_core.config.algorithms import ACTORS
from tmrl_core.errors import ConfigError, WeightsError

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACT = spaces.Box(-1, 1, (1,), np.float32)


class Mine(SquashedGaussianMLPActor):
    pass


@pytest.mark.parametrize(
    ("actor", "kwargs"),
    [
        (SquashedGaussianMLPActor, {"hidden_sizes": (8,), "activation": torch.nn.Tanh}),
        ("tmrl_core.actor:SquashedGaussianMLPActor", {"hidden_sizes": [8], "activation": "Tanh"}),
        (functools.partial(SquashedGaussianMLPActor, hidden_sizes=(8,), activation="tanh"), {}),
        (functools.partial(SquashedGaussianMLPActor, hidden_sizes=(4,)), {"hidden_sizes": (8,), "activation": "tanh"}),
    ],
)
def test_the_numpy_backend_takes_the_same_weights(actor: Any, kwargs: dict[str, Any]) -> None:
    make = numpy_backend_of(actor, kwargs)
    assert make is not None
    numpy_actor = make(observation_space=OBS, action_space=ACT)
    original = SquashedGaussianMLPActor(OBS, ACT, hidden_sizes=(8,), activation="tanh")
    assert isinstance(numpy_actor, NumpySquashedGaussianMLPActor)
    numpy_actor.from_blob(*original.to_blob(), device="cpu")


@pytest.mark.parametrize(
    ("actor", "kwargs"),
    [
        (Mine, {}),
        ("elsewhere:SquashedGaussianMLPActor", {}),
        (lambda observation_space, action_space: None, {}),
        (SquashedGaussianMLPActor, {"activation": torch.nn.ELU}),
        (SquashedGaussianMLPActor, {"dropout": 0.1}),
        (functools.partial(SquashedGaussianMLPActor, OBS), {}),
    ],
)
def test_policies_without_numpy_backend_are_left_alone(actor: Any, kwargs: dict[str, Any]) -> None:
    assert numpy_backend_of(actor, kwargs) is None


EACH_POLICY = pytest.mark.parametrize(
    ("name", "kwargs", "action_space"),
    [
        ("CategoricalMLPActor", {"hidden_sizes": (8,)}, spaces.Discrete(3)),
        ("DeterministicMLPActor", {"hidden_sizes": (8,), "noise": 0.2}, ACT),
        ("GaussianMLPActor", {"hidden_sizes": (8,)}, ACT),
        ("QValueMLPActor", {"hidden_sizes": (8,), "dueling": True}, spaces.Discrete(3)),
        ("SquashedGaussianMLPActor", {"hidden_sizes": (8,)}, ACT),
        ("CategoricalRNNActor", {"hidden_sizes": (8,), "cell": "lstm"}, spaces.Discrete(3)),
        ("GaussianRNNActor", {"hidden_sizes": (8,), "cell_size": 4}, ACT),
        ("QValueRNNActor", {"hidden_sizes": (8,), "dueling": True}, spaces.Discrete(3)),
        ("SquashedGaussianRNNActor", {"hidden_sizes": (8,), "state_interval": 5}, ACT),
    ],
)


@EACH_POLICY
def test_each_built_in_policy_has_a_numpy_backend(name: str, kwargs: dict[str, Any], action_space: Any) -> None:
    policy = getattr(tmrl_core.actor, name)
    original = policy(OBS, action_space, **kwargs)
    for reference in (f"tmrl_core.actor:{name}", f"{policy.__module__}:{name}", policy):
        make = choose_actor(reference, kwargs)
        numpy_actor = make(observation_space=OBS, action_space=action_space)
        assert type(numpy_actor).__name__ == f"Numpy{name}"
        numpy_actor.from_blob(*original.to_blob(), device="cpu")
    for reference in (f"tmrl_core.actor:Numpy{name}", f"{type(numpy_actor).__module__}:Numpy{name}", type(numpy_actor)):
        numpy_actor = choose_actor(reference, kwargs, backend="numpy")(observation_space=OBS, action_space=action_space)
        assert type(numpy_actor).__name__ == f"Numpy{name}"


@EACH_POLICY
def test_initial_exploration_is_equal_with_and_without_torch(
    name: str, kwargs: dict[str, Any], action_space: Any
) -> None:
    policy = getattr(tmrl_core.actor, name)
    trained = policy(OBS, action_space, **kwargs)
    explored = []
    for backend in ("numpy", "torch"):
        for given in (f"tmrl_core.actor:{name}", policy, functools.partial(policy)):
            make = choose_actor(given, kwargs, backend=backend)
            # A RolloutWorker is given what this has made, and looks once more.
            again = choose_actor(make, backend="auto" if backend == "numpy" else backend)
            actor = again(observation_space=OBS, action_space=action_space)
            before = actor.exploration()
            actor = actor.from_blob(*trained.to_blob(), device="cpu")
            explored.append((before, actor.exploration()))
    assert all(one == explored[0] for one in explored), explored
    if name.startswith("SquashedGaussian"):
        assert explored[0] == ({"random": 1.0}, {"random": 0.0})
        assert trained.exploration() == {"random": 0.0}, "the one that is trained acts as it is"


def test_the_configured_share_of_random_actions_lasts_until_the_trainer_changes_it() -> None:
    trained = SquashedGaussianMLPActor(OBS, ACT, hidden_sizes=(8,))
    for backend in ("numpy", "torch"):
        make = choose_actor(
            "tmrl_core.actor:SquashedGaussianMLPActor", {"hidden_sizes": (8,), "random": 0.5}, backend=backend
        )
        actor = make(observation_space=OBS, action_space=ACT)
        actor = actor.from_blob(*trained.to_blob(), device="cpu")
        assert actor.exploration() == {"random": 0.5}
        actor.set_exploration({"random": 0.0})
        assert actor.exploration() == {"random": 0.0}


@pytest.mark.parametrize("name", sorted(ACTORS))
def test_messages_name_the_policy_that_was_configured(name: str) -> None:
    discrete = "discrete" in ACTORS[name]
    action_space, other = (spaces.Discrete(2), ACT) if discrete else (ACT, spaces.Discrete(2))
    make = numpy_backend_of(f"tmrl_core.actor:{name}")
    assert make is not None
    with pytest.raises(ConfigError, match=f"^{name} "):
        make(observation_space=OBS, action_space=other)
    numpy_actor = make(observation_space=OBS, action_space=action_space)
    with pytest.raises(WeightsError, match=f", {name} reads 'safetensors'"):
        numpy_actor.from_blob("other", b"", "cpu")
    with pytest.raises(WeightsError, match=f"not for {name}: "):
        numpy_actor.from_bytes(
            make(observation_space=spaces.Box(-1, 1, (5,)), action_space=action_space).to_bytes(), "cpu"
        )


ON_A_ROBOT = """
import sys, json
sys.modules["torch"] = None  # importing it raises
import numpy as np
from gymnasium import spaces
import tmrl_core.actor
from tmrl_core import RolloutWorker, SquashedGaussianMLPActor, partial
from tmrl_core.actor import choose_actor
from tmrl_core.errors import ConfigError, MissingExtraError
obs = spaces.Box(-1, 1, (3,), np.float32)
from tmrl_core.config.algorithms import ACTORS
for name, kind in ACTORS.items():
    policy = getattr(tmrl_core.actor, name)
    action_space = spaces.Discrete(2) if "discrete" in kind else spaces.Box(-1, 1, (1,), np.float32)
    sizes = {"width": 8} if "Residual" in name else {"hidden_sizes": (8,)}
    for given in (policy, partial(policy, **sizes)):
        for backend in ("auto", "numpy"):
            choose_actor(given, backend=backend)(observation_space=obs, action_space=action_space).act(obs.sample())
        try:
            choose_actor(given, backend="torch")
        except MissingExtraError as exc:
            print(policy.__name__, exc)
make = tmrl_core.actor.numpy_backend_of("tmrl_core.actor:SquashedGaussianMLPActor", {"hidden_sizes": (8,)})
actor = make(observation_space=obs, action_space=obs)
actor.from_bytes(actor.to_bytes()).act(np.zeros(3, np.float32))
try:
    tmrl_core.actor.TorchActorModule
except ImportError as exc:
    print("TorchActorModule", exc)
try:
    choose_actor("tmrl_core.actor:GaussianMLPActor", {"hiden_sizes": [8]})
except ConfigError as exc:
    print("ConfigError", exc)
import gymnasium
with RolloutWorker(lambda: gymnasium.make("Pendulum-v1"), SquashedGaussianMLPActor, standalone=True,
                   max_samples_per_episode=5) as worker:
    worker.run_episodes(nb_episodes=1)
    print(worker.buffer.stat_test_steps)
"""


def test_policy_names_give_numpy_backends_without_torch() -> None:
    command = [sys.executable, "-c", ON_A_ROBOT]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    *choices, module, unknown, steps = lines
    assert sorted(line.split()[0] for line in choices) == sorted(2 * [f"Numpy{name}" for name in ACTORS])
    assert all("pip install" in line for line in choices)
    assert "tmrl_core[trainer]" in module
    known = "actor.kwargs: tmrl_core.actor:GaussianMLPActor without torch knows activation, convolutions, hidden_sizes"
    assert unknown.startswith(f"ConfigError {known}")
    assert "not hiden_sizes" in unknown
    assert "pip install" in unknown
    assert steps == "5"


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", sorted(ACTORS))
def test_policies_act_in_the_dtype_of_their_space(name: str, backend: str) -> None:
    """The trainer holds samples to that."""
    allowed = [spaces.Box(-1, 1, (2,), np.float64), ACT] if "box" in ACTORS[name] else [spaces.Discrete(3, start=2)]
    space: Any
    for space in allowed:
        actor = choose_actor(f"tmrl_core.actor:{name}", backend=backend)(observation_space=OBS, action_space=space)
        for exploration in ({}, {"random": 0.0, "noise": 0.1, "epsilon": 0.0}):
            actor.set_exploration(exploration)
            for test in (False, True):
                action, extras = actor.act_with_extras(np.zeros(3, np.float32), test=test)
                assert np.asarray(action).dtype == space.dtype
                looks = {key: (np.shape(value), np.asarray(value).dtype) for key, value in extras.items()}
                declared = actor.reset_extras().items()
                assert looks == {key: (np.shape(value), np.asarray(value).dtype) for key, value in declared}


@pytest.mark.parametrize("name", sorted(ACTORS))
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_values_of_another_type_are_refused_with_torch_and_without(name: str, backend: str) -> None:
    key, value, kind = ("width", "64", "int") if "Residual" in name else ("hidden_sizes", 64, r"Sequence\[int\]")
    with pytest.raises(ConfigError, match=rf"^actor\.kwargs\.{key}: found '?64'?, allowed: {kind}"):
        choose_actor(f"tmrl_core.actor:{name}", {key: value}, backend=backend)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["SquashedGaussianMLPActor", "GaussianMLPActor"])
def test_weights_that_are_not_finite_are_refused_whole_with_torch_and_without(name: str, bad: float) -> None:
    reference = f"tmrl_core.actor:{name}"
    trained = choose_actor(reference, {"hidden_sizes": [8]}, backend="torch")(OBS, ACT)
    with torch.no_grad():
        next(iter(trained.parameters())).view(-1)[0] = bad
    for backend in ("torch", "numpy"):
        policy = choose_actor(reference, {"hidden_sizes": [8]}, backend=backend)(OBS, ACT)
        before = policy.to_bytes()
        with pytest.raises(WeightsError, match=r"are not finite: \S+ holds NaN or an infinite number"):
            policy.from_blob(*trained.to_blob(), device="cpu")
        assert policy.to_bytes() == before
