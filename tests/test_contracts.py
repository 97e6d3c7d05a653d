"""Contracts between our own parts are typed and declared, not probed; counted in the source.

Each ceiling may only go down: lower it with the change that makes it possible.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests import source
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.contracts import TrainingLoop, TrainingMemory

MOST_PROBES = 28
"""Calls of `getattr` and `hasattr`, those of `ALLOWED` included."""

MOST_UNEXPLAINED_PROBES = 10
"""Those that `ALLOWED` gives no reason for."""

MOST_ANY_IN_TRAINING = 135
"""`Any` in annotations and aliases in `training/`, imports left out."""

MOST_ODD_DOCSTRINGS = 0
"""Docstrings that do not begin with a verb or a noun."""

# Source of a probe -> why no protocol or attribute can take its place.
ALLOWED = {
    r"hasattr\((os|socket), ": "functions and options that some platforms lack",
    r"getattr\(((importlib\.)?import_module\(|module, name)": "a module's names, resolved when they are first used",
    r"getattr\(found, part\)": "a reference in the configuration names an attribute",
    r"getattr\(self._own, name\)": "a loop that derives from nothing has the attributes of `LoopLike`",
    r"hasattr\(made, name\)": "environments need not derive from gymnasium.Env",
    r"hasattr\(model, '(critics|qs|q1|q2)'\)": "models of users name their critics in one of three ways",
    r"hasattr\(self, '_log'\)": "`__del__` also runs where the constructor has failed",
    r"getattr\(graph, node.target\)": "torch.fx names a graph's constants so",
    r"getattr\(exc, 'reason'": "OpenSSL's errors have it, those that asyncio raises by itself do not",
}

OUR_PARTS = re.compile(r"(get|has)attr\((getattr\()?(type\()?(self\.)?_?(agent|memory|training|loop|actor)(_cls)?\b")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield each file, relative to the package, and its syntax tree."""
    for file in source.FILES:
        yield file.relative_to(source.PACKAGE), source.tree(file)


@functools.cache
def probes() -> list[tuple[str, str]]:
    """Place and source of each call."""
    return [
        (f"{file}:{node.lineno}", ast.unparse(node))
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
    ]


def at_most(found: list[str], ceiling: float, of: int = 1) -> None:
    assert len(found) / of <= ceiling, f"{len(found)}, more than {ceiling * of:g}:\n" + "\n".join(found)


def test_probes_are_few() -> None:
    at_most([f"{place}: {call}" for place, call in probes()], MOST_PROBES)


def test_probes_have_reasons() -> None:
    unexplained = [f"{place}: {call}" for place, call in probes() if not any(re.match(p, call) for p in ALLOWED)]
    at_most(unexplained, MOST_UNEXPLAINED_PROBES)


def test_each_reason_is_needed() -> None:
    assert [p for p in ALLOWED if not any(re.match(p, call) for _, call in probes())] == []


def test_agents_memories_and_loops_are_not_probed() -> None:
    at_most([f"{place}: {call}" for place, call in probes() if OUR_PARTS.match(call)], 0)


def test_capabilities_have_defaults() -> None:
    """Each attribute that a loop uses of a part is declared in its base class, so that there is nothing to probe."""
    given = {
        "batch_size",
        "expect",
        "note_version",
        "sampleable",
        "prefetched",
        "disk",
        "commit",
        "close",
    }
    assert given <= set(dir(TrainingMemory))
    assert {"train_steps", "td_error_B", "after_update", "action_spaces", "wants_extras"} <= set(dir(TrainingAgent))
    assert {"own_format", "run_iteration", "update_buffer", "commit", "follow_memory"} <= set(dir(TrainingLoop))


def test_types_in_training_are_known() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file, tree in trees()
        if file.parts[0] == "training"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    at_most(found, MOST_ANY_IN_TRAINING)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        (f"{file}: {text.splitlines()[0]}", text)
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]
    odd = [place for place, text in docstrings if re.match(r"(What|Whether|How|Where|Who|That|So)\b", text)]
    at_most(odd, MOST_ODD_DOCSTRINGS)


def imported(node: ast.AST) -> Iterator[str]:
    """Full names that a module imports, those inside functions included and those for type checkers left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from imported(child)


def test_first_level_parts_import_in_no_cycle() -> None:
    parts = {file.parts[0].removesuffix(".py") for file, _ in trees()} - {"__init__"}
    below: dict[str, set[str]] = {part: set() for part in parts}
    for file, tree in trees():
        part = file.parts[0].removesuffix(".py")
        if part in parts:
            names = [name.split(".") for name in imported(tree)]
            below[part] |= {name[1] for name in names if name[0] == "tmrl_core" and name[1] in parts} - {part}
    for middle in parts:  # everything that can be reached, by Warshall
        for part in parts:
            if middle in below[part]:
                below[part] |= below[middle]
    at_most([part for part in sorted(parts) if part in below[part]], 0)
