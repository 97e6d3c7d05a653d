"""Deep Q-learning on one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent_algorithm import choices_of
from tmrl_core.multiagent.algorithms.batches import transitions_of
from tmrl_core.multiagent.algorithms.torch_algorithm import (
    Algorithm,
    OptimizerOption,
    allowed_actions,
    check_max_norm,
    model_input,
)
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.training.agents.losses import (
    chosen_value,
    double_value,
    largest_value,
    td_error,
    td_target,
    weighted_mean,
)
from tmrl_core.training.agents.target_networks import make_target, polyak_update
from tmrl_core.training.batches import Transitions
from tmrl_core.training.updates.skipped_updates import SKIPPED


@dataclass(frozen=True, kw_only=True)
class DQNParameters:
    """Hyper parameters of `DQN`. The discount is that of the experiences.

    Args:
        double: double DQN: the target network evaluates the online network's choice.
        target_interval: updates between two updates of the target network.
        polyak: fraction of the target network that each of its updates keeps; 0: copy the online network.
        max_grad_norm: gradient-norm clipping threshold; None: no clipping.

    Raises:
        ConfigError: a value is out of range.
    """

    double: bool = True
    target_interval: int = 100
    polyak: float = 0.0
    max_grad_norm: float | None = 10.0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.target_interval < 1:
            raise ConfigError(f"hyper_params.target_interval: found {self.target_interval}, allowed: at least 1")
        if not 0.0 <= self.polyak < 1.0:
            raise ConfigError(f"hyper_params.polyak: found {self.polyak}, allowed: 0 or more, less than 1")
        check_max_norm(self.max_grad_norm)


class DQN(Algorithm):
    """Deep Q-network: learn the value of each action and choose the best, with epsilon-greedy exploration.

    Actions are numbers from 0. With an action mask in dict states, it chooses and bootstraps among the allowed actions
    only, and a next state without an allowed action has no value.

    Args:
        model_dict: one model, `states -> [B, N] values`. A model of masked states gets the rest of a state: the only
            other entry, or the dict of the others.
        optimizer_opt: see `Algorithm`.
        loss_func_dict: loss function type of the model; without it `torch.nn.SmoothL1Loss`, the Huber loss.
        hyper_params: `DQNParameters`, or a dict of its arguments.

    Raises:
        ConfigError: there is not one model, or an argument does not fit.

    Source: Mnih et al., Nature 518 (2015); van Hasselt et al., arXiv:1509.06461.
    """

    type_id = "multiagent_dqn"
    type_version = 1

    hyper_params: DQNParameters
    parameters: ClassVar[type | None] = DQNParameters
    transient: ClassVar[frozenset[str]] = frozenset({"_name"})

    def __init__(
        self,
        model_dict: Mapping[str, nn.Module],
        optimizer_opt: OptimizerOption | Mapping[str, OptimizerOption],
        loss_func_dict: Mapping[str, Callable[..., Any]],
        hyper_params: DQNParameters | Mapping[str, Any],
    ) -> None:
        super().__init__(model_dict, optimizer_opt, loss_func_dict, hyper_params)
        if len(self.models) != 1:
            raise ConfigError(
                f"model_dict: found {', '.join(self.models)}; allowed is one model of DQN, which makes the target "
                "network itself"
            )
        (self._name,) = self.models
        self.loss_funcs.setdefault(self._name, nn.SmoothL1Loss(reduction="none"))
        self.target_network = make_target(self.models[self._name])

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the best action, or with probability `epsilon` a random one; as np.int64.

        Raises:
            ObservationError: the state allows no action.
        """
        q_N = self.output(self._name, state)
        choices = choices_of(state, len(q_N))
        if not self.deterministic and epsilon > 0.0 and self.rng.random() < epsilon:
            return choices[self.rng.integers(len(choices))]
        return choices[q_N[choices].argmax()]

    def check_experiences(self, experiences: Columns) -> None:
        """Refuse experiences with which `train_on_batch` would fail; see `Algorithm.check_choices`."""
        self.check_choices(self._name, experiences)

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update. The metrics hold absolute TD errors as `priorities`."""
        t = transitions_of(batch, self.device)
        target_B = self._target(t)
        q_B = chosen_value(self.models[self._name](model_input(t.obs)), t.action.reshape(-1))
        loss = weighted_mean(self.loss_funcs[self._name](q_B, target_B), t.weight_B)
        step = self.minimise(loss, self.hyper_params.max_grad_norm)
        if SKIPPED in step:
            return step
        if self.updates % self.hyper_params.target_interval == 0:
            sources: list[Tensor] = [*self.models[self._name].parameters()]
            polyak_update([*self.target_network.parameters()], sources, self.hyper_params.polyak)
        return {
            "loss_critic": loss.item(),
            "q_mean": q_B.detach().mean().item(),
            "priorities": td_error(q_B, target_B).cpu().numpy(),
            **step,
        }

    @torch.no_grad()
    def _target(self, t: Transitions) -> Tensor:
        """Return [B] TD targets."""
        next_obs, allowed_BN = model_input(t.next_obs), allowed_actions(t.next_obs)
        next_q_BN = self.target_network(next_obs)
        if self.hyper_params.double:
            next_value_B = double_value(self.models[self._name](next_obs), next_q_BN, allowed_BN)
        else:
            next_value_B = largest_value(next_q_BN, allowed_BN)
        return td_target(t.reward_B, t.terminated_B, next_value_B, t.discount)
