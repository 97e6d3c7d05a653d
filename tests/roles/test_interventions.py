"""A source of interventions that the configuration names, at a worker and at the trainer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.actor.interventions import InterventionSource
from tmrl_core.config import from_values, use
from tmrl_core.errors import ConfigError
from tmrl_core.networking import RolloutWorker
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.training.memories.interventions import InterventionMemory
from tmrl_core.training.memories.mixed import MixedMemory

CLOSED: list[str] = []


class Every(InterventionSource):
    """Acts at every second step, and says success at a step."""

    def __init__(self, value: float, action_space: Any, success_at: int = 0) -> None:
        self.action = np.full(action_space.shape, value)
        self.success_at, self.steps = success_at, 0

    def poll(self, obs: Any) -> Any:
        self.steps += 1
        return self.action if self.steps % 2 == 0 else None

    def events(self) -> list[str]:
        return ["success"] if self.steps == self.success_at else []

    def close(self) -> None:
        CLOSED.append("every")


class Pad(Every):
    """A device that one worker can have."""

    device = "gamepad 7"


def broken() -> None:
    raise OSError("no device on port 3")


@contextlib.contextmanager
def worker(interventions: Any, **section: Any) -> Iterator[RolloutWorker]:
    config = from_values(
        {
            "run": {"seed": 3},
            "actor": {"kwargs": {"hidden_sizes": [8]}},
            "worker": {"max_samples_per_episode": 10, "interventions": interventions, **section},
        }
    )
    use(config)
    try:
        with roles.make_worker(config, standalone=True) as made:
            yield made
    finally:
        use(None)


def test_a_worker_lets_the_configured_source_take_over() -> None:
    CLOSED.clear()
    source = {"cls": f"{__name__}:Every", "kwargs": {"value": 1.5, "success_at": 6}, "success_reward": 100.0}
    with worker(source) as made:
        made.collect_train_episode()
        (record,) = made.buffer.episodes
        assert (record.end, record.length) == ("terminated", 6)
        assert record.metrics == {"is_success": 1.0, "intervention_rate": 0.5, "takeovers": 3.0}
        samples = list(made.buffer.memory)
        assert [float(sample[0][0]) for sample in samples[2::2]] == [1.5] * 3
        assert samples[-1][2] == 100.0
    assert CLOSED == ["every"]


def test_send_every_is_warned_of(caplog: Any) -> None:
    with worker({"cls": f"{__name__}:Every", "kwargs": {"value": 0.0}}, send_every=5):
        assert "worker.send_every: 5 sends parts of episodes before the person can discard them" in caplog.text


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (f"{__name__}:broken", r"cannot be made: OSError: no device on port 3\. Correct .*interventions: null on this"),
        ("builtins:dict", r"builtins:dict made a dict, which has no `poll\(obs\)`"),
        ("tmrl_core.teleop:Nothing", r"worker\.interventions\.cls: .*Nothing"),
    ],
)
def test_a_source_that_cannot_be_made_is_one_line(cls: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), worker({"cls": cls}):
        pass


def test_the_trainer_keeps_interventions_in_a_memory_of_their_own() -> None:
    shares = {"online": 0.5, "interventions": 0.5}
    values = {"memory": {"shares": shares, "n_step": 2}, "worker": {"interventions": {"cls": f"{__name__}:Every"}}}
    make_memory = training_from_config(from_values(values)).keywords["memory_cls"]  # type: ignore[attr-defined]
    memory = make_memory(nb_steps=1, device="cpu")
    assert isinstance(memory, MixedMemory)
    assert isinstance(memory.interventions, InterventionMemory)
    assert (memory.interventions.n_step, memory.interventions.batch_size, memory.recorded_sessions) == (2, 128, None)


def test_interventions_are_kept_whole_beside_memories_of_other_kinds() -> None:
    frames = {"cls": "tmrl_core.training:FrameStackMemory", "kwargs": {"frame_stack": 4}}
    values: dict[str, Any] = {
        "memory": {**frames, "shares": {"online": 0.5, "interventions": 0.5}, "n_step": 2},
        "worker": {"interventions": {"cls": f"{__name__}:Every"}},
    }
    memory = training_from_config(from_values(values)).keywords["memory_cls"](nb_steps=1, device="cpu")  # type: ignore[attr-defined]
    assert (type(memory.live).__name__, memory.live.frame_stack) == ("FrameStackMemory", 4)
    assert (type(memory.interventions), memory.interventions.n_step) == (InterventionMemory, 2)
    values["memory"]["kwargs"] = {"frame_stack": 4, "newest_only": True}
    with pytest.raises(ConfigError, match=r"newest_only .*needs whole stacks; .*give interventions no share"):
        training_from_config(from_values(values))


def test_a_device_is_one_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMRL_CORE_HOME", str(tmp_path))
    pad = {"cls": f"{__name__}:Pad", "kwargs": {"value": 0.5}}
    with worker(pad):
        CLOSED.clear()
        refused = rf"interventions: gamepad 7 is in use by process {os.getpid()} .*One worker .*interventions=null"
        with pytest.raises(ConfigError, match=refused), worker(pad):
            pass
        assert CLOSED == ["every"]
        with worker({**pad, "cls": f"{__name__}:Every"}):
            pass
    with worker(pad):
        pass
