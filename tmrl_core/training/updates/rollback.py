"""Roll back updates that produce NaN or Inf."""

# Theory of operation
#
# One bad batch (a NaN from a sensor, an overflow in a loss) would destroy the networks, and all later checkpoints with
# them. Every update is therefore run so that it can be undone. This file does it for updates that are not compiled; a
# compiled graph chooses between old and new values itself (update_graph.py). It knows an agent only as a set of
# tensors.
#
# The order of one update: list the agent's tensors if they have changed, copy them, run the update, list again, sum,
# and copy back if a sum is not finite. What is summed: the batch, the metrics, and all tensors of the agent. The
# moments of the optimizers are among these, and they show bad gradients even where the parameters still look right: the
# square of 1e20 is infinite in float32, and Adam then moves that parameter by 0, from now on. Nothing is read or
# changed in a good update, so no bit of a result depends on this file.
#
# The tensors are listed again after the update because Adam creates its moments in its first step. They did not exist
# when the copies were made; they begin as zeros, so zeros are their copies. Example: an agent with 12 parameters has 12
# copies before its first update and 48 tensors after it (two moments and a step count each); if that update was bad,
# the 36 new ones become zeros, as if it had not been. A loaded checkpoint replaces an optimizer's state by another
# object, which the comparison of identities shows.
#
# Where several ranks train the same networks (rank_group.py), an update that is bad on one is rolled back on all.
#
# On a CPU, the result is checked immediately. On another device, reading it would make the processor wait for the
# device once per update, so the device decides: `torch.where` selects the old or the new values, and the flag is read
# 64 updates later (skipped_updates.py); the losses of a skipped update then still enter the means of the round. All
# tensors of one dtype are checked and restored as one array there, since a launch for each tensor would take longer
# than the update. An agent with tensors on two devices is checked as on a CPU.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized

import torch
from torch import Tensor, nn

from tmrl_core.training.checkpointable import saved_attributes
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.value_types import Batch, Metrics, Tree


class UpdateRollback:
    """Roll back an update of an agent if its batch, its metrics or the agent's tensors then hold NaN or Inf.

    The agent's tensors are its parameters, target networks and optimizers' moments, which show bad gradients too.

    On a CPU, the result is checked immediately. On another device that would make the processor wait, so the device
    decides, unless the agent also has tensors of a second device. The device checks and restores all tensors of one
    dtype as one array, since a launch for each tensor would take longer than the update.

    Args:
        agent: its tensors are those of the modules, optimizers and tensors among its attributes.
    """

    def __init__(self, agent: object) -> None:
        self._agent = agent
        self._states: list[Sized] = []
        """States of the agent's optimizers."""
        self._sizes: list[int] | None = None
        """Number of parameters with an entry in each of them when the tensors were listed; None: not listed yet."""
        self._kept: list[Tensor] = []
        self._floats: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._wholes: list[tuple[Tensor, list[Tensor]]] = []
        """On a device, for each dtype: the copies [numbers] and their original tensors. Empty on a CPU."""

    @torch.no_grad()
    def run(self, update: Callable[[], dict[str, Tensor]], batch: Batch) -> Metrics:
        """Run one update.

        Args:
            update: makes the update and returns its metrics.
            batch: its inputs; tensors among them are checked.

        Returns:
            The metrics; `SKIPPED` alone if the update was rolled back. Where the device decides, the metrics with
            `SKIPPED` as a tensor.
        """
        if self._has_changed():
            self._refresh()
        # One call for all tensors: each call costs, and on a device each would be a launch.
        torch._foreach_copy_(self._copies, self._kept)
        with torch.enable_grad():
            metrics: Metrics = dict(update())
        if list(map(len, self._states)) != self._sizes:  # an optimizer's first step creates its state
            self._refresh()
        floats = floating([*batch, *metrics.values()])
        if self._wholes:
            return {**metrics, SKIPPED: self._roll_back_on_device(floats)}
        finite = all_sums_finite([*floats, *self._floats])
        if (ranks := RANK_GROUP.get()) is not None:
            finite = ranks.all_true(finite)
        if finite:
            return metrics
        torch._foreach_copy_(self._kept, self._copies)
        return {SKIPPED: True}

    def _roll_back_on_device(self, floats: Sequence[Tensor]) -> Tensor:
        """Roll back the update on the device if it produced NaN or Inf.

        Return a flag on the device: True if rolled back.
        """
        now = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for _, tensors in self._wholes]
        finite = all_sums_finite([*floats, *floating(now)])
        if (ranks := RANK_GROUP.get()) is not None:
            finite = ranks.all_true(finite)
        for whole, (copies, tensors) in zip(now, self._wholes, strict=True):
            torch._foreach_copy_(tensors, _parts(torch.where(finite, whole, copies), tensors))
        return ~finite

    def _has_changed(self) -> bool:
        """Return True if an optimizer's state was created or loaded since the last call."""
        states: list[Sized] = []
        for value in vars(self._agent).values():
            if isinstance(value, torch.optim.Optimizer):
                states.append(value.state)
        same = list(map(id, states)) == list(map(id, self._states))
        # The earlier states are alive until here, so no later one has the address of one of them.
        self._states = states
        return not same or list(map(len, states)) != self._sizes

    def _refresh(self) -> None:
        """Refresh the list of the agent's tensors."""
        self._sizes = list(map(len, self._states))
        known = {id(tensor): copy for tensor, copy in zip(self._kept, self._copies, strict=True)}
        self._kept = agent_tensors(self._agent)
        # New tensors belong to an optimizer and begin as zeros.
        self._copies = [known.get(id(tensor), torch.zeros_like(tensor)) for tensor in self._kept]
        self._floats = floating(self._kept)
        self._wholes = []
        if len({tensor.device for tensor in self._kept}) == 1 and self._kept[0].device.type != "cpu":
            self._join_copies()

    def _join_copies(self) -> None:
        by_dtype: dict[torch.dtype, list[int]] = {}
        for number, tensor in enumerate(self._kept):
            by_dtype.setdefault(tensor.dtype, []).append(number)
        for numbers in by_dtype.values():
            tensors = [self._kept[number] for number in numbers]
            whole = torch.cat([self._copies[number].reshape(-1) for number in numbers])
            self._wholes.append((whole, tensors))
            for number, part in zip(numbers, _parts(whole, tensors), strict=True):
                self._copies[number] = part


def _parts(whole: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return consecutive views of [numbers] in the shapes of these tensors."""
    pieces = torch.split(whole, [tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def floating(values: Iterable[Tree]) -> list[Tensor]:
    """Return the tensors among `values` that hold floating-point numbers."""
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.numel()]


def all_sums_finite(floats: Sequence[Tensor]) -> Tensor:
    """Return a flag on the device of the first tensor: True if all numbers are finite."""
    # A sum is finite only if all its terms are: one number per tensor, in one pass.
    device = floats[0].device
    return torch.stack([tensor.sum(dtype=torch.float32).to(device) for tensor in floats]).isfinite().all()


def all_finite_in_graph(floats: Sequence[Tensor]) -> Tensor:
    """Return the flag of `all_sums_finite`, as it costs least in a compiled graph on the tensors' device."""
    if floats[0].device.type == "cpu":
        return all_sums_finite(floats)
    return joined_sum_finite(floats)


def joined_sum_finite(floats: Sequence[Tensor]) -> Tensor:
    """Return the flag of `all_sums_finite`, with one sum over all tensors."""
    # On CUDA each sum is a kernel of its own, some seventy for SAC; what computes a tensor writes it to its place among
    # all others in the same kernel. Measured before: 28 % of an update went to the check. This form is untried there.
    return torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in floats]).sum().isfinite()


def all_finite(leaves: Iterable[Tree]) -> bool:
    """Return True if all floating-point numbers in the tensors among `leaves` are finite. Waits for the device."""
    return all(bool(leaf.isfinite().all()) for leaf in floating(leaves))


def agent_tensors(agent: object) -> list[Tensor]:
    """Return the agent's tensors: those of its modules and optimizers, and those among its attributes; each once."""
    found: dict[int, Tensor] = {}
    for value in saved_attributes(agent).values():
        tensors: list[Tree] = []
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [v for state in value.state.values() for v in state.values()]
        elif isinstance(value, Tensor):
            tensors = [value]
        found.update({id(tensor): tensor for tensor in tensors if isinstance(tensor, Tensor)})
    return list(found.values())
