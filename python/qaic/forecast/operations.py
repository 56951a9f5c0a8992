"""Work of the operations of a model, the basis of the forecast of its speed.

An operation has multiply-accumulates, steps of the vector unit, evaluations of functions such as exp, weights
that are read, and elements of inputs and outputs. The counts follow from shapes alone. A function that
is expanded, such as GELU or layer normalization, has about the work of the operator with its name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic.compiler.ir.graph_walk import SHAPE_READERS, attribute_of, subgraphs
from qaic.compiler.ir.interface import TensorSpec
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.value_info import collect_shapes
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: columns of `OperationTable.rows`; numbers are for one inference and one of ``count`` equal operations
WORK_DTYPE: Final = np.dtype(
    [
        ("count", "f8"),
        ("macs", "f8"),
        # Products that one result sums, and columns of results that share the other operand.
        ("depth", "f8"),
        ("width", "f8"),
        ("steps", "f8"),
        ("functions", "f8"),
        # Elements.
        ("weights", "f8"),
        ("moved", "f8"),
        # 1 for convolutions, else 0.
        ("convolves", "f8"),
    ]
)

#: bytes of a stored weight; MXFP6 has 6 bits, and 8 for the scale of 32 weights
_WEIGHT_BYTES: Final = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "int16": 2.0, "mxfp6": 6.25 / 8}

#: operators that only change the name or shape of a value
_FREE: Final = SHAPE_READERS | {
    *("Constant", "ConstantOfShape", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
}
#: operator -> evaluations of functions and steps of the vector unit for each element of the result
_ELEMENTWISE: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("Cos", "Erf", "Exp", "Log", "Sin", "Tanh"), (1, 0)),
    **dict.fromkeys(("Celu", "Elu", "Selu", "Softplus"), (1, 2)),
    "Mish": (2, 3),
    "Sigmoid": (2, 0),
    "Swish": (2, 1),
    # From one measured model, DeBERTa.
    **dict.fromkeys(("GatherElements", "GatherND", "ScatterElements", "ScatterND"), (0, 30)),
    "BatchNormalization": (0, 2),
    "Clip": (0, 2),
    "Gelu": (1, 4),
    "GroupNormalization": (0, 7),
    "HardSigmoid": (0, 3),
    "HardSwish": (0, 4),
    "InstanceNormalization": (0, 7),
    "LayerNormalization": (0, 7),
    "LogSoftmax": (1, 4),
    "RMSNormalization": (0, 4),
    "Resize": (0, 4),
    "SimplifiedLayerNormalization": (0, 4),
    "Softmax": (1, 4),
}
#: operators that read more elements than they compute
_REDUCTIONS: Final = ("Reduce", "Global", "Arg")


@dataclass(frozen=True, slots=True, eq=False)
class OperationTable:
    """Work of one inference."""

    #: Samples in one inference: the batch of the compiled model.
    samples: int
    #: Bytes that are transferred to and from the card.
    input_bytes: int
    output_bytes: int
    #: Bytes that stay on the card between inferences.
    state_bytes: int
    #: Operations; equal ones share a row.
    rows: NDArray[np.void]
    #: Nodes that are not in ``rows``, because a shape is not known or they repeat a body.
    unknown: int = 0

    def total(self, column: str) -> float:
        """Return the sum of a column over all operations."""
        return float((self.rows["count"] * self.rows[column]).sum())

    @property
    def convolutions(self) -> float:
        """Part of the multiply-accumulates in convolutions, 0 to 1."""
        found = float((self.rows["count"] * self.rows["macs"] * self.rows["convolves"]).sum())
        return found / max(self.total("macs"), 1)

    def weight_bytes(self, precision: str) -> float:
        """Return the bytes of all weights that an inference reads; MXFP6 is only for products."""
        of_products, of_convolutions = (
            float((self.rows["count"] * self.rows["weights"])[self.rows["convolves"] == kind].sum())
            for kind in (0, 1)
        )
        return of_products * weight_bytes(precision) + of_convolutions * weight_bytes(
            precision, products=False
        )


def weight_bytes(precision: str, *, products: bool = True) -> float:
    """Return the bytes of a weight; the smallest for several precisions joined by a plus.

    `precision` names precisions. Only weights of products (`products`) can be MXFP6; others are float16 then.
    """
    parts = precision.split("+")
    if not products:
        parts = [part if part != "mxfp6" else "fp16" for part in parts]
    return min(_WEIGHT_BYTES[part] for part in parts)


def operation_table(
    specialized: onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> OperationTable:
    """Count the work of a model with one set of shapes.

    `specialized` has all types and shapes, and its weights as inputs or initializers. `inputs` and `outputs`
    that stay on the card are not transferred.
    """
    graph = specialized.graph
    shapes = collect_shapes(specialized)
    own = {spec.name for spec in inputs}
    kept = {spec.name for spec in outputs if spec.name.endswith(RETAINED_STATE_SUFFIX)}
    kept |= {name.removesuffix(RETAINED_STATE_SUFFIX) for name in kept}
    constants = {value.name for value in graph.input} - own | {tensor.name for tensor in graph.initializer}
    convolved = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    rows: dict[tuple[float, ...], int] = {}
    unknown = 0
    for node in graph.node:
        if node.op_type in SHAPE_READERS or constants.issuperset(filter(None, node.input)):
            constants.update(node.output)
        elif any(True for _ in subgraphs(node)):
            unknown += 1
        elif node.op_type == "BatchNormalization" and node.input[0] in convolved:
            # Compilers fold this node into the weights.
            continue
        elif node.op_type not in _FREE:
            row = _row(node, shapes, constants)
            if row is None:
                unknown += 1
            else:
                rows[row] = rows.get(row, 0) + 1
    table = np.array([(count, *row) for row, count in rows.items()], WORK_DTYPE)
    return OperationTable(
        _samples([spec.dims for spec in (*inputs, *outputs)]),
        sum(spec.nbytes for spec in inputs if spec.name not in kept),
        sum(spec.nbytes for spec in outputs if spec.name not in kept),
        sum(spec.nbytes for spec in outputs if spec.name in kept),
        table,
        unknown,
    )


def _samples(shapes: Sequence[Sequence[int]]) -> int:
    """Return the first dimension of inputs and outputs, if all have the same; else 1."""
    first = {dims[0] if dims else 1 for dims in shapes}
    return max(first.pop(), 1) if len(first) == 1 else 1


def _row(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], constants: set[str]
) -> tuple[float, ...] | None:
    """Return the columns of a node after ``count``; None if a shape is missing."""
    varying = [name for name in node.input if name and name not in constants]
    known = [shapes.get(name) for name in (*varying, *filter(None, node.output))]
    macs = macs_of(node, shapes)
    if macs is None or any(shape is None for shape in known):
        return None
    sizes = [math.prod(shape) for shape in known if shape is not None]
    read, made = sum(sizes[: len(varying)]), sum(sizes[len(varying) :])
    if macs:
        weights = sum(math.prod(shapes.get(name, ())) for name in node.input if name in constants)
        convolves = float("Conv" in node.op_type)
        return macs, macs / max(made, 1), _width(node, shapes), 0, 0, weights, read + made, convolves
    functions, steps = _ELEMENTWISE.get(node.op_type, (0, 1))
    of = made
    if node.op_type.endswith("Pool") and not node.op_type.startswith("Global"):
        kernel = next(
            (attribute.ints for attribute in node.attribute if attribute.name == "kernel_shape"), ()
        )
        steps = math.prod(kernel)
    elif node.op_type.startswith(_REDUCTIONS):
        of = read
    return 0, 0, 0, steps * of, functions * of, 0, read + made, 0


def _width(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of results that share the operand that is not a weight."""
    dims = shapes[node.output[0]]
    if "Conv" not in node.op_type:
        return dims[-1] if dims else 1
    return dims[1] // max(attribute_of(node, "group", 1), 1) if len(dims) > 1 else 1
