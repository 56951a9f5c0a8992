"""The constants of a graph, small ones in the graph and large ones next to it, with one interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.initializers import as_weight
from qaic.compiler.ir.constants.weights import Weight, read_all
from qaic.compiler.ir.elem_types import FLOAT, TABLE
from qaic.compiler.ir.graph_edits import register_initializer


class ConstantReader:
    """The initializers of a main graph.

    Parameters
    ----------
    graph : onnx.GraphProto
        Main graph of a model without weight data; `add_array` extends it.
    weights : dict[str, Weight]
        Its large initializers; `add` extends them.
    """

    def __init__(self, graph: onnx.GraphProto, weights: dict[str, Weight]) -> None:
        self.graph = graph
        self.weights = weights
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._small: dict[str, Weight] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.weights or name in self._tensors

    def describe(self, name: str) -> Weight | None:
        """Find a constant by name."""
        if name in self.weights:
            return self.weights[name]
        if name not in self._small and name in self._tensors:
            self._small[name] = as_weight(self._tensors[name])
        return self._small.get(name)

    def is_float(self, name: str) -> bool:
        """Return whether a name is a float32 constant."""
        if name in self.weights:
            return self.weights[name].elem_type == FLOAT
        return name in self._tensors and self._tensors[name].data_type == FLOAT

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Read a float32 constant in its shape; raises ``KeyError`` where there is none of this name."""
        weight = self.describe(name)
        if weight is None or weight.elem_type != FLOAT:
            raise KeyError(name)
        return read_array(weight)

    def add(self, weight: Weight) -> None:
        """Add a constant next to the graph."""
        self.weights[weight.name] = weight

    def add_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a constant to the graph."""
        from onnx import numpy_helper

        self._tensors[name] = register_initializer(self.graph, numpy_helper.from_array(values, name))


def read_array(weight: Weight) -> npt.NDArray[Any]:
    """Read a constant of a type that numpy has, in its shape."""
    import numpy as np

    dtype = np.dtype(TABLE[weight.elem_type][0])
    return np.frombuffer(read_all(weight.source), dtype).reshape(weight.dims)
