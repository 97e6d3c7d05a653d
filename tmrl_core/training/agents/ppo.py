"""Proximal policy optimization, for discrete and for continuous actions."""

# Theory of operation
#
# This file learns from one round at a time: all samples that one version of the policy has collected. It knows nothing
# of workers or versions; `loops/lockstep.py` hands it a round that is complete, in order of collection, with the
# density `logp` that each action was chosen with.
#
# State: the model, the optimizer, the generator of minibatches, the running moments of observations and of discounted
# returns, and where each stream's last episode stands (`_last_sums`). `train` alone changes them.
#
# One round, in an order that matters:
#
# 1. The whole batch is checked for NaN and Inf, before anything is changed: the running moments would keep such a
#    number for good.
# 2. Rewards are divided by the deviation of their discounted sums, this round's included.
# 3. Values of all rows, and of the observations after the ends of runs, with the parameters from before the round.
#    Advantages are made of these once, and not renewed between passes.
# 4. Passes of minibatches in random order. Each gradient is checked before its step, so one bad minibatch costs one
#    update and no rollback of the round.
# 5. Running moments of the observations move last. The round's actions were chosen with the old ones, and the ratio of
#    densities has to be 1 in the first minibatch.
#
# In numbers: a round of 2,048 rows with minibatches of 64 and 10 passes makes 320 updates. With target_kl 0.01, a
# minibatch whose divergence is above 0.015 ends the round, before its step.
#
# A run ends at an end of an episode, at the end of the round, and at a gap. A termination has the next value 0. The
# other ends bootstrap from the observation after the last row, whose value is computed beside the rows' own: in a long
# run these are few, and the next row has the value of all others.
#
# Steps that a person took over are left out: their actions are not the policy's, so the ratio of densities would mean
# nothing. Their rows are in no minibatch, and a run ends before the first of them, with the value of the observation
# that the person found: otherwise the policy's last actions would be praised for what the person did then. Running
# moments see all rows, since the policy may meet these observations too.
#
# Here an update waits for its device, unlike in off-policy agents: the check of a gradient, the divergence and the
# advantages are read.
#
# Not done: rollback of whole rounds (a copy of the model for each round, for a case that one check of the batch and one
# of each gradient cover), and advantages on the device (a loop over T rows, of which each depends on the next).

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tmrl_core.actor.interventions import IS_INTERVENTION
from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.gaussian import GaussianMLPActor
from tmrl_core.actor.policies.torch.mlp import flatten_batch, hidden_layers, orthogonal, orthogonal_linear
from tmrl_core.actor.policies.torch.on_policy import OnPolicyActor, OnPolicyHead
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.declared import Setting, takes
from tmrl_core.training.agents.gae import discounted_sums, generalized_advantages
from tmrl_core.training.agents.optimizers import gradients_of, make_optimizer
from tmrl_core.training.agents.ppo_losses import clipped_policy_loss, divergence, mean_kl, normalized, value_loss
from tmrl_core.training.agents.ppo_settings import PpoSettings
from tmrl_core.training.agents.running_moments import RunningMoments
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.updates.rollback import all_finite
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.value_types import Batch, Device, Metrics, Space

REWARD_LIMIT = 10.0
"""Clipping threshold of scaled rewards."""


class OnPolicyModel(torch.nn.Module, ABC):
    """A stochastic policy, `actor`, and a value function."""

    actor: OnPolicyHead

    @abstractmethod
    def rows(self, flat_TD: Tensor, flat_ED: Tensor, known_T: Tensor, extras: Mapping[str, Tensor]) -> RoundRows:
        """Return the rows of a round.

        Args:
            flat_TD, flat_ED, known_T: as for `RoundRows`.
            extras: of the batch.
        """


class PPOActorCritic(OnPolicyModel):
    """A stochastic policy and a value function that share no weights.

    Args:
        observation_space, action_space, hidden_sizes, activation: as for the policies.
        actor_cls: makes the policy; None: a Gaussian one for a Box, else a categorical one.
        actor_kwargs: its further keyword arguments.

    Raises:
        ConfigError: the policy does not support a space.
    """

    actor: OnPolicyActor

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
            actor_cls = CategoricalMLPActor if choice_counts(action_space) else GaussianMLPActor
        self.actor = actor_cls(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation, **actor_kwargs
        )
        self.encoder = self.actor.encoder.another()
        layers, width = hidden_layers(self.encoder.features, hidden_sizes, activation, orthogonal_linear)
        self.critic = torch.nn.Sequential(*layers, orthogonal(torch.nn.Linear(width, 1), 1.0))

    def value(self, flat_BD: Tensor) -> Tensor:
        """Return [B] values of flattened observations [B, D]."""
        value_B: Tensor = self.critic(self.encoder(self.actor.normalized(flat_BD))).squeeze(-1)
        return value_B

    def rows(self, flat_TD: Tensor, flat_ED: Tensor, known_T: Tensor, extras: Mapping[str, Tensor]) -> RoundRows:
        """Return the rows of a round."""
        return RoundRows(self, flat_TD, flat_ED, known_T)


class RoundRows:
    """The rows of a round, for networks that look at one row at a time.

    Args:
        model: policy and value function of one row.
        flat_TD: flattened observations.
        flat_ED: flattened observations that follow the last row of each run.
        known_T: result of the policy's `trained_action`.
    """

    def __init__(self, model: PPOActorCritic, flat_TD: Tensor, flat_ED: Tensor, known_T: Tensor) -> None:
        self._model, self._flat_TD, self._flat_ED, self._known_T = model, flat_TD, flat_ED, known_T

    def values(self) -> tuple[Tensor, Tensor]:
        """Return [T] values of all rows and [E] values of the observations that follow the runs."""
        return self._model.value(self._flat_TD), self._model.value(self._flat_ED)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the minibatches of one pass in random order, for `rows_of` and `evaluate`."""
        order = torch.randperm(len(self._flat_TD), generator=generator).to(self._flat_TD.device)
        if (ranks := RANK_GROUP.get()) is not None:
            # All ranks make the same number of steps: rows beyond the shortest round are left out, at random.
            order = order[: ranks.least(len(order))]
        yield from torch.split(order, size)

    def rows_of(self, minibatch: Tensor) -> Tensor:
        """Return the rows [B] of a minibatch."""
        return minibatch

    def evaluate(self, minibatch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, with gradients, [B] log-densities of the actions, entropies of the policy and values."""
        flat_BD = self._flat_TD[minibatch]
        log_prob_B, entropy_B = self._model.actor.log_prob_and_entropy(flat_BD, self._known_T[minibatch])
        return log_prob_B, entropy_B, self._model.value(flat_BD)


def own_rows(extras: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor]:
    """Return [T] bool the rows whose action the policy chose, None: all; and [T] 1 where advantages end.

    They end where runs do, and before each step that a person took over.

    Args:
        extras: of the batch.
    """
    ends_T = extras[ENDS]
    taken_T = extras.get(IS_INTERVENTION)
    if taken_T is None:
        return None, ends_T
    before_T = torch.cat([taken_T[1:], taken_T.new_zeros(1)])
    return taken_T == 0, torch.maximum(ends_T, before_T)


@takes(PpoSettings)
class PPOAgent(TrainingAgent):
    """Proximal policy optimization: several epochs of minibatches on each round of lockstep collection.

    It synchronizes with its device after each minibatch, to check that the gradient is finite and, with `target_kl`, to
    read the KL divergence. It also does so for the advantages, which are computed on the CPU.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of floats.
        device: device of the networks; None: cpu.
        actor_cls: makes the policy; None: `GaussianMLPActor` for a Box, else `CategoricalMLPActor`.

    Raises:
        ConfigError: a space is unsupported, or a parameter is out of range.

    Source: Schulman et al., arXiv:1707.06347.
    """

    type_id = "ppo"
    type_version = 1

    wants_extras: ClassVar[bool] = True
    transient: ClassVar[frozenset[str]] = frozenset({"after_update"})
    times_updates = True
    settings_cls: ClassVar[type[PpoSettings]]
    settings: PpoSettings

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: Device = None,
        actor_cls: Callable[..., OnPolicyHead] | None = None,
        *given: Setting,
        **named: Setting,
    ) -> None:
        super().__init__(observation_space, action_space, device if device is not None else "cpu")
        s = self.settings = self.settings_cls(*given, **named)
        self.rounds = 0
        """Number of rounds trained on."""
        self.model = self._make_model(actor_cls).to(self.device)
        self.model.actor.to_device(self.device)
        values = self.model.actor.encoder.values if s.normalize_observations else 0
        self.observations = RunningMoments(values) if values else None
        self.returns = RunningMoments(1) if s.normalize_rewards else None
        self._last_sums: dict[int, tuple[int, int, float]] = {}
        """Last position of each stream in the last round: episode, step, and discounted sum of rewards so far."""
        self.optimizer = make_optimizer(s.optimizer, list(self.model.parameters()), s.lr, eps=s.adam_eps)
        self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))

    def _make_model(self, actor_cls: Callable[..., OnPolicyHead] | None) -> OnPolicyModel:
        make = cast("Callable[..., OnPolicyActor] | None", actor_cls)
        arguments = self.settings.model_arguments()
        return PPOActorCritic(self.observation_space, self.action_space, actor_cls=make, **arguments)

    def get_actor(self) -> OnPolicyHead:
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
        if not _finite_everywhere(batch):
            # Running statistics must not see these numbers either: they would stay NaN for good.
            return {"updates": 0, SKIPPED: True}
        flat_TD = flatten_batch(self.model.actor.layout, obs)
        reward_T = self._scaled(reward_T, extras[ENDS], extras.get(PLACES))
        own_T, cuts_T = own_rows(extras)
        # As the worker computed it. The trainer's own, by another backend, would differ by rounding and hide a policy
        # that is not the one that acted.
        old_log_prob_T = extras["logp"].reshape(-1)
        known_T = self.model.actor.trained_action(action, extras)
        at_E = torch.nonzero(extras[ENDS]).squeeze(1)
        flat_ED = flatten_batch(self.model.actor.layout, map_leaves(lambda leaf: leaf[at_E], next_obs))
        rows = self.model.rows(flat_TD, flat_ED, known_T, extras)
        with torch.no_grad():
            value_T, value_E = rows.values()
            can_act_E = self.model.actor.can_act(flat_ED)
            if can_act_E is not None:
                # Nothing can follow an observation that allows no action, so its value is 0, as in replay.
                value_E = value_E.masked_fill(~can_act_E, 0.0)
        advantage_T, return_T = self._advantages(reward_T, value_T, value_E, terminated_T, extras[ENDS], cuts_T)
        self._set_rate()
        sums: dict[str, list[Tensor]] = {}
        updates = skipped = 0
        stopped = False
        for _ in range(self.settings.update_epochs):
            for minibatch in rows.minibatches(self.settings.minibatch_size, self.generator):
                row_B = rows.rows_of(minibatch)
                keep_B = None if own_T is None else own_T[row_B]
                row_B = row_B if keep_B is None else row_B[keep_B]
                if not len(row_B):
                    continue
                if self.settings.normalize_advantages and len(row_B) < 2:
                    continue  # one advantage has no standard deviation
                started = time.perf_counter()
                evaluated = rows.evaluate(minibatch)
                if keep_B is not None:
                    evaluated = evaluated[0][keep_B], evaluated[1][keep_B], evaluated[2][keep_B]
                loss, metrics = self._loss(
                    evaluated, old_log_prob_T[row_B], advantage_T[row_B], return_T[row_B], value_T[row_B]
                )
                # Before the step: this minibatch shows where the steps so far have led.
                if self.settings.target_kl is not None and mean_kl(metrics["kl"]) > 1.5 * self.settings.target_kl:
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
        sums = discounted_sums(reward_T.cpu().numpy(), ends_T.cpu().numpy(), gamma=self.settings.gamma, before_T=before)
        self._last_sums = {
            stream: (episode, step, total)
            for (stream, episode, step), total in zip(places, sums.tolist(), strict=False)
        }
        # Sums and not returns: they look backwards, so each is known when its reward is, also in an open episode.
        self.returns.see(torch.from_numpy(sums)[:, None])
        scale = float(self.returns.std)
        return (reward_T / scale).clamp(-REWARD_LIMIT, REWARD_LIMIT)

    def _count_observations(self, flat_TD: Tensor) -> None:
        """Add these observations to the statistics that the policy's next version normalizes by."""
        if self.observations is not None:
            self.observations.see(flat_TD[..., : self.model.actor.encoder.values])
            self.model.actor.obs_mean.copy_(self.observations.mean)
            self.model.actor.obs_std.copy_(self.observations.std)

    def _advantages(
        self, reward_T: Tensor, value_T: Tensor, value_E: Tensor, terminated_T: Tensor, ends_T: Tensor,
        cuts_T: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return [T] advantages and [T] returns; the next value is that of the next row, except where a run ends.

        Nothing after one of `cuts_T` counts besides that value; None: after one of `ends_T`.
        """
        # The last row is always an end, so the first value that is put behind it is never used.
        next_value_T = torch.cat([value_T[1:], value_T[:1]])
        next_value_T[ends_T > 0] = value_E
        cuts_T = ends_T if cuts_T is None else cuts_T
        arrays = (tensor.cpu().numpy() for tensor in (reward_T, value_T, next_value_T, terminated_T, cuts_T))
        advantages, returns = generalized_advantages(
            *arrays, gamma=self.settings.gamma, gae_lambda=self.settings.gae_lambda
        )
        return torch.from_numpy(advantages).to(value_T), torch.from_numpy(returns).to(value_T)

    def _loss(
        self, evaluated: tuple[Tensor, Tensor, Tensor], old_log_prob_B: Tensor, advantage_B: Tensor, return_B: Tensor,
        old_value_B: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        s = self.settings
        log_prob_B, entropy_B, value_B = evaluated
        if s.normalize_advantages:
            advantage_B = normalized(advantage_B)
        loss_actor = clipped_policy_loss(log_prob_B, old_log_prob_B, advantage_B, s.clip_ratio)
        loss_critic = value_loss(value_B, return_B, old_value_B, s.value_clip)
        entropy = entropy_B.mean()
        # Twice half the squared error: the coefficient is that of the paper's L^VF.
        loss = loss_actor + 2.0 * s.value_coef * loss_critic - s.entropy_coef * entropy
        with torch.no_grad():
            clipped = ((log_prob_B - old_log_prob_B).exp() - 1.0).abs() > s.clip_ratio
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
        if (ranks := RANK_GROUP.get()) is not None:
            ranks.average(gradients_of(self.optimizer))
        # Clipping to infinity measures the norm alone.
        longest = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
        return norm

    def _set_rate(self) -> None:
        if self.settings.lr_rounds:
            part = min(1.0, self.rounds / self.settings.lr_rounds)
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * (1.0 + part * (self.settings.lr_final - 1.0))


def _finite_everywhere(batch: Batch) -> bool:
    """Return True if the batch of no rank holds NaN or Inf."""
    finite, ranks = all_finite(tree_leaves(batch)), RANK_GROUP.get()
    return finite if ranks is None else ranks.least(int(finite)) > 0
