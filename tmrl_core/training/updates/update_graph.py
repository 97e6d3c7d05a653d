"""One kind of update as a graph: traced on fake tensors, with the agent's tensors as inputs, and run by a backend."""

# Theory of operation
#
# Tracing records the operations of the whole update, its backward passes and optimizer steps included, as one list
# without Python. Afterwards the agent must be as it was: the optimizers' step counts (inputs of the trace, since a
# tensor of one number is otherwise a constant), tensors that the trace has changed because the change did not depend on
# the batch, integer counters, and gradients, which tracing leaves as fake tensors. All this is put back in one
# `finally`.
#
# The graph ends with a choice between the new and the old values, so that an update with NaN or Inf changes nothing.
# The compiler fuses that choice with the computation of the new values and keeps no copies; without it, each compiled
# update would copy the agent as rollback.py does.
#
# The compiled function must receive each tensor once (`_lift`). Tensors that the traced graph keeps as attributes would
# become additional inputs, share their memory with the inputs made here, and be copied and wrapped at each call. A
# parameter and its detached alias are one input for the same reason, and so that a write to one is read through the
# other.
#
# Adam is written out in the graph (decompositions.py), so that the compiler fuses it with neighbouring operations;
# where updates run uncompiled, it is torch's fused Adam.

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from tmrl_core.training.updates.cuda_graphs import Capture, CudaGraph
from tmrl_core.training.updates.decompositions import DECOMPOSITIONS
from tmrl_core.training.updates.rollback import agent_tensors, all_finite_in_graph, floating

logger = logging.getLogger(__name__)

Backend = Callable[[torch.fx.GraphModule, Sequence[Tensor]], Callable[..., Sequence[Tensor]]]
"""`(graph, example inputs)` returns a function that runs the graph on such inputs."""


class Graph:
    """One kind of update, compiled.

    Args:
        agent: the update's agent; its optimizers have created their state already.
        update: function to trace, `(*leaves) -> tensors`.
        leaves: tensors of a batch, with the layout of all later batches.
        backend: compiles the graph.
        capture: captures a run for replay; None: no capture.

    Attributes:
        run: `(*leaves, *kept) -> results`.
        kept: the agent's tensors that the graph reads and changes.
        results: number of results; the last is true if all numbers were finite.
        replayed: captured form of `run`; None: there is none.
    """

    def __init__(
        self,
        agent: object,
        update: Callable[..., list[Tensor]],
        leaves: Sequence[Tensor],
        backend: Backend,
        capture: Capture | None = None,
    ) -> None:
        counters = _integers(agent)
        steps = _steps(agent)

        def note(*tensors: Tensor) -> list[Tensor]:
            # Tracing treats a tensor of one number as a constant, unless it is an input.
            for (state, name), tensor in zip(steps, tensors[len(leaves) :], strict=True):
                state[name] = tensor
            batch, tensors_kept = tensors[: len(leaves)], agent_tensors(agent)
            before = [tensor.detach().clone() for tensor in tensors_kept]
            results = update(*batch)
            with torch.no_grad():
                finite = all_finite_in_graph(floating([*batch, *results, *tensors_kept]))
                for tensor, old in zip(tensors_kept, before, strict=True):
                    tensor.copy_(torch.where(finite, tensor, old))
            return [*results, finite]

        values = [state[name] for state, name in steps]
        kept = agent_tensors(agent)
        before = [tensor.detach().clone() for tensor in kept]
        try:
            graph = _note(note, [*leaves, *values])
        finally:
            for (state, name), value in zip(steps, values, strict=True):
                state[name] = value
            with torch.no_grad():
                # Tracing changes real tensors where the change does not depend on the batch.
                torch._foreach_copy_(kept, before)
            now = _integers(agent)
            counted = {name: value - counters.get(name, 0) for name, value in now.items()}
            self._counted = [(name, count) for name, count in counted.items() if count]
            for name, number in counters.items():
                setattr(agent, name, number)
            for optimizer in optimizers_of(agent):
                # Tracing has left fake tensors as gradients.
                optimizer.zero_grad()
        self._agent = agent
        self.kept = [*values, *_lift(graph, len(leaves) + len(values))]
        self.results = len(next(node for node in graph.graph.nodes if node.op == "output").args[0])
        self.run = backend(graph, [*leaves, *self.kept])
        self.cuda_graph = None if capture is None else captured([self], leaves, capture)

    def count(self) -> None:
        """Advance the agent's counters as this update does."""
        counters = vars(self._agent)
        for name, count in self._counted:
            counters[name] += count

    def __call__(self, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the update, with autograd disabled, and return its results.

        The last result is true if all numbers were finite; if it is false, nothing has changed.
        """
        if self.cuda_graph is not None:
            return self.cuda_graph(leaves)
        return self.run(*leaves, *self.kept)


def captured(graphs: Sequence[Graph], leaves: Sequence[Tensor], capture: Capture) -> CudaGraph | None:
    """Capture the updates of these graphs in order; `leaves` are the first batch's, then the second's, ..."""
    width = len(leaves) // len(graphs)
    kept = list({(t.data_ptr(), t.shape): t for graph in graphs for t in graph.kept}.values())

    def run(*tensors: Tensor) -> list[Tensor]:
        return [
            result
            for number, graph in enumerate(graphs)
            for result in graph.run(*tensors[number * width : (number + 1) * width], *graph.kept)
        ]

    try:
        return CudaGraph(run, leaves, kept, capture)
    except Exception as exc:
        # Like compiling, this fails in many ways. Training continues without the capture after any of them.
        why = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        logger.warning("updates run without a CUDA graph, which affects their speed only: %s", why)
        return None


def optimizers_of(agent: object) -> list[torch.optim.Optimizer]:
    """Return the optimizers among an agent's attributes."""
    return [value for value in vars(agent).values() if isinstance(value, torch.optim.Optimizer)]


def _integers(agent: object) -> dict[str, int]:
    return {name: value for name, value in vars(agent).items() if type(value) is int}


def _steps(agent: object) -> list[tuple[dict[str, Tensor], str]]:
    """Return the optimizers' scalar states, such as step counts, as pairs of a state and a name."""
    return [
        (state, name)
        for optimizer in optimizers_of(agent)
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and value.numel() == 1 and name == "step"
    ]


def _note(update: Callable[..., list[Tensor]], leaves: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Trace the operations of an update without computing them."""
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
    """Turn the tensors that the graph refers to into inputs after the first `inputs`; return them in order."""
    nodes = graph.graph
    last = [node for node in nodes.nodes if node.op == "placeholder"][inputs - 1]
    lifted: dict[Hashable, torch.fx.Node] = {}
    kept: list[Tensor] = []
    for node in list(nodes.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(graph, node.target)
        # A parameter and its detached alias become one input, so that a write to one is read through the other.
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place not in lifted:
            with nodes.inserting_after(last):
                last = lifted[place] = nodes.placeholder(f"kept_{len(kept)}")
            kept.append(tensor.detach())
        node.replace_all_uses_with(lifted[place])
        nodes.erase_node(node)
    # Remaining attributes would be compiled as further inputs that alias others, which is slow.
    for name in [
        *graph._parameters,
        *graph._buffers,
        *(name for name, v in vars(graph).items() if isinstance(v, Tensor)),
    ]:
        delattr(graph, name)
    graph.recompile()
    return kept
