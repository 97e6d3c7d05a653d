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
    *("WANDB_ENTITY", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_KEY"),
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_names_are_there() -> None:
    assert sorted(NAMES) == dir(cfg) == cfg.__all__
    for name in NAMES:
        getattr(cfg, name)
    with pytest.raises(AttributeError, match="NO_SUCH"):
        cfg.NO_SUCH  # noqa: B018


def test_folders_and_files_are_paths() -> None:
    for name in NAMES:
        if name.endswith(("_FOLDER", "_DIRECTORY", "_PATH")) or name.startswith("MODEL_PATH"):
            assert isinstance(getattr(cfg, name), Path), name
    assert Path("runs") / "default" == cfg.WEIGHTS_FOLDER
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


def test_importing_reads_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "tmrl_core.yaml").write_text("broken: [", encoding="utf-8")
    code = "import tmrl_core.compat.config.config_constants, tmrl_core.compat.config.config_objects"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
