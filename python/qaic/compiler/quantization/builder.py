"""Nodes and constants of a graph that is converted to integers, and facts about their values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qaic.compiler.ir.constants.in_graph import ConstantReader
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import add_attribute, import_opset, rename_output
from qaic.compiler.ir.graph_walk import FreshNames, node_key, standard_version
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.quantization import QuantParams

#: first standard operator set whose Q/DQ have an axis, and 16 bits
_AXIS_VERSION: Final = 13
_INT16_VERSION: Final = 21


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor that is stored as integers."""

    name: str
    params: QuantParams
    #: names of the constants for its scale and zero point
    scale: str
    zero: str


class GraphBuilder:
    """Collects the nodes of a main graph in order, with the constants that they read.

    The model gets the constants and domains that nodes need, and the facts about new values; `classes` gets
    the new nodes.
    """

    def __init__(self, model: Model, classes: dict[str, PrecisionClass]) -> None:
        self.model = model.proto
        self.graph = model.proto.graph
        self.facts = model.facts
        self.classes = classes
        self.constants = ConstantReader(self.graph, model.weights)
        self.fresh = FreshNames(self.graph)
        self.version = standard_version(model.proto)
        self.nodes: list[onnx.NodeProto] = []
        #: class of the nodes being written
        self.kind = PrecisionClass.INT8
        self._numbers: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._reshaped: dict[tuple[str, tuple[int, ...]], str] = {}

    @property
    def precision(self) -> str:
        """Precision of the current group, as options name it."""
        return "Int8" if self.kind is PrecisionClass.INT8 else "Int16"

    def constants_of(self, name: str, params: QuantParams) -> tuple[str, str]:
        """Create the constants for the scale and zero point of a tensor."""
        dtype = np.uint8 if params.precision == "Int8" else np.int16
        return (
            self.number(name, "scale", np.array(params.scale, np.float32)),
            self.number(name, "zero_point", np.array(params.zero_point, dtype)),
        )

    def quantized(
        self, source: str, name: str, params: QuantParams, like: QuantizedTensor | None = None
    ) -> QuantizedTensor:
        """Add the node that quantizes `source`, for the value `name`."""
        target = self.fresh.make(name, "quantized")
        scale, zero = (like.scale, like.zero) if like else self.constants_of(name, params)
        self.linear("QuantizeLinear", [source, scale, zero], target)
        self.note_like(target, params.elem_type, source)
        return QuantizedTensor(target, params, scale, zero)

    def dequantized(self, stored: QuantizedTensor, name: str) -> str:
        """Add a node that dequantizes integers under a new name."""
        target = self.fresh.make(name, "dequantized")
        self.linear("DequantizeLinear", [stored.name, stored.scale, stored.zero], target)
        self.note_like(target, FLOAT, stored.name)
        return target

    def dequantized_weight(
        self,
        stored: str,
        scales: npt.NDArray[np.float32],
        zeros: npt.NDArray[Any],
        name: str,
        axis: int | None,
    ) -> str:
        """Add a node that dequantizes a weight or bias, with one scale per channel if there is an axis."""
        target = self.fresh.make(name, "dequantized")
        if axis is None:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        zero = self.fresh.make(name, "zero_point")
        self.constants.add_array(zero, zeros)
        inputs = [stored, self.number(name, "scale", scales), zero]
        self.linear("DequantizeLinear", inputs, target, axis=axis)
        self.note_like(target, FLOAT, name)
        return target

    def linear(self, op: str, inputs: Sequence[str], target: str, axis: int | None = None) -> None:
        """Add a Q or DQ of the domain that supports the types and the axis."""
        needed = _AXIS_VERSION if self.kind is PrecisionClass.INT8 else _INT16_VERSION
        domain = "" if self.version >= needed else "com.microsoft"
        if domain:
            import_opset(self.model, domain, 1)
        node = helper.make_node(op, inputs, [target], domain=domain)
        if axis is not None:
            add_attribute(node, helper.make_attribute("axis", axis))
        self.add(node)

    def reshaped(self, stored: QuantizedTensor, name: str, shape: tuple[int, ...]) -> QuantizedTensor:
        """Add a Reshape of integers, one for all readers of the same shape."""
        key = (stored.name, shape)
        if key not in self._reshaped:
            target = self.fresh.make(name, "reshaped")
            sizes = self.number(target, "shape", np.array(shape, np.int64))
            self.add(helper.make_node("Reshape", [stored.name, sizes], [target]))
            self.note(target, stored.params.elem_type, shape)
            self._reshaped[key] = target
        return QuantizedTensor(self._reshaped[key], stored.params, stored.scale, stored.zero)

    def rename(self, node: onnx.NodeProto, position: int) -> str:
        """Rename a result of a node; returns its old name."""
        name = node.output[position]
        rename_output(node, position, self.fresh.make(name, "float"))
        self.note_like(node.output[position], FLOAT, name)
        return name

    def number(self, name: str, suffix: str, values: npt.NDArray[Any]) -> str:
        """Create a small constant, or find one with the same content."""
        key = (values.dtype.str, values.tobytes(), values.shape)
        if key not in self._numbers:
            self._numbers[key] = self.fresh.make(name, suffix)
            self.constants.add_array(self._numbers[key], values)
        return self._numbers[key]

    def add(self, node: onnx.NodeProto) -> None:
        """Append a node of the current group."""
        self.nodes.append(node)
        self.classes[node_key(node)] = self.kind

    def note(self, name: str, elem_type: int, shape: tuple[int, ...] | None) -> None:
        """Record the type and shape of a new value."""
        self.facts.types[name] = elem_type
        if shape is not None:
            self.facts.shapes[name] = shape

    def note_like(self, name: str, elem_type: int, like: str) -> None:
        """Record the type of a new value, which has the shape of another."""
        self.note(name, elem_type, self.facts.shapes.get(like))
