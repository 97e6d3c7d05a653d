"""Constructors of the built-in agents, described by their settings in `tmrl_core.config.agent_settings`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeAlias, TypeVar

from tmrl_core.config.descriptions import add_descriptions, described
from tmrl_core.training.agent import TrainingAgent

Agent = TypeVar("Agent", bound=type[TrainingAgent])
Setting: TypeAlias = Any
"""Value of one of an agent's settings, whose class names its type."""


def takes(settings: type[Any]) -> Callable[[Agent], Agent]:
    """Give an agent's constructor the signature, and its docstring the descriptions, of its settings.

    The constructor ends with `*given, **named`, of which it makes the settings.
    """

    def describe(agent: Agent) -> Agent:
        init: Any = agent.__init__
        own = [one for one in inspect.signature(init).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        known = described(settings)
        fields = sorted(dataclasses.fields(settings), key=lambda one: one.kw_only is True)
        parameters = []
        for one in fields:
            kind = Parameter.KEYWORD_ONLY if one.kw_only is True else Parameter.POSITIONAL_OR_KEYWORD
            annotation = inspect.formatannotation(known[one.name][0])
            annotation = annotation.replace("collections.abc.", "").replace("typing.", "")
            parameters.append(Parameter(one.name, kind, default=one.default, annotation=annotation))
        init.__signature__ = inspect.Signature([*own, *parameters], return_annotation="None")
        init.__annotations__ |= {name: hint for name, (hint, _) in known.items()}
        return add_descriptions(agent, {one.name: known[one.name][1] for one in fields})

    return describe
