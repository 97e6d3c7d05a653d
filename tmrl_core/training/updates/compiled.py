"""One compiled graph for a whole update: losses, gradients, optimizers and slow copies.

Theory of operation
-------------------
An agent's `update` is plain torch: several losses, each with its backward pass and its optimizer's step. It is run once
on fake tensors, below autograd, and what it does is noted operation by operation. The tensors that it keeps
(parameters, optimizers' moments, slow copies) become inputs of the graph, which inductor compiles and which changes
them in place. So an agent is written once, and what is compiled is what it does.

A graph knows no Python: what an update decides by counting is decided when it is noted. So an agent names the *kind* of
its next update (`update_kind`), and each kind gets a graph; what integers count is counted on by as much. Learning
rates and the like are part of the graph too: when they change, another one is made, up to `MAX_GRAPHS`.

Random numbers come from torch's own generator in the same order as without compiling, so that both learn the same but
for rounding, and a run that goes on from a checkpoint goes on bit for bit.

Asked for several updates, it finds the graph of each first, by what the agent will have counted by then, and then runs
them: what Python has to do for all of them it does once, and a recording (cuda_graphs.py) may be of several.
"""

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

from tmrl_core.training.batches import Transitions
from tmrl_core.training.updates.cuda_graphs import Recorder, Replayed, record_cuda
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.updates.update_graph import Backend, Graph, optimizers_of, recorded

logger = logging.getLogger(__name__)

MAX_GRAPHS = 6
"""Graphs of one agent; beyond that, learning rates or shapes change too often for compiling to pay."""

AT_ONCE = 8
"""Updates that are recorded as one."""


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The graph, compiled by torch's own compiler. On a CPU that takes a C++ compiler.

    Raises:
        PermissionError: others may write where compiled code is kept.
    """
    from torch._inductor import compile as compile_graph

    _check_cache()
    # Nothing compiled earlier is read back: torch keeps it as pickles. Compiled here, no processes are left behind.
    options: dict[str, Any] = {"fallback_random": True, "compile_threads": 1, "force_disable_caches": True}
    if sys.platform == "linux" and all(tensor.device.type == "cpu" for tensor in inputs):
        # What calls the loops and products is compiled too: in Python, that took a twentieth of an update.
        options["cpp_wrapper"] = True
        # As many threads as torch is set to when it runs, not when it is compiled.
        options["cpp.dynamic_threads"] = True
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                # Some inputs know their shapes from when they were noted and some do not; all are as `inputs` says.
                node.meta.pop("val", None)
    with torch.no_grad():
        compiled: Callable[..., Sequence[Tensor]] = compile_graph(graph, list(inputs), options=options)
    return compiled


def _check_cache() -> None:
    """See that nobody else can put code where the compiler keeps what it has built.

    Raises:
        PermissionError: somebody can.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    if not hasattr(os, "getuid"):
        return
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"others can write into {folder}, from where compiled code is loaded; take that right from them, or set "
            f"TORCHINDUCTOR_CACHE_DIR to a folder of your own outside {tempfile.gettempdir()}"
        )


def _settings(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Return the settings of each parameter group."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


class _Update(NamedTuple):
    """An update that can be made."""

    graph: Graph
    names: Sequence[str]
    leaves: list[Tensor]


class Compiler:
    """Keeps an agent's graphs, and makes them when they are wanted.

    Args:
        agent: an `OffPolicyAgent`.
        backend: makes what runs a graph.
        clock: seconds.
        record: makes recordings of it, to be replayed; None: CUDA graphs on CUDA devices, elsewhere none.
    """

    def __init__(
        self,
        agent: Any,
        backend: Backend = inductor,
        clock: Callable[[], float] = time.monotonic,
        record: Recorder | None = None,
    ) -> None:
        self._agent = agent
        self._backend = backend
        self._record = record or (record_cuda if agent.device.type == "cuda" else None)
        self._clock = clock
        self._graphs: dict[Hashable, tuple[Graph, list[str]]] = {}
        self._runs: dict[tuple[int, ...], Replayed | None] = {}
        """Recordings of `AT_ONCE` updates, by their graphs."""
        self._states: list[Any] = []
        self._settings: list[dict[str, Any]] = []
        self._settings_key = ""
        self._primed: set[Hashable] = set()
        self.gave_up = False
        """True: compiling failed, or does not pay; updates are run without it."""

    def updates(self, batches: Sequence[Transitions]) -> list[tuple[dict[str, Any], Tensor | None]]:
        """Compiled updates with these batches, from the first on, as far as they can be made so.

        Returns:
            Of each its metrics, as `FiniteUpdates.run` returns them, and the rows' errors. Where it is fewer than there
            are batches, the next has to be run without compiling.
        """
        found: list[_Update] = []
        ready = self._look()
        for transitions in batches:
            update = self._update_of(transitions, ready)
            if update is None:
                if not found and not ready:
                    # It is run without, and optimizers make what they keep in their first step.
                    self._primed.add(self._agent.update_kind())
                break
            # What the next one's kind depends on; the graphs themselves know no Python.
            update.graph.count()
            found.append(update)
        with torch.no_grad():
            return [
                _outcome(update.names, results) for update, results in zip(found, self._results(found), strict=True)
            ]

    def _look(self) -> bool:
        """See what graphs depend on besides a batch. False: there are optimizers that have not made a step."""
        optimizers = optimizers_of(self._agent)
        states = [optimizer.state for optimizer in optimizers]
        if len(states) != len(self._states) or any(a is not b for a, b in zip(states, self._states, strict=True)):
            # A checkpoint was loaded: graphs hold the tensors of before.
            self._graphs.clear()
            self._runs.clear()
            self._states = states
        settings = _settings(optimizers)
        if settings != self._settings:
            self._settings, self._settings_key = settings, repr(settings)
        return all(states)

    def _results(self, updates: Sequence[_Update]) -> Iterator[Sequence[Tensor]]:
        """Make updates that are known to be possible."""
        position = 0
        while position < len(updates):
            several = updates[position : position + AT_ONCE]
            replayed = self._replayed(several) if self._record is not None and len(several) == AT_ONCE else None
            if replayed is None:
                yield several[0].graph(several[0].leaves)
                position += 1
                continue
            results = replayed([leaf for update in several for leaf in update.leaves])
            for update in several:
                count = update.graph.results
                yield results[:count]
                results = results[count:]
            position += AT_ONCE

    def _update_of(self, transitions: Transitions, ready: bool) -> _Update | None:
        """The agent's next update; None: it has to be run without compiling."""
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

    def _replayed(self, updates: Sequence[_Update]) -> Replayed | None:
        """Return the CUDA graph that runs these updates with one call; None: run them one by one."""
        assert self._record is not None
        graphs = [update.graph for update in updates]
        key = tuple(id(graph) for graph in graphs)
        if key not in self._runs:
            if len(self._runs) >= MAX_GRAPHS or any(graph.replayed is None for graph in graphs):
                return None
            self._runs[key] = recorded(graphs, [leaf for update in updates for leaf in update.leaves], self._record)
        return self._runs[key]

    def _make(self, key: Hashable, leaves: list[Any], spec: Any) -> tuple[Graph, list[str]] | None:
        if len(self._graphs) >= MAX_GRAPHS:
            self._give_up(f"it needed more than {MAX_GRAPHS} graphs, as learning rates or shapes keep changing")
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

        logger.info("compiling this agent's update, which usually takes a minute of one core; then it is faster")
        started = self._clock()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # what torch uses of itself is not ours to mend
                tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
                graph = Graph(agent, update, tensors, self._backend, self._record)
        except Exception as exc:
            # Compilers fail in many ways, none of which is a reason not to train.
            self._give_up(f"{type(exc).__name__}: {(str(exc).strip() or 'no reason given').splitlines()[0]}")
            return None
        finally:
            agent.td_error_B = None
        logger.info("compiled in %.1f s", self._clock() - started)
        self._graphs[key] = graph, names
        return self._graphs[key]

    def _give_up(self, why: str) -> None:
        self.gave_up = True
        self._graphs.clear()
        self._runs.clear()
        logger.warning("updates are not compiled, which changes nothing but their speed: %s", why)


def _flat(transitions: Transitions) -> tuple[list[Any], Any]:
    """The leaves of a batch, and what they are put together by; None where no space is nested, which is told faster."""
    leaves = list(transitions)
    if isinstance(transitions.obs, Tensor) and isinstance(transitions.next_obs, Tensor):
        return leaves, None
    return pytree.tree_flatten(tuple(leaves))


def _unflat(leaves: list[Any], spec: Any) -> Transitions:
    return Transitions(*(leaves if spec is None else pytree.tree_unflatten(leaves, spec)))


def _outcome(names: Sequence[str], results: Sequence[Tensor]) -> tuple[dict[str, Any], Tensor | None]:
    """An update's metrics, and its rows' errors where they are among its results."""
    *results, finite = results
    metrics: dict[str, Any] = dict(zip(names, results, strict=False))
    if finite.device.type != "cpu":
        metrics[SKIPPED] = ~finite
    elif not finite:
        return {SKIPPED: True}, None
    return metrics, results[-1] if len(results) > len(names) else None
