"""Proximal policy optimization, for discrete and for continuous actions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tmrl_core.actor.policies.flattening import vector_size
from tmrl_core.actor.policies.torch.mlp import flatten_batch, hidden_layers
from tmrl_core.actor.policies.torch.on_policy import (
    CategoricalMLPActor,
    GaussianMLPActor,
    OnPolicyActor,
    orthogonal,
    orthogonal_linear,
)
from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.gae import discounted_sums, generalized_advantages
from tmrl_core.training.agents.optimizers import make_optimizer
from tmrl_core.training.agents.ppo_losses import clipped_policy_loss, divergence, value_loss
from tmrl_core.training.agents.running_moments import RunningMoments
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.updates.rollback import all_finite
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.value_types import Batch, Device, Metrics, Space, Tree

REWARD_LIMIT = 10.0
"""Clipping threshold of scaled rewards."""


class PPOActorCritic(torch.nn.Module):
    """A stochastic policy and a value function that share no weights.

    Args:
        observation_space, action_space, hidden_sizes, activation: as for the policies.
        actor_cls: makes the policy; None: a categorical one for Discrete actions, else a Gaussian one.
        actor_kwargs: its further keyword arguments.

    Raises:
        ConfigError: the policy does not support a space.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int],
        activation: str | Callable[[], torch.nn.Module],
        actor_cls: Callable[..., OnPolicyActor] | None,
        **actor_kwargs: Any,
    ) -> None:
        super().__init__()
        if actor_cls is None:
            actor_cls = CategoricalMLPActor if isinstance(action_space, spaces.Discrete) else GaussianMLPActor
        self.actor = actor_cls(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation, **actor_kwargs
        )
        layers, width = hidden_layers(vector_size(self.actor.layout), hidden_sizes, activation, orthogonal_linear)
        self.critic = torch.nn.Sequential(*layers, orthogonal(torch.nn.Linear(width, 1), 1.0))

    def value(self, flat_BD: Tensor) -> Tensor:
        """Return [B] values of flattened observations [B, D]."""
        value_B: Tensor = self.critic(self.actor.normalized(flat_BD)).squeeze(-1)
        return value_B


class PPOAgent(TrainingAgent):
    """Proximal policy optimization: several epochs of minibatches on each round of lockstep collection.

    It synchronizes with its device after each minibatch, to check that the gradient is finite and, with `target_kl`, to
    read the KL divergence. It also does so for the advantages, which are computed on the CPU.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: Discrete, or a Box of floats.
        device: device of the networks; None: cpu.
        actor_cls: makes the policy; None: `CategoricalMLPActor` for Discrete actions, else `GaussianMLPActor`.
        hidden_sizes: width of each hidden layer of the policy and of the value function.
        activation: class of their activation, or its name.
        log_std: initial logarithm of the Gaussian policy's standard deviation.
        gamma: discount per step.
        gae_lambda: lambda of generalized advantage estimation.
        lr: learning rate.
        lr_final: final learning rate as a share of `lr`, reached linearly over `lr_rounds`; 1: constant.
        lr_rounds: rounds of the linear learning-rate schedule.
        update_epochs: epochs per round.
        minibatch_size: transitions in a minibatch.
        clip_ratio: PPO clip range of the ratio of densities around 1.
        value_clip: clip range of the new value around the old one; None: no clipping.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: gradient-norm clipping threshold; None: no clipping.
        target_kl: stop training on a round once the KL divergence exceeds 1.5 times this, in nats; None: never.
        normalize_advantages: to a mean of 0 and a standard deviation of 1, in each minibatch.
        normalize_observations: of the policy, which applies the normalization, and of the value function. A round is
            trained on with the statistics that it was collected with; then its observations are added to them.
        normalize_rewards: divide rewards by the standard deviation of the discounted sums of all rewards so far, and
            clip them at 10. A sum continues from round to round until its episode ends.
        optimizer: adam, adamw or sgd.
        adam_eps: epsilon of Adam. The first gradients of the policy's hidden layers are not much larger than this, so
            that noise does not move these layers at the full rate.

    Raises:
        ConfigError: a space is unsupported, or a parameter is out of range.

    Source: Schulman et al., arXiv:1707.06347.
    """

    type_id = "ppo"
    type_version = 1

    collection: ClassVar[frozenset[str]] = frozenset({"lockstep"})
    """Supported modes of collection."""
    action_spaces: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    wants_extras: ClassVar[bool] = True
    transient: ClassVar[frozenset[str]] = frozenset({"after_update"})
    times_updates = True

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: Device = None,
        actor_cls: Callable[..., OnPolicyActor] | None = None,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str | Callable[[], torch.nn.Module] = "tanh",
        log_std: float | None = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        lr: float = 3e-4,
        lr_final: float = 1.0,
        lr_rounds: int | None = None,
        update_epochs: int = 10,
        minibatch_size: int = 64,
        clip_ratio: float = 0.2,
        value_clip: float | None = None,
        value_coef: float = 0.5,
        entropy_coef: float = 0.0,
        max_grad_norm: float | None = 0.5,
        target_kl: float | None = None,
        normalize_advantages: bool = True,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        optimizer: str = "adam",
        adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(observation_space, action_space, device if device is not None else "cpu")
        for name, value in (("update_epochs", update_epochs), ("minibatch_size", minibatch_size)):
            if value < 1:
                raise ConfigError(f"agent.kwargs.{name}: found {value}, allowed: at least 1")
        if normalize_advantages and minibatch_size < 2:
            raise ConfigError(
                "agent.kwargs.minibatch_size: found 1, allowed: at least 2, since one advantage cannot be normalized. "
                "Raise it, or set normalize_advantages: false."
            )
        if lr_final != 1.0 and not lr_rounds:
            raise ConfigError(
                f"agent.kwargs.lr_rounds: found {lr_rounds}, allowed: at least 1, since lr_final is {lr_final:g}. "
                "Set the number of rounds of the learning-rate schedule."
            )
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.lr = lr
        self.lr_final = lr_final
        self.lr_rounds = lr_rounds
        self.update_epochs = update_epochs
        self.minibatch_size = minibatch_size
        self.clip_ratio = clip_ratio
        self.value_clip = value_clip
        self.value_coef = value_coef
        self.entropy_coef = entropy_coef
        self.max_grad_norm = max_grad_norm
        self.target_kl = target_kl
        self.normalize_advantages = normalize_advantages
        self.rounds = 0
        """Number of rounds trained on."""
        kwargs: dict[str, Any] = {} if log_std is None else {"log_std": log_std}
        if normalize_observations:
            kwargs["normalize_observations"] = True
        self.model = PPOActorCritic(observation_space, action_space, hidden_sizes, activation, actor_cls, **kwargs).to(
            self.device
        )
        self.model.actor.to_device(self.device)
        width = vector_size(self.model.actor.layout)
        self.observations = RunningMoments(width) if normalize_observations else None
        self.returns = RunningMoments(1) if normalize_rewards else None
        self._last_sums: dict[int, tuple[int, int, float]] = {}
        """Last position of each stream in the last round: episode, step, and discounted sum of rewards so far."""
        self.optimizer = make_optimizer(optimizer, list(self.model.parameters()), lr, eps=adam_eps)
        self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))

    def get_actor(self) -> OnPolicyActor:
        """Return the policy."""
        return self.model.actor

    def train(self, batch: Batch) -> Metrics:
        """Train on one round.

        Args:
            batch: `(prev_obs, new_act, rew, new_obs, terminated, truncated, extras)` of [T, ...] tensors, in order of
                collection. The extras hold `logp`, `ends` and further inputs of the policy; without `places`, sums of
                rewards restart with each round.

        Returns:
            Metrics, with the number of `updates`; `updates_skipped` counts updates whose gradient was not finite.
            `SKIPPED` is true if no update was made, or if the round holds NaN or Inf (then nothing is changed).

        Raises:
            ConfigError: the workers' policy returns no `logp`.
        """
        obs, action, reward_T, next_obs, terminated_T, _, extras = batch
        if "logp" not in extras:
            raise ConfigError(
                "actor.cls: the workers' policy returns no logp with its actions. Use tmrl_core.actor: "
                "CategoricalMLPActor (Discrete actions) or GaussianMLPActor."
            )
        if not all_finite(tree_leaves(batch)):
            # Running statistics must not see these numbers either: they would stay NaN for good.
            return {"updates": 0, SKIPPED: True}
        flat_TD = flatten_batch(self.model.actor.layout, obs)
        reward_T = self._scaled(reward_T, extras[ENDS], extras.get(PLACES))
        old_log_prob_T = extras["logp"].reshape(-1)
        known = self.model.actor.trained_action(action, extras)
        with torch.no_grad():
            value_T = self.model.value(flat_TD)
        advantage_T, return_T = self._advantages(reward_T, value_T, next_obs, terminated_T, extras[ENDS])
        self._set_rate()
        sums: dict[str, list[Tensor]] = {}
        updates = skipped = 0
        stopped = False
        for _ in range(self.update_epochs):
            order = torch.randperm(len(flat_TD), generator=self.generator).to(flat_TD.device)
            for index_B in torch.split(order, self.minibatch_size):
                if self.normalize_advantages and len(index_B) < 2:
                    continue  # one advantage has no standard deviation
                started = time.perf_counter()
                loss, metrics = self._loss(
                    flat_TD[index_B], known[index_B], old_log_prob_T[index_B],
                    advantage_T[index_B], return_T[index_B], value_T[index_B],
                )  # fmt: skip
                if self.target_kl is not None and float(metrics["kl"]) > 1.5 * self.target_kl:
                    stopped = True
                    break
                norm = self._step(loss)
                if bool(torch.isfinite(norm)):
                    metrics["grad_norm"] = norm
                    updates += 1
                else:
                    skipped += 1
                if self.after_update is not None:
                    self.after_update(time.perf_counter() - started)
                for name, value in metrics.items():
                    sums.setdefault(name, []).append(value)
            if stopped:
                break
        self.rounds += 1
        self._count_observations(flat_TD)
        unexplained = (return_T - value_T).var() / (return_T.var() + 1e-8)
        return {
            "updates": updates,
            **{name: torch.stack(values).mean() for name, values in sums.items()},
            "updates_skipped": skipped,
            "kl_stopped": float(stopped),
            "explained_variance": 1.0 - unexplained,
            **({SKIPPED: True} if skipped and not updates else {}),
        }

    def _scaled(self, reward_T: Tensor, ends_T: Tensor, places_T3: Tensor | None) -> Tensor:
        """Return [T] rewards, normalized if that is enabled."""
        if self.returns is None:
            return reward_T
        places = places_T3.tolist() if places_T3 is not None else []
        before = np.zeros(len(reward_T))
        for index, (stream, episode, step) in enumerate(places):
            # Only the first transition of a stream can continue an episode of the round before.
            earlier = self._last_sums.get(stream)
            if earlier is not None and earlier[:2] == (episode, step - 1):
                before[index] = earlier[2]
        sums = discounted_sums(reward_T.cpu().numpy(), ends_T.cpu().numpy(), gamma=self.gamma, before_T=before)
        self._last_sums = {
            stream: (episode, step, total)
            for (stream, episode, step), total in zip(places, sums.tolist(), strict=False)
        }
        self.returns.see(torch.from_numpy(sums)[:, None])
        scale = float(self.returns.std)
        return (reward_T / scale).clamp(-REWARD_LIMIT, REWARD_LIMIT)

    def _count_observations(self, flat_TD: Tensor) -> None:
        """Add these observations to the statistics that the policy's next version normalizes by."""
        if self.observations is not None:
            self.observations.see(flat_TD)
            self.model.actor.obs_mean.copy_(self.observations.mean)
            self.model.actor.obs_std.copy_(self.observations.std)

    def _advantages(
        self, reward_T: Tensor, value_T: Tensor, next_obs: Tree, terminated_T: Tensor, ends_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return [T] advantages and [T] returns; the next value is that of the next row, except where a run ends."""
        next_value_T = torch.cat([value_T[1:], value_T[:1]])
        at = torch.nonzero(ends_T).squeeze(1)
        with torch.no_grad():
            flat_ED = flatten_batch(self.model.actor.layout, _rows(next_obs, at))
            next_value_T[at] = self.model.value(flat_ED)
        arrays = (tensor.cpu().numpy() for tensor in (reward_T, value_T, next_value_T, terminated_T, ends_T))
        advantages, returns = generalized_advantages(*arrays, gamma=self.gamma, gae_lambda=self.gae_lambda)
        return torch.from_numpy(advantages).to(value_T.device), torch.from_numpy(returns).to(value_T.device)

    def _loss(
        self, flat_BD: Tensor, known: Tensor, old_log_prob_B: Tensor, advantage_B: Tensor, return_B: Tensor,
        old_value_B: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        if self.normalize_advantages:
            advantage_B = (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
        log_prob_B, entropy_B = self.model.actor.log_prob_and_entropy(flat_BD, known)
        loss_actor = clipped_policy_loss(log_prob_B, old_log_prob_B, advantage_B, self.clip_ratio)
        loss_critic = value_loss(self.model.value(flat_BD), return_B, old_value_B, self.value_clip)
        entropy = entropy_B.mean()
        # Twice half the squared error: the coefficient is that of the paper's L^VF.
        loss = loss_actor + 2.0 * self.value_coef * loss_critic - self.entropy_coef * entropy
        with torch.no_grad():
            clipped = ((log_prob_B - old_log_prob_B).exp() - 1.0).abs() > self.clip_ratio
            return loss, {
                "loss_actor": loss_actor.detach(),
                "loss_critic": loss_critic.detach(),
                "entropy": entropy.detach(),
                "kl": divergence(log_prob_B, old_log_prob_B),
                "clip_fraction": clipped.float().mean(),
            }

    def _step(self, loss: Tensor) -> Tensor:
        """Make one optimizer step and return the gradient's norm; change nothing if that is not finite."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        longest = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
        return norm

    def _set_rate(self) -> None:
        if self.lr_rounds:
            part = min(1.0, self.rounds / self.lr_rounds)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * (1.0 + part * (self.lr_final - 1.0))


def _rows(tree: Tree, at: Tensor) -> Any:
    """Return the rows `at` of each leaf."""
    if isinstance(tree, dict):
        return {key: _rows(value, at) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_rows(value, at) for value in tree)
    return tree[at]
