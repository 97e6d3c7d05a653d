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

from tmrl_core.training.memories.prefetch import BESIDE

Run = Callable[..., Sequence[Tensor]]
Work = Callable[[], Sequence[Tensor]]
Recorder = Callable[[Work, torch.device], "tuple[Callable[[], None], Sequence[Tensor]]"]
"""Takes work for a device, and which; returns what has it done again, and where its results are then."""

WARM_UPS = 2
"""Runs before recording, in which libraries set up what they may not while they are recorded."""
SHARE = 0.05
"""What with and without a recording may differ by, as a part of what an update changes: products may add in another
order, and where a gradient is next to nothing Adam makes a step of whichever sign that leaves."""
RTOL, ATOL = 1e-2, 1e-4
"""Of results."""


def record_cuda(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """A `Recorder` for CUDA devices.

    Raises:
        RuntimeError: the work does something that cannot be recorded, as waiting for the device.

    Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA graphs".
    """
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            # On the stream of the recording, as libraries keep working memory for each.
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                work()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Threads that prepare batches wait. Those of others, in a program that trains beside, do their own work.
            with BESIDE, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = work()
        finally:
            # A recording that fails leaves its own stream in place, which nothing orders with the other threads' work.
            torch.cuda.set_stream(current)
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
        self._leaves = [_alike_in_memory(leaf) for leaf in leaves]
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
                self._replay, self._results = record(work, device)
                begin_again()
                results = [result.clone() for result in work()]
                expected = [tensor.clone() for tensor in kept]
                drawn = _random_state(device)
                begin_again()
                self._replay()
                same_results = all(_alike(a, b) for a, b in zip(self._results, results, strict=True))
                if not (same_results and all(map(_changed_alike, kept, expected, before))):
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


def _alike_in_memory(leaf: Tensor) -> Tensor:
    """A copy with the same strides, which compiled code relies upon; `clone` would close the gaps between columns."""
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)


def _alike(found: Tensor, expected: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=RTOL, atol=ATOL, equal_nan=True)


def _changed_alike(found: Tensor, expected: Tensor, before: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    rounding = 1e-6 * expected.norm()
    return bool((found - expected).norm() <= SHARE * (expected - before).norm() + rounding)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
