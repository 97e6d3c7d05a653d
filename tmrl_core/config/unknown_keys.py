"""Refusal of unknown keys of the configuration: path, similar keys, allowed keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tmrl_core import rooms
from tmrl_core.config.error_messages import SECRET_ADVICE, SECRET_WORDS, keys_of, near
from tmrl_core.config.room_sections import config_type
from tmrl_core.errors import ConfigError, TmrlError

KEYS_OF_TMRL = ("RUN_NAME", "MAX_EPOCHS", "MEMORY_SIZE", "PUBLIC_IP_SERVER", "ALG", "ENV")


def refuse_unknown_keys(values: Mapping[str, Any], source: str) -> None:
    """Refuse unknown keys, and list all of them in one message.

    Raises:
        ConfigError: the message has each unknown key's path, similar keys and the allowed keys.
    """
    theirs = [key for key in KEYS_OF_TMRL if key in values]
    if theirs and "import-config" in rooms.entries("commands"):
        raise ConfigError(
            f"{source}: found {theirs[0]}, a key of tmrl's config.json. Convert that file with `python -m tmrl_core "
            "--import-config FILE -o my.yaml`, and use my.yaml."
        )
    problems = list(unknown_keys(values, config_type(), ""))
    if problems:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))


def unknown_keys(values: Mapping[str, Any], struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yield one line for each key that `struct` does not have."""
    known = keys_of(struct)
    for key, value in values.items():
        if key not in known:
            yield unknown_key(key, path, list(known))
        elif (section := known[key]) is not None and isinstance(value, Mapping):
            yield from unknown_keys(value, section, f"{path}{key}.")


def unknown_key(key: str, path: str, known: list[str]) -> str:
    """Return the reason why this key is refused, and the key to use instead."""
    if any(word in key.lower() for word in SECRET_WORDS):
        return f"{path}{key}: {SECRET_ADVICE}"
    if not path and (entry := rooms.entries("sections").get(key)) is not None:
        try:
            entry.load()
        except TmrlError as exc:
            return str(exc)
    elsewhere = [
        f"{name}.{key}"
        for name, section in keys_of(config_type()).items()
        if section is not None and key in keys_of(section)
    ]
    hint = near(key, known) or (f" Did you mean {' or '.join(elsewhere)}?" if elsewhere else "")
    kind = "key" if path else "section"
    room = "" if path else f" No package tmrl_core.{key} is here that could declare it."
    return f"{path}{key}: unknown {kind}.{hint}{room} Allowed here: {', '.join(known)}."
