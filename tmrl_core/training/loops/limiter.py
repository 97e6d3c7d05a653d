"""Rate limiter that keeps the samples per insert within a band.

With N samples stored, D transitions sampled and S samples per insert, D follows S * (N - min_size) from `min_size` on,
within `error_buffer` either way. Sampling waits where D would rise above the band. Storing waits where D has fallen
below the band, if a trainer is sampling.

Source: Cassirer et al., Reverb, arXiv:2102.04736, section 3.3 (SampleToInsertRatio).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tmrl_core.config.ratios import default_error, least_error
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
        samples_per_insert: transitions drawn for each sample that is stored (updates * batch_size / samples); None: no
            limit.
        min_size: samples stored before the first is drawn.
        error_buffer: transitions drawn that this may be off by, either way; None: a tenth of
            `samples_per_insert * min_size`, at least two batches.
        batch_size: transitions drawn at once.

    Raises:
        ConfigError: a number is not positive, or the band is narrower than a batch or than what one sample allows.
    """

    type_id = "samples_per_insert"
    type_version = 1

    def __init__(
        self,
        samples_per_insert: float | None = None,
        min_size: int = 1,
        error_buffer: float | None = None,
        batch_size: int = 1,
    ) -> None:
        if min_size < 1 or batch_size < 1:
            raise ConfigError(f"min_size and batch_size must be at least 1, got {min_size} and {batch_size}")
        self.min_size = min_size
        self.batch_size = batch_size
        self._configured = (samples_per_insert, error_buffer)
        self._band = self._checked(samples_per_insert, error_buffer, 0, 0)
        self._seen = (0, 0)
        """How much was stored and drawn when it was asked last."""

    def _checked(
        self, samples_per_insert: float | None, error_buffer: float | None, stored: int, drawn: int
    ) -> _Band | None:
        if samples_per_insert is None:
            return None
        if not (samples_per_insert > 0 and math.isfinite(samples_per_insert)):
            raise ConfigError(f"samples_per_insert must be above 0, got {samples_per_insert!r}")
        least = least_error(samples_per_insert, self.batch_size)
        if error_buffer is None:
            error_buffer = default_error(samples_per_insert, self.min_size, self.batch_size)
        if not (error_buffer >= least and math.isfinite(error_buffer)):
            raise ConfigError(
                f"error_buffer must be at least {least:g} (a batch, what one sample allows), got {error_buffer!r}"
            )
        return _Band(float(samples_per_insert), float(error_buffer), stored, drawn)

    @property
    def samples_per_insert(self) -> float | None:
        """Return the samples per insert that are kept now; None: no limit."""
        return None if self._band is None else self._band.samples_per_insert

    @property
    def error_buffer(self) -> float | None:
        """Return the allowed deviation; None: no limit."""
        return None if self._band is None else self._band.error_buffer

    def change(self, samples_per_insert: float | None, error_buffer: float | None, stored: int, drawn: int) -> None:
        """Another band from now on, or none; what was stored and drawn so far counts as even.

        Raises:
            ConfigError: as the constructor.
        """
        self._band = self._checked(samples_per_insert, error_buffer, max(0, stored - self.min_size), drawn)

    def _ahead(self, band: _Band, stored: int, drawn: int) -> float:
        """Return the number of transitions sampled beyond the middle of the band."""
        due = band.samples_per_insert * (stored - band.stored - self.min_size)
        return (drawn - band.drawn) - due

    def may_draw(self, stored: int, drawn: int) -> bool:
        """Tell whether a batch may be sampled then."""
        band = self._band
        if band is None:
            return True
        return stored >= self.min_size and self._ahead(band, stored, drawn + self.batch_size) <= band.error_buffer

    def may_store(self, stored: int, drawn: int) -> bool:
        """Tell whether more samples may be stored now."""
        band = self._band
        return band is None or stored < self.min_size or self._ahead(band, stored, drawn) >= -band.error_buffer

    def lack(self, stored: int, drawn: int) -> str:
        """Describe the shortfall that sampling waits for; empty where it may continue."""
        band = self._band
        self._seen = (stored, drawn)
        if band is None or self.may_draw(stored, drawn):
            return ""
        return (
            f"{drawn - band.drawn} transitions drawn of {stored - band.stored} samples is above "
            f"{band.samples_per_insert:g} for each (trainer.limiter.samples_per_insert) after the first "
            f"{self.min_size}, and {band.error_buffer:g} over"
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the band, and what it was made with."""
        band = self._band
        held = None if band is None else [band.samples_per_insert, band.error_buffer, band.stored, band.drawn]
        return {"made": self._made, "band": held, "seen": list(self._seen)}

    @property
    def _made(self) -> list[Any]:
        return [*self._configured, self.min_size, self.batch_size]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the band of a checkpoint, also one that was changed.

        Where this one was made with other numbers, those hold from here on.

        Raises:
            ConfigError: it holds what cannot be.
        """
        stored, drawn = (int(count) for count in state["seen"])
        if state["made"] != self._made:
            self.change(*self._configured, stored, drawn)
            return
        self._band = None
        if state["band"] is not None:
            ratio, error, stored, drawn = state["band"]
            self._band = self._checked(ratio, error, int(stored), int(drawn))
