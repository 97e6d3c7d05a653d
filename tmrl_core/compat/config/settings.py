"""Keys of tmrl's `config.json` and the project's keys, in one table that both directions follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tmrl_core.config import Config, current
from tmrl_core.envs.real_time import RTGYM_ID

Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _int_or_none(value: Any) -> int | None:
    return None if value is None or value < 0 else int(value)


def _text_or_none(value: str | None) -> str | None:
    return value or None


@dataclass(frozen=True)
class Key:
    """One key of tmrl with its counterpart.

    Args:
        name: tmrl's key.
        ours: path of the project's key.
        read: converts tmrl's value.
        write: converts the project's value.
    """

    name: str
    ours: str
    read: Convert = _same
    write: Convert = _same


KEYS = (
    Key("RUN_NAME", "run.name"),
    Key("BUFFERS_MAXLEN", "worker.buffer_maxlen", int),
    Key("RW_MAX_SAMPLES_PER_EPISODE", "worker.max_samples_per_episode", int),
    Key("CUDA_TRAINING", "trainer.device", lambda on: "cuda" if on else "cpu", lambda device: device != "cpu"),
    Key("CUDA_INFERENCE", "worker.device", lambda on: "cuda" if on else "cpu", lambda device: device != "cpu"),
    Key("TLS", "network.security", lambda on: "TLS" if on else None, lambda security: security is not None),
    Key("TLS_HOSTNAME", "network.hostname", lambda name: None if name in ("", "default") else name),
    Key("TLS_CREDENTIALS_DIRECTORY", "network.credentials_dir", _text_or_none, lambda folder: folder or ""),
    Key("NB_WORKERS", "server.max_workers", _int_or_none, lambda count: -1 if count is None else count),
    Key("WANDB_PROJECT", "metrics.wandb_project"),
    Key("WANDB_ENTITY", "metrics.wandb_entity", _text_or_none),
    Key("PORT", "server.port"),
    Key("LOCAL_PORT_SERVER", "network.local_port_server"),
    Key("LOCAL_PORT_TRAINER", "network.local_port_trainer"),
    Key("LOCAL_PORT_WORKER", "network.local_port_worker"),
    Key("BUFFER_SIZE", "network.max_buf_len", int),
    Key("HEADER_SIZE", "network.header_size"),
    Key("SAVE_MODEL_EVERY", "worker.model_history"),
    Key("MAX_EPOCHS", "trainer.epochs"),
    Key("ROUNDS_PER_EPOCH", "trainer.rounds"),
    Key("TRAINING_STEPS_PER_ROUND", "trainer.steps"),
    Key("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP", "trainer.max_training_steps_per_env_step"),
    Key("ENVIRONMENT_STEPS_BEFORE_TRAINING", "trainer.start_training"),
    Key("UPDATE_MODEL_INTERVAL", "trainer.update_model_interval"),
    Key("UPDATE_BUFFER_INTERVAL", "trainer.update_buffer_interval"),
    Key("MEMORY_SIZE", "memory.capacity", int),
    Key("BATCH_SIZE", "memory.batch_size"),
)

ALGORITHMS = {"SAC": "tmrl_core.training:SacAgent", "REDQSAC": "tmrl_core.training:REDQSACAgent"}
"""Class of each of tmrl's algorithms."""

SETTINGS = {
    name: name.lower().removeprefix("redq_")
    for name in (
        *("LEARN_ENTROPY_COEF", "LR_ACTOR", "LR_CRITIC", "LR_ENTROPY", "GAMMA", "POLYAK", "TARGET_ENTROPY", "ALPHA"),
        *("OPTIMIZER_ACTOR", "OPTIMIZER_CRITIC", "BETAS_ACTOR", "BETAS_CRITIC", "L2_ACTOR", "L2_CRITIC"),
        *("REDQ_N", "REDQ_M", "REDQ_Q_UPDATES_PER_POLICY_UPDATE"),
    )
}
"""Keyword argument of the agent for each key of `ALG`."""

IMAGE_SIZE, HISTORY = (64, 64), 4
"""tmrl's defaults of image sizes and of the number of images in an observation."""


def looked_up(
    module: str, names: Mapping[str, Callable[[Config], Any]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a module whose names are looked up when they are used."""

    def look_up(name: str) -> Any:
        found = names.get(name)
        if found is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return found(current())

    return sorted(names), look_up, lambda: sorted(names)


def value_at(config: Config, path: str) -> Any:
    """Return the value of a dotted path in a configuration; None for a key of a room that is not here."""
    found: Any = config
    for name in path.split("."):
        found = msgspec.structs.asdict(found).get(name)
    return found


def algorithm_name(config: Config) -> str:
    """Return tmrl's name of the configured algorithm; another one's reference."""
    names = {reference.rpartition(":")[2]: name for name, reference in ALGORITHMS.items()}
    names |= {"SpinupSacAgent": "SAC"}
    return names.get(config.agent.cls.rpartition(":")[2], config.agent.cls)


def rtgym_config(config: Config) -> dict[str, Any]:
    """Return the entries of rtgym's configuration that are set."""
    kwargs = config.environment.kwargs
    return dict(kwargs.get("config") or (kwargs.get("gym_kwargs") or {}).get("config") or {})


def interface_kwargs(config: Config) -> Mapping[str, Any]:
    """Return the keyword arguments of rtgym's interface."""
    found: Mapping[str, Any] = config.environment.kwargs.get("interface_kwargs") or {}
    return found


def as_tmrl(config: Config) -> dict[str, Any]:
    """Return a configuration under tmrl's keys, without its secrets."""
    found = {key.name: key.write(value_at(config, key.ours)) for key in KEYS}
    local = config.server.host in ("localhost", "127.0.0.1", "::1")
    found |= {"PUBLIC_IP_SERVER": config.server.host, "LOCALHOST_WORKER": local, "LOCALHOST_TRAINER": local}
    kwargs = config.agent.kwargs
    algorithm = {"ALGORITHM": algorithm_name(config)}
    found["ALG"] = algorithm | {name: kwargs[ours] for name, ours in SETTINGS.items() if ours in kwargs}
    interface = interface_kwargs(config)
    width, height = interface.get("resize_to", IMAGE_SIZE)
    found["ENV"] = {
        "RTGYM_INTERFACE": config.environment.kwargs.get("interface"),
        "RTGYM_CONFIG": rtgym_config(config),
        "IMG_HIST_LEN": interface.get("img_hist_len", HISTORY),
        "IMG_WIDTH": width,
        "IMG_HEIGHT": height,
        "IMG_GRAYSCALE": interface.get("grayscale", False),
    }
    return found


__all__ = ["ALGORITHMS", "KEYS", "RTGYM_ID", "SETTINGS", "Key", "algorithm_name", "as_tmrl", "rtgym_config"]
