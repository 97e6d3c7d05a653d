"""Messages for invalid values: path, value found, values allowed."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from tmrl_core import rooms
from tmrl_core.config.room_sections import config_type
from tmrl_core.config.sections import NAMES_OF

SECRET_WORDS = ("token", "password", "secret", "wandb_key", "api_key")

SECRET_ADVICE = (
    "secrets are not allowed in the configuration. Set the token in the environment (TMRL_CORE_TOKEN, or the name of "
    "a file that holds it in TMRL_CORE_TOKEN_FILE), or leave it in the credentials folder, where "
    "`python -m tmrl_core --credentials create` puts it; wandb reads WANDB_API_KEY."
)

type_info = functools.cache(inspect.type_info)
"""Return msgspec's description of a type; cached, because it takes milliseconds."""

_ID = re.compile(r"[\w/]+-v\d+")
"""An id of Gymnasium without the module that registers it."""

_PATH = re.compile(r" - at (?:the key in )?`\$(.*)`$")


def near(word: str, words: Collection[str]) -> str:
    """Return ` Did you mean ...?`, or an empty text."""
    same = [one for one in words if one.casefold() == word.casefold()]
    matches = same or difflib.get_close_matches(word, words, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def keys_of(struct: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """Return the sections by key; None for a key with a primitive value."""
    info = type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {f.encode_name: section_of(f.type) for f in info.fields}


def section_of(kind: inspect.Type) -> type[msgspec.Struct] | None:
    """Return the section structure in a type; None: there is none."""
    if isinstance(kind, inspect.Metadata):
        return section_of(kind.type)
    if isinstance(kind, inspect.UnionType):  # a section or null
        return next(filter(None, map(section_of, kind.types)), None)
    return kind.cls if isinstance(kind, inspect.StructType) else None


def explain(error: msgspec.ValidationError, values: Mapping[str, Any], source: str) -> str:
    """Return msgspec's error with the key's path, the value found, and the values allowed."""
    text = str(error)
    match = _PATH.search(text)
    if match is None:
        return f"{source}: {text}"
    steps = [step for step in match.group(1).split(".") if step]
    path = ".".join(steps) or "the configuration"
    found: Any = values
    kind: inspect.Type = type_info(config_type())
    for step in steps:
        if not isinstance(found, Mapping) or step not in found:
            return f"{source}: {path}: {text[: match.start()]}"
        found = found[step]
        kind = field_type(kind, step) or kind
    if any(word in path for word in SECRET_WORDS):
        return f"{source}: {path}: {SECRET_ADVICE}"
    hint = ""
    if isinstance(found, str):
        hint = near(found, [str(value) for value in literal_values(kind)]) or reference_hint(found, kind, path)
    elif isinstance(found, bool | int | float) and inspect.StrType in inner_types(kind):
        hint = " If the text is meant, write it in quotes."
    return f"{source}: {path}: found {shown(found)}, allowed: {allowed(kind)}.{hint}"


def reference_hint(found: str, kind: inspect.Type, path: str) -> str:
    """Return what to write where a reference is allowed and the text is none; an empty text if it is not known."""
    if "a reference" not in allowed(kind) or ":" in found:
        return ""
    if path.startswith("environment.") and _ID.fullmatch(found):
        return f" For an id of Gymnasium: cls: tmrl_core.envs:GenericGymEnv, kwargs: {{id: {found}}}."
    module, _, name = found.rpartition(".")
    if module and name.isidentifier():
        return f" Did you mean {module}:{name}?"
    package = {"agent.cls": "training", "memory.cls": "training", "trainer.loop": "training", "actor.cls": "actor"}
    return f" If it is one of this package: tmrl_core.{package[path]}:{found}." if path in package else ""


def inner_types(kind: inspect.Type | None) -> set[type]:
    """Return the kinds of value that a type allows, without limits and unions."""
    if isinstance(kind, inspect.Metadata):
        return inner_types(kind.type)
    if isinstance(kind, inspect.UnionType):
        return {inner for part in kind.types for inner in inner_types(part)}
    return set() if kind is None else {type(kind)}


def field_type(kind: inspect.Type | None, name: str) -> inspect.Type | None:
    """Return the type of the field `name` in a section; None: there is none."""
    if isinstance(kind, inspect.Metadata):
        return field_type(kind.type, name)
    if isinstance(kind, inspect.StructType):
        for item in kind.fields:
            if item.encode_name == name:
                return item.type
    return None


def shown(value: Any) -> str:
    """Return a value as text, with its kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the flag {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:80]!r}" + ("..." if len(value) > 80 else "")
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return f"a {type(value).__name__}"


def literal_values(kind: inspect.Type) -> tuple[Any, ...]:
    """Return the allowed texts of a key, if it allows only a few."""
    if isinstance(kind, inspect.Metadata):
        return literal_values(kind.type)
    if isinstance(kind, inspect.UnionType):
        return tuple(value for part in kind.types for value in literal_values(part))
    return tuple(kind.values) if isinstance(kind, inspect.LiteralType) else ()


def allowed(kind: inspect.Type) -> str:
    """Describe the values that a type allows."""
    if isinstance(kind, inspect.Metadata):
        if names := (kind.extra_json_schema or {}).get(NAMES_OF):
            return ", ".join(sorted(rooms.entries(names)))
        return allowed(kind.type)
    if isinstance(kind, inspect.UnionType):
        parts = [allowed(part) for part in kind.types if not isinstance(part, inspect.NoneType)]
        if any(isinstance(part, inspect.NoneType) for part in kind.types):
            parts.append("null")
        return " or ".join(parts)
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(str(value) for value in kind.values)
    if isinstance(kind, inspect.IntType):
        return "a whole number" + limits(kind)
    if isinstance(kind, inspect.FloatType):
        return "a number" + limits(kind)
    if isinstance(kind, inspect.StrType):
        if kind.pattern is not None and ":" in kind.pattern:
            return "a reference `package.module:Name`"
        if kind.pattern is not None:
            return f"a text that matches {kind.pattern}"
        return "a text" + (" that is not empty" if kind.min_length else "")
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return "a list"
    if isinstance(kind, inspect.DictType):
        return "a mapping"
    if isinstance(kind, inspect.StructType):
        return f"a mapping with the keys {', '.join(item.encode_name for item in kind.fields)}"
    return "a value"


def limits(kind: inspect.IntType | inspect.FloatType) -> str:
    """Return ` of at least 1`, ` from 0 to 65535`, ` above 0`, or an empty text."""
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.ge is not None:
        return f" of at least {kind.ge}"
    return f" above {kind.gt}" if kind.gt is not None else ""
