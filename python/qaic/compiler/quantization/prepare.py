"""Prepares a model for integers: converts its operator set, and folds computed constants.

Version 10 added the integer convolution, and version 12 MaxPool and Clip on integers. The engine has no
QuantizeLinear of version 28.

The engine folds constants, such as a transposed weight, only when a program is loaded, but quantization
requires their ranges. They are computed when they are read, so the compiler does not keep large weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx
from onnx import defs, helper, version_converter

from qaic.compiler.diagnostics.messages import refuse, warn
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.in_graph import ConstantReader, lift_float_constants, read_array
from qaic.compiler.ir.constants.weights import ComputedSource, Weight, with_weights_as_inputs
from qaic.compiler.ir.elem_types import FLOAT, FLOATS, OF_NUMPY, tensor_bytes
from qaic.compiler.ir.engine_session import engine_session
from qaic.compiler.ir.graph_edits import remove_unused_nodes
from qaic.compiler.ir.graph_walk import (
    RANDOM,
    STANDARD_DOMAINS,
    all_nodes,
    attribute_of,
    find_nodes,
    node_key,
    node_label,
    read_values,
    since,
    standard_version,
    subgraphs,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.operand_ranks import ends_inference
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass
from qaic.compiler.ir.quantization import operands, quantizable
from qaic.compiler.passes.legalize.legalize_recurrent import legalize_recurrent
from qaic.options.table import is_quantizing

#: lowest version whose operators the engine fuses, for any version of the model
NEEDED: Final = 10
#: version in which all operators that can run on integers do
WANTED: Final = 12
#: newest version in which the engine has the operators that quantize
NEWEST: Final = 27

#: the first set whose Resize has an attribute for its coordinates
_COORDINATES_VERSION: Final = 11
#: operators that become a Resize of that set
_ENLARGING: Final = frozenset({"Resize", "Upsample"})

#: the only operator whose form changed between versions 11 and 12
_CHANGED_IN_12: Final = "Dropout"


def raise_operator_set(model: onnx.ModelProto, weights: dict[str, Weight]) -> bool:
    """Raise an old operator set without renaming values; return True if it has integer forms."""
    version = standard_version(model)
    if version >= WANTED:
        return True
    op_types = {node.op_type for node in all_nodes(model.graph.node)}
    if version == WANTED - 1 and _CHANGED_IN_12 not in op_types:
        _stamp(model, WANTED)
        return True
    masks = {name for node in find_nodes(model.graph.node, {_CHANGED_IN_12}) for name in node.output[1:]}
    if masks & read_values(model.graph):
        return _as_it_is(version, "the mask of Dropout has another type or value in newer sets")
    if _changes_inside(model, version):
        return _as_it_is(version, "a nested graph has operators that differ in newer operator sets")
    constants = ConstantReader(model.graph, weights)
    rounding = {
        node_key(node): _nearest_mode(node, constants)
        for node in model.graph.node
        if node.op_type in _ENLARGING and version < _COORDINATES_VERSION
    }
    if None in rounding.values():
        return _as_it_is(version, "newer sets have no Resize that shrinks one dimension and enlarges another")
    view = with_weights_as_inputs(model, weights)
    try:
        if ends_inference(view):
            return _as_it_is(version, "onnx cannot convert a node with an operand of an unknown type")
        converted = version_converter.convert_version(view, WANTED)
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its parts do
        return _as_it_is(version, str(error).strip().partition("\n")[0])
    made = {name for node in converted.graph.node for name in node.output}
    if not made.issuperset(name for node in model.graph.node for name in node.output if name):
        return _as_it_is(version, "onnx gives values other names")
    edit.remove_inputs(converted.graph, weights)
    for node in converted.graph.node:
        _drop_unknown_attributes(node)
        nearest_mode = rounding.get(node_key(node)) if node.op_type == "Resize" else None
        if nearest_mode is not None:
            _keep_coordinates(node, nearest_mode)
    for entry in model.opset_import:
        if entry.domain not in STANDARD_DOMAINS:
            edit.import_opset(converted, entry.domain, entry.version)
    edit.replace_graph(model, converted)
    return True


def lower_operator_set(model: onnx.ModelProto, types: Mapping[str, int]) -> None:
    """Lower a set in which the engine cannot quantize, if all nodes have the same form in the lower one."""
    version = standard_version(model)
    if version <= NEWEST:
        return
    nodes = [node for node in all_nodes(model.graph.node) if node.domain in STANDARD_DOMAINS]
    changed = [node for node in nodes if not _is_in_newest(node, version, types)]
    if changed:
        warn(
            "quantization.operator_set",
            f"quantization: the model stays in floating point; {changed[0].op_type} at "
            f"{node_label(changed[0])!r} has no such form in operator set {NEWEST}, the newest with integers",
        )
    else:
        _stamp(model, NEWEST)


def _is_in_newest(node: onnx.NodeProto, version: int, types: Mapping[str, int]) -> bool:
    older, newer = since(node.op_type, NEWEST), since(node.op_type, version)
    if older == 0 or newer in {0, older}:
        # The engine has operators without a schema in all sets.
        return newer in {0, older}
    old = defs.get_schema(node.op_type, NEWEST, "")
    kinds = {name: types.get(name, 0) for name in (*node.input, *node.output) if name}
    if node.op_type == "Mod" and not attribute_of(node, "fmod", 0) and not FLOATS.isdisjoint(kinds.values()):
        # Older sets have no such remainder, although their schema allows the types.
        return False
    known = {spelling for formal in (*old.inputs, *old.outputs) for spelling in formal.types}
    spellings = {f"tensor({onnx.TensorProto.DataType.Name(kind).lower()})" for kind in kinds.values()}
    return spellings <= known and all(one.name in old.attributes for one in node.attribute)


def _stamp(model: onnx.ModelProto, version: int) -> None:
    for entry in model.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = version


def _as_it_is(version: int, reason: str) -> bool:
    """Keep the operator set of a model; return True if it can be quantized, and warn otherwise."""
    if version < NEEDED:
        warn(
            "quantization.operator_set",
            f"quantization: the model stays in floating point; its operator set {version} is older than "
            f"{NEEDED} and cannot be converted ({reason})",
        )
    return version >= NEEDED


def _changes_inside(model: onnx.ModelProto, version: int) -> bool:
    """Return True if a nested graph has an operator whose form differs in the wanted set.

    onnx converts only the main graph.
    """
    inner = {
        node.op_type
        for outer in model.graph.node
        for graph in subgraphs(outer)
        for node in all_nodes(graph.node)
        if node.domain in STANDARD_DOMAINS
    }
    return any(since(name, version) not in {0, since(name, WANTED)} for name in inner)


def _nearest_mode(node: onnx.NodeProto, constants: ConstantReader) -> str | None:
    """Return the rounding with which a Resize selects the elements of an older Upsample or Resize.

    Upsample selects the element before a coordinate, and Resize the one after it when it shrinks. Returns
    None if that is unknown or differs between dimensions.
    """
    if node.op_type == "Upsample":
        return "floor"
    if len(node.input) < 2 or node.input[1] not in constants:
        return None
    scales = constants.read(node.input[1]).reshape(-1)
    if all(scale >= 1 for scale in scales):
        return "floor"
    return "ceil" if all(scale <= 1 for scale in scales) else None


def _drop_unknown_attributes(node: onnx.NodeProto) -> None:
    """Remove attributes that an operator no longer has; onnx's converter keeps those without meaning."""
    if node.domain not in STANDARD_DOMAINS or not defs.has(node.op_type, WANTED, ""):
        return
    known = defs.get_schema(node.op_type, WANTED, "").attributes
    edit.set_attributes(node, [attribute for attribute in node.attribute if attribute.name in known])


def _keep_coordinates(node: onnx.NodeProto, nearest_mode: str) -> None:
    """Give a converted Resize the coordinates of the sets before 11, which onnx's converter omits."""
    added = {"coordinate_transformation_mode": "asymmetric"}
    if attribute_of(node, "mode", b"nearest") == b"nearest":
        added["nearest_mode"] = nearest_mode
    given = {attribute.name for attribute in node.attribute}
    for name, value in added.items():
        if name not in given:
            edit.add_attribute(node, helper.make_attribute(name, value))


def has_integer_forms(model: onnx.ModelProto, classes: Mapping[str, PrecisionClass]) -> bool:
    """Return True if nodes of a model will be quantized, and its operator set has integer forms of them."""
    return NEEDED <= standard_version(model) <= NEWEST and any(
        chosen in INTEGERS for chosen in classes.values()
    )


@compiler_pass(lambda context: is_quantizing(context.options))
def raise_opset_version_pass(model: Model, context: Context) -> None:
    """Convert the operator set to one with the integer operators."""
    if any(chosen in INTEGERS for chosen in context.plan.classes.values()):
        raise_operator_set(model.proto, model.weights)
        lower_operator_set(model.proto, model.facts.types)


#: largest ratio of the size of a result to that of its operands; larger results are not folded
_GROWTH: Final = 4
#: largest size of a result that is always folded
_SMALL: Final = 1 << 16

#: domains whose operators the engine has without a library
_ENGINE_DOMAINS: Final = STANDARD_DOMAINS | {"com.microsoft"}

#: operators that are already quantized: the integers of the model are better than those from its real values
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
def fold_constants_pass(model: Model, context: Context) -> None:
    """Fold operands of quantizable nodes that are computed from constants; they keep their names."""
    if not has_integer_forms(model.proto, context.plan.classes):
        return
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


def _computed(
    name: str, model: Model, makers: dict[str, onnx.NodeProto], constants: ConstantReader
) -> Weight | None:
    """Describe a computed constant, or return None if the engine should compute it."""
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
    legalize_recurrent(program)
    content = program.SerializeToString(deterministic=True)
    chunks = partial(read_result, content, list(leaves.values()), name, nbytes)
    return Weight(name, FLOAT, shape, ComputedSource(nbytes, chunks))
