"""Settings of a configuration as text: those that differ from the defaults, and all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tmrl_core.config.loading import convert
from tmrl_core.config.sections import Config

MOST_CHARACTERS = 100
"""Maximum length of a value's text."""


def differing(config: Config) -> dict[str, str]:
    """Return the settings that differ from the defaults, as text by their keys. Configurations hold no secrets."""
    # Converted, as a file is, because rooms add sections and keys with defaults of their own.
    return dict(_differences("", _plain(convert({}, "the defaults")), _plain(config)))


def every_setting(config: Config) -> dict[str, str]:
    """Return all settings as text by their keys, in the order of the sections."""
    return dict(_settings("", _plain(config)))


def _settings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _settings(f"{key}.{name}" if key else name, one)
    else:
        yield key, _text(value)


def _plain(config: Config) -> Any:
    return msgspec.json.decode(msgspec.json.encode(config, enc_hook=str))


def _differences(key: str, default: Any, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and (value or not default):
        known = default if isinstance(default, Mapping) else {}
        for name, one in value.items():
            yield from _differences(f"{key}.{name}" if key else name, known.get(name), one)
    elif value != default:
        yield key, _text(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
