"""Constructors of agents, described by their settings."""

# Theory of operation
#
# An algorithm is declared once, in a file `*_settings.py` beside its agent, which needs no torch: its settings, each
# with type, default, limit and description, and its row of the table of algorithms. Constructors, signatures,
# docstrings, exports, the checks of a configuration and the tables of the documents follow from it, also on machines
# without torch. The agent holds its settings as one object, which is part of checkpoints, since a schedule may change
# it.
#
# Rejected: a folder for each algorithm (a third file, and other import paths, for nothing). Policies, networks and
# training loops write their parameters out: scripts call them by position, editors and type checkers read them there,
# and generating them would save some sixty lines of repetition. A test compares their defaults with the configuration.

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeAlias, TypeVar

from tmrl_core.config.descriptions import add_descriptions, described
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.settings import Settings
from tmrl_core.training.value_types import Maker

Agent = TypeVar("Agent", bound=type[TrainingAgent])
Setting: TypeAlias = Any
"""Value of one of an agent's settings, whose class names its type."""


def takes(settings: type[Settings], networks: Maker | None = None) -> Callable[[Agent], Agent]:
    """Declare the settings of an agent, which it holds as `settings`, and with their row its spaces and collection.

    Its constructor gets the signature of the settings, and its docstring their descriptions.

    Args:
        settings: class of the settings.
        networks: default of the keyword argument that makes the networks.
    """

    def describe(agent: Agent) -> Agent:
        declared: Any = agent
        if (row := settings.algorithm) is not None:
            declared.action_spaces, declared.collection = row.action_spaces, row.collection
        declared.settings_cls, declared.default_networks = settings, staticmethod(networks) if networks else None
        inherited = declared.__init__

        # A constructor of its own, because derived agents share the inherited one.
        @functools.wraps(inherited)
        def init(self: TrainingAgent, *given: Setting, **named: Setting) -> None:
            inherited(self, *given, **named)

        own = inspect.signature(inspect.unwrap(inherited)).parameters.values()
        parameters = [
            one.replace(default=networks) if one.name == settings.networks else one
            for one in own
            if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        known = described(settings)
        fields = sorted(dataclasses.fields(settings), key=lambda one: one.kw_only is True)
        for one in fields:
            kind = Parameter.KEYWORD_ONLY if one.kw_only is True else Parameter.POSITIONAL_OR_KEYWORD
            annotation = inspect.formatannotation(known[one.name][0])
            annotation = annotation.replace("collections.abc.", "").replace("typing.", "")
            parameters.append(Parameter(one.name, kind, default=one.default, annotation=annotation))
        declared.__init__ = init
        declared.__init__.__signature__ = inspect.Signature(parameters, return_annotation="None")
        declared.__init__.__annotations__ = init.__annotations__ | {name: hint for name, (hint, _) in known.items()}
        return add_descriptions(agent, {one.name: known[one.name][1] for one in fields})

    return describe
