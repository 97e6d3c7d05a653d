"""Conversion of JSON and YAML text of configurations to primitive values.

PyYAML implements YAML 1.1, which turns `no` into false and `1:30` into 90, and leaves `1e6` a text. Configurations
follow YAML 1.2's core rules instead: only `true` and `false` are flags, `1e6` is a number, and dates stay texts. A
repeated key is refused in both formats, because its first value would be lost silently.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tmrl_core.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".json")


_MOST_VALUES = 100_000
"""Maximum number of values in one document; values of an alias count each time."""


def _checked(values: Any, source: str) -> Any:
    """Return the values after a check of their number and texts.

    Raises:
        ConfigError: there are too many values, as nested aliases can produce; or a text is invalid.
    """
    left = _MOST_VALUES
    waiting = [values]
    while waiting:
        value = waiting.pop()
        left -= 1
        if isinstance(value, dict):
            left -= len(value)
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as exc:
                raise ConfigError(f"{source}: {value!r} is not valid text: it has a lone surrogate") from exc
        if left < 0 or len(waiting) > _MOST_VALUES:
            raise ConfigError(f"{source}: more than {_MOST_VALUES} values; a configuration has a few dozen")
    return values


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2 and without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not text; put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice; keep one of them", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Integers. A leading zero has no meaning here; in YAML 1.1, it means octal."""
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 16) if text.startswith("0x") else int(text)


def _refuse_tag(loader: _Loader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(
        None, None, f"{node.tag.rsplit(':')[-1]} is not allowed as a value in a configuration", node.start_mark
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
for _tag in ("binary", "omap", "pairs", "set", "timestamp"):
    # JSON and the files of a run do not have such values.
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_tag)

# A separate table is needed, because PyYAML stores it on the class, and the base class's table is YAML 1.1.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9][0-9_]*$|^0x[0-9a-fA-F]+$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$"
        r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
        list("-+0123456789."),
    ),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


class _Dumper(yaml.SafeDumper):
    """Put a text in quotes if `_Loader` or YAML 1.1 would read it as another type, such as 1e5."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Rare line ends are written as escapes, because within other quotes they would be read as a space."""
        style = '"' if any(end in data for end in "\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)
for _first, _patterns in _Loader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _patterns:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def format_yaml(values: Any) -> str:
    """Return values as YAML text, from which `parse_yaml` returns the same values; keys keep their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, source: str) -> Any:
    """Return the values of YAML text.

    Args:
        text: one YAML document.
        source: name of the text in error messages.

    Raises:
        ConfigError: the YAML is invalid, a key is repeated, or a tag has an unsupported type; the message has line and
            column.
    """
    loader = None
    try:
        loader = _Loader(text)
        return _checked(loader.get_single_data(), source)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" ({exc.context})" if exc.context else ""
        # PyYAML's texts do not say what to do.
        advice = ""
        if "'\\t'" in str(exc.problem):
            advice = "; indent with spaces, not with tabs"
        elif "escape" in str(exc.problem):
            advice = "; put a Windows path in single quotes, or write it with /"
        raise ConfigError(f"{source}: {where}invalid YAML: {exc.problem}{context}{advice}") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{source}: invalid YAML: {exc}") from exc
    finally:
        if loader is not None:
            loader.dispose()


def parse_json(text: str, source: str) -> Any:
    """Return the values of JSON text.

    Raises:
        ConfigError: the JSON is invalid (the message has line and column), or a key is repeated.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{source}: the key {key!r} appears twice; keep one of them")
            found[key] = value
        return found

    def no_constant(name: str) -> Any:
        raise ConfigError(f"{source}: {name} is not JSON")

    try:
        return _checked(json.loads(text, object_pairs_hook=unique, parse_constant=no_constant), source)
    except json.JSONDecodeError as exc:
        advice = "JSON has no comments, single quotes, or comma before a bracket; YAML has."
        if "escape" in exc.msg:
            advice = "Write a Windows path with / or with each backslash twice."
        raise ConfigError(
            f"{source}: line {exc.lineno}, column {exc.colno}: invalid JSON: {exc.msg.rstrip(': ')}. {advice}"
        ) from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: invalid JSON: nested too deeply") from exc


def read_document(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file. An empty YAML file is an empty configuration.

    Raises:
        ConfigError: the file is missing, unreadable or invalid, has another extension, or does not contain a mapping.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a configuration's name ends in {', '.join(SUFFIXES)}, not in {path.suffix!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = sorted(str(p) for p in path.parent.glob("*") if p.suffix.lower() in SUFFIXES)[:8]
        hint = f" There: {', '.join(near)}." if near else ""
        raise ConfigError(f"{path}: no such file.{hint}") from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"{path}: is not UTF-8 text (byte {exc.start}). Save it as UTF-8 in an editor; `>` of Windows PowerShell "
            "writes UTF-16."
        ) from exc
    values = parse_json(text, str(path)) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of sections, found {type(values).__name__}")
    return values
