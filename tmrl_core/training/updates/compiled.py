"""One compiled graph for a whole update: losses, gradients, optimizers and target networks."""

# Theory of operation
#
# An agent's `update` is plain torch: several losses, each with its backward pass and its optimizer's step. It runs once
# on fake tensors, below autograd, and its operations are traced (update_graph.py). The agent's tensors (parameters,
# optimizers' moments, target networks) become inputs of the graph. Inductor compiles the graph, which changes these
# tensors in place. An agent is therefore written once, and its compiled update does the same as its `update`: tests
# compare parameters and metrics after seven updates of each agent, to 1e-3 relative.
#
# A graph contains no Python: decisions that depend on counters are made when it is traced. An agent therefore names the
# *kind* of its next update (`update_kind`), and each kind gets a graph of its own. Integer attributes advance by the
# same amount as in the traced update. Example: TD3 with policy_delay 2 has two kinds, updates of the critics and
# updates of everything; for four batches from update 10 on, the graphs False (11), True (12), False, True are found
# first, from the counters that the agent will have by then, and then run. The Python work is done once for all of them,
# and one CUDA graph (cuda_graphs.py) may hold several updates. For networks with two layers of 64 this saves a quarter
# of an update, for 256 almost nothing (benchmarks/results/train_steps_*.md).
#
# Learning rates, the agent's settings and the numbers among its attributes (a target entropy) are constants of the
# graph: when a schedule changes them, another graph is made, up to `MAX_GRAPHS`. Beyond that, compiling does not pay,
# and updates run uncompiled from then on. The same happens after any failure of the compiler, with one line in the log:
# it affects the speed only. A learning rate that is a tensor [1] is read by the graph as a weight is, and may change at
# each update. The first update of each kind runs uncompiled, because optimizers create their state in their first step,
# and the graph needs it as an input.
#
# Random numbers come from torch's own generator, in the same order as without compiling. Compiled and uncompiled
# updates therefore learn the same, apart from rounding, and a run resumed from a checkpoint continues bit for bit. That
# is also why compiling begins after a number of updates and not after a time.
#
# The compiler's caches are off: torch stores them as pickles, and a pickle runs code. Compiled code is loaded only from
# a folder that no other user can write to.
#
# Rejected: `torch.compile` of `update` (benchmarks/results/plain_compile_*.md). Its graphs break at every backward pass
# and optimizer step; SAC took 2.2 times the processor time with two layers of 256 and 9.5 times with two layers of 64,
# more than uncompiled. As one graph it took 1.16 and 1.59 times, with agents written for Dynamo.

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tmrl_core.metrics import names as metric_names
from tmrl_core.training.batches import Transitions
from tmrl_core.training.updates.cuda_graphs import Capture, CudaGraph, capture_cuda
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.updates.update_graph import Backend, Graph, captured, optimizers_of
from tmrl_core.training.value_types import Metrics, Tree

logger = logging.getLogger(__name__)

MAX_GRAPHS = 6
"""Limit of graphs of one agent; beyond it, learning rates or shapes change too often for compiling to pay."""

AT_ONCE = 8
"""Number of updates in one CUDA graph."""


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compile a graph with torch's inductor, which needs a C++ compiler on a CPU.

    Raises:
        PermissionError: other users may write into the folder of compiled code.
    """
    from torch._inductor import compile as compile_graph

    _check_cache()
    # Caches are disabled, since torch stores them as pickles. Compiling in this process leaves no processes behind.
    options: dict[str, bool | int] = {"fallback_random": True, "compile_threads": 1, "force_disable_caches": True}
    if sys.platform == "linux" and all(tensor.device.type == "cpu" for tensor in inputs):
        # The code that calls the kernels is compiled too: in Python it took 5 % of an update.
        options["cpp_wrapper"] = True
        # Generated code reads torch's number of threads when it runs, not when it is compiled.
        options["cpp.dynamic_threads"] = True
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                # Only some inputs have shapes from tracing; `inputs` gives the shapes of all.
                node.meta.pop("val", None)
    with torch.no_grad():
        compiled: Callable[..., Sequence[Tensor]] = compile_graph(graph, list(inputs), options=options)
    return compiled


def _check_cache() -> None:
    """Check that no other user can write into the compiler's folder of compiled code.

    Raises:
        PermissionError: another user can write into the folder.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    if not hasattr(os, "getuid"):
        return
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"other users can write into {folder}, from which compiled code is loaded. Remove their write permission, "
            f"or set TORCHINDUCTOR_CACHE_DIR to a folder of your own outside {tempfile.gettempdir()}."
        )


def _settings(agent: Any, optimizers: Sequence[torch.optim.Optimizer]) -> list[Metrics]:
    """Return the agent's settings, its attributes that are numbers, and each parameter group's entries but tensors.

    Integer attributes are left out: they are counters, which `update_kind` follows.
    """
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return [
        dict(vars(agent.settings)),
        {name: value for name, value in vars(agent).items() if type(value) in (float, bool)},
        *(
            {name: value for name, value in group.items() if name != "params" and not isinstance(value, Tensor)}
            for group in groups
        ),
    ]


class _Update(NamedTuple):
    """A compiled update that is ready to run."""

    graph: Graph
    names: Sequence[str]
    leaves: list[Tensor]


class Compiler:
    """Compile an agent's updates on demand and keep their graphs.

    Args:
        agent: an `OffPolicyAgent`.
        backend: compiles a graph.
        clock: seconds.
        capture: captures a run of a graph for replay; None: CUDA graphs on CUDA devices, elsewhere no capture.
    """

    def __init__(
        self,
        agent: Any,
        backend: Backend = inductor,
        clock: Callable[[], float] = time.monotonic,
        capture: Capture | None = None,
    ) -> None:
        self._agent = agent
        self._backend = backend
        self._capture = capture or (capture_cuda if agent.device.type == "cuda" else None)
        self._clock = clock
        self._graphs: dict[Hashable, tuple[Graph, list[str]]] = {}
        self._runs: dict[tuple[int, ...], CudaGraph | None] = {}
        """CUDA graphs of `AT_ONCE` updates, by the updates' graphs."""
        self._states: Sequence[object] = []
        self._settings: list[Metrics] = []
        self._settings_key = ""
        self._primed: set[Hashable] = set()
        self.gave_up = False
        """True: compiling failed or does not pay, and updates run uncompiled."""

    def updates(self, batches: Sequence[Transitions]) -> list[tuple[Metrics, Tensor | None]]:
        """Run compiled updates with these batches in order, up to the first that cannot be compiled.

        Returns:
            Metrics of each update, as `UpdateRollback.run` returns them, and its rows' TD errors. If there are fewer
            than batches, the next update has to be run uncompiled.
        """
        found: list[_Update] = []
        ready = self._refresh()
        for transitions in batches:
            update = self._update_of(transitions, ready)
            if update is None:
                if not found and not ready:
                    # The first update runs uncompiled, because the optimizers create their states in their first step.
                    self._primed.add(self._agent.update_kind())
                break
            # The next update's kind depends on these counters, which the graphs do not change.
            update.graph.count()
            found.append(update)
        with torch.no_grad():
            return [
                _outcome(update.names, results) for update, results in zip(found, self._results(found), strict=True)
            ]

    def _refresh(self) -> bool:
        """Refresh the state that graphs depend on besides a batch; return False before each optimizer's first step."""
        optimizers = optimizers_of(self._agent)
        states = [optimizer.state for optimizer in optimizers]
        if len(states) != len(self._states) or any(a is not b for a, b in zip(states, self._states, strict=True)):
            # A checkpoint was loaded: graphs refer to the old tensors.
            self._graphs.clear()
            self._runs.clear()
            self._states = states
        settings = _settings(self._agent, optimizers)
        if settings != self._settings:
            self._settings, self._settings_key = settings, repr(settings)
        return all(states)

    def _results(self, updates: Sequence[_Update]) -> Iterator[Sequence[Tensor]]:
        """Run updates that are ready."""
        position = 0
        while position < len(updates):
            several = updates[position : position + AT_ONCE]
            cuda_graph = self._cuda_graph(several) if self._capture is not None and len(several) == AT_ONCE else None
            if cuda_graph is None:
                yield several[0].graph(several[0].leaves)
                position += 1
                continue
            results = cuda_graph([leaf for update in several for leaf in update.leaves])
            for update in several:
                count = update.graph.results
                yield results[:count]
                results = results[count:]
            position += AT_ONCE

    def _update_of(self, transitions: Transitions, ready: bool) -> _Update | None:
        """Return the agent's next update; None: it has to be run uncompiled."""
        if self.gave_up:
            return None
        kind = self._agent.update_kind()
        if not ready and kind not in self._primed:
            return None
        leaves, spec = _flat(transitions)
        batch = tuple((x.shape, x.dtype, x.stride()) if isinstance(x, Tensor) else x for x in leaves)
        key = kind, self._settings_key, batch, spec
        found = self._graphs.get(key) or self._make(key, leaves, spec)
        if found is None:
            return None
        return _Update(*found, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _cuda_graph(self, updates: Sequence[_Update]) -> CudaGraph | None:
        """Return the CUDA graph that runs these updates with one call; None: run them one by one."""
        assert self._capture is not None
        graphs = [update.graph for update in updates]
        key = tuple(id(graph) for graph in graphs)
        if key not in self._runs:
            if len(self._runs) >= MAX_GRAPHS or any(graph.cuda_graph is None for graph in graphs):
                return None
            self._runs[key] = captured(graphs, [leaf for update in updates for leaf in update.leaves], self._capture)
        return self._runs[key]

    def _make(self, key: Hashable, leaves: list[Tree], spec: Tree) -> tuple[Graph, list[str]] | None:
        if len(self._graphs) >= MAX_GRAPHS:
            self._give_up(f"the update needs more than {MAX_GRAPHS} graphs: learning rates or shapes keep changing")
            return None
        agent = self._agent
        names: list[str] = []

        def update(*tensors: Tensor) -> list[Tensor]:
            given = iter(tensors)
            filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            agent.td_error_B = None
            metrics = agent.update_here(_unflat(filled, spec))
            names[:] = metrics
            results = [value.detach() for value in metrics.values()]
            return results if agent.td_error_B is None else [*results, agent.td_error_B]

        self._tell(
            metric_names.EVENT_COMPILING,
            f"compiling this agent's update for {agent.device}, which usually takes a minute of one core; no update is "
            "made meanwhile",
        )
        started = self._clock()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # deprecated calls inside torch are not ours to fix
                tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
                graph = Graph(agent, update, tensors, self._backend, self._capture)
        except Exception as exc:
            # Compilers fail in many ways. Training continues uncompiled after any of them.
            self._give_up(f"{type(exc).__name__}: {(str(exc).strip() or 'no reason given').splitlines()[0]}")
            return None
        finally:
            agent.td_error_B = None
        self._tell(metric_names.EVENT_COMPILED, f"compiled in {self._clock() - started:.1f} s")
        self._graphs[key] = graph, names
        return self._graphs[key]

    def _tell(self, event: str, message: str, level: int = logging.INFO) -> None:
        """Log a message, and show it to whoever watches the run."""
        logger.log(level, "%s", message)
        if self._agent.on_notice is not None:
            self._agent.on_notice(event, message)

    def _give_up(self, why: str) -> None:
        self.gave_up = True
        self._graphs.clear()
        self._runs.clear()
        message = f"updates run uncompiled, which affects their speed only: {why}"
        self._tell(metric_names.EVENT_COMPILED, message, logging.WARNING)


def _flat(transitions: Transitions) -> tuple[list[Tree], Tree]:
    """Return the leaves of a batch and their tree; None, which is faster to compare, where no space is nested."""
    leaves = list(transitions)
    if isinstance(transitions.obs, Tensor) and isinstance(transitions.next_obs, Tensor):
        return leaves, None
    return pytree.tree_flatten(tuple(leaves))


def _unflat(leaves: list[Tree], spec: Tree) -> Transitions:
    return Transitions(*(leaves if spec is None else pytree.tree_unflatten(leaves, spec)))


def _outcome(names: Sequence[str], results: Sequence[Tensor]) -> tuple[Metrics, Tensor | None]:
    """Return an update's metrics, and its rows' TD errors where the results hold them."""
    *results, finite = results
    metrics: Metrics = dict(zip(names, results, strict=False))
    if finite.device.type != "cpu":
        metrics[SKIPPED] = ~finite
    elif not finite:
        return {SKIPPED: True}, None
    return metrics, results[-1] if len(results) > len(names) else None
