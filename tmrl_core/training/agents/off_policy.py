"""Base of agents that learn from a replay memory: their model, target networks and named batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.declared import Setting
from tmrl_core.training.agents.losses import critic_loss, td_error
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.settings import OffPolicySettings
from tmrl_core.training.agents.target_networks import polyak_update
from tmrl_core.training.batches import Transitions, transitions_of
from tmrl_core.training.updates.compiled import Compiler
from tmrl_core.training.updates.rollback import UpdateRollback
from tmrl_core.training.value_types import Batch, Maker, Metrics, Policy, Space, Tree

COMPILE_AFTER = 20_000
"""Updates after which `compile: auto` compiles: they have cost several times what compiling does."""
GRADIENTS_EVERY = 1_000
"""Updates between two uncompiled ones, whose gradient norms are recorded; compiled updates expose no gradients."""


class OffPolicyAgent(TrainingAgent):
    """Agent with a model that acts and target networks of parts of it. A subclass implements `update`.

    `takes` declares its settings and its default model.

    Args:
        observation_space: of the environment.
        action_space: of the environment.
        device: device of the networks; None: cuda if available.
        model_cls: `(observation_space, action_space, **settings.model_arguments())` makes a module whose `actor` is the
            policy; None: the default model.

    Attributes:
        settings: of the agent.
        td_error_B: [B] TD errors of the last update, in the order of its batch; None where rows were sampled uniformly.
    """

    collection: ClassVar[frozenset[str]] = frozenset({"asynchronous", "synchronous"})
    wants_extras: ClassVar[bool] = True
    transient: ClassVar[frozenset[str]] = frozenset({"td_error_B"})
    settings_cls: ClassVar[type[OffPolicySettings]] = OffPolicySettings
    default_networks: ClassVar[Maker | None] = None
    settings: OffPolicySettings

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str | None = None,
        model_cls: Maker | None = None,
        *given: Setting,
        **named: Setting,
    ) -> None:
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(observation_space, action_space, device)
        self.settings = self.settings_cls(*given, **named)
        make = model_cls or self.default_networks
        if make is None:
            raise ConfigError(f"{type(self).__name__} has no default model: give it model_cls")
        self.model = make(observation_space, action_space, **self.settings.model_arguments()).to(device)
        self.td_error_B: Tensor | None = None
        self.updates_asked = 0
        self.prepare()

    def prepare(self) -> None:  # not abstract: an agent may need nothing else
        """Make optimizers and target networks, after the model. Default: nothing."""

    def get_actor(self) -> Policy:
        """Return the policy that is trained."""
        return self.model.actor

    def train(self, batch: Batch) -> Metrics:
        """Update once; skip an update with NaN or Inf, see `skipped_updates.SKIPPED`."""
        return self._train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Batch]) -> list[Metrics]:
        """Call `train` with each batch; compiled updates cost less together."""
        if type(self).train is not OffPolicyAgent.train:
            return super().train_steps(batches)
        return self._train_steps(batches)

    def _train_steps(self, batches: Sequence[Batch]) -> list[Metrics]:
        todo = [transitions_of(batch, self.settings.gamma) for batch in batches]
        done: list[Metrics] = []
        while len(done) < len(todo):
            rest = todo[len(done) :]
            # One update of `GRADIENTS_EVERY` runs uncompiled, so that its gradients can be read.
            compiled = GRADIENTS_EVERY - 1 - self.updates_asked % GRADIENTS_EVERY
            made = self.compiler.updates(rest[:compiled]) if compiled and self._compiles else []
            if made:
                self.updates_asked += len(made)
                done += [metrics for metrics, _ in made]
                self.td_error_B = made[-1][1]
            else:
                self.updates_asked += 1
                done.append(self._rollback.run(partial(self.update_here, rest[0]), tree_leaves(tuple(rest[0]))))
        return done

    @property
    def _compiles(self) -> bool:
        """Tell whether the next update should be compiled."""
        wanted = self.settings.compile is True or (
            self.settings.compile == "auto" and self.updates_asked >= COMPILE_AFTER
        )
        # A subclass with an update of its own has to declare its kinds of updates itself.
        return wanted and "update_kind" in vars(type(self))

    def update_here(self, transitions: Transitions) -> dict[str, Tensor]:
        """Call `update` uncompiled, in the chosen precision."""
        if self.settings.precision == "float32":
            return self.update(transitions)
        # Parameters change within an update, so a cache of their casts would be stale.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return self.update(transitions)

    # Cached properties are not part of checkpoints: these belong to this process.
    @cached_property
    def compiler(self) -> Compiler:
        """Compiler with the compiled updates."""
        return Compiler(self)

    @cached_property
    def _rollback(self) -> UpdateRollback:
        return UpdateRollback(self)

    def update_kind(self) -> Hashable:
        """Return the kind of the next update, which depends on the agent's counters; each kind has a compiled graph.

        Override this only in a class whose `update` computes with tensors alone, and whose decisions depend on integer
        attributes alone. Classes that do not override it are not compiled.
        """
        return None

    @abstractmethod
    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update with these transitions; return metrics as `train` does."""

    @abstractmethod
    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Return each target network with its source network."""

    def allowed(self, obs: Tree) -> Tensor | None:
        """Return the action mask [..., N] of observations, as bool; None: the environment has none."""
        return obs[ACTION_MASK] > 0 if self._masked else None

    @cached_property
    def _masked(self) -> bool:
        return is_masked(self.observation_space, self.action_space)

    # Cached properties are not part of checkpoints: the modules' parameters, listed once.
    @cached_property
    def _target_parameters(self) -> list[Tensor]:
        return [p for target, _ in self.target_pairs() for p in target.parameters()]

    @cached_property
    def _source_parameters(self) -> list[Tensor]:
        return [p for _, source in self.target_pairs() for p in source.parameters()]

    def _step_critics(
        self, optimizer: torch.optim.Optimizer, q_KB: Tensor, target_B: Tensor, weight_B: Tensor | None
    ) -> dict[str, Tensor]:
        """Move the critics towards their targets; [K, B] values, [B] targets and importance weights."""
        loss = critic_loss(q_KB, target_B, weight_B)
        minimise(optimizer, loss)
        if weight_B is not None:
            self.td_error_B = td_error(q_KB, target_B)
        return {"loss_critic": loss.detach(), "q_mean": q_KB.detach().mean()}

    def _update_targets(self) -> None:
        polyak_update(self._target_parameters, self._source_parameters, self.settings.polyak)
