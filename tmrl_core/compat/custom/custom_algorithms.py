"""The agents of `tmrl.custom.custom_algorithms`: the project's SAC and REDQ with tmrl's order and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from tmrl_core.compat.custom.custom_models import MLPActorCritic, REDQMLPActorCritic
from tmrl_core.compat.custom.utils.nn import copy_shared, no_grad
from tmrl_core.training.agents import redq, sac
from tmrl_core.training.agents.networks import CriticList
from tmrl_core.training.value_types import Device, Maker, Space

__all__ = ["REDQSACAgent", "SpinupSacAgent"]


@dataclass(eq=False, repr=False)
class _Attributes(sac.SacAgent):
    """tmrl's arguments that both agents have, and its names of the parts of an agent."""

    observation_space: Space
    action_space: Space
    device: Device = None
    model_cls: Maker = MLPActorCritic
    gamma: float = 0.99
    polyak: float = 0.995
    alpha: float = 0.2
    lr_actor: float = 1e-3
    lr_critic: float = 1e-3
    lr_entropy: float = 1e-3
    learn_entropy_coef: bool = True
    target_entropy: Any = None

    transient: ClassVar[frozenset[str]] = frozenset(
        {"model_cls", "alpha", "lr_actor", "lr_critic", "lr_entropy", "betas_actor", "betas_critic"}
        | {"l2_actor", "l2_critic", "n"}
    )

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        # tmrl reads these attributes in each update, so a script may change them.
        if name in ("gamma", "polyak", "m", "q_updates_per_policy_update") and "settings" in vars(self):
            setattr(self.settings, name, value)

    # Both compiled updates and these views belong to this process; cached properties are not in checkpoints.
    @cached_property
    def model_nograd(self) -> Any:
        """The model without gradients, on the same weights."""
        return no_grad(copy_shared(self.model))

    @property
    def model_target(self) -> Any:
        """The model with its target critics. The actor is the one that is trained: SAC has no target actor."""
        target = copy(self.model)
        target._modules = dict(self.model._modules)
        critics = self.target_critics
        if not isinstance(critics, CriticList):
            target._modules["critics"] = critics
        elif "qs" in target._modules:
            target._modules["qs"] = critics.critics
        else:
            target._modules |= dict(zip(("q1", "q2"), critics.critics, strict=True))
        return target

    @property
    def pi_optimizer(self) -> torch.optim.Optimizer:
        """Optimizer of the policy."""
        return self.optimizer_actor

    @pi_optimizer.setter
    def pi_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer_actor = optimizer
        self._forget_compiled()

    @property
    def alpha_optimizer(self) -> torch.optim.Optimizer | None:
        """Optimizer of the entropy coefficient; None: it is not learned."""
        return self.optimizer_alpha

    @alpha_optimizer.setter
    def alpha_optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.optimizer_alpha = optimizer
        self._forget_compiled()

    def _forget_compiled(self) -> None:
        """Compile updates again, because they contain the former optimizer."""
        vars(self).pop("compiler", None)

    def _update_temperature(self, log_prob_B: Tensor, weight_B: Tensor | None = None) -> dict[str, Tensor]:
        metrics = super()._update_temperature(log_prob_B, weight_B)
        if "loss_entropy" in metrics:
            metrics["loss_entropy_coef"] = metrics.pop("loss_entropy")
        return metrics


@dataclass(eq=False, repr=False)
class SpinupSacAgent(_Attributes):
    """Soft actor-critic, see `tmrl_core.training.SacAgent`.

    Attributes:
        model: the policy and its critics; `model_nograd` and `model_target` are views of it.
        pi_optimizer, q_optimizer, alpha_optimizer: the optimizers, which a script may replace.
    """

    optimizer_actor: Any = "adam"
    optimizer_critic: Any = "adam"
    betas_actor: Sequence[float] | None = None
    betas_critic: Sequence[float] | None = None
    l2_actor: float | None = None
    l2_critic: float | None = None

    def __post_init__(self) -> None:
        sac.SacAgent.__init__(self, **{one.name: vars(self)[one.name] for one in fields(SpinupSacAgent)})

    @property
    def q_optimizer(self) -> Any:
        """Optimizer of the critics."""
        return self.optimizer_critic

    @q_optimizer.setter
    def q_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer_critic = optimizer
        self._forget_compiled()

    update_kind = sac.SacAgent.update_kind  # declared here, so that its updates are compiled


@dataclass(eq=False, repr=False)
class REDQSACAgent(_Attributes, redq.REDQSACAgent):
    """Soft actor-critic with a randomized ensemble of critics, see `tmrl_core.training.REDQSACAgent`.

    Attributes:
        i_update: number of updates.
        q_optimizer_list: the optimizer, which is one for all critics.
    """

    model_cls: Maker = REDQMLPActorCritic
    n: int = 10
    m: int = 2
    q_updates_per_policy_update: int = 1

    def __post_init__(self) -> None:
        redq.REDQSACAgent.__init__(self, **{one.name: vars(self)[one.name] for one in fields(REDQSACAgent)})

    @property
    def i_update(self) -> int:
        """Number of updates."""
        return self.updates

    @property
    def q_optimizer_list(self) -> list[torch.optim.Optimizer]:
        """The optimizer of all critics, in a list."""
        return [self.optimizer_critic]

    update_kind = redq.REDQSACAgent.update_kind
