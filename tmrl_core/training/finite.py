"""Updates that come to infinite numbers, or to none at all, leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tmrl_core.training.bad_updates import SKIPPED


class FiniteUpdates:
    """Takes back whatever an update has done to an agent if a number in its batch, its metrics, or what the agent keeps
    (parameters, slow copies, optimizers' moments, and with these the gradients) is not finite.

    On a CPU the outcome is looked at at once; elsewhere that would make the processor wait, so the device decides.

    Args:
        agent: what it keeps are the modules, optimizers and tensors among its attributes.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._stamp: Any = None
        self._kept: list[Tensor] = []
        self._floats: list[Tensor] = []
        self._copies: list[Tensor] = []

    @torch.no_grad()
    def run(self, update: Callable[[], dict[str, Tensor]], batch: Sequence[Any]) -> dict[str, Any]:
        """One update.

        Args:
            update: makes it, and returns its metrics.
            batch: what it learns from; tensors among it are looked at.

        Returns:
            The metrics; of an update that was taken back nothing but `SKIPPED`. Not on a CPU: `SKIPPED` beside them.
        """
        self._look()
        torch._foreach_copy_(self._copies, self._kept)
        with torch.enable_grad():
            metrics: dict[str, Any] = dict(update())
        self._look()
        floats = [t for t in (*batch, *metrics.values()) if isinstance(t, Tensor) and t.is_floating_point()]
        # A sum is finite if all its terms are: one number for each tensor, and no further pass over it.
        finite = torch.stack([t.sum(dtype=torch.float32) for t in (*floats, *self._floats)]).isfinite().all()
        if finite.device.type != "cpu":
            for tensor, copy in zip(self._kept, self._copies, strict=True):
                tensor.copy_(torch.where(finite, tensor, copy))
            return {**metrics, SKIPPED: ~finite}
        if finite:
            return metrics
        torch._foreach_copy_(self._kept, self._copies)
        return {SKIPPED: True}

    def _look(self) -> None:
        """See what the agent keeps; anew only after something was made or loaded."""
        optimizers = [v for v in vars(self._agent).values() if isinstance(v, torch.optim.Optimizer)]
        stamp = [(optimizer.state, len(optimizer.state)) for optimizer in optimizers]
        if self._stamp is not None and all(
            a is b and n == m for (a, n), (b, m) in zip(stamp, self._stamp, strict=True)
        ):
            return
        self._stamp = stamp
        known = {id(tensor): copy for tensor, copy in zip(self._kept, self._copies, strict=True)}
        self._kept = kept_tensors(self._agent)
        # New ones are an optimizer's, which begin as zeros.
        self._copies = [known.get(id(tensor), torch.zeros_like(tensor)) for tensor in self._kept]
        self._floats = [tensor for tensor in self._kept if tensor.is_floating_point() and tensor.numel()]


def all_finite(leaves: Iterable[Any]) -> bool:
    """Whether all floating-point numbers in the tensors among `leaves` are finite; waits for the device."""
    return all(bool(leaf.isfinite().all()) for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point())


def kept_tensors(agent: Any) -> list[Tensor]:
    """What an agent learns: tensors of its modules and optimizers, and those among its attributes; each once."""
    found: dict[int, Tensor] = {}
    for name, value in vars(agent).items():
        if name in getattr(agent, "transient", ()):
            continue
        tensors: list[Any] = []
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [v for state in value.state.values() for v in state.values()]
        elif isinstance(value, Tensor):
            tensors = [value]
        found.update({id(tensor): tensor for tensor in tensors if isinstance(tensor, Tensor)})
    return list(found.values())
