"""What agents share that learn from a replay memory: their model, their slow copies, batches by names."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.optimizers import follow
from tmrl_core.training.transitions import Transitions, transitions_of


class OffPolicyAgent(TrainingAgent):
    """An agent with a model that acts and slow copies of parts of it. A subclass says what an `update` is.

    Args:
        observation_space: of the environment.
        action_space: of the environment.
        device: where it computes; None: cuda where there is one.
        model_cls: `(observation_space, action_space, **model_kwargs)` makes a module whose `actor` is the policy.
        model_kwargs: its keyword arguments.
        gamma: discount per step, where the batch says no other.
        polyak: share of the slow copies that stays at each update.

    Attributes:
        td_error_B: [B] of the last update, in the order of its batch; None where rows were drawn uniformly.
    """

    collection: ClassVar[frozenset[str]] = frozenset({"asynchronous", "synchronous"})
    wants_extras: ClassVar[bool] = True
    transient: ClassVar[frozenset[str]] = frozenset({"td_error_B"})

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str | None,
        model_cls: Callable[..., Any],
        model_kwargs: Mapping[str, Any],
        gamma: float,
        polyak: float,
    ) -> None:
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(observation_space, action_space, device)
        self.gamma = gamma
        self.polyak = polyak
        self.model = model_cls(observation_space, action_space, **model_kwargs).to(device)
        self.td_error_B: Tensor | None = None

    def get_actor(self) -> Any:
        """The policy, where it is trained."""
        return self.model.actor

    def train(self, batch: Any) -> dict[str, Tensor]:
        """One update. Metrics are detached scalars."""
        return self.update(transitions_of(batch, self.gamma))

    @abstractmethod
    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """One update with these transitions; metrics as `train`."""

    @abstractmethod
    def slow_copies(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Each slow copy with what it copies."""

    # Kept out of checkpoints: the modules' own parameters, listed once.
    @cached_property
    def _target_parameters(self) -> list[Tensor]:
        return [p for target, _ in self.slow_copies() for p in target.parameters()]

    @cached_property
    def _source_parameters(self) -> list[Tensor]:
        return [p for _, source in self.slow_copies() for p in source.parameters()]

    def _update_targets(self) -> None:
        follow(self._target_parameters, self._source_parameters, self.polyak)


def slow_copy(module: nn.Module) -> Any:
    """A copy of a module that no gradient moves."""
    return copy.deepcopy(module).requires_grad_(False)


def model_arguments(model_kwargs: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """Keyword arguments of a model: those of `model_kwargs`, and over them the named ones that are not None."""
    return {**(model_kwargs or {}), **{name: value for name, value in named.items() if value is not None}}
