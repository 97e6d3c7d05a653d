"""Policies: what acts, and its weights. What needs torch is imported when it is first asked for.

Where torch is not installed, the name of a policy gives its NumPy twin: a robot's script needs no other imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tmrl_core.config.algorithms import POLICIES
from tmrl_core.errors import MissingExtraError

if TYPE_CHECKING:
    from tmrl_core.actor.module import ActorModule as ActorModule
    from tmrl_core.actor.module import BatchActor as BatchActor
    from tmrl_core.actor.policies.numpy.backends import choose_actor as choose_actor
    from tmrl_core.actor.policies.numpy.backends import numpy_twin as numpy_twin
    from tmrl_core.actor.policies.numpy.off_policy import NumpyDeterministicMLPActor as NumpyDeterministicMLPActor
    from tmrl_core.actor.policies.numpy.off_policy import NumpyQValueMLPActor as NumpyQValueMLPActor
    from tmrl_core.actor.policies.numpy.on_policy import NumpyCategoricalMLPActor as NumpyCategoricalMLPActor
    from tmrl_core.actor.policies.numpy.on_policy import NumpyGaussianMLPActor as NumpyGaussianMLPActor
    from tmrl_core.actor.policies.numpy.squashed_gaussian import (
        NumpySquashedGaussianMLPActor as NumpySquashedGaussianMLPActor,
    )
    from tmrl_core.actor.policies.torch.module import TorchActorModule as TorchActorModule
    from tmrl_core.actor.policies.torch.off_policy import DeterministicMLPActor as DeterministicMLPActor
    from tmrl_core.actor.policies.torch.off_policy import QValueMLPActor as QValueMLPActor
    from tmrl_core.actor.policies.torch.on_policy import CategoricalMLPActor as CategoricalMLPActor
    from tmrl_core.actor.policies.torch.on_policy import GaussianMLPActor as GaussianMLPActor
    from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor as SquashedGaussianMLPActor

_HOMES = {
    "ActorModule": "module",
    "BatchActor": "module",
    "TorchActorModule": "policies.torch.module",
    "choose_actor": "policies.numpy.backends",
    "numpy_twin": "policies.numpy.backends",
    **{name: module for policy in POLICIES for name, module in policy.classes.items()},
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as exc:
        if exc.name == "torch":
            twin = f"Numpy{name}"
            if twin in _HOMES:
                return __getattr__(twin)
            raise MissingExtraError("torch", "trainer", f"tmrl_core.actor.{name}") from exc
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
