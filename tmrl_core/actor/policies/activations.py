"""Names of activations, the same for both implementations of the policy; knows torch's classes by name only."""

from __future__ import annotations

import inspect
from typing import Any


def activation_name(activation: Any) -> str:
    """Return the lower-case name, such as `relu`, of an activation given by name, class, function or module."""
    if isinstance(activation, str):
        return activation.lower()
    named = inspect.isclass(activation) or inspect.isroutine(activation)
    return str((activation if named else type(activation)).__name__).lower()
