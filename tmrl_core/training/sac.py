"""Soft actor-critic and its randomized-ensemble variant REDQ.

The losses are pure functions of tensors. Shape suffixes: K critics, B batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.critics import MLPActorCritic, REDQMLPActorCritic, critics_of


def _one_dimensional(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 1:
            raise ValueError(f"{name} must be [B], got {list(tensor.shape)}; [B, 1] would broadcast silently")


def critic_target(
    reward_B: Tensor, terminated_B: Tensor, next_q_B: Tensor, next_log_prob_B: Tensor, alpha: Tensor, gamma: float
) -> Tensor:
    """[B] what the critics should say: the reward and the discounted soft value of what follows.

    A truncated episode was cut by a limit that the state does not show: its last state has a value like any other, so
    truncation does not enter here.

    Args:
        reward_B: [B] float32.
        terminated_B: [B] float32, 1 where nothing follows.
        next_q_B: [B] value of a fresh action in the next state, by the target critics.
        next_log_prob_B: [B] log-density of that action, in nats.
        alpha: scalar temperature.
        gamma: discount per step.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 3 and 6.
    """
    _one_dimensional(reward_B=reward_B, terminated_B=terminated_B, next_q_B=next_q_B, next_log_prob_B=next_log_prob_B)
    return reward_B + gamma * (1.0 - terminated_B) * (next_q_B - alpha * next_log_prob_B)


def critic_loss(q_KB: Tensor, target_B: Tensor) -> Tensor:
    """Squared error, averaged over the batch and summed over the critics, so that each learns as if alone.

    Args:
        q_KB: [K, B] what the critics say.
        target_B: [B] what they should say, without gradient.

    Raises:
        ValueError: `target_B` is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 5.
    """
    _one_dimensional(target_B=target_B)
    return 0.5 * (q_KB - target_B).square().mean(dim=1).sum()


def policy_loss(q_B: Tensor, log_prob_B: Tensor, alpha: Tensor) -> Tensor:
    """Moves the policy towards valuable actions and entropy.

    Args:
        q_B: [B] value of fresh actions, with gradients through the actions.
        log_prob_B: [B] their log-density, in nats.
        alpha: scalar temperature, without gradient.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 7.
    """
    _one_dimensional(q_B=q_B, log_prob_B=log_prob_B)
    return (alpha * log_prob_B - q_B).mean()


def temperature_loss(log_alpha: Tensor, log_prob_B: Tensor, target_entropy: float) -> Tensor:
    """Moves the temperature towards a target entropy.

    Args:
        log_alpha: scalar; the temperature is exp(log_alpha).
        log_prob_B: [B] float32, log-density of freshly sampled actions, in nats.
        target_entropy: nats, usually minus the action dimension.

    Raises:
        ValueError: `log_prob_B` is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 18, with log_alpha in place of alpha, as its authors' code has it.
    """
    _one_dimensional(log_prob_B=log_prob_B)
    return -(log_alpha * (log_prob_B.detach() + target_entropy)).mean()


def make_optimizer(
    name: str, parameters: Sequence[Tensor], lr: float, betas: Sequence[float] | None, l2: float | None
) -> torch.optim.Optimizer:
    """An optimizer by its name, fused where torch has it for these parameters' device.

    Raises:
        ConfigError: the name is none of adam, adamw and sgd.
    """
    kind = name.lower()
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=l2 or 0.0)
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if kind not in makers:
        raise ConfigError(f"optimizer {name!r} is none of adam, adamw, sgd")
    options: dict[str, Any] = {"lr": lr}
    if betas is not None:
        options["betas"] = tuple(betas)
    if l2 is not None:
        options["weight_decay"] = l2
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return makers[kind](parameters, fused=fused, **options)


class SacAgent(TrainingAgent):
    """Soft actor-critic with learned temperature.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: where it computes; None: cuda where there is one.
        model_cls: makes the policy and its critics, see `MLPActorCritic`.
        gamma: discount per step.
        polyak: share of the target critics that stays at each update.
        alpha: temperature, or its first value when it is learned.
        lr_actor: learning rate of the policy.
        lr_critic: learning rate of the critics.
        lr_entropy: learning rate of the temperature.
        learn_entropy_coef: learn the temperature.
        target_entropy: nats; None: minus the number of action elements. Densities are those of actions scaled to
            [-1, 1], whatever the actuators' units are.
        optimizer_actor: adam, adamw or sgd.
        optimizer_critic: adam, adamw or sgd.
        betas_actor: Adam's; None: torch's default.
        betas_critic: Adam's; None: torch's default.
        l2_actor: weight decay; None: the optimizer's default.
        l2_critic: weight decay; None: the optimizer's default.
        hidden_sizes: width of each hidden layer, handed to `model_cls`; None: its default.
        activation: of the hidden layers, handed to `model_cls`; None: its default.
        model_kwargs: further keyword arguments of `model_cls`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space does not fit.

    Source: Haarnoja et al., arXiv:1812.05905.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
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
        activation: Any = None,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(observation_space, action_space, device)
        self.gamma = gamma
        self.polyak = polyak
        self.learn_entropy_coef = learn_entropy_coef
        self.target_entropy = -float(math.prod(action_space.shape)) if target_entropy is None else float(target_entropy)
        model_kwargs = dict(model_kwargs or {})
        for name, value in (("hidden_sizes", hidden_sizes), ("activation", activation)):
            if value is not None:
                model_kwargs[name] = value
        self.model = model_cls(observation_space, action_space, **model_kwargs).to(device)
        self.critics = critics_of(self.model)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.tensor(float(alpha), device=device).log().requires_grad_(learn_entropy_coef)
        self.optimizer_actor = make_optimizer(
            optimizer_actor, list(self.model.actor.parameters()), lr_actor, betas_actor, l2_actor
        )
        self.optimizer_critic = make_optimizer(
            optimizer_critic, list(self.critics.parameters()), lr_critic, betas_critic, l2_critic
        )
        self.optimizer_alpha = (
            make_optimizer("adam", [self.log_alpha], lr_entropy, None, None) if learn_entropy_coef else None
        )

    # Kept out of checkpoints: the modules' own parameters, listed once.
    @cached_property
    def _critic_parameters(self) -> list[Tensor]:
        return list(self.critics.parameters())

    @cached_property
    def _target_parameters(self) -> list[Tensor]:
        return list(self.target_critics.parameters())

    def get_actor(self) -> Any:
        """The policy, where it is trained."""
        return self.model.actor

    def train(self, batch: Any) -> dict[str, Tensor]:
        """One update of critics, policy and temperature. Metrics are detached scalars."""
        obs, act, reward_B, next_obs, terminated_B, _ = batch
        action, log_prob_B = self.model.actor(obs)
        metrics = self._update_temperature(log_prob_B)
        metrics |= self._update_critics(obs, act, reward_B, next_obs, terminated_B)
        metrics |= self._update_policy(obs, action, log_prob_B)
        self._update_targets()
        return metrics

    def _update_temperature(self, log_prob_B: Tensor) -> dict[str, Tensor]:
        if self.optimizer_alpha is None:
            return {"entropy_coef": self.log_alpha.exp()}
        loss = temperature_loss(self.log_alpha, log_prob_B, self.target_entropy)
        self.optimizer_alpha.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer_alpha.step()
        return {"loss_entropy": loss.detach(), "entropy_coef": self.log_alpha.detach().exp()}

    def _update_critics(
        self, obs: Any, act: Tensor, reward_B: Tensor, next_obs: Any, terminated_B: Tensor
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(next_obs)
            next_q_B = self._pessimistic(self.target_critics(next_obs, next_action))
            target_B = critic_target(
                reward_B, terminated_B, next_q_B, next_log_prob_B, self.log_alpha.exp(), self.gamma
            )
        loss = critic_loss(self.critics(obs, act), target_B)
        self.optimizer_critic.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer_critic.step()
        return {"loss_critic": loss.detach()}

    def _update_policy(self, obs: Any, action: Tensor, log_prob_B: Tensor) -> dict[str, Tensor]:
        # Gradients go through the critics to the action, not into them.
        for parameter in self._critic_parameters:
            parameter.requires_grad_(False)
        loss = policy_loss(self._value(self.critics(obs, action)), log_prob_B, self.log_alpha.detach().exp())
        self.optimizer_actor.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer_actor.step()
        for parameter in self._critic_parameters:
            parameter.requires_grad_(True)
        return {"loss_actor": loss.detach()}

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        """[B] value that targets are made of: the lowest, against overestimation."""
        return q_KB.amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        """[B] value that the policy is moved by."""
        return q_KB.amin(dim=0)

    @torch.no_grad()
    def _update_targets(self) -> None:
        torch._foreach_lerp_(self._target_parameters, self._critic_parameters, 1.0 - self.polyak)


SpinupSacAgent = SacAgent
"""The name that scripts know."""


class REDQSACAgent(SacAgent):
    """Soft actor-critic with a randomized ensemble of critics and several critic updates for each of the policy.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: where it computes; None: cuda where there is one.
        model_cls: makes the policy and its critics.
        n: critics.
        m: critics, drawn at random for each update, whose lowest value makes the target.
        q_updates_per_policy_update: updates of the critics for each of the policy and of the temperature.
        model_kwargs: further keyword arguments of `model_cls`.
        settings: as `SacAgent`'s.

    Raises:
        ConfigError: not 1 <= m <= n.

    Source: Chen et al., arXiv:2101.05982, algorithm 1.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str | None = None,
        model_cls: Callable[..., Any] = REDQMLPActorCritic,
        n: int = 10,
        m: int = 2,
        q_updates_per_policy_update: int = 1,
        *,
        model_kwargs: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if not 1 <= m <= n:
            raise ConfigError(f"REDQ needs 1 <= m <= n, got m={m} and n={n}")
        self.m = m
        self.q_updates_per_policy_update = q_updates_per_policy_update
        self.updates = 0
        super().__init__(
            observation_space,
            action_space,
            device,
            model_cls,
            model_kwargs={"n": n, **(model_kwargs or {})},
            **settings,
        )

    def train(self, batch: Any) -> dict[str, Tensor]:
        """One update of the critics, and every so often of the policy. Metrics are detached scalars."""
        obs, act, reward_B, next_obs, terminated_B, _ = batch
        self.updates += 1
        metrics = self._update_critics(obs, act, reward_B, next_obs, terminated_B)
        if self.updates % self.q_updates_per_policy_update == 0:
            action, log_prob_B = self.model.actor(obs)
            metrics |= self._update_temperature(log_prob_B)
            metrics |= self._update_policy(obs, action, log_prob_B)
        self._update_targets()
        return metrics

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        chosen = torch.randperm(q_KB.shape[0], device=q_KB.device)[: self.m]
        return q_KB[chosen].amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        return q_KB.mean(dim=0)
