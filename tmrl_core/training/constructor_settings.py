"""Settings after construction. On resume, changed settings take effect; others keep their trained values."""

# Theory of operation
#
# A setting that has changed since the checkpoint takes effect, and the log shows both values. Settings that training
# itself may change, such as a learning rate under a schedule, need more information than the two values: each
# checkpoint contains the arguments of the constructors. Example: `lr` was 1e-3 in the constructor and 4e-4 by its
# schedule when the checkpoint was written. The run resumes with 4e-4 if the configuration still says 1e-3, and with
# 5e-4 if it says 5e-4 now. This also holds for scripts, which have no configuration.
#
# Rejected: always the current settings (a schedule would start again); always the settings of the checkpoint (a changed
# learning rate would be ignored).

from __future__ import annotations

from collections.abc import Iterator

from tmrl_core.training.checkpointable import StateOwner, parameters_of
from tmrl_core.training.value_types import Settings

PLAIN = (bool, int, float, str, tuple)
"""Types of settings."""


def constructed_settings(owner: object, path: str) -> Settings:
    """Return the settings of a new agent, memory or algorithm, by their paths in a checkpoint.

    Args:
        owner: the agent, memory or algorithm. Its settings are the attributes with names of constructor parameters,
            and its optimizers' groups.
        path: path of the owner, such as `agent`.
    """
    import torch

    found: Settings = {}
    arguments = constructor_parameters(type(owner))
    for name, value in vars(owner).items():
        place = f"{path}.{name}"
        if name in arguments and (value is None or isinstance(value, PLAIN)):
            found[place] = value
        for at, item in _parts(value, place):
            if isinstance(item, StateOwner):
                found |= constructed_settings(item, at)
            if isinstance(item, torch.optim.Optimizer):
                for number, group in enumerate(item.param_groups):
                    found |= {f"{at}[{number}].{key}": held for key, held in group.items() if isinstance(held, PLAIN)}
    return found


def constructor_parameters(kind: type) -> set[str]:
    """Return the names of parameters of a class's constructor and of its parents' constructors."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base) and base is not object]
    return {name for constructor in constructors for name in parameters_of(constructor)}


def _parts(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Yield a value, or the elements of a list, tuple or dict."""
    if isinstance(value, dict):
        yield from ((f"{place}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{place}[{number}]", item) for number, item in enumerate(value))
    else:
        yield place, value
