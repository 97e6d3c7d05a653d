"""The trainer's rate limiter: a maximum of updates for each sample, and a band of samples per insert.

Source: Cassirer et al., Reverb, arXiv:2102.04736, section 3.3 (SampleToInsertRatio)."""

# Theory of operation
#
# Two limits on the same two counts, samples received and updates made. It owns no count: the loop passes both, and
# `change` may come from any thread, so the band is one immutable object that is replaced whole.
#
# The first limit is a maximum of updates for each sample; one update more passes, since the updates already made are
# what is compared. The second is a band. With N samples received, D transitions sampled (updates times the batch) and S
# samples per insert, D follows S * (N - min_size) from `min_size` on, within `error_buffer` either way. Training waits
# where D would leave the band at its upper end. Insertion waits where D has fallen below the lower end: the samples
# stay in the trainer's inbox, then, because credit runs out, in their workers.
#
# Example: S = 100, min_size 1,000, batches of 256, error_buffer 10,000. With the first 1,000 samples, 10,000
# transitions may be sampled, which are 39 updates. With 2,000 samples, D may be 90,000 to 110,000: training waits after
# 429 updates, and insertion waits while fewer than 352 were made.
#
# The lower end is the inverse of the upper limit, in exact fractions (rate_limit.py): two floating-point quotients
# could round so that both sides wait. It counts received samples, as all ratios do, not rows: a refused or stale sample
# was paid for by its worker too. A retrieval is inserted whole and may exceed the band by its size. While training
# lacks samples it takes them whatever the band says, so that no two limits stop both sides.
#
# A limit that is set in the middle of a run takes the present counts as balanced, or a run of a million samples would
# have to repay the difference first. A checkpoint holds the band together with the settings that made it: unchanged
# settings continue the band, changed ones begin a new one at the saved counts.

from __future__ import annotations

import math
from dataclasses import dataclass

from tmrl_core.errors import ConfigError
from tmrl_core.rate_limit import RateLimit, default_error, least_error
from tmrl_core.training.value_types import State


@dataclass(frozen=True)
class _Band:
    above: RateLimit
    below: RateLimit
    stored: int
    sampled: int
    """Samples received and transitions sampled before the band was set. The band does not count them."""


@dataclass(frozen=True)
class _Most:
    ratio: RateLimit
    samples: int
    updates: int
    """Samples received and updates made before the ratio was set, which it does not count."""

    def updates_left(self, samples: int, updates: int) -> float:
        return self.ratio.most(samples - self.samples) + 1 - (updates - self.updates)

    def allows(self, samples: int, updates: int) -> bool:
        return self.ratio.allows(updates - self.updates, samples - self.samples)


class RateLimiter:
    """The limits of a training loop. The maximum may be changed from any thread: a change is one assignment.

    Args:
        samples_per_insert: transitions sampled for each sample received (updates * batch_size / samples); None: no
            band.
        min_size: samples received before the first update.
        error_buffer: half the width of the band, in transitions; None: a tenth of `samples_per_insert * min_size`, at
            least two batches.
        batch_size: transitions of an update.
        max_updates_per_sample: updates for each sample received; one more update passes.

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
        *,
        max_updates_per_sample: float = math.inf,
    ) -> None:
        if min_size < 1 or batch_size < 1:
            raise ConfigError(f"min_size and batch_size must be at least 1, got {min_size} and {batch_size}")
        self.min_size = min_size
        self.batch_size = batch_size
        self._most = _Most(RateLimit(max_updates_per_sample), 0, 0)
        self._configured_most = float(max_updates_per_sample)
        self._configured = (samples_per_insert, error_buffer)
        self._band = self._checked(samples_per_insert, error_buffer, 0, 0)
        self.seen = (0, 0)
        """Samples received and updates made when the limits were last looked at. The loop sets it where a checkpoint
        may be written."""
        self.changes = 0
        """Number of changes of the maximum."""

    def _checked(
        self, samples_per_insert: float | None, error_buffer: float | None, stored: int, sampled: int
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
        above = RateLimit(float(samples_per_insert), float(error_buffer))
        return _Band(above, above.inverse, stored, sampled)

    def change_most(self, updates_per_sample: float, samples: int, updates: int) -> None:
        """Replace the maximum of updates for each sample. The present counts are taken as balanced.

        Raises:
            ConfigError: the number is not above 0.
        """
        if not (updates_per_sample > 0 and math.isfinite(updates_per_sample)):
            raise ConfigError(f"the updates for each sample must be above 0, got {updates_per_sample!r}")
        self._most = _Most(RateLimit(float(updates_per_sample)), samples, updates)
        self.changes += 1

    def updates_left(self, samples: int, updates: int) -> float:
        """Return the number of updates that may follow these numbers of updates and received samples."""
        left, band = self._most.updates_left(samples, updates), self._band
        if band is not None:
            paid = samples - band.stored - self.min_size
            most = (band.above.most(paid) + band.sampled) // self.batch_size if samples >= self.min_size else updates
            left = min(left, most - updates)
        return max(0, left)

    def can_insert(self, samples: int, updates: int) -> bool:
        """Return True if further samples may be inserted after these numbers of updates and received samples."""
        band = self._band
        if band is None or samples < self.min_size:
            return True
        return band.below.allows(samples - band.stored - self.min_size, updates * self.batch_size - band.sampled)

    def shortfall(self, samples: int, updates: int) -> str:
        """Describe the limit that holds training; empty: it may continue."""
        self.seen = (samples, updates)
        if self.updates_left(samples, updates):
            return ""
        band = self._band
        most = self._most
        if band is None or not most.allows(samples, updates):
            if most.samples or most.updates:
                return (
                    f"{updates - most.updates} updates / {samples - most.samples} samples received since an operator "
                    f"set the ratio is above {most.ratio.ratio:g}"
                )
            return (
                f"{updates} updates / {samples} samples received is above trainer.max_training_steps_per_env_step = "
                f"{most.ratio.ratio:g}"
            )
        return (
            f"{updates * self.batch_size - band.sampled} transitions sampled of {samples - band.stored} samples is "
            f"above {band.above.ratio:g} for each (trainer.limiter.samples_per_insert) after the first "
            f"{self.min_size}, and {band.above.slack:g} over"
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the band and its settings, for a checkpoint; also a ratio that was set since the start."""
        band, most = self._band, self._most
        held = None if band is None else [band.above.ratio, band.above.slack, band.stored, band.sampled]
        state: State = {"made": self._made, "band": held, "seen": [self.seen[0], self.seen[1] * self.batch_size]}
        if most.samples or most.updates:
            state["most"] = [self._configured_most, float(most.ratio.ratio), most.samples, most.updates]
        return state

    @property
    def _made(self) -> list[float | None]:
        return [*self._configured, self.min_size, self.batch_size]

    def load_state_dict(self, state: State) -> None:
        """Continue with the band of a checkpoint. If the settings of this limiter differ, they apply from now on.

        Raises:
            ConfigError: the state is invalid.
        """
        # A ratio that somebody has set holds until the configured one is changed.
        configured, *most = state.get("most", [math.nan])
        if configured == self._configured_most:
            self._most = _Most(RateLimit(float(most[0])), int(most[1]), int(most[2]))
        stored, sampled = state["seen"]
        stored = max(0, stored - self.min_size)
        if state["made"] == self._made and state["band"] is not None:
            stored, sampled = state["band"][2:]
        self._band = self._checked(*self._configured, int(stored), int(sampled))
