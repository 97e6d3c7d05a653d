"""Wrong arguments of classes and functions: the error names the argument, the value found and what is allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tmrl_core.actor import ActorModule, SquashedGaussianMLPActor
from tmrl_core.config import from_values
from tmrl_core.errors import CheckpointError, ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.training import (
    DQNAgent,
    FrameStackMemory,
    LocalInterface,
    PPOAgent,
    REDQSACAgent,
    ReplayMemory,
    RoundMemory,
    SacAgent,
    TD3Agent,
    TrainingLockstep,
    TrainingOffline,
)

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
CHOICES = gymnasium.spaces.Discrete(2)
VIDEO = gymnasium.spaces.Box(0, 255, (2, 2, 64, 64, 3), np.uint8)


class Own(ActorModule):
    """A policy that cannot be saved."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return None


def training(hidden: int = 8) -> TrainingOffline:
    def agent(**kwargs: Any) -> SacAgent:
        return SacAgent(**kwargs, hidden_sizes=(hidden,))

    return TrainingOffline((BOX, ACTIONS), ReplayMemory, agent, epochs=1, rounds=1, steps=1, device="cpu")


WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "values": (
        lambda: from_values({"memory": {"batch_size": "many"}}),
        ConfigError,
        "memory.batch_size: found the text 'many', allowed: a whole number of at least 1",
    ),
    "buffer": (lambda: Buffer(0), ValueError, "maxlen must be None or at least 1, got 0"),
    "sample": (lambda: Buffer(3).append_sample((1, 2, 3)), ValueError, "expected 6, got 3"),
    "redq": (
        lambda: REDQSACAgent(BOX, ACTIONS, "cpu", n=2, m=3),
        ConfigError,
        "REDQ needs 1 <= m <= n, got m=3 and n=2",
    ),
    "td3": (lambda: TD3Agent(BOX, ACTIONS, "cpu", policy_delay=0), ConfigError, "policy_delay: found 0, allowed"),
    "dqn": (lambda: DQNAgent(BOX, CHOICES, "cpu", target_interval=0), ConfigError, "target_interval: found 0, allowed"),
    "ppo": (
        lambda: PPOAgent(BOX, ACTIONS, "cpu", minibatch_size=1),
        ConfigError,
        "agent.kwargs.minibatch_size: found 1, allowed: at least 2",
    ),
    "agent of another space": (
        lambda: DQNAgent(BOX, ACTIONS, "cpu"),
        ConfigError,
        "chooses from a Discrete space, the environment's action space is Box(-1.0, 1.0, (1,), float32)",
    ),
    "optimizer": (
        lambda: SacAgent(BOX, ACTIONS, "cpu", optimizer_actor="lion"),
        ConfigError,
        "unknown optimizer 'lion'; allowed: adam, adamw, sgd",
    ),
    "policy of another space": (
        lambda: SquashedGaussianMLPActor(BOX, CHOICES),
        ConfigError,
        "acts in a Box of floats, the environment's action space is Discrete(2)",
    ),
    "policy of videos": (
        lambda: SquashedGaussianMLPActor(VIDEO, ACTIONS, convolutions="small"),
        ConfigError,
        "(2, 2, 64, 64, 3), uint8) has no image. Leave it out, or make observations Boxes of bytes [height, width]",
    ),
    "policy without save": (
        lambda: Own(BOX, ACTIONS).save("policy.tmod"),
        NotImplementedError,
        "Own has no save(path). Implement save(path) and load(path, device)",
    ),
    "capacity": (
        lambda: ReplayMemory("cpu", 1, memory_size=10.5),
        ConfigError,
        "memory_size must be a whole number of at least 1 (and at most 2^62), got 10.5",
    ),
    "folder": (lambda: ReplayMemory("cpu", 1, storage="disk"), ConfigError, "needs a folder; set memory.folder"),
    "stack": (lambda: FrameStackMemory("cpu", 1, frame_stack=0), ConfigError, "frame_stack must be a whole number"),
    "empty memory": (lambda: next(iter(ReplayMemory("cpu", 1))), ValueError, "holds no transition yet"),
    "lockstep": (
        lambda: TrainingLockstep((BOX, ACTIONS), RoundMemory, PPOAgent, steps_per_round=3, episodes_per_round=3),
        ConfigError,
        "set one of steps_per_round and episodes_per_round, the other one to null; found 3 and 3",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_value_found_and_the_allowed_ones_are_named(name: str) -> None:
    call, kind, said = WRONG[name]
    with pytest.raises(kind) as raised:
        call()
    assert said in str(raised.value)


def test_a_checkpoint_of_other_networks_names_both_sizes(tmp_path: Path) -> None:
    training().save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"another configuration: .*net\.0\.weight was \[8, 3\] and is \[4, 3\]"):
        training(4).load(tmp_path / "saved")


def test_a_checkpoint_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file is a file; a checkpoint is a folder"):
        training().save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros(4, np.float32), "the observation of 3 samples is (value: float32[4]), but this memory holds"),
        ("left", "the observation holds values that are no numeric array"),
    ],
)
def test_refused_samples_are_logged_with_the_reason(
    observation: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    interface, made = LocalInterface(), training()
    for one in (np.zeros(3, np.float32), observation):
        buffer = Buffer(10)
        for _ in range(3):
            buffer.append_sample((np.zeros(1, np.float32), one, 0.0, False, False, {}))
        interface.put(buffer)
        made.update_buffer(interface)
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert message.startswith("samples refused: ")
    assert said in message
