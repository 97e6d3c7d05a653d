"""How often what is stored is drawn, held within a band.

With N transitions stored, D drawn and S samples per insert, D follows S * N from `min_size` on, within `error_buffer`
either way. Drawing waits where D would go above the band; storing waits where D has fallen below it, if there is
somebody who draws.

Source: Cassirer et al., Reverb, arXiv:2102.04736, section 3.3 (SampleToInsertRatio).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tmrl_core.errors import ConfigError


@dataclass(frozen=True)
class _Band:
    samples_per_insert: float
    error_buffer: float
    stored: int
    drawn: int
    """What counts from then on: how much was stored and drawn when the band was set, and not accounted for."""


class SamplesPerInsert:
    """The band. It may be changed while training runs, from any thread: a change is one assignment.

    Args:
        samples_per_insert: transitions drawn for each that is stored (updates * batch_size / transitions).
        min_size: transitions stored before the first is drawn.
        error_buffer: transitions drawn that this may be off by, either way; None: a tenth of
            `samples_per_insert * min_size`, at least two batches.
        batch_size: transitions drawn at once.

    Raises:
        ConfigError: a number is not positive, or the band is narrower than a batch or than what one transition allows.
    """

    def __init__(
        self, samples_per_insert: float, min_size: int, error_buffer: float | None = None, batch_size: int = 1
    ) -> None:
        if min_size < 1 or batch_size < 1:
            raise ConfigError(f"min_size and batch_size must be at least 1, got {min_size} and {batch_size}")
        self.min_size = min_size
        self.batch_size = batch_size
        self._band = self._checked(samples_per_insert, error_buffer, 0, 0)

    def _checked(self, samples_per_insert: float, error_buffer: float | None, stored: int, drawn: int) -> _Band:
        if not (samples_per_insert > 0 and math.isfinite(samples_per_insert)):
            raise ConfigError(f"samples_per_insert must be above 0, got {samples_per_insert!r}")
        least = max(self.batch_size, samples_per_insert)
        if error_buffer is None:
            error_buffer = max(0.1 * samples_per_insert * self.min_size, 2 * least)
        if not (error_buffer >= least and math.isfinite(error_buffer)):
            raise ConfigError(
                f"error_buffer must be at least {least:g} (a batch, what one transition allows), got {error_buffer!r}"
            )
        return _Band(samples_per_insert, error_buffer, stored, drawn)

    def change(self, samples_per_insert: float, error_buffer: float | None, stored: int, drawn: int) -> None:
        """Another band from now on; what was stored and drawn so far counts as even.

        Raises:
            ConfigError: as the constructor.
        """
        self._band = self._checked(samples_per_insert, error_buffer, max(0, stored - self.min_size), drawn)

    def _ahead(self, band: _Band, stored: int, drawn: int) -> float:
        """How many more were drawn than the middle of the band says."""
        due = band.samples_per_insert * (stored - band.stored - self.min_size)
        return (drawn - band.drawn) - due

    def may_draw(self, stored: int, drawn: int) -> bool:
        """Whether a batch may be drawn now."""
        band = self._band
        return stored >= self.min_size and self._ahead(band, stored, drawn + self.batch_size) <= band.error_buffer

    def may_store(self, stored: int, drawn: int) -> bool:
        """Whether more may be stored now."""
        band = self._band
        return stored < self.min_size or self._ahead(band, stored, drawn) >= -band.error_buffer

    def lack(self, stored: int, drawn: int) -> str:
        """What drawing waits for, in words; empty when it may go on."""
        if self.may_draw(stored, drawn):
            return ""
        band = self._band
        return (
            f"{drawn} transitions drawn of {stored} stored is above {band.samples_per_insert:g} for each after the "
            f"first {self.min_size}, and {band.error_buffer:g} over"
        )
