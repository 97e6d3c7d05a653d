"""config_objects.TRAINER: a training object's maker, from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.compat.config import config_objects
from tmrl_core.training import GenericTorchMemory


def test_trainer_makes_the_configured_training_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmrl_core.yaml").write_text(
        "trainer: {epochs: 3, rounds: 2, steps: 7, device: cpu, max_policy_lag: 5}\n"
        "memory: {capacity: 2e3, batch_size: 16}\n"
        "agent: {kwargs: {gamma: 0.9, model_kwargs: {hidden_sizes: [8, 8]}}}\n",
        encoding="utf-8",
    )
    training = config_objects.TRAINER()
    assert (training.epochs, training.rounds, training.steps, training.max_policy_lag) == (3, 2, 7, 5)
    assert (training.memory.memory_size, training.memory.batch_size, training.memory.nb_steps) == (2000, 16, 7)
    assert training.agent.settings.gamma == 0.9
    assert training.agent.get_actor() is not None


def test_parts_of_the_training_object_can_be_taken_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmrl_core.yaml").write_text(
        "memory: {cls: 'tmrl_core.training:GenericTorchMemory', batch_size: 16}\n"
        "agent: {cls: 'tmrl_core.training:REDQSACAgent', kwargs: {n: 3, hidden_sizes: [8]}}\n",
        encoding="utf-8",
    )
    assert config_objects.MEM is GenericTorchMemory
    memory = config_objects.MEMORY(nb_steps=3, device="cpu")
    assert isinstance(memory, GenericTorchMemory)
    assert memory.batch_size == 16
    env = config_objects.ENV_CLS()
    agent = config_objects.AGENT(observation_space=env.observation_space, action_space=env.action_space, device="cpu")
    assert agent.critics.count == 3
    actor = config_objects.POLICY(observation_space=env.observation_space, action_space=env.action_space)
    assert actor.act_(env.reset()[0]) in env.action_space
    env.close()
    assert (config_objects.ALG_NAME, config_objects.ALG_CONFIG["REDQ_N"]) == ("REDQSAC", 3)
    assert config_objects.SAMPLE_COMPRESSOR is config_objects.OBS_PREPROCESSOR is config_objects.DUMP_RUN_INSTANCE_FN
    assert config_objects.UPDATER_FN("loaded", lambda: "new") == "loaded"


def test_the_interface_and_its_settings_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match="real_time_env"):
        config_objects.INT  # noqa: B018
    (tmp_path / "tmrl_core.yaml").write_text(
        "environment: {cls: 'tmrl_core.envs:real_time_env', kwargs: {interface: 'rtgym:DummyRCDrone',"
        " interface_kwargs: {a: 1}, config: {act_buf_len: 2}}}\n",
        encoding="utf-8",
    )
    rtgym = pytest.importorskip("rtgym")
    made = config_objects.CONFIG_DICT
    assert (made["interface"].func, made["interface"].keywords) == (rtgym.DummyRCDrone, {"a": 1})
    assert (made["act_buf_len"], made["time_step_duration"]) == (2, 0.05)
    assert config_objects.CONFIG_DICT_MODIFIERS == {"act_buf_len": 2}


def test_nothing_else_is_there() -> None:
    with pytest.raises(AttributeError, match="NO_SUCH"):
        config_objects.NO_SUCH  # noqa: B018
