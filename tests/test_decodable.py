"""Structures are complete before a second thread can decode them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.test_imports import FILES

CALLS = {
    "decode_body": 1,
    "read_record": 1,
    "msgspec.convert": 1,
    "msgspec.json.Decoder": 0,
    "msgspec.msgpack.Decoder": 0,
}
"""Functions that decode structures, by the position of the argument that names the type."""
LOCKED = {("config.loading", "Config")}
"""Types that one thread converts at a time."""
DESCRIBED = """
import gc, importlib, json, sys

described = lambda kind: any(type(part).__name__ == "StructInfo" for part in gc.get_referents(kind))
found = [getattr(importlib.import_module(f"tmrl_core.{module}"), name) for module, name in json.load(sys.stdin)]
print(json.dumps([described(kind) for kind in found]))
"""


def decoded_types(text: str) -> Iterator[str]:
    """The names of types that functions of a module decode."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            place = CALLS.get(ast.unparse(call.func))
            given = call.args[place : place + 1] if place is not None else []
            if ast.unparse(call.func).endswith(".decode"):
                given = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            yield from (
                kind.id for kind in given if isinstance(kind, ast.Name) and kind.id[0] in "_ABCDEFGHIJKLMNOPQRSTUVWXYZ"
            )


def test_structures_that_functions_decode_are_described_when_their_module_is_imported() -> None:
    decoded = sorted(
        {(module, name) for module, file in FILES.items() for name in decoded_types(file.read_text("utf-8"))} - LOCKED
    )
    assert ("training.checkpoints.manifest", "Manifest") in decoded
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBED], input=json.dumps(decoded), capture_output=True, text=True, check=True
    )
    missing = [name for name, described in zip(decoded, json.loads(done.stdout), strict=True) if not described]
    assert not missing, f"{missing}: decorate them with tmrl_core.decodable"


@pytest.mark.parametrize(
    "line",
    [
        "msgspec.convert(a, Some)",
        "decode_body(a, Some)",
        "read_record(file, Some, 'advice')",
        "msgspec.json.decode(a, type=Some)",
        "decoder = msgspec.msgpack.Decoder(Some)",
    ],
)
def test_every_way_to_decode_a_structure_is_found(line: str) -> None:
    assert list(decoded_types(f"def f():\n    {line}")) == ["Some"]
    assert list(decoded_types(line)) == []  # at import, before other threads see the type
