"""The configuration under the names of `tmrl.config.config_constants`.

Each name is looked up in `tmrl_core.config.current()` when it is used, never at import, so `from ... import PORT` reads
the configuration at that line. Folders and files are `pathlib.Path`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_core.config import Config, current, find_credentials_folder
from tmrl_core.config.loading import token_from_environment


def _episode_limit(config: Config) -> float:
    limit = config.worker.max_samples_per_episode
    return float("inf") if limit is None else limit


_NAMES: dict[str, Callable[[Config], Any]] = {
    "PASSWORD": lambda config: token_from_environment(os.environ),
    "PORT": lambda config: config.server.port,
    "LOCAL_PORT_SERVER": lambda config: config.network.local_port_server,
    "LOCAL_PORT_WORKER": lambda config: config.network.local_port_worker,
    "LOCAL_PORT_TRAINER": lambda config: config.network.local_port_trainer,
    "HEADER_SIZE": lambda config: config.network.header_size,
    "BUFFER_SIZE": lambda config: config.network.max_buf_len,
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
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    found = _NAMES.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found(current())


def __dir__() -> list[str]:
    return sorted(_NAMES)
