"""The names of tmrl's config_constants, looked up when they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tmrl_core.compat.config import config_constants as cfg

NAMES = [
    *("PASSWORD", "PORT", "LOCAL_PORT_SERVER", "LOCAL_PORT_WORKER", "LOCAL_PORT_TRAINER", "HEADER_SIZE", "BUFFER_SIZE"),
    *("SECURITY", "CREDENTIALS_DIRECTORY", "HOSTNAME", "NB_WORKERS", "SERVER_IP_FOR_WORKER", "SERVER_IP_FOR_TRAINER"),
    *("BUFFERS_MAXLEN", "RW_MAX_SAMPLES_PER_EPISODE", "MODEL_PATH_WORKER", "MODEL_PATH_TRAINER", "MODEL_HISTORY"),
    *("MODEL_PATH_SAVE_HISTORY", "CHECKPOINT_PATH", "DATASET_PATH", "WEIGHTS_FOLDER", "CHECKPOINTS_FOLDER", "RUN_NAME"),
    *("WANDB_ENTITY", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_KEY", "TMRL_CONFIG", "ENV_CONFIG", "CUDA_TRAINING"),
    *("CUDA_INFERENCE", "LOCALHOST_WORKER", "LOCALHOST_TRAINER", "PUBLIC_IP_SERVER", "RTGYM_VERSION", "ACT_BUF_LEN"),
    *("RTGYM_INTERFACE", "IMG_HIST_LEN", "IMG_WIDTH", "IMG_HEIGHT", "GRAYSCALE", "PRAGMA_GAMEPAD", "PRAGMA_LIDAR"),
    *("PRAGMA_PROGRESS", "PRAGMA_RNN", "CRC_DEBUG", "PROFILE_TRAINER", "TMRL_FOLDER", "PATH_DATA", "DATASET_FOLDER"),
    *("CONFIG_FILE", "SYSTEM"),
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_names_are_there() -> None:
    assert sorted([*NAMES, *cfg.OF_THE_GAME]) == dir(cfg) == cfg.__all__
    for name in NAMES:
        getattr(cfg, name)
    with pytest.raises(AttributeError, match="NO_SUCH"):
        cfg.NO_SUCH  # noqa: B018


def test_folders_and_files_are_paths() -> None:
    for name in NAMES:
        if name.endswith(("_FOLDER", "_DIRECTORY", "_PATH", "PATH_DATA")) or name.startswith("MODEL_PATH"):
            assert isinstance(getattr(cfg, name), Path), name
    assert Path.cwd() / "runs" / "default" == cfg.WEIGHTS_FOLDER
    assert cfg.CHECKPOINT_PATH.parent == cfg.CHECKPOINTS_FOLDER


def test_a_name_follows_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (cfg.PORT, cfg.RUN_NAME, cfg.NB_WORKERS, cfg.PASSWORD) == (55555, "default", None, None)
    assert float("inf") == cfg.RW_MAX_SAMPLES_PER_EPISODE
    (tmp_path / "tmrl_core.yaml").write_text(
        "run: {name: mine}\nserver: {port: 4000, host: a.org, max_workers: 3}\n", encoding="utf-8"
    )
    monkeypatch.setenv("TMRL_CORE_TOKEN", "hunter2")
    assert (cfg.PORT, cfg.RUN_NAME, cfg.NB_WORKERS, cfg.PASSWORD) == (4000, "mine", 3, "hunter2")
    assert cfg.SERVER_IP_FOR_WORKER == cfg.HOSTNAME == "a.org"


def test_a_pipeline_finds_its_images_and_its_rtgym_settings(tmp_path: Path) -> None:
    assert (cfg.IMG_WIDTH, cfg.IMG_HEIGHT, cfg.GRAYSCALE, cfg.IMG_HIST_LEN, cfg.ACT_BUF_LEN) == (64, 64, False, 4, 1)
    (tmp_path / "tmrl_core.yaml").write_text(
        "environment:\n  cls: tmrl_core.envs:real_time_env\n  kwargs:\n    interface: my_game:Lidar\n"
        "    interface_kwargs: {resize_to: [32, 16], grayscale: true, img_hist_len: 2, gamepad: true}\n"
        "    config: {act_buf_len: 3, time_step_duration: 0.02}\n",
        encoding="utf-8",
    )
    assert (cfg.IMG_WIDTH, cfg.IMG_HEIGHT, cfg.GRAYSCALE, cfg.IMG_HIST_LEN, cfg.ACT_BUF_LEN) == (32, 16, True, 2, 3)
    assert (cfg.PRAGMA_GAMEPAD, cfg.PRAGMA_LIDAR, cfg.PRAGMA_PROGRESS) == (True, True, False)
    assert cfg.ENV_CONFIG["RTGYM_CONFIG"] == {"act_buf_len": 3, "time_step_duration": 0.02}


def test_the_configuration_is_there_under_tmrls_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMRL_CORE_TOKEN", "hunter2")
    (tmp_path / "tmrl_core.yaml").write_text(
        "trainer: {epochs: 3, device: cuda}\nmemory: {capacity: 2e3}\nserver: {host: a.org}\n"
        "agent: {cls: 'tmrl_core.training:REDQSACAgent', kwargs: {n: 5, lr_actor: 0.1}}\n",
        encoding="utf-8",
    )
    found = cfg.TMRL_CONFIG
    assert (found["MAX_EPOCHS"], found["MEMORY_SIZE"], found["NB_WORKERS"]) == (3, 2000, -1)
    assert (found["PUBLIC_IP_SERVER"], found["LOCALHOST_WORKER"], found["CUDA_TRAINING"]) == ("a.org", False, True)
    assert found["ALG"] == {"ALGORITHM": "REDQSAC", "REDQ_N": 5, "LR_ACTOR": 0.1}
    assert "hunter2" not in str(found)
    monkeypatch.setenv("WANDB_API_KEY", "key")  # scripts of tmrl set the variable to this value
    assert cfg.TMRL_CONFIG["WANDB_KEY"] == "key"


def test_what_belongs_to_one_game_is_an_argument_of_its_interface(tmp_path: Path) -> None:
    assert (cfg.WINDOW_WIDTH, cfg.REWARD_CONFIG) == (None, None)
    (tmp_path / "tmrl_core.yaml").write_text(
        "environment: {cls: 'tmrl_core.envs:real_time_env', kwargs: {interface: 'my_game:Game',"
        " interface_kwargs: {window_width: 958}}}\n",
        encoding="utf-8",
    )
    assert cfg.WINDOW_WIDTH == 958


def test_importing_reads_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "tmrl_core.yaml").write_text("broken: [", encoding="utf-8")
    code = "import tmrl_core.compat.config.config_constants, tmrl_core.compat.config.config_objects"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
