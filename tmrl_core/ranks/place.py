"""Place of this process among the ranks, from the environment variables that torchrun and its relatives set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tmrl_core.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Place of a process among the ranks of a learner.

    Args:
        rank: number of this rank, from 0.
        size: number of ranks.
        host, port: address of the store at which ranks find each other.
        attempt: number of restarts of all ranks so far.
        serves: True: this rank opens the store; False: a launcher has opened it.
    """

    rank: int
    size: int
    host: str
    port: int
    attempt: int = 0
    serves: bool = False


def place_of(variables: Mapping[str, str]) -> Place | None:
    """Return the place that these environment variables give; None: one process trains alone.

    Raises:
        ConfigError: a variable is missing or is no number.
    """
    size = _number(variables, "WORLD_SIZE", "1")
    if size == 1:
        return None
    rank = _number(variables, "RANK")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK: found {rank}, allowed: 0 to {size - 1}, because WORLD_SIZE is {size}")
    if "MASTER_ADDR" not in variables:
        raise ConfigError(f"MASTER_ADDR is not set, and WORLD_SIZE is {size}; start the ranks with torchrun")
    return Place(
        rank,
        size,
        variables["MASTER_ADDR"],
        _number(variables, "MASTER_PORT"),
        _number(variables, "TORCHELASTIC_RESTART_COUNT", "0"),
        rank == 0 and variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )


def _number(variables: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = variables.get(name, default)
    if text is None or not text.isdecimal():
        raise ConfigError(
            f"{name}: found {text!r}, allowed: a whole number. torchrun sets it; to train in one process, unset "
            "WORLD_SIZE"
        )
    return int(text)
