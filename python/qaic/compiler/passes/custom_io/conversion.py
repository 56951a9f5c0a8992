"""Operators that convert between inputs or outputs and the model.

Arithmetic is in float32. Quantize and dequantize are spelled out instead of left to ``QuantizeLinear``: that
rounds before it adds the offset, and the engine would fuse it with the operators next to it. MXINT8 blocks
are converted by the device: the graph has float32 in their place.
"""

from collections.abc import Callable, Sequence
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, INT8
from qaic.compiler.ir.graph_edits import register_initializer, rename_output
from qaic.compiler.ir.graph_walk import FreshNames
from qaic.compiler.ir.interface import TensorSpec
from qaic.compiler.ir.node_writer import NodeWriter
from qaic.compiler.ir.opset_version import standard_version
from qaic.options.files.custom_io import CustomIo

#: the permutation of `Transpose` from the border to the model, and back
_TO_MODEL: Final = (0, 3, 1, 2)
_TO_BORDER: Final = (0, 2, 3, 1)

#: first operator set with the operators of conversions
_NEEDED: Final = {"int8": 11, "bfloat16": 13}

_LOWEST, _HIGHEST = -128.0, 127.0


class Converter:
    """Builds the nodes of the conversions of one model.

    The model gets the constants of the conversions; the caller places the nodes.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.fresh = FreshNames(model.graph)
        self.operators = standard_version(model)
        self._constants: dict[float, str] = {}

    def into_model(
        self, spec: TensorSpec, entry: CustomIo, border: str, inner: str
    ) -> Sequence[onnx.NodeProto]:
        """Create the nodes from input `border` to `inner`, the present name in the model.

        Raises CompileError if the operator set of the model is too old.
        """
        add = self._begin(spec, entry)
        value = border
        if entry.precision == "int8" and entry.scale is not None and entry.offset is not None:
            value = add("Cast", value, to=FLOAT)
            if entry.offset:
                value = add("Sub", value, self.constant("offset", float(entry.offset)))
            value = add("Mul", value, self.constant("scale", entry.scale))
        elif entry.precision in {"float16", "bfloat16"}:
            value = add("Cast", value, to=FLOAT)
        if entry.precision is not None and spec.elem_type != FLOAT:
            value = add("Cast", value, to=spec.elem_type)
        if entry.layout == "NHWC":
            value = add("Transpose", value, perm=_TO_MODEL)
        return self._end(value, inner)

    def out_of_model(
        self, spec: TensorSpec, entry: CustomIo, inner: str, border: str
    ) -> Sequence[onnx.NodeProto]:
        """Make the nodes from `inner` of the model to output `border`; as `into_model`."""
        add = self._begin(spec, entry)
        value = inner
        if entry.layout == "NHWC":
            value = add("Transpose", value, perm=_TO_BORDER)
        if entry.precision is not None and spec.elem_type != FLOAT:
            value = add("Cast", value, to=FLOAT)
        if entry.precision == "int8" and entry.scale is not None and entry.offset is not None:
            value = self._quantized(value, entry.scale, entry.offset)
        elif entry.precision == "float16":
            value = add("Cast", value, to=10)
        elif entry.precision == "bfloat16":
            value = add("Cast", value, to=BFLOAT16)
        return self._end(value, border)

    def _quantized(self, value: str, scale: float, offset: int) -> str:
        """Round the sum half to even and clip; NaN becomes the lowest value, as in the host's conversions."""
        add = self._writer.add
        value = add("Div", value, self.constant("scale", scale))
        if offset:
            value = add("Add", value, self.constant("offset", float(offset)))
        value = add("Round", value)
        lowest = self.constant("lowest", _LOWEST)
        above = add("Greater", value, lowest)
        value = add("Where", above, value, lowest)
        value = add("Min", value, self.constant("highest", _HIGHEST))
        return add("Cast", value, to=INT8)

    def constant(self, what: str, value: float) -> str:
        """Add a float32 constant; returns its name. Equal constants are stored once."""
        if value not in self._constants:
            name = self.fresh.make("custom_io", what)
            register_initializer(self.model.graph, helper.make_tensor(name, FLOAT, [], [value]))
            self._constants[value] = name
        return self._constants[value]

    def _begin(self, spec: TensorSpec, entry: CustomIo) -> Callable[..., str]:
        """Refuse a model whose operator set is too old; returns the function that adds a node."""
        self._writer = NodeWriter(self.fresh, self.operators, spec.name, names_nodes=True)
        needed = _NEEDED.get(entry.precision or "", 1)
        if self.operators < needed:
            raise refuse(
                f"{spec.name!r} as {entry.precision}",
                code="old_operators",
                found=f"a model of operator set {self.operators}",
                expected=f"operator set {needed} or newer",
                fix=f"export the model with opset_version={max(needed, 13)}",
                context={"tensor": spec.name},
            )
        return self._writer.add

    def _end(self, value: str, wanted: str) -> list[onnx.NodeProto]:
        """Give the requested name to the result of the last node."""
        nodes = self._writer.nodes
        if not nodes:
            self._writer.add("Identity", value)
        rename_output(nodes[-1], 0, wanted)
        return nodes
