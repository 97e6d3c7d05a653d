"""Constructors of the built-in agents, described by their settings in `tmrl_core.config.agent_settings`."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

from tmrl_core.config.agent_settings import described
from tmrl_core.training.agent import TrainingAgent

Agent = TypeVar("Agent", bound=type[TrainingAgent])


def takes(settings: type[Any]) -> Callable[[Agent], Agent]:
    """Give an agent's constructor the signature, and its docstring the descriptions, of its settings.

    The constructor ends with `*given, **named`, of which it makes the settings.
    """

    def describe(agent: Agent) -> Agent:
        init: Any = agent.__init__
        own = [one for one in inspect.signature(init).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        known = described(settings)
        parameters, text = [], ""
        for one in sorted(dataclasses.fields(settings), key=lambda one: one.kw_only is True):
            hint, meta = known[one.name]
            kind = Parameter.KEYWORD_ONLY if one.kw_only is True else Parameter.POSITIONAL_OR_KEYWORD
            annotation = inspect.formatannotation(hint).replace("collections.abc.", "").replace("typing.", "")
            parameters.append(Parameter(one.name, kind, default=one.default, annotation=annotation))
            line = f"{one.name}: {meta.description}."
            text += textwrap.fill(line, 120, initial_indent="\n        ", subsequent_indent=" " * 12)
        init.__signature__ = inspect.Signature([*own, *parameters], return_annotation="None")
        init.__annotations__ |= {name: hint for name, (hint, _) in known.items()}
        if agent.__doc__ is not None:
            agent.__doc__ = agent.__doc__.replace("\n\n    Raises:", f"{text}\n\n    Raises:", 1)
        return agent

    return describe
