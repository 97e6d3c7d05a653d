"""Finding the structures that functions decode: `test_imports.py` checks them in a fresh process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

CALLS = {
    "decode_body": 1,
    "read_record": 1,
    "msgspec.convert": 1,
    "msgspec.json.Decoder": 0,
    "msgspec.msgpack.Decoder": 0,
}
"""Functions that decode structures, by the position of the argument that names the type."""


def decoded_types(module: ast.Module) -> Iterator[str]:
    """The names of types that functions of a module decode."""
    for function in ast.walk(module):
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
    assert list(decoded_types(ast.parse(f"def f():\n    {line}"))) == ["Some"]
    assert list(decoded_types(ast.parse(line))) == []  # at import, before other threads see the type
