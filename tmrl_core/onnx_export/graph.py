"""An ONNX graph in the making: a call adds a node and returns the name of its output."""

# Theory of operation
#
# Graphs are written node by node with `onnx.helper`, from the named arrays of a policy, and not traced from torch. A
# policy here is a dozen kinds of layers that are declared once (`actor/policies/`), so the translation is short, needs
# no torch, and says each name, shape and dtype itself. Tracing needs torch and onnxscript, 15 s for a small policy, and
# two repairs after it with torch 2.13: weights go to a second file, and a recurrent output is declared with the batch
# size of the example (docs/environments.md).
#
# The operator set and the format version are older than those of the installed onnx, because the runtime that reads the
# file is older too: ONNX Runtime refuses a format version that it does not know. Both stand for what ONNX Runtime 1.14
# (2023) and all later ones read, in browsers too.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPERATOR_SET, FORMAT_VERSION = 17, 8
BATCH = "batch"
"""Name of the first dimension of every input and output: it has any length."""


class Graph:
    """Nodes, constants, inputs and outputs; the result is `model`."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> str:
        """Add an input [batch, *shape]."""
        self._inputs.append(_declared(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> None:
        """Add an output [batch, *shape] that is a value of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(_declared(name, dtype, shape))

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant.

        Args:
            array: its numbers.
            name: that viewers show; empty: a number.
        """
        name = name or f"constant.{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def floats(self, numbers: float | np.ndarray, name: str = "") -> str:
        """Add a constant of float32."""
        return self.constant(np.asarray(numbers, np.float32), name)

    def integers(self, numbers: int | Sequence[int]) -> str:
        """Add a constant of int64, as shapes and axes are."""
        return self.constant(np.asarray(numbers, np.int64))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its first output."""
        return self.add_many(operator, inputs, 1, **attributes)[0]

    def add_many(self, operator: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return its outputs."""
        names = [f"{operator}.{len(self._nodes)}.{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def cast(self, value: str, dtype: np.dtype[np.generic], of: np.dtype[np.generic] | None = None) -> str:
        """Return a value in this dtype, given the one that it has, if that is known."""
        return value if of == dtype else self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(dtype))

    def as_floats(self, value: str, of: np.dtype[np.generic] | None = None) -> str:
        """Return a value in float32, in which the networks compute."""
        return self.cast(value, np.dtype(np.float32), of)

    def reshape(self, value: str, shape: Sequence[int], of: Sequence[int] | None = None) -> str:
        """Return a value [batch, *shape] of a value [batch, *of] with as many elements."""
        # A zero keeps the length of that axis.
        same = of is not None and tuple(of) == tuple(shape)
        return value if same else self.add("Reshape", value, self.integers([0, *shape]))

    def joined(self, values: Sequence[str]) -> str:
        """Return vectors [batch, n] side by side."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, axis=1)

    def linear(self, value: str, arrays: Mapping[str, np.ndarray], name: str) -> str:
        """Return the output of a linear layer, given its weight [out, in] and its bias by name."""
        weight, bias = (self.floats(arrays[f"{name}.{kind}"], f"{name}.{kind}") for kind in ("weight", "bias"))
        return self.add("Gemm", value, weight, bias, transB=1)

    def model(self, name: str, version: str, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """Return the model.

        Args:
            name: of the graph.
            version: of this package.
            metadata: texts by name.
        """
        graph = helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, initializer=list(self._constants.values())
        )
        made = helper.make_model(
            graph,
            producer_name="tmrl_core",
            producer_version=version,
            ir_version=FORMAT_VERSION,
            opset_imports=[helper.make_opsetid("", OPERATOR_SET)],
        )
        helper.set_model_props(made, dict(metadata))
        onnx.checker.check_model(made, full_check=True)
        return made


def _declared(name: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> onnx.ValueInfoProto:
    kind: TensorProto.DataType = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, [BATCH, *shape])
