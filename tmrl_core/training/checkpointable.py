"""The contract of the parts that checkpoints hold.

A part either writes its own state (`Checkpointable`), or is an agent, a memory, a training loop or another `StateOwner`
whose attributes are its state (`saved_attributes`). Its class may declare:

    type_id = "sac"                  its name in checkpoints, for good, so that its file may move
    type_version = 1                 version of its state; a state of another version is refused
    transient = frozenset({"x"})     attributes that are no state, added to those of its parents
"""

# Theory of operation
#
# The state names the type of each part by an id of its own, so its file may move and its class be renamed. A class of a
# user is `module:qualname` unless it declares an id. A derived class is another type: it does not inherit the id, but
# it inherits the version. A name is only compared with the class of the object that the configuration has made, so
# reading a checkpoint imports nothing.
#
# Columnar memories, the limiter, networks and optimizers write their own state. For agents, loops and memories of
# single transitions, the attributes are the state, except those in `transient`; so attributes of derived classes are
# included. Rejected: a list of names in each class, and a generic walk for derived classes. Almost all attributes of an
# agent are state, settings too, since a schedule may change them: the list would be longer than `transient`, and the
# walk remain.
#
# A test lists the names in the state of each type; a change of them raises the version.

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    # A Server checks a configuration, and so imports the settings of agents, without gymnasium.
    from tmrl_core.training.value_types import State, Tree


@runtime_checkable
class Checkpointable(Protocol):
    """A part that writes its own state: a network, an optimizer, a columnar memory, an object of a user.

    A state is made of numbers, strings, bytes, lists, tuples, sets, dicts, NumPy arrays and tensors.
    """

    def state_dict(self) -> Tree:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Load the result of `state_dict`."""


class StateOwner:
    """Base of parts whose attributes are their state, as those of an agent are (`saved_attributes`)."""


def place_of(kind: type) -> str:
    """Return `module:qualname` of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def type_name(kind: type) -> str:
    """Return a class's type id, or its qualified name without one. Ids contain neither `:` nor `.`.

    A derived class is another type: it does not inherit the id, but the version of the state that it extends.
    """
    declared: str | None = vars(kind).get("type_id")
    return declared if declared is not None else place_of(kind)


def type_version(kind: type) -> int:
    """Return the version of the state that a class writes."""
    return next((vars(base)["type_version"] for base in kind.__mro__ if "type_version" in vars(base)), 1)


def transient_attributes(kind: type) -> frozenset[str]:
    """Return the names of attributes that are not state: those in `transient`, and cached properties."""
    declared = {name for base in kind.__mro__ for name in vars(base).get("transient", ())}
    cached = {name for base in kind.__mro__ for name, item in vars(base).items() if isinstance(item, cached_property)}
    return frozenset(declared | cached)


def attributes_of(part: object) -> State:
    """Return the attributes of an object; empty if it has none."""
    found: State = getattr(part, "__dict__", {})
    return found


def parameters_of(constructor: Callable[..., None]) -> frozenset[str]:
    """Return the names of a constructor's parameters, for `transient`: attributes of these names are settings."""
    return frozenset(signature(constructor).parameters)


def saved_attributes(part: object) -> State:
    """Return the attributes that form the state of a part that does not write its own state."""
    transient = transient_attributes(type(part))
    return {name: value for name, value in attributes_of(part).items() if name not in transient}
