"""Configurations: YAML, JSON and overrides as somebody may have typed, or generated, them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.config import Config, from_values, resolved
from tmrl_core.config.documents import parse_json, parse_yaml
from tmrl_core.config.loading import parse_override, put
from tmrl_core.errors import ConfigError

_YAML, _JSON, _OVERRIDE = b"y", b"j", b"o"
_SCALARS = (
    *("null", "~", "true", "yes", "0x1F", "0b1", "1e6", "1e999", ".inf", "-.inf", ".nan", "1_000", "9" * 400, "-1"),
    *(
        "2001-01-01",
        "1:30",
        "'",
        '"',
        '"\\ud800"',
        "!!python/object:os.system",
        "!!binary aGk=",
        "!!set {a}",
        "*a",
        "&a x",
    ),
    *("[", "{", "- -", "? a", "|", ">", "%YAML 9.9", "---", "...", "<<: *a", "\t", "\u2028", "\x00", "é", "[" * 200),
)


class Configuration(Target):
    """Text to a checked configuration."""

    name = "config"
    allowed = (ConfigError,)

    def __init__(self) -> None:
        self._values: dict[str, Any] = msgspec.to_builtins(Config())
        self._values["multiagent"] = {
            "manager": "tmrl_core.multiagent:AgentManager",
            "agents": {"a": "p", "b": "p"},
            "policies": {"p": {"algorithm": "module:name", "kwargs": {}, "memory": "m", "parameters": {"capacity": 9}}},
            "memories": {"m": {"capacity": 9, "overwrite": "rolling"}},
            "exploration": {"cls": "tmrl_core.multiagent:LinearExplorer", "kwargs": {"episodes": 5}},
        }
        folder = Path(__file__).resolve().parents[2] / "config"
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))]
        # Short pieces: PyYAML takes a millisecond for thirty lines.
        self._pieces = [text.splitlines() for text in texts]
        self._sections = [json.dumps({name: value}) for name, value in self._values.items()]

    def make(self, mutator: Mutator) -> bytes:
        kind = mutator.random()
        if kind < 0.35:
            section = mutator.pick(list(self._values))
            given = dict(self._values[section])
            for _ in range(mutator.few()):
                key = mutator.pick([*given, "unknown"])
                given[key] = mutator.value()
            try:
                text = json.dumps({section: given}, default=lambda value: value.decode("latin-1"))
            except ValueError:
                text = "{}"
            return _JSON + text.encode()
        if kind < 0.5:
            return _JSON + mutator.mutate(mutator.pick(self._sections).encode())
        if kind < 0.7:
            section = mutator.pick(list(self._values))
            key = mutator.pick(list(self._values[section]))
            value = mutator.pick(_SCALARS) if mutator.chance(2) else str(mutator.value())
            text = f"{section}.{key}={value}"
            return _OVERRIDE + (mutator.mutate(text.encode()) if mutator.chance(3) else text.encode())
        lines = mutator.pick(self._pieces)
        at = mutator.below(len(lines))
        lines = mutator.items(lines[at : at + 1 + mutator.below(12)])
        for _ in range(mutator.few() - 1):
            if lines:
                at = mutator.below(len(lines))
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {mutator.pick(_SCALARS)}"
        if mutator.chance(60):
            # The text that doubles with each line.
            lines = ["a0: &a0 [x, x]"] + [
                f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 2 + mutator.below(40))
            ]
        text = "\n".join(lines)
        return _YAML + (mutator.mutate(text.encode()) if mutator.chance(2) else text.encode())

    def run(self, case: bytes) -> None:
        kind = case[:1]
        try:
            text = case[1:].decode("utf-8")
        except UnicodeDecodeError:
            return  # `read_document` says so before
        values: Any = {}
        if kind == _OVERRIDE:
            path, value = parse_override(text)
            put(values, path, value, "case")
        else:
            values = parse_json(text, "case") if kind == _JSON else parse_yaml(text, "case")
        if not isinstance(values, dict):
            return
        config = from_values(values, "case")
        assert from_values(parse_yaml(resolved(config), "again"), "again") == config

    def limit_bytes(self, case: bytes) -> int:
        return 2_000 * len(case) + (4 << 20)
