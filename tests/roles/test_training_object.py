from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core import training
from tmrl_core.config import Config, from_values
from tmrl_core.config.sections import LimiterSection, LockstepSection, TrainerSection
from tmrl_core.errors import ConfigError
from tmrl_core.roles.training_object import loop_settings, prepare_torch, training_from_config
from tmrl_core.sessions import Session, SessionWriter
from tmrl_core.training.agents.networks import REDQMLPActorCritic
from tmrl_core.training.loops.limiter import RateLimiter
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.loops.training_loop import TrainingOffline


def config(**sections: Any) -> Config:
    return from_values(sections)


def test_every_key_reaches_its_parameter() -> None:
    training = training_from_config(
        config(
            trainer={
                "epochs": 3, "rounds": 4, "steps": 5, "update_model_interval": 6, "update_buffer_interval": 7,
                "max_training_steps_per_env_step": 8.5, "sleep_between_buffer_retrieval_attempts": 9.5,
                "profiling": True, "start_training": 10, "device": "cpu", "max_policy_lag": 11,
                "agent_scheduler": "builtins:print",
            },
            memory={"capacity": 120, "batch_size": 13, "kwargs": {"seed": 1}},
            worker={"crc_debug": True},
            agent={"kwargs": {"gamma": 0.5}},
            actor={"kwargs": {"hidden_sizes": [14]}},
        )
    )()  # fmt: skip
    names = (
        "epochs", "rounds", "steps", "update_model_interval", "update_buffer_interval",
        "max_training_steps_per_env_step", "sleep_between_buffer_retrieval_attempts", "profiling", "start_training",
        "device", "max_policy_lag", "agent_scheduler",
    )  # fmt: skip
    found = [getattr(training, name) for name in names]
    assert found == [3, 4, 5, 6, 7, 8.5, 9.5, True, 10, "cpu", 11, print]
    memory, agent = training.memory, training.agent
    assert (memory.memory_size, memory.batch_size, memory.nb_steps, memory.crc_debug) == (120, 13, 5, True)
    assert agent.settings.gamma == 0.5
    # What describes the workers' policy describes the agent's.
    assert agent.model.actor.mu.in_features == 14


@pytest.mark.parametrize(
    ("chosen", "compressor", "expected"),
    [("refuse", None, "refuse"), ("clip", None, "clip"), ("refuse", "builtins:print", None), ("clip", "a:b", "clip")],
)
def test_recorded_actions_are_not_compared_behind_a_compressor(
    chosen: str, compressor: str | None, expected: str | None
) -> None:
    made = config(memory={"recorded_actions": chosen}, worker={"sample_compressor": compressor})
    assert loop_settings(made, TrainingOffline)["recorded_actions"] == expected


class Arm(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(0, 100, (2,), np.float32)


def test_bounds_that_a_recording_lacks_are_the_environment_s(tmp_path: Path) -> None:
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    for name, actions in (("theirs", free), ("other", spaces.Box(0, 1, (2,), np.float32))):
        with SessionWriter(tmp_path / name, Arm.observation_space, actions) as writer:
            session = Session(
                observations=np.zeros((3, 2), np.float32), actions=np.full((2, 2), 80, np.float32), rewards=np.zeros(2)
            )
            writer.write(session)

    def made(name: str) -> Any:
        sections = {"trainer": {"offline": str(tmp_path / name)}, "environment": {"cls": f"{__name__}:Arm"}}
        return training_from_config(config(**sections))()

    assert made("theirs").agent.action_space == Arm.action_space
    with pytest.raises(ConfigError, match=r"other was recorded in another environment: its actions are Box\(0.0, 1.0"):
        made("other")


def test_every_setting_of_a_loop_has_a_parameter_or_another_reader() -> None:
    accepted = {*signature(TrainingOffline.__init__).parameters, *signature(TrainingLockstep.__init__).parameters}
    elsewhere = {
        "loop",
        "inbox_bytes",
        "check_spaces",
        "check_environment",
        "model_path",
        "evaluation",
        "limiter",
        "lockstep",
    }
    declared = {
        *TrainerSection.__struct_fields__,
        *LimiterSection.__struct_fields__,
        *LockstepSection.__struct_fields__,
    }
    assert declared - accepted == elsewhere


def test_a_custom_loop_gets_the_parameters_of_tmrl_and_those_set(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(training, "Custom", given.update, raising=False)
    settings = {"loop": "tmrl_core.training:Custom", "threads": 2, "max_policy_lag": 3}
    training_from_config(config(trainer=settings))()
    tmrl = set(list(signature(TrainingOffline).parameters)[:14])
    assert set(given) == tmrl | {"max_policy_lag"}


def test_a_memory_on_disk_is_in_its_folder(tmp_path: Path) -> None:
    for memory, folder in (({}, tmp_path / "main" / "memory"), ({"folder": str(tmp_path / "else")}, tmp_path / "else")):
        settings = config(
            run={"folder": str(tmp_path), "name": "main"},
            memory={"storage": "disk", "sync": "fsync", **memory},
            trainer={"device": "cpu"},
        )
        training = training_from_config(settings)()
        assert training.memory.disk.folder == folder
        training.memory.close()


def test_a_memory_of_stacked_frames_may_be_on_disk(tmp_path: Path) -> None:
    settings = config(
        run={"folder": str(tmp_path), "name": "main"},
        memory={"storage": "disk", "cls": "tmrl_core.training:FrameStackMemory", "kwargs": {"frame_stack": 3}},
        worker={"obs_preprocessor": "mine:stacked"},
        trainer={"device": "cpu"},
    )
    memory = training_from_config(settings)().memory
    assert (memory.disk.folder, memory.frame_stack) == (tmp_path / "main" / "memory", 3)
    memory.close()


@pytest.mark.parametrize("memory_cls", ["GenericTorchMemory", "TorchMemory"])
def test_a_memory_of_rows_is_not_on_disk(memory_cls: str, tmp_path: Path) -> None:
    settings = config(
        run={"folder": str(tmp_path)}, memory={"storage": "disk", "cls": f"tmrl_core.training:{memory_cls}"}
    )
    with pytest.raises(ConfigError, match=rf"memory\.storage: disk, but .*{memory_cls} .*ReplayMemory"):
        training_from_config(settings)


def test_sampling_settings_reach_the_memory() -> None:
    settings = {"max_drawn_lag": 7, "prefetch": 1}
    memory = training_from_config(config(memory=settings, trainer={"device": "cpu"}))().memory
    assert (memory.prefetch, memory.sampler.fresh.max_lag) == (1, 7)
    with pytest.raises(ConfigError, match=r"memory\.kwargs.*max_drawn_lag.*GenericTorchMemory takes"):
        training_from_config(config(memory={"max_drawn_lag": 7, "cls": "tmrl_core.training:GenericTorchMemory"}))


def test_extras_are_kept_for_agents_that_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from tmrl_core.training import SacAgent

    settings = config(trainer={"device": "cpu"})
    assert training_from_config(settings)().memory.keep_extras
    monkeypatch.setattr(SacAgent, "wants_extras", False)
    assert not training_from_config(settings)().memory.keep_extras


def test_the_limiter_reaches_the_loop() -> None:
    limiter = {"samples_per_insert": 8.5, "error_buffer": 300}
    training = training_from_config(config(trainer={"limiter": limiter, "device": "cpu"}))()
    assert (training.limiter.min_size, training.limiter.batch_size) == (1000, 256)
    same = RateLimiter(8.5, 1000, 300, 256, max_updates_per_sample=1.0)
    counts = [(1000, 0), (1000, 34), (2000, 60), (9000, 300)]
    left = [training.limiter.updates_left(*count) for count in counts]
    assert left == [same.updates_left(*count) for count in counts]
    assert left != [
        RateLimiter(8.5, 1000, 600, 256, max_updates_per_sample=1.0).updates_left(*count) for count in counts
    ]


def test_a_model_may_be_named() -> None:
    kwargs = {"model_cls": "tmrl_core.training:REDQMLPActorCritic", "hidden_sizes": [8]}
    training = training_from_config(config(agent={"kwargs": kwargs}, trainer={"device": "cpu"}))()
    assert isinstance(training.agent.model, REDQMLPActorCritic)


def test_a_misspelled_size_of_the_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor.kwargs: got an unexpected keyword argument 'hiden_sizes'"):
        training_from_config(from_values({"actor": {"kwargs": {"hiden_sizes": [8]}}}))


def test_the_error_for_a_wrong_reference_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"agent\.cls"):
        training_from_config(config(agent={"cls": "tmrl_core.training:Nothing"}))


@pytest.mark.parametrize(
    ("values", "threads"),
    [
        ({}, None),
        ({"trainer": {"threads": 3}}, 3),
        ({"run": {"seed": 1}}, None),
        ({"run": {"seed": 1}, "worker": {"collection": "synchronous"}}, 1),
        ({"run": {"seed": 1}, "worker": {"collection": "synchronous"}, "trainer": {"threads": 3}}, 3),
    ],
)
def test_a_repeatable_run_uses_a_fixed_number_of_threads(values: dict[str, Any], threads: int | None) -> None:
    assert training_from_config(config(**values)).keywords["threads"] == threads  # type: ignore[attr-defined]


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    try:
        prepare_torch(config(trainer={"threads": 3}))
        assert torch.get_num_threads() == 3
        prepare_torch(config())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def two_pendulums() -> Any:
    return gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")


def test_the_spaces_of_a_vector_environment_are_those_of_one() -> None:
    environment = {"cls": "tests.roles.test_training_object:two_pendulums"}
    training = training_from_config(config(environment=environment, worker={"envs": 2}, trainer={"device": "cpu"}))()
    assert training.environment_identity["action_space"] == repr(gymnasium.make("Pendulum-v1").action_space)


def test_steps_and_priorities_reach_the_memory_with_the_agent_s_discount() -> None:
    settings = config(
        memory={"n_step": 3, "sampling": "prioritized", "priority": {"alpha": 0.5}},
        agent={"kwargs": {"gamma": 0.9}},
        trainer={"device": "cpu"},
    )
    memory = training_from_config(settings)().memory
    assert (memory.n_step, memory.gamma, memory.sampler.priorities.settings.alpha) == (3, 0.9, 0.5)


@pytest.mark.parametrize("memory", [{"n_step": 3}, {"sampling": "prioritized"}])
def test_an_agent_without_extras_is_refused_with_a_memory_that_adds_some(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tmrl_core.training import SacAgent

    monkeypatch.setattr(SacAgent, "wants_extras", False)
    with pytest.raises(ConfigError, match="does not look at"):
        training_from_config(config(memory=memory, trainer={"device": "cpu"}))


LOCKSTEP = {
    "worker": {"collection": "lockstep"},
    "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
    "agent": {"cls": "tmrl_core.training:PPOAgent"},
}


def test_lockstep_settings_reach_the_loop() -> None:
    trainer = {
        "loop": "tmrl_core.training:TrainingLockstep", "epochs": 3, "rounds": 4, "device": "cpu",
        "lockstep": {"steps_per_round": None, "episodes_per_round": 5, "grace_s": 6.5, "min_workers": 7},
    }  # fmt: skip
    training = training_from_config(config(**LOCKSTEP, trainer=trainer, run={"seed": 8}))()
    assert (training.epochs, training.rounds, training.seed) == (3, 4, 8)
    assert (training.steps_per_round, training.episodes_per_round) == (None, 5)
    assert (training.grace_s, training.min_workers) == (6.5, 7)


def test_an_on_policy_agent_is_refused_outside_lockstep() -> None:
    with pytest.raises(ConfigError, match=r"worker\.collection: asynchronous .* agent\.cls: .*PPOAgent.*lockstep"):
        training_from_config(config(**{**LOCKSTEP, "worker": {}}))


@pytest.mark.parametrize("device", ["meta", "cuda:99", "no such"])
def test_a_device_that_does_not_compute_is_refused_before_anything_is_made(device: str) -> None:
    with pytest.raises(ConfigError, match=f"^trainer.device: found '{device}', allowed: a device of this machine"):
        prepare_torch(config(trainer={"device": device}))


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"lr_critic": -1.0}, r"lr_critic: -1\.0.*Invalid learning rate"),
        ({"gamma": 0.9, "betas_critic": []}, "index out of range"),
    ],
)
def test_values_that_an_agent_refuses_are_config_errors(agent: Any, words: str) -> None:
    make = training_from_config(config(agent={"kwargs": agent}, trainer={"device": "cpu"}))
    with pytest.raises(ConfigError, match=rf"agent\.kwargs: .*SacAgent cannot be made with .*{words}"):
        make()


@pytest.mark.parametrize("section", ["agent", "actor"])
@pytest.mark.parametrize("value", ["x", 5, [0.5]])
def test_values_of_another_type_are_refused_before_anything_is_made(section: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.kwargs\.hidden_sizes: found .*, allowed: Sequence\[int\]"):
        training_from_config(config(**{section: {"kwargs": {"hidden_sizes": value}}}))


def test_errors_of_a_custom_agent_propagate() -> None:
    make = training_from_config(config(agent={"cls": f"{__name__}:fails"}, trainer={"device": "cpu"}))
    with pytest.raises(TypeError, match=r"^mine$"):
        make()


def fails(observation_space: Any, action_space: Any, device: Any) -> Any:
    raise TypeError("mine")


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ("tmrl_core.training:SacAgent", "not a training loop: .*TorchTrainingOffline"),
        ("sys:path", "list.*cannot be called"),
    ],
)
def test_the_error_for_an_invalid_training_loop_lists_valid_ones(loop: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^trainer\.loop: '{loop}' is .*{words}"):
        training_from_config(config(trainer={"loop": loop}))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("agent", "gamma", 2.0), ("agent", "gamma", -1), ("agent", "polyak", 5.0), ("agent", "alpha", -0.1),
        ("actor", "hidden_sizes", [64, 0]), ("agent", "hidden_sizes", [-3]),
    ],
)  # fmt: skip
def test_invalid_numbers_are_refused_before_objects_are_made(section: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.kwargs\.{name}: found .*, allowed: "):
        training_from_config(config(**{section: {"kwargs": {name: value}}}))


@pytest.mark.parametrize("capacity", [10**15, 4 * 10**18])
def test_a_capacity_whose_priorities_exceed_memory_is_refused(capacity: int) -> None:
    make = training_from_config(config(memory={"capacity": capacity, "sampling": "prioritized"}))
    with pytest.raises(ConfigError, match=rf"^memory\.capacity: the priorities of {capacity} transitions need"):
        make()
