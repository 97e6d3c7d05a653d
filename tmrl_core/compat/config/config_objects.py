"""The objects of `tmrl.config.config_objects`, made from the configuration when they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tmrl_core.compat.config import settings
from tmrl_core.config import Config, resolve, resolve_optional
from tmrl_core.roles.from_config import environment_of


def _training(name: str) -> Callable[[Config], Any]:
    """Return a function that returns one argument of the configured training object."""

    def find(config: Config) -> Any:
        return _trainer(config).keywords[name]

    return find


def _trainer(config: Config) -> Any:
    from tmrl_core.roles.training_object import training_from_config

    return training_from_config(config)


def _policy(config: Config) -> Any:
    from tmrl_core.config.algorithms import policy_kwargs

    made, kwargs = resolve(config.actor.cls, "actor.cls"), policy_kwargs(config)
    return partial(made, **kwargs) if kwargs else made


def _interface(config: Config) -> Any:
    interface = config.environment.kwargs.get("interface")
    if interface is None:
        raise AttributeError(
            "the configured environment has no interface of rtgym: set environment.cls: tmrl_core.envs:real_time_env "
            "with the keyword argument interface"
        )
    made = resolve(interface, "environment.kwargs.interface")
    return partial(made, **settings.interface_kwargs(config))


def _rtgym_config(config: Config) -> dict[str, Any]:
    import rtgym

    return {**rtgym.DEFAULT_CONFIG_DICT, **settings.rtgym_config(config), "interface": _interface(config)}


def _updater(config: Config) -> Any:
    from tmrl_core.compat.custom.custom_checkpoints import update_run_instance

    return update_run_instance


_NAMES: dict[str, Callable[[Config], Any]] = {
    "TRAINER": _trainer,
    "ENV_CLS": environment_of,
    "MEM": lambda config: resolve(config.memory.cls, "memory.cls"),
    "MEMORY": _training("memory_cls"),
    "AGENT": _training("training_agent_cls"),
    "POLICY": _policy,
    "TRAIN_MODEL": lambda config: resolve(
        config.agent.kwargs.get("model_cls", "tmrl_core.training:MLPActorCritic"), "agent.kwargs.model_cls"
    ),
    "SAMPLE_COMPRESSOR": lambda config: resolve_optional(config.worker.sample_compressor, "worker.sample_compressor"),
    "OBS_PREPROCESSOR": lambda config: resolve_optional(config.worker.obs_preprocessor, "worker.obs_preprocessor"),
    "SAMPLE_PREPROCESSOR": lambda config: resolve_optional(
        config.memory.sample_preprocessor, "memory.sample_preprocessor"
    ),
    "INT": _interface,
    "CONFIG_DICT": _rtgym_config,
    "CONFIG_DICT_MODIFIERS": settings.rtgym_config,
    "ALG_CONFIG": lambda config: settings.as_tmrl(config)["ALG"],
    "ALG_NAME": settings.algorithm_name,
    "UPDATER_FN": _updater,
    "DUMP_RUN_INSTANCE_FN": lambda config: None,
    "LOAD_RUN_INSTANCE_FN": lambda config: None,
}

__all__, __getattr__, __dir__ = settings.looked_up(__name__, _NAMES)
