"""The Trainer of a process that a launcher such as torchrun has started as one of several."""

from __future__ import annotations

import os

from tmrl_core.config import Config
from tmrl_core.ranks.place import place_of
from tmrl_core.roles.trainer import Trainer


def make_trainer(config: Config) -> Trainer | None:
    """Return the Trainer of this rank; None: one process trains alone.

    Raises:
        ConfigError: a variable is missing, or the configuration cannot be shared among so many ranks.
    """
    place = place_of(os.environ)
    if place is None:
        return None
    from tmrl_core.ranks.trainer import RankTrainer

    return RankTrainer(config, place)
