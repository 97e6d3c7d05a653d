"""Policies: what acts, and its weights. What needs torch is imported when it is first asked for.

Where torch is not installed, the name of a policy gives its NumPy twin: a robot's script needs no other imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tmrl_core.errors import MissingExtraError

if TYPE_CHECKING:
    from tmrl_core.actor.module import ActorModule as ActorModule
    from tmrl_core.actor.numpy_off_policy import NumpyDeterministicMLPActor as NumpyDeterministicMLPActor
    from tmrl_core.actor.numpy_off_policy import NumpyQValueMLPActor as NumpyQValueMLPActor
    from tmrl_core.actor.numpy_on_policy import NumpyCategoricalMLPActor as NumpyCategoricalMLPActor
    from tmrl_core.actor.numpy_on_policy import NumpyGaussianMLPActor as NumpyGaussianMLPActor
    from tmrl_core.actor.numpy_policies import NumpySquashedGaussianMLPActor as NumpySquashedGaussianMLPActor
    from tmrl_core.actor.off_policy_policies import DeterministicMLPActor as DeterministicMLPActor
    from tmrl_core.actor.off_policy_policies import QValueMLPActor as QValueMLPActor
    from tmrl_core.actor.on_policy_policies import CategoricalMLPActor as CategoricalMLPActor
    from tmrl_core.actor.on_policy_policies import GaussianMLPActor as GaussianMLPActor
    from tmrl_core.actor.torch_module import TorchActorModule as TorchActorModule
    from tmrl_core.actor.torch_policies import SquashedGaussianMLPActor as SquashedGaussianMLPActor
    from tmrl_core.actor.twins import choose_actor as choose_actor
    from tmrl_core.actor.twins import numpy_twin as numpy_twin

_HOMES = {
    "ActorModule": "module",
    "CategoricalMLPActor": "on_policy_policies",
    "DeterministicMLPActor": "off_policy_policies",
    "GaussianMLPActor": "on_policy_policies",
    "NumpyCategoricalMLPActor": "numpy_on_policy",
    "NumpyDeterministicMLPActor": "numpy_off_policy",
    "NumpyGaussianMLPActor": "numpy_on_policy",
    "NumpyQValueMLPActor": "numpy_off_policy",
    "NumpySquashedGaussianMLPActor": "numpy_policies",
    "QValueMLPActor": "off_policy_policies",
    "SquashedGaussianMLPActor": "torch_policies",
    "TorchActorModule": "torch_module",
    "choose_actor": "twins",
    "numpy_twin": "twins",
}

__all__ = [
    "ActorModule",
    "CategoricalMLPActor",
    "DeterministicMLPActor",
    "GaussianMLPActor",
    "NumpyCategoricalMLPActor",
    "NumpyDeterministicMLPActor",
    "NumpyGaussianMLPActor",
    "NumpyQValueMLPActor",
    "NumpySquashedGaussianMLPActor",
    "QValueMLPActor",
    "SquashedGaussianMLPActor",
    "TorchActorModule",
    "choose_actor",
    "numpy_twin",
]


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
