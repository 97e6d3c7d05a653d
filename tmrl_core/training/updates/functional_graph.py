"""A noted update as a function: values instead of changes in place, and what is kept is written at its end, or not.

Theory of operation
-------------------
What an update has noted changes parameters, moments and slow copies in place, one after the other. Here each change
becomes a new value, and whatever is read later is read from that. Only at the end the last values are written to where
the first ones were, and only if all of them are finite: so a bad update is not taken back, it never happens, and that
costs no copy of what there was before. The compiler joins the writing with the computation of what is written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


class _Values:
    """What each tensor of the graph is by now."""

    def __init__(self) -> None:
        self._root: dict[fx.Node, fx.Node] = {}
        self._now: dict[fx.Node, fx.Node] = {}
        self._changes: dict[fx.Node, int] = {}
        self._view_of: dict[fx.Node, tuple[fx.Node, int]] = {}
        self._lost: set[fx.Node] = set()
        self.replaced: list[fx.Node] = []
        """Changes in place, for which there are new values now."""

    def root(self, node: fx.Node) -> fx.Node:
        return self._root.get(node, node)

    def now(self, node: fx.Node) -> fx.Node:
        """The value of a tensor.

        Raises:
            NotImplementedError: it is a view of what was changed since.
        """
        root = self.root(node)
        base, change = self._view_of.get(root, (root, self._changes.get(root, 0)))
        if self._changes.get(base, 0) != change or root in self._lost:
            raise NotImplementedError(f"{node} is read after what it shares its numbers with was changed")
        return self._now.get(root, root)

    def same(self, node: fx.Node, other: fx.Node) -> None:
        """`node` is another name of `other`."""
        self._root[node] = self.root(other)

    def view(self, node: fx.Node, of: fx.Node) -> None:
        """`node` shows a tensor's values in another shape."""
        root = self.root(of)
        base = self._view_of.get(root, (root, 0))[0]
        self._view_of[node] = base, self._changes.get(base, 0)

    def change(self, node: fx.Node, value: fx.Node) -> None:
        """A tensor has a new value.

        Raises:
            NotImplementedError: it is a view of an input.
        """
        root = self.root(node)
        if root in self._view_of:
            # As the gradient of a transposed weight: what it is a view of is not read any more, which `now` sees to.
            base, _ = self._view_of.pop(root)
            if base.op == "placeholder":
                raise NotImplementedError(f"{node} is a view of an input, and changed in place")
            self._lost.add(base)
            self._changes[base] = self._changes.get(base, 0) + 1
        self._now[root] = value
        self._changes[root] = self._changes.get(root, 0) + 1


def make_functional(graph: fx.GraphModule, kept: Mapping[fx.Node, Tensor]) -> None:
    """Have a graph write to its inputs at its end only, and only if all is finite.

    Args:
        graph: of operations of aten on tensors; changed in place. It gets one more output, the last: whether all
            floating-point numbers among its inputs, its outputs, and what it would write are finite.
        kept: the inputs that it may change, with what they stand for.

    Raises:
        NotImplementedError: it changes a tensor in a way that this does not know.
    """
    values = _Values()
    for node in list(graph.graph.nodes):
        if node.op == "output":
            _finish(graph.graph, node, kept, values)
        elif node.op == "call_function":
            _follow(graph.graph, node, values)
    for node in reversed(values.replaced):
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _follow(graph: fx.Graph, node: fx.Node, values: _Values) -> None:
    """What one operation does to the values."""
    first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    node.args = fx.map_arg(node.args, values.now)
    node.kwargs = fx.map_arg(node.kwargs, values.now)
    if not isinstance(node.target, torch._ops.OpOverload) or first is None:
        return
    schema = node.target._schema
    if schema.is_mutable:
        name = schema.name.split("::")[1]
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        function = getattr(aten, name[:-1], None)
        if not name.endswith("_") or written != ["self"] or function is None:
            raise NotImplementedError(f"{node.target} changes what it is given")
        with graph.inserting_before(node):
            value = graph.call_function(getattr(function, node.target._overloadname), node.args, node.kwargs)
        value.meta = dict(node.meta)
        values.change(first, value)
        values.same(node, first)
        values.replaced.append(node)
    elif node.target is aten.detach.default:
        values.same(node, first)
    elif any(result.alias_info is not None for result in schema.returns):
        values.view(node, first)


def _finish(graph: fx.Graph, output: fx.Node, kept: Mapping[fx.Node, Tensor], values: _Values) -> None:
    """Write what has changed, if all of it is finite; say whether it is."""
    returned: Any = fx.map_arg(output.args[0], values.now)
    results = list(returned)
    changed = {node: values.now(node) for node in kept if values.now(node) is not node}
    given = [node for node in graph.nodes if node.op == "placeholder" and node not in kept]
    floats = [n for n in (*given, *results) if isinstance(n, fx.Node) and _is_float(n.meta.get("val"))]
    floats += [value for node, value in changed.items() if _is_float(kept[node])]
    with graph.inserting_before(output):
        # A sum is finite if all its terms are: one number for each tensor, and of these one for all.
        sums = [graph.call_function(torch.sum, (value,), {"dtype": torch.float32}) for value in floats]
        total = functools.reduce(lambda a, b: graph.call_function(torch.add, (a, b)), sums)
        finite = graph.call_function(torch.isfinite, (total,))
        for node, value in changed.items():
            written = graph.call_function(torch.where, (finite, value, node))
            graph.call_function(aten.copy_.default, (node, written))
    output.args = ([*results, finite],)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0
