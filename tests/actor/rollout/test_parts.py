"""Parts of a worker keep to themselves: no private attribute of another object, at most one parent of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tmrl_core.actor import rollout
from tmrl_core.networking import RolloutWorker

FILES = sorted(Path(rollout.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_part_reads_private_attributes_of_another(file: Path) -> None:
    found = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert found == []


def test_a_worker_has_one_parent() -> None:
    assert [kind.__name__ for kind in RolloutWorker.__mro__] == ["RolloutWorker", "Worker", "object"]
