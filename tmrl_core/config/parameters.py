"""Parameters of the built-in agents, read from their source: a machine that checks a configuration may lack torch."""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Iterator
from pathlib import Path

from tmrl_core.config.algorithms import ALGORITHMS, algorithm_of
from tmrl_core.config.sections import Config

GIVEN = frozenset({"self", "observation_space", "action_space", "device"})
"""Parameters of an agent that are no key of `agent.kwargs`."""
_MODULES = {algorithm.name: algorithm.module for algorithm in ALGORITHMS}


@functools.cache
def keywords_of(agent: str) -> frozenset[str] | None:
    """Keyword arguments that one of the project's agents is made with; None where its source does not say.

    Args:
        agent: name of the class.
    """
    file = Path(__file__).resolve().parent.parent / "training" / f"{_MODULES.get(agent, '').replace('.', '/')}.py"
    try:
        statements = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    found = next((one for one in statements if isinstance(one, ast.ClassDef) and one.name == agent), None)
    if found is None:
        # Another name of a class in that module.
        aliases = [
            one.value.id
            for one in statements
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Name)
            if any(isinstance(target, ast.Name) and target.id == agent for target in one.targets)
        ]
        return keywords_of(aliases[0]) if aliases else None
    made = next((one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    own: frozenset[str] = frozenset()
    if made is not None:
        own = frozenset(argument.arg for argument in (*made.args.args, *made.args.kwonlyargs)) - GIVEN
        if made.args.kwarg is None:
            return own
    # What it does not name goes to the class that it derives from.
    base = keywords_of(found.bases[0].id) if found.bases and isinstance(found.bases[0], ast.Name) else None
    return None if base is None else own | base


def unknown_keywords(config: Config) -> Iterator[str]:
    """One line for each key of `agent.kwargs` that the project's own agent does not take."""
    algorithm = algorithm_of(config.agent.cls)
    known = keywords_of(algorithm.name) if algorithm is not None and config.agent.kwargs else None
    if algorithm is None or known is None:
        return
    for key in sorted(config.agent.kwargs.keys() - known):
        matches = difflib.get_close_matches(key, known, n=2)
        hint = f" Did you mean {' or '.join(matches)}?" if matches else ""
        place = " The device is trainer.device." if key == "device" else ""
        yield (
            f"agent.kwargs.{key}: {algorithm.name} takes no such keyword argument.{hint}{place} It takes "
            f"{', '.join(sorted(known))}."
        )
