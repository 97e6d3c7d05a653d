"""A bound on one count by another: the arithmetic of all throttles between workers and trainer.

Samples per insert bound the samples trained on by the samples inserted; the inverse bounds the samples inserted by the
samples trained on. Each throttle is one of the two. The trainer's ratio and the upper end of its band count updates
against received samples. The lower end of the band and both limits of workers count samples against updates or models.
"""

# Theory of operation
#
# A count stays at or below a ratio times another count, plus slack. `config/ratios.py` checks with the same class, in
# exact fractions, that the limits of workers and trainer cannot stop both sides: each side's limit alone is sensible,
# and two of them together may wait for each other for ever. Example: at most 2 steps per update at the worker, at most
# 0.25 updates per sample at the trainer: 100 steps allow 25 updates, and 25 updates allow 50 steps.
#
# A band has two such limits, `error_buffer` around the ratio: a narrow one makes both sides stop and go at each batch,
# hence `least_error`.

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

Number = float | Fraction


@dataclass(frozen=True)
class RateLimit:
    """Keep `count` at or below `ratio * paid + slack`.

    For a float ratio, quotients are compared, because they match the written number: 29 / 100 == 0.29, but 0.29 * 100 <
    29.

    Args:
        ratio: allowed for each unit of `paid`; infinite: no limit.
        slack: allowed in addition.
    """

    ratio: Number
    slack: Number = 0

    def allows(self, count: int, paid: int) -> bool:
        """Return True if `count` may be reached."""
        over = count - self.slack
        if isinstance(self.ratio, float) and paid > 0:
            return over / paid <= self.ratio
        return over <= (self.ratio * paid if paid else 0)

    def most(self, paid: int) -> float:
        """Return the highest count that is allowed; infinite without a limit."""
        if self.ratio == math.inf:
            return math.inf
        near = math.floor(self.ratio * paid + self.slack)
        if isinstance(self.ratio, float):  # the product may be rounded, so the quotient decides
            return near + 1 if self.allows(near + 1, paid) else near if self.allows(near, paid) else near - 1
        return near

    @property
    def inverse(self) -> RateLimit:
        """The limit on `paid` by `count` that allows `ratio * paid <= count + slack`, without rounding."""
        ratio = exact(self.ratio)
        return RateLimit(1 / ratio, exact(self.slack) / ratio)


def exact(number: Number) -> Fraction:
    """Return the exact value of the written number: 0.1 is a tenth."""
    return Fraction(str(number))


def least_error(samples_per_insert: float, batch_size: int) -> float:
    """Return the narrowest error buffer of a band: a batch, or the transitions that one more sample allows."""
    return max(batch_size, samples_per_insert)


def default_error(samples_per_insert: float, start_training: int, batch_size: int) -> float:
    """Return the error buffer if none is set: a tenth of what the first samples allow, at least twice the narrowest."""
    return max(0.1 * samples_per_insert * max(1, start_training), 2 * least_error(samples_per_insert, batch_size))
