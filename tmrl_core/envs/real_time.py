"""Real-time environments of rtgym, made from plain values of a configuration."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from tmrl_core.config import resolve
from tmrl_core.errors import ConfigError, MissingExtraError

RTGYM_ID = "real-time-gym-v1" if platform.system() == "Windows" else "real-time-gym-ts-v1"
"""Gymnasium id of rtgym's environment. The one of other systems keeps one thread for all steps."""


def real_time_env(
    interface: str | Callable[..., Any],
    interface_kwargs: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> gymnasium.Env[Any, Any]:
    """Return rtgym's environment of a robot or game.

    Args:
        interface: class of a `rtgym.RealTimeGymInterface`, or its reference "package.module:Name".
        interface_kwargs: keyword arguments of `interface`.
        config: entries of rtgym's configuration that differ from its defaults, such as `time_step_duration` (seconds),
            `ep_max_length` (steps; an episode is truncated there) and `act_buf_len` (actions in the observation).

    Raises:
        ConfigError: rtgym knows no such entry, or `interface` names nothing.
        MissingExtraError: rtgym is not installed.
    """
    try:
        rtgym = importlib.import_module("rtgym")
    except ModuleNotFoundError as exc:
        raise MissingExtraError("rtgym", "realtime", "a real-time environment") from exc
    known = rtgym.DEFAULT_CONFIG_DICT
    unknown = sorted((config or {}).keys() - known.keys())
    if unknown:
        raise ConfigError(f"environment.kwargs.config: found {', '.join(unknown)}, allowed: {', '.join(sorted(known))}")
    made = resolve(interface, "environment.kwargs.interface") if isinstance(interface, str) else interface
    return gymnasium.make(
        RTGYM_ID,
        config={**known, **(config or {}), "interface": made, "interface_kwargs": dict(interface_kwargs or {})},
        disable_env_checker=True,
    )
