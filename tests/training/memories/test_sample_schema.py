from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor import ActorModule
from tmrl_core.actor.rollout.step_checks import make_observation_check
from tmrl_core.config import from_values
from tmrl_core.errors import SampleRefusedError
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training import FrameStackMemory, GenericTorchMemory, ReplayMemory
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.sample_schema import DeclaredSamples

Rows = Callable[..., Chunk]

BOX3 = spaces.Box(-9.0, 9.0, (3,), np.float32)
BOX1 = spaces.Box(-9.0, 9.0, (1,), np.float32)


def buffer(*chunks: Chunk) -> Buffer:
    made = Buffer(maxlen=None)
    made.extend(list(chunks), [])
    return made


def seen(make_rows: Rows, value: Any, action: Any = None) -> Chunk:
    """Three rows, each with this observation and action."""
    chunk = make_rows(1, 0, 0, 3, observation=lambda rows: repeated(value))
    return dataclasses.replace(chunk, action=repeated(np.zeros(1, np.float32) if action is None else action))


def repeated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: repeated(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(repeated(part) for part in value)
    return [value] * 3 if isinstance(value, str) else np.stack([np.asarray(value)] * 3)


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4), np.uint8),
        "more": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 5]), spaces.MultiBinary(2))),
    }
)


def nested(image: Any = None, discrete: Any = 1, counts: Any = (1, 4)) -> Any:
    image = np.zeros((4, 4), np.uint8) if image is None else image
    return {"image": image, "more": (discrete, np.array(counts), np.ones(2, np.int8))}


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX3, np.zeros(3, np.float32)),
        (BOX3, np.zeros(3, ">f4")),
        (spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.uint8)),
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3), np.int32(2)),
        (spaces.Discrete(3, start=5), 7),
        (NESTED, nested()),
        (NESTED, nested(discrete=-1)),
        (spaces.Tuple((BOX3, spaces.Text(9))), (np.zeros(3, np.float32), "anything")),
        (spaces.Sequence(BOX3), np.zeros((7, 3))),
        (None, np.zeros(8)),
    ],
)  # fmt: skip
def test_samples_of_the_declared_space_are_accepted(space: Any, value: Any, make_rows: Rows) -> None:
    DeclaredSamples(space, BOX1).check(seen(make_rows, value))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX3, np.zeros(3, np.float64)),
        (BOX3, np.zeros(3, np.int64)),
        (spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.float32)),
        (spaces.Discrete(3), 2.0),
        (spaces.MultiBinary(2), np.zeros(2, bool)),
        (spaces.MultiDiscrete([2, 2]), np.zeros(2, np.int32)),
    ],
)
def test_dtypes_that_workers_refuse_are_refused(space: Any, value: Any, make_rows: Rows) -> None:
    assert make_observation_check(space).problem(value) is not None
    with pytest.raises(SampleRefusedError, match="the observation of samples is"):
        DeclaredSamples(space, BOX1).check(seen(make_rows, value))
    DeclaredSamples(BOX3, space, {"action"}).check(seen(make_rows, np.zeros(3, np.float32), value))


@pytest.mark.parametrize(
    ("space", "value", "found", "declared"),
    [
        (BOX3, np.zeros(4, np.float32), "the observation of samples is float32[4]", "float32[3]"),
        (BOX3, np.zeros((3, 1), np.float32), "is float32[3, 1]", "float32[3]"),
        (BOX3, 1.0, "is float64[]", "float32[3]"),
        (BOX3, (np.zeros(3),), "is a tuple of 1", "float32[3]"),
        (BOX3, {"x": np.zeros(3)}, "is a dict of x", "float32[3]"),
        (BOX3, np.zeros(3, np.complex64), "is complex64[3]", "float32[3]"),
        (BOX3, "text", "is no array", "float32[3]"),
        (spaces.Discrete(3), 3, "is 3", "Discrete(3)"),
        (spaces.Discrete(3), -1, "is -1", "Discrete(3)"),
        (spaces.Discrete(3), float("nan"), "is float64[]", "int64[]"),
        (spaces.Discrete(3), np.uint64(2**64 - 1), "is 18446744073709551615", "Discrete(3)"),
        (NESTED, nested(image=np.zeros((4, 5))), "the observation/image of samples is float64[4, 5]", "uint8[4, 4]"),
        (NESTED, nested(discrete=2), "the observation/more/0 of samples is 2", "Discrete(3, start=-1)"),
        (NESTED, nested(counts=(1, 5)), "the observation/more/1 of samples is 5", "MultiDiscrete"),
        (NESTED, {**nested(), "odd": np.zeros(1)}, "is a dict of image, more, odd", "a dict of image, more"),
        (NESTED, np.zeros(3), "is float64[3]", "a dict of image, more"),
        (NESTED, {**nested(), "more": (1, 2)}, "the observation/more of samples is a tuple of 2", "a tuple of 3"),
    ],
)  # fmt: skip
def test_the_error_names_the_difference_from_the_declaration(
    space: Any, value: Any, found: str, declared: str, make_rows: Rows
) -> None:
    with pytest.raises(SampleRefusedError) as refused:
        DeclaredSamples(space, BOX1).check(seen(make_rows, value))
    assert found in str(refused.value)
    assert f"the environment declares {declared}" in str(refused.value)
    assert "trainer.check_spaces" in str(refused.value)


def test_encoded_images_that_the_trainer_does_not_expect_name_the_setting(make_rows: Rows) -> None:
    chunk = dataclasses.replace(seen(make_rows, np.zeros(3, np.float32)), observation=[b"a file"] * 3)
    with pytest.raises(SampleRefusedError, match=r"is encoded images \(set worker\.images for the trainer too\)"):
        DeclaredSamples(BOX3, BOX1).check(chunk)


def test_only_rows_with_actions_are_checked(make_rows: Rows) -> None:
    declared = DeclaredSamples(BOX3, spaces.Discrete(2, start=1))
    chunk = seen(make_rows, np.zeros(3, np.float32), np.int64(1))
    chunk.action = np.array([0, 1, 2])  # the first is a reset's, which has none
    declared.check(chunk)
    declared.check(dataclasses.replace(chunk, action=(), action_present=np.zeros(3, bool)))
    chunk.action = np.array([0, 1, 3])
    with pytest.raises(SampleRefusedError, match=r"the action of samples is 3, .*Discrete\(2, start=1\)"):
        declared.check(chunk)
    with pytest.raises(SampleRefusedError, match="the action of samples is a tuple of 0"):
        declared.check(dataclasses.replace(chunk, action=()))


def test_dtypes_of_actions_may_be_checked(make_rows: Rows) -> None:
    zeros = np.zeros(3, np.float32)
    for space, good, bad in (
        (BOX1, np.zeros(1, np.float32), np.zeros(1, np.int8)),
        (BOX1, np.zeros(1, ">f4"), np.zeros(1, np.float64)),
        (spaces.Discrete(2), np.int64(1), np.int32(1)),
        # The project's policies choose by int64, also where the space has other integers.
        (spaces.Discrete(2, dtype=np.int32), np.int64(1), np.int32(1)),
        (spaces.Box(-1, 1, (1,), np.dtype(">f4")), np.zeros(1, ">f4"), np.zeros(1, np.float64)),
    ):
        exact = DeclaredSamples(BOX3, space, {"action", "dtypes"})
        exact.check(seen(make_rows, zeros, good))
        DeclaredSamples(BOX3, space).check(seen(make_rows, zeros, good))
        DeclaredSamples(BOX3, space, {"action"}).check(seen(make_rows, zeros, bad))
        with pytest.raises(SampleRefusedError, match=rf"the action of samples is {bad.dtype}"):
            exact.check(seen(make_rows, zeros, bad))


def test_extras_are_those_of_the_policy(make_rows: Rows) -> None:
    declared = DeclaredSamples(BOX3, BOX1, extras={"logp": np.float32(0.0), "drawn": np.zeros(2)})
    chunk = seen(make_rows, np.zeros(3, np.float32))
    good: dict[str, Any] = {"logp": np.zeros(3, np.float32), "drawn": np.zeros((3, 2))}
    declared.check(dataclasses.replace(chunk, extras=good))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "have the extras , and the policy's are drawn, logp"),
        ({**good, "more": np.zeros(3)}, "have the extras drawn, logp, more"),
        ({**good, "logp": np.zeros((3, 1))}, r"the extra logp is float64\[1\], and the policy's is float32\[\]"),
        ({**good, "logp": (np.zeros(3),)}, "the extra logp is a tuple of 1"),
    ]
    for extras, reason in wrong:
        with pytest.raises(SampleRefusedError, match=reason):
            declared.check(dataclasses.replace(chunk, extras=extras))
    exact = DeclaredSamples(BOX3, BOX1, {"extras", "dtypes"}, {"logp": np.float32(0.0)})
    exact.check(dataclasses.replace(chunk, extras={"logp": np.zeros(3, np.float32)}))
    with pytest.raises(SampleRefusedError, match=r"the extra logp is float16\[\], and the policy's is float32\[\]"):
        exact.check(dataclasses.replace(chunk, extras={"logp": np.zeros(3, np.float16)}))
    DeclaredSamples(BOX3, BOX1, {"action"}, {"logp": 0.0}).check(dataclasses.replace(chunk, observation=np.zeros(3)))


# --- in the memories -------------------------------------------------------------------------------------------------


class Agent(TrainingAgent):
    """Looks at its batches."""

    batch: Any = None

    def train(self, batch: Any) -> dict[str, Any]:
        self.batch = batch
        return {}

    def get_actor(self) -> Any:
        return None


def offline(
    memory: Any = ReplayMemory, *, spaces: Any = (BOX3, BOX1), declared: Any = ("observation", "action")
) -> Any:
    memory = partial(memory, memory_size=1000, batch_size=4)
    return TrainingOffline(spaces, memory, Agent, epochs=1, rounds=1, steps=2, device="cpu", declared=declared)


def test_samples_of_another_environment_do_not_set_the_format(make_rows: Rows) -> None:
    training, interface = offline(), LocalInterface()
    wrong = [
        seen(make_rows, np.zeros(5, np.float32)),
        seen(make_rows, np.zeros(3, np.float32), np.zeros(2, np.float32)),
        seen(make_rows, {"x": np.zeros(3, np.float32)}),
    ]
    interface.put(buffer(*wrong))
    training.update_buffer(interface)
    assert (training.total_samples, len(training.memory), training.memory.layout) == (0, 0, None)
    assert "all 9 samples that have arrived were refused: the observation of samples" in training._shortfall()
    interface.put(buffer(make_rows(1, 0, 0, 6)))
    training.run_epoch(interface)
    assert (training.total_samples, len(training.memory)) == (6, 5)
    assert training.agent.batch[0].shape == (4, 3)


def test_undeclared_samples_are_not_checked(make_rows: Rows) -> None:
    """Preprocessors, compressors and memories of one's own change samples on their way."""
    chunk = seen(make_rows, np.zeros(5, np.float32))
    for training in (offline(declared=()), offline(GenericTorchMemory)):
        assert training.memory.append(buffer(chunk)) == []
        assert len(training.memory) == 2


def test_stacked_frames_come_as_the_environment_sends_them(make_rows: Rows) -> None:
    stacks = spaces.Box(0, 255, (4, 2, 2), np.uint8)
    memory = offline(partial(FrameStackMemory, frame_stack=4), spaces=(stacks, BOX1)).memory
    assert len(memory.append(buffer(seen(make_rows, np.zeros((3, 2, 2), np.uint8))))) == 1
    assert memory.append(buffer(seen(make_rows, np.zeros((4, 2, 2), np.uint8)))) == []
    assert len(memory) == 2


def test_an_out_of_range_choice_is_refused_without_ending_training(make_rows: Rows) -> None:
    """Networks use such integers as indices."""
    make = partial(DQNAgent, hidden_sizes=(8,))
    memory = partial(ReplayMemory, memory_size=1000, batch_size=16)
    training = TrainingOffline(
        (BOX3, spaces.Discrete(2)), memory, make, epochs=1, rounds=1, steps=2, device="cpu",
        declared=("observation", "action"),
    )  # fmt: skip
    interface = LocalInterface()
    zeros = np.zeros(3, np.float32)
    interface.put(buffer(*(seen(make_rows, zeros, np.int64(action)) for action in (1, 7, -1, 0))))
    training.run_epoch(interface)
    assert (training.total_samples, training.total_updates) == (6, 2)


def lockstep(declared: Any = ("observation", "action", "extras")) -> Any:
    make = partial(PPOAgent, hidden_sizes=(8,))
    return TrainingLockstep((BOX3, BOX1), None, make, steps_per_round=8, device="cpu", declared=declared)


def test_the_first_samples_of_a_round_do_not_set_the_format(make_rows: Rows) -> None:
    memory = lockstep().memory
    extras: dict[str, Any] = {"logp": np.zeros(3, np.float32), "drawn": np.zeros((3, 1), np.float32)}
    good = dataclasses.replace(seen(make_rows, np.zeros(3, np.float32)), extras=extras)
    wrong = [
        seen(make_rows, "text"),
        dataclasses.replace(good, observation=np.zeros((3, 4), np.float32)),
        dataclasses.replace(good, action=np.zeros((3, 2), np.float32)),
        dataclasses.replace(good, extras={"logp": extras["logp"]}),
        dataclasses.replace(good, extras={**extras, "drawn": np.zeros((3, 2), np.float32)}),
        dataclasses.replace(good, reward=np.zeros((3, 2))),
    ]
    refused = memory.append(buffer(*wrong, good))
    assert [id(chunk) for chunk, _ in refused] == [id(chunk) for chunk in wrong]
    assert "the environment declares float32[3]" in str(refused[1][1])
    assert "the policy's are drawn, logp" in str(refused[3][1])


def test_a_policy_without_declared_extras_may_have_any(make_rows: Rows) -> None:
    class Silent(ActorModule):
        def act(self, obs: Any, test: bool = False) -> Any:
            return np.zeros(1, np.float32)

        def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
            return self.act(obs), {"logp": 0.0}

    class Quiet(Agent):
        def get_actor(self) -> Any:
            return Silent(self.observation_space, self.action_space)

    training = TrainingLockstep((BOX3, BOX1), None, Quiet, steps_per_round=8, declared=("extras",), device="cpu")
    chunk = dataclasses.replace(seen(make_rows, np.zeros(3)), extras={"logp": np.zeros(3)})
    assert training.memory.append(buffer(chunk)) == []


# --- by the configuration --------------------------------------------------------------------------------------------


def refuses(make_rows: Rows, **sections: Any) -> tuple[bool, bool]:
    """Whether it refuses observations of another shape, and actions."""
    kwargs = {"id": "Pendulum-v1", "to_float32": True}
    trainer = {"device": "cpu", **sections.pop("trainer", {})}
    config = from_values({"environment": {"kwargs": kwargs}, "trainer": trainer, **sections})
    make = training_from_config(config)
    observation = seen(make_rows, np.zeros(5, np.float32))
    action = seen(make_rows, np.zeros(3, np.float32), np.zeros(2, np.float32))
    return bool(make().memory.append(buffer(observation))), bool(make().memory.append(buffer(action)))


def test_a_configuration_that_changes_no_samples_declares_them(make_rows: Rows) -> None:
    assert refuses(make_rows) == (True, True)
    assert refuses(make_rows, memory={"sample_preprocessor": "builtins:print"}) == (True, True)


def test_outputs_of_preprocessors_and_compressors_are_not_declared(make_rows: Rows) -> None:
    generic = {"cls": "tmrl_core.training:GenericTorchMemory"}
    agent = {"cls": "tests.training.memories.test_sample_schema:Agent"}
    assert refuses(make_rows, worker={"sample_compressor": "builtins:print"}) == (False, False)
    assert refuses(make_rows, memory=generic, agent=agent) == (False, False)


def test_actions_are_declared_with_preprocessed_observations(make_rows: Rows) -> None:
    assert refuses(make_rows, worker={"obs_preprocessor": "builtins:tuple"}) == (False, True)


def test_it_can_be_switched_off(make_rows: Rows) -> None:
    assert refuses(make_rows, trainer={"check_spaces": False}) == (False, False)


def test_dtypes_of_actions_are_declared_for_built_in_policies(make_rows: Rows) -> None:
    chunk = seen(make_rows, np.zeros(3, np.float32), np.zeros(1, np.int8))
    for actor, refused in (("tmrl_core.actor:SquashedGaussianMLPActor", 1), ("mine:Policy", 0)):
        agent = {"cls": "tests.training.memories.test_sample_schema:Agent"}
        config = from_values({"actor": {"cls": actor}, "agent": agent, "trainer": {"device": "cpu"}})
        assert len(training_from_config(config)().memory.append(buffer(chunk))) == refused
