"""The graph of a container: its nodes, its tensors, and one ONNX file with the weights."""

import hashlib
import shlex
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qaic.cli.graph_model import read_graph
from qaic.compiler.backend.op_profiling.operations import rounded_nodes
from qaic.compiler.ir.elem_types import type_name
from qaic.compiler.ir.graph_edits import set_values
from qaic.compiler.ir.graph_walk import consumers, standard
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.compiler.ir.value_info import collect_shapes
from qaic.errors import QpcError, StateError
from qaic.qpc import Qpc
from qaic.support.atomic_io import write_replacing
from qaic.support.library_errors import library_errors
from qaic.support.text import counted, shape_text

#: operators that change the type of values
_CONVERSIONS: Final = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear", "com.openqaic.Elementwise"})

#: protobuf refuses larger messages
_LARGEST_MESSAGE: Final = (1 << 31) - 1


def check_program(qpc: Qpc) -> None:
    """Raise StateError if the container contains a container for each of several devices."""
    if not qpc.is_program:
        raise StateError(
            f"{qpc.path} is a container of containers, one for each device",
            code="inspect.slices",
            hints=(f"`qaic-qpc extract {shlex.quote(str(qpc.path))} -o parts` extracts them; inspect each",),
        )


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with the known types of its values. Raises QpcError if the graph is damaged."""
    with library_errors(partial(_damaged, "the graph")):
        return infer_with_valid_ranks(model)


def _damaged(what: str, found: str) -> QpcError:
    return QpcError(f"{what} cannot be read: {found}", code="inspect.graph")


def value_types(model: onnx.ModelProto) -> dict[str, tuple[str, str]]:
    """Return element type and shape of the inputs, results and outputs whose type the graph states."""
    found = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            shape = shape_text(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else "?"
            found[value.name] = (type_name(tensor.elem_type), shape)
    return found


def _size(dim: onnx.TensorShapeProto.Dimension) -> str:
    if dim.HasField("dim_value"):
        return str(dim.dim_value)
    # Shape inference creates names for unknown sizes.
    return "?" if dim.dim_param.startswith("unk__") else dim.dim_param or "?"


def nodes(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """List the nodes in order, with operands, results, precision and number of multiply-accumulates.

    `model` is the result of `with_shapes`.
    """
    types, shapes = value_types(model), collect_shapes(model)
    rounded = rounded_nodes(
        model.graph, {name for name, (elem_type, _) in types.items() if elem_type == "float32"}
    )
    rounded |= _quantized_results(model.graph, types)
    return [
        {
            "node": node.name or None,
            "operator": f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
            # The type of a result of the device's operators is unknown to onnx.
            "precision": next(
                (found for name in node.output if (found := rounded.get(name) or types.get(name, ("",))[0])),
                None,
            ),
            "shape": next((types[name][1] for name in node.output if name in types), None),
            "macs": macs_of(node, shapes),
            "inputs": [name for name in node.input if name],
            "outputs": [name for name in node.output if name],
        }
        for node in operations(model.graph)
    ]


def _quantized_results(graph: onnx.GraphProto, types: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Map the results of nodes between DequantizeLinear and QuantizeLinear to the type of integers."""
    readers = consumers(graph.node)
    #: values that only QuantizeLinear reads, directly or behind other nodes
    ends: dict[str, str] = {}
    for node in reversed(graph.node):
        for name in node.output:
            made = {
                types.get(reader.output[0], ("", ""))[0]
                if standard(reader, "QuantizeLinear")
                else ends.get(reader.output[0], "")
                for reader in readers.get(name, [])
            }
            if len(made) == 1 and "" not in made:
                ends[name] = made.pop()
    found: dict[str, str] = {}
    dequantized: set[str] = set()
    for node in graph.node:
        if standard(node, "DequantizeLinear"):
            dequantized.update(node.output)
        elif not found.keys().isdisjoint(node.input) or not dequantized.isdisjoint(node.input):
            found |= {name: ends[name] for name in node.output if name in ends}
    return found


def without_conversions(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return rows of `nodes` without the conversions that the compiler adds, and a remark about these.

    They have no name. The node whose result they round shows the precision.
    """
    shown = [row for row in rows if row["node"] is not None or row["operator"] not in _CONVERSIONS]
    omitted = len(rows) - len(shown)
    return shown, f"The table omits {counted(omitted, 'conversion')} without a name" if omitted else ""


def operations(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """List the nodes in order, without those that contain a constant: they belong to their readers."""
    return [node for node in graph.node if not is_constant(node)]


def is_constant(node: onnx.NodeProto) -> bool:
    """Return True for a node that contains a constant."""
    return node.op_type == "Constant" and not node.domain


def precision_split(rows: list[dict[str, Any]]) -> str:
    """Count nodes by precision, the most frequent first; nodes of unknown types are omitted."""
    counts = Counter(row["precision"] for row in rows if row["precision"] is not None)
    return ", ".join(f"{count} {precision}" for precision, count in counts.most_common())


def tensors(model: onnx.ModelProto, qpc: Qpc) -> list[dict[str, Any]]:
    """List the weights with their hash and extremes. Blocking: reads all of them."""
    rows = []
    for tensor in model.graph.initializer:
        if tensor.name in qpc.initializers:
            array = qpc.initializers[tensor.name]
        elif tensor.data_location != TensorProto.EXTERNAL:
            # Small constants are in the graph.
            with library_errors(partial(_damaged, f"{qpc.path}: constant {tensor.name!r} of its graph")):
                array = numpy_helper.to_array(tensor)
        else:
            continue
        row: dict[str, Any] = {
            "tensor": tensor.name,
            "type": str(array.dtype),
            "shape": shape_text(array.shape),
            "bytes": array.nbytes,
            "sha256": hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16],
            "min": None,
            "max": None,
            "nan": None,
        }
        if array.size and array.dtype.kind in "fiub":
            known = array[~np.isnan(array)] if array.dtype.kind == "f" else array
            row["nan"] = int(array.size - known.size)
            if known.size:
                row["min"], row["max"] = float(known.min()), float(known.max())
        rows.append(row)
    return rows


def write_self_contained(qpc: Qpc, path: Path) -> None:
    """Write the graph with its weights to one ONNX file, atomically. Blocking.

    Raises StateError if there is no graph, or its weights exceed the limit of an ONNX file, and OSError if
    the file cannot be written.
    """
    model = read_graph(qpc)
    size = sum(array.nbytes for array in qpc.initializers.values())
    if size > _LARGEST_MESSAGE:
        raise StateError(
            f"the weights of {qpc.path} have {size} bytes; one ONNX file has at most {_LARGEST_MESSAGE}",
            code="inspect.too_large",
            hints=(f"`openqaic inspect {shlex.quote(str(qpc.path))} tensors` lists them",),
        )
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            set_values(tensor, qpc.initializers[tensor.name])
    content = model.SerializeToString()
    write_replacing(path, lambda aside: aside.write_bytes(content))
