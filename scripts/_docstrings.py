"""An extension of Griffe: classes whose docstrings are completed when they are defined, as they are at run time."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from typing import Any

import griffe


class Completed(griffe.Extension):
    """Takes the docstring, and a signature that was set, of classes decorated with `takes` or `described_by`."""

    def on_class_members(self, *, node: ast.AST | griffe.ObjectNode, cls: griffe.Class, **kwargs: Any) -> None:
        """Replace what the source says."""
        if not any(one.callable_path.endswith((".takes", ".described_by")) for one in cls.decorators):
            return
        found = getattr(import_module(cls.module.path), cls.name)
        cls.docstring = griffe.Docstring(inspect.cleandoc(found.__doc__), parent=cls, parser="google")
        signature = getattr(found.__init__, "__signature__", None)
        if signature is not None:
            init = cls.members.get("__init__")
            if not isinstance(init, griffe.Function):
                init = griffe.Function("__init__")
                cls.set_member("__init__", init)
            own = {one.name: one for one in init.parameters}
            parameters = signature.parameters.values()
            init.parameters = griffe.Parameters(*(own.get(one.name) or _parameter(one) for one in parameters))


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind(one.kind.description)
    return griffe.Parameter(one.name, annotation=one.annotation, kind=kind, default=repr(one.default))
