"""Folds values that a model computes from constants, so that they can be quantized.

The engine folds them by itself, but only when a program is loaded; their ranges are needed now. They are
computed when they are read, so that a large weight is not held by the compiler.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.constants.initializers import lift_float_constants
from qaic.compiler.ir.constants.propagation import ConstantReader, read_array
from qaic.compiler.ir.constants.weights import ComputedSource, Weight
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.elem_types import FLOAT, OF_NUMPY, tensor_bytes
from qaic.compiler.ir.engine_session import engine_session
from qaic.compiler.ir.graph_edits import remove_unused_nodes
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import is_quantizing
from qaic.compiler.ir.precision_ops import RANDOM
from qaic.compiler.ir.quantization import operands, quantizable
from qaic.compiler.quantization.raise_opset import has_integer_forms

#: largest ratio of the size of a result to that of its operands; larger results stay computed
_GROWTH: Final = 4
#: results up to here may always be folded
_SMALL: Final = 1 << 16

#: domains whose operators the engine has without a library
_ENGINE_DOMAINS: Final = STANDARD_DOMAINS | {"com.microsoft"}

#: quantized already: the model's own integers are better than ours of their real values
_LEFT_ALONE: Final = RANDOM | {"DequantizeLinear", "QuantizeLinear"}


def read_result(program: bytes, leaves: Sequence[Weight], name: str, nbytes: int) -> Iterator[bytes]:
    """Let the engine compute a constant from its nodes."""
    try:
        session = engine_session(program, "ORT_ENABLE_ALL")
        (values,) = session.run(None, {leaf.name: read_array(leaf) for leaf in leaves})
    except Exception as error:
        # The engine has no exception type of its own.
        raise refuse(
            f"constant {name!r}",
            code="invalid_model",
            found=f"nodes that the engine cannot compute ({str(error).strip()})",
            expected="operators that fit their inputs",
            fix="check the model",
        ) from error
    data = np.ascontiguousarray(values).tobytes()
    if len(data) != nbytes:
        raise refuse(
            f"constant {name!r}",
            code="invalid_model",
            found=f"a value of shape {list(values.shape)}",
            expected=f"{nbytes} bytes",
            fix="check the shapes declared in the model",
        )
    yield data


@compiler_pass(lambda context: is_quantizing(context.options))
def fold_constants_pass(model: Model, context: Context) -> bool:
    """Fold operands of quantizable nodes that are computed from constants; they keep their names."""
    if not has_integer_forms(model.proto, context.plan.classes):
        return False
    lift_float_constants(model.proto)
    graph = model.proto.graph
    constants = ConstantReader(graph, model.weights)
    makers: dict[str, onnx.NodeProto] = {}
    known: set[str] = set()
    for node in graph.node:
        if node.op_type == "Constant" or (
            node.op_type not in _LEFT_ALONE
            and node.domain in _ENGINE_DOMAINS
            and any(node.input)
            and not any(subgraphs(node))
            and all(not name or name in constants or name in known for name in node.input)
        ):
            known.update(node.output)
            makers.update(dict.fromkeys(node.output, node))
    outputs = {value.name for value in graph.output}
    wanted = {
        name: None
        for node in graph.node
        if quantizable(node) and node.output[0] not in known
        for name in (node.input[position] for position in operands(node))
        if name in known and name not in outputs and len(makers[name].output) == 1
    }
    folded = [weight for name in wanted if (weight := _computed(name, model, makers, constants))]
    for weight in folded:
        constants.add(weight)
    if folded:
        remove_unused_nodes(graph, known, {weight.name for weight in folded})
    return bool(folded)


def _computed(
    name: str, model: Model, makers: dict[str, onnx.NodeProto], constants: ConstantReader
) -> Weight | None:
    """Describe a computed constant, or return None where it is better left to the engine."""
    proto, shape = model.proto, model.facts.shapes.get(name)
    if model.facts.types.get(name) != FLOAT or shape is None or min(shape, default=1) < 1:
        return None
    nodes: dict[int, onnx.NodeProto] = {}
    leaves: dict[str, Weight] = {}
    pending = [name]
    while pending:
        current = pending.pop()
        leaf = constants.describe(current)
        if leaf is not None:
            if leaf.elem_type not in OF_NUMPY:
                return None
            leaves[current] = leaf
        elif current:
            node = makers[current]
            if id(node) not in nodes:
                nodes[id(node)] = node
                pending.extend(node.input)
    nbytes = tensor_bytes(FLOAT, shape)
    if nbytes > max(_SMALL, _GROWTH * sum(leaf.source.nbytes for leaf in leaves.values())):
        return None
    order = {id(node): position for position, node in enumerate(proto.graph.node)}
    graph = onnx.GraphProto(
        name="constant",
        node=sorted(nodes.values(), key=lambda node: order.get(id(node), 0)),
        input=[
            onnx.helper.make_tensor_value_info(leaf.name, leaf.elem_type, leaf.dims)
            for leaf in leaves.values()
        ],
        output=[onnx.helper.make_tensor_value_info(name, FLOAT, None)],
    )
    program = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, graph=graph)
    content = program.SerializeToString(deterministic=True)
    chunks = partial(read_result, content, list(leaves.values()), name, nbytes)
    return Weight(name, FLOAT, shape, ComputedSource(nbytes, chunks))
