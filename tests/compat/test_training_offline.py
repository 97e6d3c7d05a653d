"""The training loops of tmrl: data classes with the hook check_ratio."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from tmrl_core.compat.custom.custom_algorithms import SpinupSacAgent
from tmrl_core.compat.custom.custom_memories import GenericTorchMemory
from tmrl_core.compat.custom.custom_models import MLPActorCritic
from tmrl_core.compat.training_offline import TorchTrainingOffline, TrainingOffline
from tmrl_core.compat.util import partial
from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.training import LocalInterface

PARTS: dict[str, Any] = {
    "env_cls": partial(GenericGymEnv, id="Pendulum-v1", gym_kwargs={"render_mode": None}),
    "memory_cls": partial(GenericTorchMemory, batch_size=4),
    "training_agent_cls": partial(SpinupSacAgent, model_cls=partial(MLPActorCritic, hidden_sizes=(8,))),
}


def interface() -> LocalInterface:
    buffer = Buffer()
    buffer.append_sample((None, np.zeros(3, np.float32), 0.0, False, False, {}))
    for _ in range(40):
        buffer.append_sample((np.ones(1, np.float32), np.ones(3, np.float32), 1.0, False, False, {}))
    made = LocalInterface()
    made.put(buffer)
    return made


def test_it_is_a_data_class_whose_first_arguments_are_needed() -> None:
    assert [one.name for one in fields(TrainingOffline)][:4] == [
        "env_cls",
        "memory_cls",
        "training_agent_cls",
        "epochs",
    ]
    with pytest.raises(ConfigError, match="TrainingOffline needs env_cls"):
        TrainingOffline()


def test_a_data_class_may_be_derived_from_it() -> None:
    @dataclass(eq=False)
    class Mine(TorchTrainingOffline):
        bonus: float = 2.0

        def __post_init__(self) -> None:
            self.epochs += 1
            super().__post_init__()

    made = Mine(**PARTS, epochs=2, device="cpu", bonus=3.0)
    assert (made.epochs, made.bonus, made.agent.settings.gamma) == (3, 3.0, 0.99)


def test_a_round_gives_a_row_with_tmrls_names() -> None:
    training = TorchTrainingOffline(**PARTS, epochs=1, rounds=1, steps=5, device="cpu")
    (row,) = training.run_epoch(interface())
    assert {"memory_len", "round_time", "idle_time", "loss_actor", "loss_critic", "loss_entropy_coef"} <= row.keys()
    assert {"return_test", "return_train", "sampling_duration", "training_step_duration"} <= row.keys()
    assert row["memory_len"] == 40


def test_the_ratio_may_be_checked_by_a_subclass_between_any_two_updates() -> None:
    asked = []

    class Mine(TorchTrainingOffline):
        def check_ratio(self, interface: Any) -> None:
            asked.append(self.total_updates)
            super().check_ratio(interface)

    Mine(**PARTS, epochs=1, rounds=2, steps=3, device="cpu").run_epoch(interface())
    assert asked == [0, 1, 2, 3, 3, 4, 5, 6]


def test_the_ratio_may_be_left_unchecked() -> None:
    class Mine(TorchTrainingOffline):
        def check_ratio(self, interface: Any) -> None:
            if not self.total_samples:
                self.update_buffer(interface)

    training = Mine(**PARTS, epochs=1, rounds=1, steps=60, device="cpu", max_training_steps_per_env_step=0.1)
    training.run_epoch(interface())
    assert training.total_updates == 60
