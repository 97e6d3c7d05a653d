from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest

import tmrl_core.actor
import tmrl_core.training
from tmrl_core.config import load, resolve
from tmrl_core.config.algorithms import (
    ACTORS,
    MEMORIES,
    Algorithm,
    action_space_problem,
    actor_of,
    algorithm_of,
    algorithms,
    memory_of,
    policy_problem,
    stacks_problem,
)
from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError
from tmrl_core.roles.training_object import training_from_config

BOX = gym.spaces.Box(-1, 1, (1,), np.float32)
DISCRETE = gym.spaces.Discrete(2)
OF_KIND = {"box": BOX, "discrete": DISCRETE, "multi_discrete": gym.spaces.MultiDiscrete([2, 3])}
LOOP = "tmrl_core.training:TrainingLockstep"


def values(algorithm: Algorithm, **changes: Any) -> dict[str, Any]:
    """A configuration with this algorithm and what goes with it, then `section__key` changed."""
    found: dict[str, Any] = {
        "agent": {"cls": f"tmrl_core.training:{algorithm.name}"},
        "actor": {"cls": f"tmrl_core.actor:{min(algorithm.actors)}"},
        "worker": {"collection": min(algorithm.collection)},
        "memory": {"cls": f"tmrl_core.training:{max(algorithm.memories)}"} if algorithm.memories else {},
        "trainer": {"loop": LOOP} if "lockstep" in algorithm.collection else {},
    }
    for path, value in changes.items():
        section, key = path.split("__")
        found[section][key] = value
    return found


each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=lambda algorithm: algorithm.name)


@each_algorithm
def test_the_table_matches_the_classes(algorithm: Algorithm) -> None:
    cls = getattr(tmrl_core.training, algorithm.name)
    assert cls is resolve(algorithm.cls)
    assert cls.action_spaces == algorithm.action_spaces
    assert cls.collection == algorithm.collection
    kinds = [ACTORS[actor] & algorithm.action_spaces for actor in algorithm.actors]
    assert all(kinds)
    assert frozenset().union(*kinds) == algorithm.action_spaces
    assert algorithm_of(algorithm.cls) is algorithm


@pytest.mark.parametrize(("name", "kinds"), ACTORS.items())
def test_policies_are_known_by_every_name_they_have(name: str, kinds: frozenset[str]) -> None:
    for prefix in ("", "Numpy"):
        cls = getattr(tmrl_core.actor, f"{prefix}{name}")
        for kind in kinds:
            cls(BOX, OF_KIND[kind])
        assert actor_of(f"tmrl_core.actor:{prefix}{name}") == actor_of(f"{cls.__module__}:{prefix}{name}") == name


@pytest.mark.parametrize("name", MEMORIES)
def test_memories_are_known_by_every_name_they_have(name: str) -> None:
    cls = getattr(tmrl_core.training, name)
    assert memory_of(f"tmrl_core.training:{name}") == memory_of(f"{cls.__module__}:{name}") == name


@each_algorithm
def test_compatible_parts_are_accepted(algorithm: Algorithm) -> None:
    for collection in algorithm.collection:
        for actor in algorithm.actors:
            changes = {"worker__collection": collection, "actor__cls": f"tmrl_core.actor:{actor}"}
            from_values(values(algorithm, **changes))


@each_algorithm
def test_the_wrong_mode_and_the_wrong_policy_are_refused_with_the_pairs_that_work(algorithm: Algorithm) -> None:
    for collection in {"asynchronous", "synchronous", "lockstep"} - algorithm.collection:
        loop = (
            {"trainer__loop": LOOP}
            if collection == "lockstep"
            else {"trainer__loop": "tmrl_core.training:TrainingOffline"}
        )
        with pytest.raises(
            ConfigError,
            match=rf"worker\.collection: {collection} does not go with(.|\n)*\ndocs/choosing\.md lists what",
        ):
            from_values(values(algorithm, worker__collection=collection, **loop))
    for actor in ACTORS.keys() - algorithm.actors:
        with pytest.raises(ConfigError, match=rf"actor\.cls: .*{actor}.*\ndocs/choosing\.md lists what works together"):
            from_values(values(algorithm, actor__cls=f"tmrl_core.actor:{actor}"))


def test_the_memory_of_a_round_is_not_a_replay_memory() -> None:
    with pytest.raises(ConfigError, match=r"memory\.cls: .*RoundMemory does not go with .*SacAgent"):
        from_values(values(algorithms()["SacAgent"], memory__cls="tmrl_core.training:RoundMemory"))


def test_custom_classes_are_not_checked() -> None:
    from_values(
        {
            "agent": {"cls": "mine:Agent"},
            "actor": {"cls": "tmrl_core.actor:QValueMLPActor"},
            "memory": {"cls": "tmrl_core.training:RoundMemory"},
        }
    )
    from_values(values(algorithms()["SacAgent"], actor__cls="mine:Actor", memory__cls="mine:Memory"))


@each_algorithm
def test_the_wrong_action_space_is_refused_before_the_agent_is_made(algorithm: Algorithm) -> None:
    for kind, environment in (("box", "Pendulum-v1"), ("discrete", "CartPole-v1")):
        config = from_values(
            {
                **values(algorithm),
                "environment": {"cls": "tmrl_core.envs:GenericGymEnv", "kwargs": {"id": environment}},
            }
        )
        make = training_from_config(config)
        if kind not in algorithm.action_spaces:
            with pytest.raises(
                ConfigError, match=r"and the environment's action space is .*for it take agent\.cls: .* of tmrl"
            ):
                make()


def test_the_error_names_a_space_without_an_algorithm() -> None:
    space = gym.spaces.Tuple([DISCRETE])
    problem = action_space_problem("mine:Agent", frozenset({"box"}), space)
    assert problem is not None
    assert "(Tuple); no algorithm here takes it" in problem
    assert action_space_problem("mine:Agent", frozenset(), space) is None
    integers = gym.spaces.Box(0, 3, (1,), np.int64)
    assert action_space_problem("mine:Agent", frozenset({"box"}), integers) is not None


@pytest.mark.parametrize(
    ("agent", "actor", "space", "advice"),
    [
        ("PPOAgent", "GaussianMLPActor", DISCRETE, r"\(discrete\); .*: tmrl_core.actor:CategoricalMLPActor, or one of"),
        ("PPOAgent", "CategoricalMLPActor", BOX, r"\(box\); .*: tmrl_core.actor:GaussianMLPActor, or one of your own$"),
        ("Other", "NumpyQValueMLPActor", BOX, "Deterministic.* or .*:Gaussian.* or .*:Squashed.*, or one of your own$"),
        (
            "Other",
            "GaussianMLPActor",
            gym.spaces.Tuple([DISCRETE]),
            r"\(Tuple\); for it take actor.cls: one of your",
        ),
        (
            "Other",
            "GaussianMLPActor",
            gym.spaces.MultiBinary(2),
            r"\(multi_discrete\); for it .*:CategoricalMLPActor or .*:CategoricalRNNActor, or one of your",
        ),
        ("PPOAgent", "GaussianMLPActor", BOX, None),
        ("PPOAgent", "OwnActor", DISCRETE, None),
    ],
)
def test_the_error_for_a_wrong_policy_lists_the_fitting_ones(
    agent: str, actor: str, space: Any, advice: str | None
) -> None:
    settings: dict[str, Any] = {"actor": {"cls": f"tmrl_core.actor:{actor}"}, "agent": {"cls": f"mine:{agent}"}}
    if agent == "PPOAgent":
        settings |= {
            "agent": {"cls": f"tmrl_core.training:{agent}"},
            "worker": {"collection": "lockstep"},
            "trainer": {"loop": LOOP},
        }
    problem = policy_problem(from_values(settings), space)
    if advice is None:
        assert problem is None
    else:
        assert problem is not None
        assert re.search(advice, problem), problem


@pytest.mark.parametrize(
    ("space", "stack", "fits"),
    [
        (gym.spaces.Box(0, 255, (4, 8, 8), np.uint8), 4, True),
        (gym.spaces.Box(0, 255, (4, 8, 8), np.uint8), 3, False),
        (gym.spaces.Box(0, 1, (4,)), 4, False),
        (gym.spaces.Dict(a=gym.spaces.Box(0, 1, (3,)), b=gym.spaces.Tuple([gym.spaces.Box(0, 1, (2, 1))])), 2, True),
        (gym.spaces.Dict(a=gym.spaces.Box(0, 1, (3,)), b=gym.spaces.Discrete(4)), 4, False),
        (gym.spaces.Sequence(gym.spaces.Box(0, 1, (4, 2))), 4, True),  # nobody knows
    ],
)
def test_a_memory_of_stacks_needs_stacks(space: Any, stack: int, fits: bool) -> None:
    config = from_values({"memory": {"cls": "tmrl_core.training:FrameStackMemory", "kwargs": {"frame_stack": stack}}})
    problem = stacks_problem(config, space)
    assert (problem is None) == fits, problem
    changed = msgspec.structs.replace(
        config, worker=msgspec.structs.replace(config.worker, obs_preprocessor="mine:stack")
    )
    assert stacks_problem(changed, space) is None
    assert stacks_problem(from_values({}), space) is None


def test_a_trainer_refuses_a_wrong_policy_for_built_in_algorithms() -> None:
    settings = {
        "agent": {"cls": "tmrl_core.training:PPOAgent"},
        "actor": {"cls": "tmrl_core.actor:CategoricalMLPActor"},
        "worker": {"collection": "lockstep"},
        "trainer": {"loop": LOOP, "device": "cpu"},
    }
    make = training_from_config(from_values(settings))
    with pytest.raises(ConfigError, match=r"for it take actor\.cls: tmrl_core.actor:GaussianMLPActor"):
        make()


def test_a_trainer_refuses_a_frame_stack_memory_without_stacks() -> None:
    make = training_from_config(from_values({"memory": {"cls": "tmrl_core.training:FrameStackMemory"}}))
    with pytest.raises(ConfigError, match="no part of the environment's observation space"):
        make()


READY = [
    "cartpole_dqn",
    "cartpole_discrete_sac",
    "pendulum_redq",
    "pendulum_td3",
    "pendulum_tqc",
    "pendulum_crossq",
    "pendulum_flashsac",
]


@pytest.mark.parametrize("name", READY)
def test_ready_configurations_make_their_agent_with_the_workers_policy(name: str) -> None:
    config = load(Path(__file__).parents[2] / "config" / f"{name}.yaml", (), {})
    training = training_from_config(config)()
    env_space = training.agent.observation_space
    from tmrl_core.actor import choose_actor

    worker = choose_actor(config.actor.cls, config.actor.kwargs)(
        observation_space=env_space, action_space=training.agent.action_space
    )
    worker.from_blob(*training.agent.get_actor().to_blob(), device="cpu")
    assert type(worker).__name__.startswith("Numpy")


@pytest.mark.parametrize("memory", ["FrameStackMemory", "SequenceMemory"])
def test_memories_with_keywords_of_their_base_refuse_unknown_ones(memory: str) -> None:
    algorithm = next(one for one in algorithms().values() if memory in one.memories)
    kwargs = {"lenght": 8}
    config = from_values(values(algorithm, memory__cls=f"tmrl_core.training:{memory}", memory__kwargs=kwargs))
    with pytest.raises(ConfigError, match=rf"memory\.kwargs: .*'lenght'. {memory} takes device, .*keep_extras"):
        training_from_config(config)
    config = from_values(values(algorithm, memory__cls=f"tmrl_core.training:{memory}", memory__kwargs={"seed": "x"}))
    with pytest.raises(ConfigError, match=r"memory\.kwargs\.seed: found 'x', allowed: int \| None"):
        training_from_config(config)


@pytest.mark.parametrize(
    ("agent", "memory", "refused"),
    [({"burn_in": 16}, {"length": 16}, True), ({}, {"length": 8}, True), ({"burn_in": 15}, {"length": 16}, False)],
)
def test_a_burn_in_of_whole_sequences_is_refused(agent: Any, memory: Any, refused: bool) -> None:
    algorithm = algorithms()["RecurrentSacAgent"]
    settings = values(algorithm, agent__kwargs=agent, memory__kwargs=memory)
    if refused:
        with pytest.raises(ConfigError, match=r"agent\.kwargs\.burn_in: found \d+, allowed: less than memory\.kwargs"):
            from_values(settings)
    else:
        from_values(settings)
