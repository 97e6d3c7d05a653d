"""Success classifiers: the reward and the end of an episode, from labelled observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.success.classifier import SuccessClassifier as SuccessClassifier
    from tmrl_core.success.environment import SuccessEnv as SuccessEnv

__all__, __getattr__, __dir__ = lazy_names(__name__, {"classifier": "SuccessClassifier", "environment": "SuccessEnv"})
