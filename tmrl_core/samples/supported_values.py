"""Values that the codec supports, and the error that names an unsupported value."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmrl_core.errors import CodecError

MAX_DEPTH = 32
"""Maximum nesting of containers, checked for values and for received bytes."""

ALLOWED = (
    "None, bool, int, float, str, bytes, list, tuple, dict (keys: str, bytes, int, float, bool, None), and NumPy "
    "arrays and scalars of bool, integer, float (16 to 64 bits) and complex (64, 128 bits) dtypes"
)


# A table instead of np.dtype(name), so that no text of a peer is parsed. Long doubles are excluded: their format
# depends on the platform, and their padding would leak memory contents.
DTYPES: dict[str, np.dtype[Any]] = {
    dtype.str: dtype
    for dtype in (np.dtype(order + code) for code in "?bhilqBHILQefdFD" for order in "<>")
    if dtype.kind in "biufc"
}

# Supported types of keys, and the range of MessagePack's integers.
KEYS = frozenset({type(None), bool, int, float, str, bytes})
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
MAX_INTEGER_BYTES = 1_024
"""Maximum size of an integer. Python refuses to write more than 4,300 digits, so that messages about it would fail."""


class UncarriableError(Exception):
    """A value is not supported. `path` grows while the error propagates, innermost key first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[Any] = []

    def told(self, name: str) -> str:
        """Return the path within the field `name`, and the reason."""
        path = name + "".join(f"[{_key_name(key)}]" for key in reversed(self.path))
        return f"{path} {self.reason}, which the codec cannot carry"

    def named(self, name: str) -> CodecError:
        """Return the error for the caller, which names the field."""
        return CodecError(
            f"{self.told(name)}. It carries {ALLOWED}, nested up to {MAX_DEPTH} "
            f"levels. Convert the value or leave it out."
        )


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Check that arrays of this dtype are supported.

    Raises:
        UncarriableError: they are not supported.
    """
    if dtype.str not in DTYPES:
        raise UncarriableError(f"is an array of dtype {dtype}")


def own_key(key: Any) -> Any:
    """Return a supported key of a dict, as its base type.

    Raises:
        UncarriableError: the key is not supported.
    """
    kind = type(key)
    if kind is str:
        return own_text(key)
    if kind is int and not INT_MIN <= key <= INT_MAX:
        raise UncarriableError("has an integer key beyond 64 bits")
    if kind in KEYS:
        return key
    if isinstance(key, str):
        return own_text(str.__str__(key))
    raise UncarriableError(f"has a key of type {type_name(key)}")


def own_integer(value: int) -> int:
    """Return the integer if it is supported.

    Raises:
        UncarriableError: it is too large.
    """
    if value.bit_length() >= 8 * MAX_INTEGER_BYTES:
        raise UncarriableError(f"is an integer of more than {MAX_INTEGER_BYTES} bytes")
    return value


def own_text(value: str) -> str:
    """Return the text if it is supported.

    Raises:
        UncarriableError: the text has no UTF-8 form.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UncarriableError("is text with lone surrogates") from error
    return value


def _key_name(key: Any) -> str:
    # repr() is used only for known types, because it may fail or be long.
    if isinstance(key, str) and len(key) > 60:
        return f"{key[:60]!r}..."
    if isinstance(key, (str, float)) or (isinstance(key, int) and key.bit_length() <= 64):
        return repr(key)
    return f"a {type_name(key)}"


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module if that is informative."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
