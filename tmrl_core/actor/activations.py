"""Names of activations, the same for both implementations of the policy; knows torch's classes by name only."""

from __future__ import annotations

from typing import Any


def activation_name(activation: Any) -> str:
    """`relu`, `tanh` and so on, of a name, a class or a callable with a name."""
    if not isinstance(activation, str):
        activation = getattr(activation, "__name__", type(activation).__name__)
    return str(activation).lower()
