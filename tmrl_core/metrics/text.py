"""Numbers as short text, with one function for each kind of number, so that all screens and logs write them equally."""

from __future__ import annotations

import math

from tmrl_core.metrics.records import Value


def number_text(value: Value) -> str:
    """Return a value as short text: whole numbers with commas, others with four significant digits."""
    if value is None:
        return "nan"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def clock_text(seconds: float) -> str:
    """Return a time span as `m:ss`, or as `h:mm:ss` from an hour on."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def return_text(value: float | None, beside: float | None = None) -> str:
    """Return an episode's return as text: three significant digits, thousands with commas.

    Args:
        value: None gives "-".
        beside: target shown next to it; more digits are shown if three do not distinguish the two.
    """
    if value is None:
        return "-"
    for digits in range(3, 17):
        text = _significant(value, digits)
        if beside is None or value == beside or text != _significant(beside, digits):
            return text
    return repr(value)


def _significant(value: float, digits: int) -> str:
    if not math.isfinite(value) or not 10 ** (digits - 1) <= abs(value) < 1e9:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}"


def milliseconds_text(seconds: float) -> str:
    """Return a short time in milliseconds with two significant digits, or as a whole number."""
    return f"{_significant(1e3 * seconds, 2)} ms"


def bytes_text(count: float) -> str:
    """Return a number of bytes as short text, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def duration_text(seconds: float) -> str:
    """Return a time span in its two largest units; `?` if it is not finite, as a hostile Server may state it."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {rest // 60:02d} min"
    return f"{whole} s" if whole < 60 else f"{rest // 60} min {rest % 60:02d} s"
