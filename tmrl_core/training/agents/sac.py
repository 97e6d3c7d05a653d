"""Soft actor-critic."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmrl_core.training.agents.losses import critic_target, policy_loss, temperature_loss
from tmrl_core.training.agents.networks import MLPActorCritic, critics_of
from tmrl_core.training.agents.off_policy import OffPolicyAgent, make_target, model_arguments
from tmrl_core.training.agents.optimizers import frozen, make_optimizer, minimise
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Policy, Settings, Space, Tree


class SacAgent(OffPolicyAgent):
    """Soft actor-critic with learned temperature.

    Until the first update, the published policy samples actions uniformly if it can (its `exploration` has a `random`),
    since its initial weights hold no information.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `MLPActorCritic`.
        gamma: discount per step.
        polyak: coefficient of the Polyak update of the target critics.
        alpha: temperature, or its initial value when it is learned.
        lr_actor: learning rate of the policy.
        lr_critic: learning rate of the critics.
        lr_entropy: learning rate of the temperature.
        learn_entropy_coef: learn the temperature.
        target_entropy: nats; None: minus the number of action elements. Densities are of actions scaled to [-1, 1],
            whatever the actuators' units are.
        optimizer_actor: adam, adamw or sgd.
        optimizer_critic: adam, adamw or sgd.
        betas_actor: Adam's; None: torch's default.
        betas_critic: Adam's; None: torch's default.
        l2_actor: weight decay; None: the optimizer's default.
        l2_critic: weight decay; None: the optimizer's default.
        hidden_sizes: width of each hidden layer, passed to `model_cls`; None: its default.
        activation: of the hidden layers, passed to `model_cls`; None: its default.
        model_kwargs: further keyword arguments of `model_cls`.
        compile: true, false or auto, see `OffPolicyAgent.compute_with`.
        precision: float32 or bfloat16, see there.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Haarnoja et al., arXiv:1812.05905.
    """

    type_id = "sac"
    type_version = 1

    action_spaces: ClassVar[frozenset[str]] = frozenset({"box"})

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str | None = None,
        model_cls: Callable[..., Any] = MLPActorCritic,
        gamma: float = 0.99,
        polyak: float = 0.995,
        alpha: float = 0.2,
        lr_actor: float = 1e-3,
        lr_critic: float = 1e-3,
        lr_entropy: float = 1e-3,
        learn_entropy_coef: bool = True,
        target_entropy: float | None = None,
        optimizer_actor: str = "adam",
        optimizer_critic: str = "adam",
        betas_actor: Sequence[float] | None = None,
        betas_critic: Sequence[float] | None = None,
        l2_actor: float | None = None,
        l2_critic: float | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: object = None,
        model_kwargs: Settings | None = None,
        compile: bool | str = "auto",
        precision: str = "float32",
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            device,
            model_cls,
            model_arguments(model_kwargs, hidden_sizes=hidden_sizes, activation=activation),
            gamma,
            polyak,
        )
        self.compute_with(compile, precision)
        self.learn_entropy_coef = learn_entropy_coef
        self.target_entropy = (
            -float(math.prod(action_space.shape or ())) if target_entropy is None else float(target_entropy)
        )
        self.critics = critics_of(self.model)
        self.target_critics = make_target(self.critics)
        self.log_alpha = torch.tensor(float(alpha), device=self.device).log().requires_grad_(learn_entropy_coef)
        self.optimizer_actor = make_optimizer(
            optimizer_actor, self.model.actor.parameters(), lr_actor, betas_actor, l2_actor
        )
        self.optimizer_critic = make_optimizer(
            optimizer_critic, self.critics.parameters(), lr_critic, betas_critic, l2_critic
        )
        self.optimizer_alpha = make_optimizer("adam", [self.log_alpha], lr_entropy) if learn_entropy_coef else None

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target critics with the critics."""
        return [(self.target_critics, self.critics)]

    def get_actor(self) -> Policy:
        """Return the policy that is trained; it explores with random actions until the first update."""
        actor = self.model.actor
        if "random" in actor.exploration():
            actor.set_exploration({"random": 0.0 if self.updates_asked else 1.0})
        return actor

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return ""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update critics, policy and temperature."""
        action, log_prob_B = self.model.actor(transitions.obs)
        metrics = self._update_critics(transitions)
        metrics |= self._update_policy(transitions.obs, action, log_prob_B)
        # Last, as in the paper's algorithm 1: all losses of an update use one temperature.
        metrics |= self._update_temperature(log_prob_B)
        self._update_targets()
        return metrics

    def _update_temperature(self, log_prob_B: Tensor) -> dict[str, Tensor]:
        if self.optimizer_alpha is None:
            return {"entropy_coef": self.log_alpha.exp()}
        loss = temperature_loss(self.log_alpha, log_prob_B, self.target_entropy)
        minimise(self.optimizer_alpha, loss)
        return {"loss_entropy": loss.detach(), "entropy_coef": self.log_alpha.detach().exp()}

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(t.next_obs)
            next_q_B = self._pessimistic(self.target_critics(t.next_obs, next_action))
            target_B = critic_target(
                t.reward_B, t.terminated_B, next_q_B, next_log_prob_B, self.log_alpha.exp(), t.discount
            )
        q_KB = self.critics(t.obs, t.action)
        return self._step_critics(self.optimizer_critic, q_KB, target_B, t.weight_B)

    def _update_policy(self, obs: Tree, action: Tensor, log_prob_B: Tensor) -> dict[str, Tensor]:
        # Gradients go through the critics to the action, not into them.
        with frozen(self.critics.parameters()):
            loss = policy_loss(self._value(self.critics(obs, action)), log_prob_B, self.log_alpha.detach().exp())
            minimise(self.optimizer_actor, loss)
        return {"loss_actor": loss.detach()}

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        """Return [B] the value for targets: the minimum of the critics, against overestimation."""
        return q_KB.amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        """Return [B] the value that the policy maximizes."""
        return q_KB.amin(dim=0)


SpinupSacAgent = SacAgent
"""Alias of `SacAgent` for existing scripts."""
