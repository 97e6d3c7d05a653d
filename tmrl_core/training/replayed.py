"""An update that a GPU was told once, and does again with one call: CUDA graphs.

Theory of operation
-------------------
A compiled update is some dozens of kernels, and telling the GPU of each takes longer than many of them run. Recorded,
they are one call. A recording reads and writes the memory that it was recorded with: so a batch is copied to where it
reads, what the agent keeps stays where it is, and results are copied before the next replay writes over them.

Nothing is taken on trust. Before a recording is used, the same update is made with and without it, from the same
numbers and with the same random ones; if the two differ, it is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[..., Sequence[Tensor]]
Recorder = Callable[[Callable[[], Sequence[Tensor]]], "tuple[Callable[[], None], Sequence[Tensor]]"]
"""Takes work for a device; returns what has it done, each time it is called, and where the results will be then."""

WARM_UPS = 2
"""Runs before recording, in which libraries set up what they may not while they are recorded."""
RTOL, ATOL = 1e-3, 1e-5
"""What with and without a recording may differ by: products may add in another order."""


def record_cuda(work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """A `Recorder` for CUDA devices.

    Raises:
        RuntimeError: the work does something that cannot be recorded, as waiting for the device.
    """
    graph = torch.cuda.CUDAGraph()
    # A thread that prepares batches goes on meanwhile: what it does is its own.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = work()
    return graph.replay, results


class Replayed:
    """Runs what `run` would, by replaying what was recorded of it.

    Args:
        run: `(*leaves, *kept) -> results`, which changes `kept` in place.
        leaves: tensors of a batch, as those of all batches to come; all on one device.
        kept: tensors that stay where they are; on that device, but for what is never changed.
        record: makes the recording.

    Raises:
        RuntimeError: it cannot be recorded, or replaying it does something else. Nothing has changed then.
    """

    def __init__(
        self, run: Run, leaves: Sequence[Tensor], kept: Sequence[Tensor], record: Recorder = record_cuda
    ) -> None:
        self._leaves = [leaf.clone() for leaf in leaves]
        device = self._leaves[0].device
        before = [tensor.clone() for tensor in kept]
        random = _random_state(device)

        def work() -> Sequence[Tensor]:
            return run(*self._leaves, *kept)

        def begin_again() -> None:
            torch._foreach_copy_(list(kept), before)
            _set_random_state(device, random)

        with torch.no_grad():
            try:
                for _ in range(WARM_UPS):
                    work()
                begin_again()
                self._replay, self._results = record(work)
                begin_again()
                expected = [*(result.clone() for result in work()), *(tensor.clone() for tensor in kept)]
                drawn = _random_state(device)
                begin_again()
                self._replay()
                found = [*self._results, *kept]
                if not all(_alike(a, b) for a, b in zip(found, expected, strict=True)):
                    raise RuntimeError("a recorded update does something else than the update")
                if not torch.equal(_random_state(device), drawn):
                    raise RuntimeError("a recorded update draws other random numbers than the update")
            finally:
                begin_again()

    def __call__(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The results for this batch, in memory of their own."""
        torch._foreach_copy_(self._leaves, list(leaves))
        self._replay()
        return _copies(self._results)


def _copies(results: Sequence[Tensor]) -> list[Tensor]:
    """Single numbers of one kind are copied together: telling a GPU of each would take longer than copying it."""
    copies = list(results)
    for dtype in {result.dtype for result in results}:
        places = [i for i, result in enumerate(results) if result.dim() == 0 and result.dtype == dtype]
        if places:
            together = torch.stack([results[i] for i in places]).unbind()
            for i, copy in zip(places, together, strict=True):
                copies[i] = copy
    return [copy.clone() if copy is result else copy for copy, result in zip(copies, results, strict=True)]


def _alike(found: Tensor, expected: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=RTOL, atol=ATOL, equal_nan=True)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
