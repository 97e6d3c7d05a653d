"""Base of agents that learn from a replay memory: their model, target networks and named batches."""

# Theory of operation
#
# This file runs updates. It knows how a batch becomes named transitions, when an update is compiled, how a bad one is
# undone, and which tensors follow which. It knows no loss: a subclass implements `prepare` (once, after the model) and
# `update`.
#
# State: the model, `settings`, and `updates_asked`, the number of updates that were asked for, skipped ones included.
# That number and not time decides what is compiled, so that a run resumed from a checkpoint continues bit for bit. A
# subclass may count updates itself (`updates`), for its delays. Counters are integers, since a compiled graph advances
# integer attributes alone.
#
# `_train_steps` takes several batches, and splits them in two ways:
#
# - Compiled, as many as possible at once. The compiler finds the graph of each update first, from the counters that the
#   agent will have by then, and runs them together; one Python call then serves up to 16 updates.
# - Uncompiled, one by one, under `UpdateRollback`, which restores all tensors of the agent if NaN or Inf came out.
#
# In numbers: with `compile: true`, updates 1 to 998 run compiled (the first one lets the optimizers make their states),
# number 999 uncompiled, and so on: a compiled graph leaves no gradients to read, so each thousandth update exists to
# record their norms. A call with 16 batches at update 995 runs four compiled, one uncompiled, and eleven compiled.
#
# `compile: auto` waits for `COMPILE_AFTER` updates. Compiling costs 30 to 60 s of a core for each kind of update, and
# training waits; 20,000 updates of a small network cost about three minutes on a CPU, so a run that is shorter than
# that would lose. On CUDA an uncompiled update takes 27 times as long as a compiled one (113 and 3,081 a second, SAC
# with two layers of 256), since it is a row of launches: compiling has paid after 4,000 updates, so it begins at once.
#
# What fails: an update that does not trace or compile is logged once and runs uncompiled from then on. An update with
# NaN or Inf changes nothing and is counted by its caller (`skipped_updates.py`). Errors of a user's `update` pass
# through.
#
# Compiled are only classes that declare `update_kind` themselves. A subclass that overrides `update` and inherits
# `update_kind` would otherwise be compiled although its decisions may depend on things that tracing cannot see.
#
# Rejected: `torch.compile` on `update`, which takes 2.2 to 9.5 times the processor time, since its graphs break at each
# backward pass. Compiling in a thread beside training would make the number of the first compiled update, and so its
# rounding, depend on the load of the machine.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tmrl_core.actor.policies.flattening import Leaf, images_of, layout_of
from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.declared import Setting
from tmrl_core.training.agents.losses import critic_loss, td_error
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.random_shifts import drawn, greatest, shifted
from tmrl_core.training.agents.settings import OffPolicySettings
from tmrl_core.training.agents.target_networks import polyak_update
from tmrl_core.training.batches import Transitions, transitions_of
from tmrl_core.training.updates.compiled import Compiler
from tmrl_core.training.updates.matrix_precision import TF32, matrix_products
from tmrl_core.training.updates.rollback import UpdateRollback
from tmrl_core.training.value_types import Batch, Maker, Metrics, Policy, Space, Tree

COMPILE_AFTER = 20_000
"""Updates after which `compile: auto` compiles on a CPU: they have cost several times what compiling does."""
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
    random_shifts_rng: np.random.Generator | None = None
    """Generator of random shifts; an attribute of agents that shift images, so that only their state has it."""

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
        if self.settings.random_shifts:
            if not self._images:
                raise ConfigError(
                    f"agent.kwargs.random_shifts: found {self.settings.random_shifts!r}, and the observation space "
                    f"{observation_space} has no image. Leave it out, or see docs/choosing.md for how an image is "
                    "declared."
                )
            self.random_shifts_rng = np.random.default_rng(int(torch.randint(2**62, ()).item()))

    def prepare(self) -> None:  # not abstract: an agent may need nothing else
        """Make optimizers and target networks, after the model. Default: nothing."""

    def get_actor(self) -> Policy:
        """Return the policy in the form in which it is published.

        If it can act at random (its `exploration` has a `random`), it does until the first update: its initial weights
        hold no information.
        """
        actor = self.acting_policy()
        if "random" in actor.exploration():
            actor.set_exploration({"random": 0.0 if self.updates_asked else 1.0})
        return actor

    def acting_policy(self) -> Policy:
        """Return the policy with its present weights."""
        return self.model.actor

    def train(self, batch: Batch) -> Metrics:
        """Update once; skip an update with NaN or Inf, see `skipped_updates.SKIPPED`."""
        return self._train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Batch]) -> list[Metrics]:
        """Call `train` with each batch; compiled updates cost less together."""
        # A subclass of a user may count or filter in its `train`, which a joint call would pass by.
        if type(self).train is not OffPolicyAgent.train:
            return super().train_steps(batches)
        return self._train_steps(batches)

    def _train_steps(self, batches: Sequence[Batch]) -> list[Metrics]:
        if self.settings.precision != TF32:
            return self._updates(batches)
        with matrix_products(TF32, self.device):
            return self._updates(batches)

    def _updates(self, batches: Sequence[Batch]) -> list[Metrics]:
        # By name from here on: the positions of a batch must not reach the losses.
        todo = [self._with_shifts(transitions_of(batch, self.settings.gamma)) for batch in batches]
        done: list[Metrics] = []
        while len(done) < len(todo):
            rest = todo[len(done) :]
            # One update of `GRADIENTS_EVERY` runs uncompiled, so that its gradients can be read.
            compiled = GRADIENTS_EVERY - 1 - self.updates_asked % GRADIENTS_EVERY
            # Fewer come back than were asked for where the next one cannot be compiled: that one runs below.
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
            self.settings.compile == "auto" and (self.updates_asked >= COMPILE_AFTER or self.device.type == "cuda")
        )
        # A subclass with an update of its own has to declare its kinds of updates itself.
        return wanted and "update_kind" in vars(type(self))

    def update_here(self, transitions: Transitions) -> dict[str, Tensor]:
        """Call `update` uncompiled, in the chosen precision, with the images of its transitions moved."""
        if transitions.shifts is not None:
            transitions = shifted(transitions, self._images, greatest(self.settings.random_shifts))
        if self.settings.precision != "bfloat16":
            return self.update(transitions)
        # Parameters change within an update, so a cache of their casts would be stale.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return self.update(transitions)

    def _with_shifts(self, transitions: Transitions) -> Transitions:
        """Return transitions with the shifts of their images, if the agent shifts any."""
        if self.random_shifts_rng is None:
            return transitions
        most, rows = greatest(self.settings.random_shifts), len(transitions.reward_B)
        shifts = drawn(self.random_shifts_rng, most, rows, len(self._images))
        return transitions._replace(shifts=shifts.to(self.device))

    # Cached properties are not part of checkpoints: these belong to this process.
    @cached_property
    def _images(self) -> tuple[Leaf, ...]:
        return images_of(layout_of(self.observation_space, self.action_space, self.settings.convolutions))

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
        # Parameters alone: a target network is a copy, whose buffers (bounds of actions) do not learn.
        polyak_update(self._target_parameters, self._source_parameters, self.settings.polyak)
