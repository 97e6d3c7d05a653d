"""The public Buffer, whose default capacity comes from the configuration."""

from __future__ import annotations

from tmrl_core import samples
from tmrl_core.config import CFG, Cfg, current


class Buffer(samples.Buffer):
    """Samples in the order of collection, and the records of finished episodes.

    Args:
        maxlen: capacity in samples, as in `tmrl_core.samples.Buffer`. Left out: `worker.buffer_maxlen` of
            `tmrl_core.config.current()`, read now.
    """

    def __init__(self, maxlen: float | Cfg | None = CFG) -> None:
        super().__init__(current().worker.buffer_maxlen if maxlen is CFG else maxlen)
