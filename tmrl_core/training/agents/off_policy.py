"""Base of agents that learn from a replay memory: their model, target networks and named batches."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.losses import critic_loss, td_error
from tmrl_core.training.agents.optimizers import follow, minimise
from tmrl_core.training.batches import Transitions, transitions_of
from tmrl_core.training.updates.compiled import Compiler
from tmrl_core.training.updates.rollback import FiniteUpdates

COMPILE_AFTER = 20_000
"""Updates after which `compile: auto` compiles: they have cost several times what compiling does."""
GRADIENTS_EVERY = 1_000
"""Updates between two uncompiled ones, whose gradient norms are recorded; compiled updates expose no gradients."""


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
    transient: ClassVar[frozenset[str]] = frozenset({"td_error_B", "compile", "precision"})

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
        self.updates_asked = 0
        self.compile: bool | str = "auto"
        self.precision = "float32"

    def compute_with(self, compile: bool | str = "auto", precision: str = "float32") -> None:
        """Choose how updates are computed; to be called before the first.

        Args:
            compile: one compiled graph for an update. auto: in runs that are long enough to gain by it, which is after
                `COMPILE_AFTER` updates.
            precision: of the networks' products: float32, or bfloat16 for processors and GPUs that are faster at it
                (parameters, the critics' last layer, losses and optimizers stay float32). SAC learns Pendulum as well
                with it (benchmarks/results/). Processors without instructions for it take ten times as long and more.

        Raises:
            ConfigError: one of them is something else.
        """
        if compile not in (True, False, "auto"):
            raise ConfigError(f"agent.kwargs.compile is {compile!r}; allowed: auto, true, false")
        if precision not in ("float32", "bfloat16"):
            raise ConfigError(f"agent.kwargs.precision is {precision!r}; allowed: float32, bfloat16")
        self.compile = compile
        self.precision = precision

    def get_actor(self) -> Any:
        """The policy, where it is trained."""
        return self.model.actor

    def train(self, batch: Any) -> dict[str, Any]:
        """One update; none, where a number in it is not finite, see `bad_updates.SKIPPED`."""
        return self._train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Any]) -> list[dict[str, Any]]:
        """As `train` with each of them; compiled updates cost less so."""
        if type(self).train is not OffPolicyAgent.train:
            return super().train_steps(batches)
        return self._train_steps(batches)

    def _train_steps(self, batches: Sequence[Any]) -> list[dict[str, Any]]:
        todo = [transitions_of(batch, self.gamma) for batch in batches]
        done: list[dict[str, Any]] = []
        while len(done) < len(todo):
            rest = todo[len(done) :]
            # One in so many is run without compiling, for the gradients that it leaves to be looked at.
            compiled = GRADIENTS_EVERY - 1 - self.updates_asked % GRADIENTS_EVERY
            made = self.compiler.updates(rest[:compiled]) if compiled and self._compiles else []
            if made:
                self.updates_asked += len(made)
                done += [metrics for metrics, _ in made]
                self.td_error_B = made[-1][1]
            else:
                self.updates_asked += 1
                done.append(self._finite.run(partial(self.update_here, rest[0]), tree_leaves(tuple(rest[0]))))
        return done

    @property
    def _compiles(self) -> bool:
        """Tell whether the next update should be compiled."""
        wanted = self.compile is True or (self.compile == "auto" and self.updates_asked >= COMPILE_AFTER)
        # A subclass that computes something else has to say itself which kinds of updates it makes.
        return wanted and "update_kind" in vars(type(self))

    def update_here(self, transitions: Transitions) -> dict[str, Tensor]:
        """`update`, in the precision that was chosen, without compiling."""
        if self.precision == "float32":
            return self.update(transitions)
        # Parameters change within an update, so that none may be taken from a cache.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return self.update(transitions)

    # Kept out of checkpoints: what goes with this process.
    @cached_property
    def compiler(self) -> Compiler:
        """Keeps the compiled updates."""
        return Compiler(self)

    @cached_property
    def _finite(self) -> FiniteUpdates:
        return FiniteUpdates(self)

    def update_kind(self) -> Hashable:
        """Which of its kinds of update comes next, from what it counts: each is compiled by itself.

        A class whose `update` computes with tensors only, and decides by integers among its attributes only, says so by
        defining this itself; others are not compiled.
        """
        return None

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
        follow(self._target_parameters, self._source_parameters, self.polyak)


def slow_copy(module: nn.Module) -> Any:
    """A copy of a module that no gradient moves."""
    return copy.deepcopy(module).requires_grad_(False)


def model_arguments(model_kwargs: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """Keyword arguments of a model: those of `model_kwargs`, and over them the named ones that are not None."""
    return {**(model_kwargs or {}), **{name: value for name, value in named.items() if value is not None}}
