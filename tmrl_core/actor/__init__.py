"""Policies and their weights. Classes that need torch are imported at their first use.

Without torch, the name of a policy gives its NumPy backend, so that a robot's script needs no other imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.config.algorithms import POLICIES
from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.actor.module import ActorModule as ActorModule
    from tmrl_core.actor.module import BatchActor as BatchActor
    from tmrl_core.actor.module import RecurrentActor as RecurrentActor
    from tmrl_core.actor.policies.numpy.categorical import NumpyCategoricalMLPActor as NumpyCategoricalMLPActor
    from tmrl_core.actor.policies.numpy.categorical import NumpyCategoricalRNNActor as NumpyCategoricalRNNActor
    from tmrl_core.actor.policies.numpy.deterministic import NumpyDeterministicMLPActor as NumpyDeterministicMLPActor
    from tmrl_core.actor.policies.numpy.gaussian import NumpyGaussianMLPActor as NumpyGaussianMLPActor
    from tmrl_core.actor.policies.numpy.gaussian import NumpyGaussianRNNActor as NumpyGaussianRNNActor
    from tmrl_core.actor.policies.numpy.lookup import choose_actor as choose_actor
    from tmrl_core.actor.policies.numpy.lookup import numpy_backend_of as numpy_backend_of
    from tmrl_core.actor.policies.numpy.q_value import NumpyQValueMLPActor as NumpyQValueMLPActor
    from tmrl_core.actor.policies.numpy.q_value import NumpyQValueRNNActor as NumpyQValueRNNActor
    from tmrl_core.actor.policies.numpy.residual import (
        NumpySquashedGaussianResidualActor as NumpySquashedGaussianResidualActor,
    )
    from tmrl_core.actor.policies.numpy.squashed_gaussian import (
        NumpyNormalizedSquashedGaussianMLPActor as NumpyNormalizedSquashedGaussianMLPActor,
    )
    from tmrl_core.actor.policies.numpy.squashed_gaussian import (
        NumpySquashedGaussianMLPActor as NumpySquashedGaussianMLPActor,
    )
    from tmrl_core.actor.policies.numpy.squashed_gaussian import (
        NumpySquashedGaussianRNNActor as NumpySquashedGaussianRNNActor,
    )
    from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor as CategoricalMLPActor
    from tmrl_core.actor.policies.torch.categorical import CategoricalRNNActor as CategoricalRNNActor
    from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor as DeterministicMLPActor
    from tmrl_core.actor.policies.torch.gaussian import GaussianMLPActor as GaussianMLPActor
    from tmrl_core.actor.policies.torch.gaussian import GaussianRNNActor as GaussianRNNActor
    from tmrl_core.actor.policies.torch.module import TorchActorModule as TorchActorModule
    from tmrl_core.actor.policies.torch.q_value import QValueMLPActor as QValueMLPActor
    from tmrl_core.actor.policies.torch.q_value import QValueRNNActor as QValueRNNActor
    from tmrl_core.actor.policies.torch.residual import SquashedGaussianResidualActor as SquashedGaussianResidualActor
    from tmrl_core.actor.policies.torch.squashed_gaussian import (
        NormalizedSquashedGaussianMLPActor as NormalizedSquashedGaussianMLPActor,
    )
    from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor as SquashedGaussianMLPActor
    from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianRNNActor as SquashedGaussianRNNActor

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "module": "ActorModule BatchActor RecurrentActor",
        "policies.torch.module": "TorchActorModule",
        "policies.numpy.lookup": "choose_actor numpy_backend_of",
    },
    {name: module for policy in POLICIES for name, module in policy.classes.items()},
)
