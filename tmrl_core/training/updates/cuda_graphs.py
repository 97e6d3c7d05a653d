"""CUDA graphs: an update captured once and replayed with one call."""

# Theory of operation
#
# A compiled update is several dozen kernels, and launching each takes longer than many of them run. A captured update
# is one launch. This file captures any function of tensors; it does not know what an update is.
#
# A CUDA graph reads and writes the memory that it was captured with. Each batch is therefore copied into the graph's
# inputs, the agent's tensors stay in place, and results are copied before the next replay overwrites them. The inputs
# keep the strides of the batch, which are those of columns in a wider row: compiled code relies on them.
#
# Each capture is verified before use, because a wrong one would train wrongly without an error. The same update runs
# with and without it, from the same values and the same random state; parameters, results and the random state
# afterwards must agree. The order: two runs to warm up (libraries allocate and choose their routines, which a capture
# forbids), back to the old values, capture, back, run, remember, back, replay, compare, back. Whatever happens, the
# agent ends with the values that it began with, and a capture that differs is discarded with one line in the log.
# Example of the comparison: an update moves a weight by 3e-4; the replay may differ from it by `SHARE`, 5 % of the norm
# of all moves, since a matrix product may sum in another order, and for a gradient near 0 the order decides the sign of
# Adam's step.
#
# While a graph is captured, no other thread may use the device: the lock `BESIDE` keeps the prefetching threads out. A
# failed capture leaves its own stream current; it is set back, or later work would not be ordered with that of other
# threads.
#
# The tests replace the capture by a run on the CPU and cover everything but the CUDA calls themselves.

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tmrl_core.training.memories.prefetch import BESIDE

Run = Callable[..., Sequence[Tensor]]
Work = Callable[[], Sequence[Tensor]]
Capture = Callable[[Work, torch.device], "tuple[Callable[[], None], Sequence[Tensor]]"]
"""Capture work on a device; return a function that replays it, and the tensors that hold its results."""

WARM_UPS = 2
"""Number of runs before the capture. They let libraries do their set-up, which a capture does not allow."""
SHARE = 0.05
"""Allowed difference between a replayed and a normal update, as a share of the update's change. A matrix product may
sum in another order. For a gradient near 0, the order decides the sign of Adam's step."""
RTOL, ATOL = 1e-2, 1e-4
"""Tolerances of results."""


def capture_cuda(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Capture work as a CUDA graph; the `Recorder` for CUDA devices.

    Raises:
        RuntimeError: the work does something that cannot be captured, such as waiting for the device.

    Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA graphs".
    """
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            # Warm up on the stream of the capture, because libraries keep a workspace per stream.
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                work()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Threads that prepare batches wait meanwhile. Other threads of the program are not affected.
            with BESIDE, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = work()
        finally:
            # A failed capture leaves its own stream current, which is not ordered with the other threads' work.
            torch.cuda.set_stream(current)
    return graph.replay, results


class CudaGraph:
    """Capture of `run` that can be replayed.

    Args:
        run: `(*leaves, *kept) -> results`, which changes `kept` in place.
        leaves: tensors of a batch, with the layout of all later batches; all on one device.
        kept: tensors at fixed addresses; on that device, except for constants.
        capture: captures the work.

    Raises:
        RuntimeError: `run` cannot be captured, or the replay has another effect than `run`. Nothing has changed then.
    """

    def __init__(
        self, run: Run, leaves: Sequence[Tensor], kept: Sequence[Tensor], capture: Capture = capture_cuda
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
                self._replay, self._results = capture(work, device)
                begin_again()
                results = [result.clone() for result in work()]
                expected = [tensor.clone() for tensor in kept]
                drawn = _random_state(device)
                begin_again()
                self._replay()
                same_results = all(_alike(a, b) for a, b in zip(self._results, results, strict=True))
                if not (same_results and all(map(_changed_alike, kept, expected, before))):
                    raise RuntimeError("the captured update has other results than the update")
                if not torch.equal(_random_state(device), drawn):
                    raise RuntimeError("the captured update uses other random numbers than the update")
            finally:
                begin_again()

    def __call__(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Replay with this batch; return the results in new memory."""
        torch._foreach_copy_(self._leaves, list(leaves))
        self._replay()
        return _copies(self._results)


def _copies(results: Sequence[Tensor]) -> list[Tensor]:
    """Copy results; scalars of one dtype are copied together, since a launch for each would cost more than its copy."""
    copies = list(results)
    for dtype in {result.dtype for result in results}:
        places = [i for i, result in enumerate(results) if result.dim() == 0 and result.dtype == dtype]
        if places:
            together = torch.stack([results[i] for i in places]).unbind()
            for i, copy in zip(places, together, strict=True):
                copies[i] = copy
    return [copy.clone() if copy is result else copy for copy, result in zip(copies, results, strict=True)]


def _alike_in_memory(leaf: Tensor) -> Tensor:
    """Return a copy with the same strides, which compiled code relies on; `clone` would remove gaps between columns."""
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
