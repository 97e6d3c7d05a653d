"""One kind of update as a graph: traced on fake tensors, with the agent's tensors as inputs, and run by a backend.

The graph ends by choosing between the new values and those from before, so that an update with a number that is not
finite changes nothing. The compiler joins that choice with the computation of the new values and keeps no copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from tmrl_core.training.updates.cuda_graphs import Recorder, Replayed
from tmrl_core.training.updates.decompositions import DECOMPOSITIONS
from tmrl_core.training.updates.rollback import all_sums_finite, floating, kept_tensors

logger = logging.getLogger(__name__)

Backend = Callable[[torch.fx.GraphModule, Sequence[Tensor]], Callable[..., Sequence[Tensor]]]
"""`(graph, example inputs)` makes what runs the graph on such inputs."""


class Graph:
    """One kind of update, compiled.

    Args:
        agent: whose update it is; its optimizers have made their state already.
        update: what is noted: `(*leaves) -> tensors`.
        leaves: tensors of a batch, as those of all batches to come.
        backend: makes what runs the graph.
        record: makes recordings of what runs it, to be replayed; None: it is run each time.

    Attributes:
        run: `(*leaves, *kept) -> results`.
        kept: what it reads of the agent, and changes.
        results: how many it has, the last of which says whether all numbers were finite.
        replayed: does the same as `run`; None: there is no recording.
    """

    def __init__(
        self,
        agent: Any,
        update: Callable[..., list[Tensor]],
        leaves: Sequence[Tensor],
        backend: Backend,
        record: Recorder | None = None,
    ) -> None:
        counters = _integers(agent)
        steps = _steps(agent)

        def note(*tensors: Tensor) -> list[Tensor]:
            # Noting takes a tensor of one number for a constant and computes with it at once, unless it is an input.
            for (state, name), tensor in zip(steps, tensors[len(leaves) :], strict=True):
                state[name] = tensor
            batch, tensors_kept = tensors[: len(leaves)], kept_tensors(agent)
            before = [tensor.detach().clone() for tensor in tensors_kept]
            results = update(*batch)
            with torch.no_grad():
                finite = all_sums_finite(floating([*batch, *results, *tensors_kept]))
                for tensor, old in zip(tensors_kept, before, strict=True):
                    tensor.copy_(torch.where(finite, tensor, old))
            return [*results, finite]

        values = [state[name] for state, name in steps]
        kept = kept_tensors(agent)
        before = [tensor.detach().clone() for tensor in kept]
        try:
            graph = _note(note, [*leaves, *values])
        finally:
            for (state, name), value in zip(steps, values, strict=True):
                state[name] = value
            with torch.no_grad():
                # What is changed without regard to the batch is changed in earnest while it is noted.
                torch._foreach_copy_(kept, before)
            now = _integers(agent)
            counted = {name: value - counters.get(name, 0) for name, value in now.items()}
            self._counted = [(name, count) for name, count in counted.items() if count]
            for name, value in counters.items():
                setattr(agent, name, value)
            for optimizer in optimizers_of(agent):
                # What was noted has left gradients that are no numbers.
                optimizer.zero_grad()
        self._agent = agent
        self.kept = [*values, *_lift(graph, len(leaves) + len(values))]
        self.results = len(next(node for node in graph.graph.nodes if node.op == "output").args[0])
        self.run = backend(graph, [*leaves, *self.kept])
        self.replayed = None if record is None else recorded([self], leaves, record)

    def count(self) -> None:
        """Count on what the agent counts, as this update does."""
        counters = vars(self._agent)
        for name, count in self._counted:
            counters[name] += count

    def __call__(self, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        """One update, for which no gradients may be noted: its results, and last whether all numbers were finite; if
        not, nothing has changed."""
        if self.replayed is not None:
            return self.replayed(leaves)
        return self.run(*leaves, *self.kept)


def recorded(graphs: Sequence[Graph], leaves: Sequence[Tensor], record: Recorder) -> Replayed | None:
    """The updates of these graphs recorded, one after the other; `leaves`: the first batch's, the second's, ..."""
    width = len(leaves) // len(graphs)
    kept = list({(t.data_ptr(), t.shape): t for graph in graphs for t in graph.kept}.values())

    def run(*tensors: Tensor) -> list[Tensor]:
        return [
            result
            for number, graph in enumerate(graphs)
            for result in graph.run(*tensors[number * width : (number + 1) * width], *graph.kept)
        ]

    try:
        return Replayed(run, leaves, kept, record)
    except Exception as exc:
        # As compiling, this fails in many ways, none of which is a reason not to train.
        why = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        logger.warning("updates are not replayed as a CUDA graph, which changes nothing but their speed: %s", why)
        return None


def optimizers_of(agent: Any) -> list[torch.optim.Optimizer]:
    """The optimizers among an agent's attributes."""
    return [value for value in vars(agent).values() if isinstance(value, torch.optim.Optimizer)]


def _integers(agent: Any) -> dict[str, int]:
    return {name: value for name, value in vars(agent).items() if type(value) is int}


def _steps(agent: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the optimizers' scalar states, such as step counts, as pairs of a state and a name."""
    return [
        (state, name)
        for optimizer in optimizers_of(agent)
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and value.numel() == 1 and name == "step"
    ]


def _note(update: Callable[..., list[Tensor]], leaves: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of an update. Nothing is computed."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(update, decomposition_table=DECOMPOSITIONS, tracing_mode="fake", _allow_non_fake_inputs=True)(
        *leaves
    )
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and str(node.target).startswith("profiler."):
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


def _lift(graph: torch.fx.GraphModule, inputs: int) -> list[Tensor]:
    """Make inputs of the tensors that the graph refers to, after the first `inputs`; return them in order."""
    nodes = graph.graph
    last = [node for node in nodes.nodes if node.op == "placeholder"][inputs - 1]
    lifted: dict[Hashable, torch.fx.Node] = {}
    kept: list[Tensor] = []
    for node in list(nodes.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(graph, node.target)
        # A parameter and its detached self are one input, so that what is written to the one is read from the other.
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place not in lifted:
            with nodes.inserting_after(last):
                last = lifted[place] = nodes.placeholder(f"kept_{len(kept)}")
            kept.append(tensor.detach())
        node.replace_all_uses_with(lifted[place])
        nodes.erase_node(node)
    # What stays an attribute is compiled as one more input, and one that shares its numbers with another: slow.
    for name in [
        *graph._parameters,
        *graph._buffers,
        *(name for name, v in vars(graph).items() if isinstance(v, Tensor)),
    ]:
        delattr(graph, name)
    graph.recompile()
    return kept
