"""The configuration under the names of `tmrl.config.config_constants`.

Each name is looked up in `tmrl_core.config.current()` when it is used, never at import, so `from ... import PORT` reads
the configuration at that line. Folders and files are `pathlib.Path`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tmrl_core.compat.config import settings
from tmrl_core.config import Config, find_config_file, find_credentials_folder
from tmrl_core.config.loading import token_from_environment


def _episode_limit(config: Config) -> float:
    limit = config.worker.max_samples_per_episode
    return float("inf") if limit is None else limit


OF_THE_GAME = (
    *("LIDAR_BLACK_THRESHOLD", "REWARD_CONFIG", "REWARD_FOLDER", "REWARD_PATH", "SLEEP_TIME_AT_RESET"),
    *("WINDOW_WIDTH", "WINDOW_HEIGHT", "LINUX_X_OFFSET", "LINUX_Y_OFFSET", "IMG_SCALE_CHECK_ENV"),
)
"""Names that describe the window and the track of one game: arguments of its interface, None where they are not set."""


def _of_interface(name: str) -> Callable[[Config], Any]:
    return lambda config: settings.interface_kwargs(config).get(name)


def _of_env(name: str) -> Callable[[Config], Any]:
    return lambda config: settings.as_tmrl(config)["ENV"][name]


def _of_network(key: str) -> Callable[[Config], Any]:
    """Return the function that looks up a key which the transport tlspyo adds; None without that transport."""
    return lambda config: msgspec.structs.asdict(config.network).get(key)


_NAMES: dict[str, Callable[[Config], Any]] = {
    "PASSWORD": lambda config: token_from_environment(os.environ),
    "PORT": lambda config: config.server.tcp_port,
    "LOCAL_PORT_SERVER": _of_network("local_port_server"),
    "LOCAL_PORT_WORKER": _of_network("local_port_worker"),
    "LOCAL_PORT_TRAINER": _of_network("local_port_trainer"),
    "HEADER_SIZE": _of_network("header_size"),
    "BUFFER_SIZE": _of_network("max_buf_len"),
    "SECURITY": lambda config: None if config.network.security is None else "TLS",
    "CREDENTIALS_DIRECTORY": find_credentials_folder,
    "HOSTNAME": lambda config: config.network.hostname or config.server.host,
    "NB_WORKERS": lambda config: config.server.max_workers,
    "SERVER_IP_FOR_WORKER": lambda config: config.server.host,
    "SERVER_IP_FOR_TRAINER": lambda config: config.server.host,
    "BUFFERS_MAXLEN": lambda config: config.worker.buffer_maxlen,
    "RW_MAX_SAMPLES_PER_EPISODE": _episode_limit,
    "MODEL_PATH_WORKER": lambda config: config.worker_model_path,
    "MODEL_PATH_TRAINER": lambda config: config.trainer_model_path,
    "MODEL_PATH_SAVE_HISTORY": lambda config: Path(config.worker_history_path),
    "MODEL_HISTORY": lambda config: config.worker.model_history,
    "CHECKPOINT_PATH": lambda config: config.checkpoint_path,
    "DATASET_PATH": lambda config: config.run_folder / "dataset",
    "WEIGHTS_FOLDER": lambda config: config.trainer_model_path.parent,
    "CHECKPOINTS_FOLDER": lambda config: (config.checkpoint_path or config.run_folder / "checkpoint").parent,
    "RUN_NAME": lambda config: config.run.name,
    "WANDB_ENTITY": lambda config: config.metrics.wandb_entity,
    "WANDB_PROJECT": lambda config: config.metrics.wandb_project,
    "WANDB_RUN_ID": lambda config: config.metrics.wandb_run_id or config.run.name,
    "WANDB_KEY": lambda config: os.environ.get("WANDB_API_KEY"),
    "TMRL_CONFIG": lambda config: {**settings.as_tmrl(config), "WANDB_KEY": os.environ.get("WANDB_API_KEY", "")},
    "ENV_CONFIG": lambda config: settings.as_tmrl(config)["ENV"],
    "CUDA_TRAINING": lambda config: settings.as_tmrl(config)["CUDA_TRAINING"],
    "CUDA_INFERENCE": lambda config: settings.as_tmrl(config)["CUDA_INFERENCE"],
    "LOCALHOST_WORKER": lambda config: settings.as_tmrl(config)["LOCALHOST_WORKER"],
    "LOCALHOST_TRAINER": lambda config: settings.as_tmrl(config)["LOCALHOST_TRAINER"],
    "PUBLIC_IP_SERVER": lambda config: config.server.host,
    "RTGYM_VERSION": lambda config: settings.RTGYM_ID,
    "RTGYM_INTERFACE": _of_env("RTGYM_INTERFACE"),
    "ACT_BUF_LEN": lambda config: settings.rtgym_config(config).get("act_buf_len", 1),
    "IMG_HIST_LEN": _of_env("IMG_HIST_LEN"),
    "IMG_WIDTH": _of_env("IMG_WIDTH"),
    "IMG_HEIGHT": _of_env("IMG_HEIGHT"),
    "GRAYSCALE": _of_env("IMG_GRAYSCALE"),
    "PRAGMA_GAMEPAD": lambda config: bool(settings.interface_kwargs(config).get("gamepad")),
    "PRAGMA_LIDAR": lambda config: str(_of_env("RTGYM_INTERFACE")(config)).upper().find("LIDAR") >= 0,
    "PRAGMA_PROGRESS": lambda config: str(_of_env("RTGYM_INTERFACE")(config)).upper().find("PROGRESS") >= 0,
    "PRAGMA_RNN": lambda config: "RNN" in config.actor.cls,
    "CRC_DEBUG": lambda config: config.worker.crc_debug,
    "PROFILE_TRAINER": lambda config: config.trainer.profiling,
    "TMRL_FOLDER": lambda config: config.run_folder,
    "PATH_DATA": lambda config: config.run_folder,
    "DATASET_FOLDER": lambda config: config.run_folder / "dataset",
    "CONFIG_FILE": lambda config: find_config_file(),
    "SYSTEM": lambda config: platform.system(),
    **{name: _of_interface(name.lower()) for name in OF_THE_GAME},
}

__all__, __getattr__, __dir__ = settings.looked_up(__name__, _NAMES)
