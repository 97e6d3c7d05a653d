"""The conversion of tmrl's config.json, and of the configuration back to its keys."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.compat.config.conversion import NO_COUNTERPART, SECRETS, converted
from tmrl_core.compat.config.settings import KEYS, SETTINGS, as_tmrl
from tmrl_core.compat.custom import custom_memories, custom_models
from tmrl_core.config import from_values, resolve
from tmrl_core.errors import ConfigError
from tmrl_core.roles.training_object import training_from_config

ALG = {"ALGORITHM": "SAC", "LEARN_ENTROPY_COEF": False, "LR_ACTOR": 1e-5, "LR_CRITIC": 5e-5, "LR_ENTROPY": 3e-4}
ALG |= {"GAMMA": 0.995, "POLYAK": 0.99, "TARGET_ENTROPY": -0.5, "ALPHA": 0.01, "OPTIMIZER_ACTOR": "adamw"}
ALG |= {"OPTIMIZER_CRITIC": "adam", "BETAS_ACTOR": [0.9, 0.99], "L2_CRITIC": 0.1}
FILE: dict[str, Any] = {
    **{"RUN_NAME": "mine_1", "BUFFERS_MAXLEN": 5e5, "RW_MAX_SAMPLES_PER_EPISODE": 900, "CUDA_TRAINING": True},
    **{"CUDA_INFERENCE": False, "TLS": True, "TLS_HOSTNAME": "robots", "TLS_CREDENTIALS_DIRECTORY": "keys"},
    **{"NB_WORKERS": 3, "WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "PORT": 4000, "SAVE_MODEL_EVERY": 5},
    **{"MAX_EPOCHS": 7, "ROUNDS_PER_EPOCH": 8, "TRAINING_STEPS_PER_ROUND": 9, "UPDATE_MODEL_INTERVAL": 10},
    **{"MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP": 4.0, "ENVIRONMENT_STEPS_BEFORE_TRAINING": 11},
    **{"UPDATE_BUFFER_INTERVAL": 12, "MEMORY_SIZE": 1300, "BATCH_SIZE": 14},
    **{"LOCALHOST_WORKER": True, "LOCALHOST_TRAINER": True, "PUBLIC_IP_SERVER": "0.0.0.0", "__VERSION__": "0.6.0"},
    "ALG": ALG,
}
RTGYM = {"time_step_duration": 0.05, "act_buf_len": 2, "ep_max_length": 500}


def test_each_key_with_a_counterpart_is_there_and_back() -> None:
    values, notes = converted(FILE)
    back = as_tmrl(from_values(values))
    assert notes == ["ENV: left out: choose environment.cls and environment.kwargs"]
    for name in {key.name for key in KEYS} & FILE.keys():  # those of another room have a test beside
        assert back[name] == FILE[name], name
    assert back["ALG"] == ALG
    assert (back["PUBLIC_IP_SERVER"], back["LOCALHOST_WORKER"]) == ("127.0.0.1", True)


def test_every_algorithm_setting_of_redq_is_converted() -> None:
    given = {"ALGORITHM": "REDQSAC", **dict.fromkeys(SETTINGS, 1), "OPTIMIZER_ACTOR": "adam"}
    values, _ = converted({"RUN_NAME": "x", "ALG": given})
    assert values["agent"]["cls"] == "tmrl_core.training:REDQSACAgent"
    assert values["agent"]["kwargs"].keys() == set(SETTINGS.values())


def test_sac_leaves_out_the_settings_of_redq() -> None:
    values, notes = converted({"RUN_NAME": "x", "ALG": {"ALGORITHM": "SAC", "REDQ_N": 4, "GAMMA": 0.9}})
    assert values["agent"]["kwargs"] == {"gamma": 0.9}
    assert not any("REDQ" in note for note in notes)


def test_minus_one_worker_is_no_limit_and_empty_names_are_none() -> None:
    values, _ = converted({"NB_WORKERS": -1, "TLS_HOSTNAME": "default", "TLS_CREDENTIALS_DIRECTORY": "", "TLS": False})
    assert values["server"]["max_workers"] is None
    assert values["network"] == {"security": None, "hostname": None, "credentials_dir": None}


def test_a_server_elsewhere_is_named_with_a_note_for_the_role_beside_it() -> None:
    given = {"LOCALHOST_WORKER": False, "LOCALHOST_TRAINER": True, "PUBLIC_IP_SERVER": "1.2.3.4"}
    values, notes = converted(given)
    assert values["server"]["host"] == "1.2.3.4"
    assert any("--set server.host=127.0.0.1" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "interface", "arguments"),
    [
        ("TM20LIDAR", "TM2020InterfaceLidar", {"img_hist_len": 3, "gamepad": True}),
        ("TM20LIDARPROGRESS", "TM2020InterfaceLidarProgress", {"img_hist_len": 3, "gamepad": True}),
        (
            "TM20FULL",
            "TM2020Interface",
            {"img_hist_len": 3, "gamepad": True, "grayscale": True, "resize_to": [32, 64]},
        ),
    ],
)
def test_a_real_time_environment_gets_its_interface_and_settings(
    name: str, interface: str, arguments: dict[str, Any]
) -> None:
    env = {"RTGYM_INTERFACE": name, "IMG_HIST_LEN": 3, "IMG_WIDTH": 32, "IMG_GRAYSCALE": True, "RTGYM_CONFIG": RTGYM}
    values, notes = converted({"VIRTUAL_GAMEPAD": True, "ENV": env})
    kwargs = values["environment"]["kwargs"]
    assert kwargs["interface"] == f"tmrl.custom.tm.tm_gym_interfaces:{interface}"
    assert (kwargs["interface_kwargs"], kwargs["config"]) == (arguments, RTGYM)
    assert any("name your class in environment.kwargs.interface" in note for note in notes)


class Game(gym.Env[Any, Any]):
    """The spaces of tmrl's game with images."""

    observation_space = gym.spaces.Tuple(
        [gym.spaces.Box(0, 1, (1,), np.float32)] * 3
        + [gym.spaces.Box(0, 255, (4, 64, 64), np.float32)]
        + [gym.spaces.Box(-1, 1, (3,), np.float32)] * 2
    )
    action_space = gym.spaces.Box(-1, 1, (3,), np.float32)


def test_images_get_a_memory_a_policy_and_a_model() -> None:
    env = {"RTGYM_INTERFACE": "TM20FULL", "IMG_GRAYSCALE": True, "RTGYM_CONFIG": RTGYM}
    values, _ = converted({"ENV": env, "ALG": ALG, "BATCH_SIZE": 16})
    values["environment"] = {"cls": f"{__name__}:Game", "kwargs": {}}
    values["trainer"] = {"device": "cpu"}
    config = from_values(values)
    training = training_from_config(config)()
    assert isinstance(training.memory, custom_memories.MemoryTMFull)
    assert (training.memory.batch_size, training.memory.imgs_obs, training.memory.act_buf_len) == (16, 4, 2)
    assert isinstance(training.agent.model, custom_models.VanillaCNNActorCritic)
    assert config.worker.sample_compressor is not None
    assert resolve(config.worker.sample_compressor) is custom_memories.get_local_buffer_sample_tm20_imgs
    actor = resolve(config.actor.cls)(observation_space=Game.observation_space, action_space=Game.action_space)
    assert actor.to_blob()[0] == training.agent.get_actor().to_blob()[0]
    assert actor.architecture() == training.agent.get_actor().architecture()
    assert resolve(config.worker.obs_preprocessor or "") is not None


def test_whatever_is_left_out_is_named_with_the_next_step() -> None:
    given: dict[str, Any] = {"RUN_NAME": "x", "PASSWORD": "hunter2", "WANDB_KEY": "key", "RESET_TRAINING": True}
    given |= {"MY_OWN": 1, "ALG": {"ALGORITHM": "TQC", "NEW": 1}}
    given["ENV"] = {"RTGYM_INTERFACE": "TM20LIDAR", "RTGYM_CONFIG": {}, "WINDOW_WIDTH": 9, "OTHER": 1}
    values, notes = converted(given)
    text = "\n".join(notes)
    for part in (SECRETS["PASSWORD"], SECRETS["WANDB_KEY"], NO_COUNTERPART["RESET_TRAINING"]):
        assert part in text
    for name in ("MY_OWN", "ALG.ALGORITHM: 'TQC'", "ALG.NEW", "ENV.WINDOW_WIDTH", "ENV.OTHER"):
        assert name in text
    assert "hunter2" not in f"{values}{text}"


def test_a_value_that_is_not_allowed_costs_no_other() -> None:
    values, notes = converted({"RUN_NAME": "a b/c", "PORT": "x", "BATCH_SIZE": 64, "MEMORY_SIZE": float("inf")})
    assert values == {"memory": {"batch_size": 64}}
    assert [note.split(":")[0] for note in notes] == ["RUN_NAME", "PORT", "MEMORY_SIZE", "ENV"]


@pytest.mark.parametrize("value", [None, [], "text", {}, {"run": {"name": "x"}}])
def test_other_files_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="not a configuration of tmrl"):
        converted(value)


@pytest.mark.parametrize("value", [[], {}, None, 3])
def test_an_algorithm_that_is_no_name_is_left_out(value: Any) -> None:
    values, notes = converted({"RUN_NAME": "x", "ALG": {"ALGORITHM": value, "GAMMA": 0.9}})
    assert values["agent"] == {"kwargs": {"gamma": 0.9}}
    assert notes[0].startswith("ALG.ALGORITHM")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ALGORITHM", "GAMMA", "RTGYM_CONFIG", "x"]), inner)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*FILE, "ENV", "VIRTUAL_GAMEPAD", "X"]), JSON))
def test_any_values_give_a_configuration_or_an_error(value: dict[str, Any]) -> None:
    try:
        values, _ = converted(value)
    except ConfigError:
        return
    from_values(values)
