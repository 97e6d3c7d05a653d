"""The objects of `tmrl.config.config_objects`, made from the configuration when they are used."""

from __future__ import annotations

from typing import Any

from tmrl_core.config import current

__all__ = ["TRAINER"]  # noqa: F822 - made when it is used


def __getattr__(name: str) -> Any:
    if name == "TRAINER":
        from tmrl_core.roles.training import training_from_config

        return training_from_config(current())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["TRAINER"]
