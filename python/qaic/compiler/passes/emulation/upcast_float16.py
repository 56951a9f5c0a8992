"""Models of type float16 or bfloat16: float32 kernels with explicit rounding.

The engine computes most float16 operators in float32 without rounding between them, and it supports few
bfloat16 operators. Tensors of these types therefore become float32 and are rounded to their original type.
Tensors that are not computed keep their type: inputs, outputs, constants, and results of casts between them.
"""

from collections.abc import Collection, Iterable
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.diagnostics.messages import warn
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.in_graph import dense, lift_float_constants
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import BFLOAT16, DOUBLE, FLOAT, FLOAT16, type_name
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_graphs,
    all_nodes,
    find_nodes,
    nodes_of,
    op_types,
    standard,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import FLOAT_FORMATS, has_node_options
from qaic.compiler.ir.value_info import ValueInfo

#: attributes that select the element type of an output
_TYPE_ATTRIBUTES: Final = frozenset({"to", "dtype", "output_datatype", "output_dtype"})


def mentions_half(model: onnx.ModelProto, weights: dict[str, Weight]) -> bool:
    """Return True if a model declares float16 or bfloat16 values; types need not be inferred."""
    return (
        any(weight.elem_type in FLOAT_FORMATS for weight in weights.values())
        or any(_names_half(attribute) for node in nodes_of(model) for attribute in node.attribute)
        or any(
            any(v.type.tensor_type.elem_type in FLOAT_FORMATS for v in (*g.input, *g.output, *g.value_info))
            or any(t.data_type in FLOAT_FORMATS for t in g.initializer)
            for g in all_graphs(model.graph)
        )
    )


def _names_half(attribute: onnx.AttributeProto) -> bool:
    """Return True if an attribute has a value of float16 or bfloat16, or selects this type."""
    if attribute.name in _TYPE_ATTRIBUTES and attribute.i in FLOAT_FORMATS:
        return True
    return attribute.t.data_type in FLOAT_FORMATS


def as_float32(model: onnx.ModelProto) -> bool:
    """Change float16 and bfloat16 values and constants to float32; changes `model` in place.

    The result has the shapes of the model, and kernels for all operators, but does not round. Returns True
    if the model had such values.
    """
    if not mentions_half(model, {}):
        return False
    bodies = [*(list(f.node) for f in model.functions)]
    for graph in all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _widen_type(value.type)
        for tensor in graph.initializer:
            if tensor.data_type in FLOAT_FORMATS:
                edit.set_values(tensor, dense(tensor).astype("float32"))
        bodies.append(list(graph.node))
    for nodes in bodies:
        for node in nodes:
            if standard(node, "BitCast"):
                # The widths of its types differ after the change, and a Cast has the same shape.
                node.op_type = "Cast"
            _widen_attributes(node)
    return True


def upcast(model: Model) -> None:
    """Change float16 and bfloat16 values to float32; the model has no functions.

    The facts of the model receive the original types and names of values.
    """
    proto, weights, facts = model.proto, model.weights, model.facts
    types = facts.types
    _write_casts(proto, types)
    facts.transparent |= _separate_bit_casts(proto, types)
    carriers = _carriers(proto, types)
    halves = {
        name: elem_type
        for name, elem_type in types.items()
        if elem_type in FLOAT_FORMATS and name not in carriers
    }
    if not halves:
        return
    fresh = FreshNames(proto.graph)
    for node in all_nodes(proto.graph.node):
        if standard(node, "Optional", "SequenceEmpty") or any(name in halves for name in node.output):
            _widen_attributes(node)
    for graph in all_graphs(proto.graph):
        main = graph is proto.graph
        front: list[onnx.NodeProto] = []
        back: list[onnx.NodeProto] = []
        constants = [tensor.name for tensor in graph.initializer] + (list(weights) if main else [])
        renamed: dict[str, str] = {}
        for name in constants:
            if name in halves:
                renamed[name] = fresh.make(name, type_name(halves[name]))
                front.append(_cast(renamed[name], name, FLOAT))
                types[renamed[name]] = halves[name]
                if name in facts.shapes:
                    facts.shapes[renamed[name]] = facts.shapes[name]
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
        if main:
            entries = list(weights.values())
            weights.clear()
            for weight in entries:
                name = renamed.get(weight.name, weight.name)
                weights[name] = Weight(name, weight.elem_type, weight.dims, weight.source)
            into, back = _widen_interface(graph, front, halves, facts, fresh)
            front += into
        else:
            _widen_values((*graph.input, *graph.output), halves)
        _widen_values(graph.value_info, halves)
        edit.set_nodes(graph, (*front, *graph.node, *back))
    for name in halves:
        types[name] = FLOAT
    facts.narrow.update(halves)


def _write_casts(model: onnx.ModelProto, types: dict[str, int]) -> None:
    """Replace each CastLike to float16 or bfloat16 by a Cast, because its second operand becomes float32."""
    for node in find_nodes(model.graph.node, {"CastLike"}):
        if types.get(node.output[0]) in FLOAT_FORMATS:
            node.op_type = "Cast"
            edit.set_inputs(node, node.input[:1])
            edit.set_attributes(node, [helper.make_attribute("to", types[node.output[0]])])


def _separate_bit_casts(model: onnx.ModelProto, types: dict[str, int]) -> set[str]:
    """Insert a Cast between each BitCast and its values of float16 or bfloat16, which keep this type there.

    Returns the results of the casts.
    """
    added = set[str]()
    if "BitCast" not in op_types(model):
        return added
    fresh = FreshNames(model.graph)

    def separated(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not standard(node, "BitCast"):
            return [node]
        (operand,), (result,), nodes = node.input, node.output, [node]
        if (elem_type := types.get(operand, 0)) in FLOAT_FORMATS:
            edit.replace_input_with(node, 0, fresh.make(operand, "bits"))
            nodes.insert(0, _cast(operand, node.input[0], elem_type))
            types[node.input[0]] = elem_type
            added.add(node.input[0])
        if (elem_type := types.get(result, 0)) in FLOAT_FORMATS:
            edit.rename_output(node, 0, fresh.make(result, "bits"))
            nodes.append(_cast(node.output[0], result, elem_type))
            types[node.output[0]] = elem_type
            added.add(result)
        return nodes

    edit.rewrite_nodes(model.graph, separated)
    return added


def _widen_values(values: Iterable[onnx.ValueInfoProto], halves: Collection[str]) -> None:
    for value in values:
        # Nodes read and compute the tensors in sequences, so these are in `halves`.
        if value.name in halves or not value.type.HasField("tensor_type"):
            _widen_type(value.type)


def _widen_type(declared: onnx.TypeProto) -> None:
    """Change the float16 or bfloat16 type of a tensor, or of the tensors in another value, to float32."""
    while (form := declared.WhichOneof("value")) in {"optional_type", "sequence_type"}:
        declared = getattr(declared, form).elem_type
    if declared.tensor_type.elem_type in FLOAT_FORMATS:
        declared.tensor_type.elem_type = FLOAT


def _carriers(model: onnx.ModelProto, types: dict[str, int]) -> set[str]:
    """Return the float16 and bfloat16 values that only casts compute or read, inputs and outputs included."""
    computed: set[str] = set()
    for graph in all_graphs(model.graph):
        for node in graph.node:
            if not standard(node, "BitCast", "Cast"):
                computed.update(node.input)
                computed.update(node.output)
        if graph is not model.graph:
            computed.update(value.name for value in (*graph.input, *graph.output))
    return {name for name, elem_type in types.items() if elem_type in FLOAT_FORMATS and name not in computed}


def _widen_interface(
    graph: onnx.GraphProto,
    casts: list[onnx.NodeProto],
    halves: dict[str, int],
    facts: ValueInfo,
    fresh: FreshNames,
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Read inputs and write outputs through casts, so that the program's interface does not change.

    `casts` widen constants, some of which may be outputs.
    """
    into, out_of = [], []
    renamed: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    for value in graph.input:
        if value.name in halves and value.name not in outputs:
            renamed[value.name] = fresh.make(value.name, "float32")
            into.append(_cast(value.name, renamed[value.name], FLOAT))
            _move(value.name, renamed[value.name], halves, facts)
    for value in graph.output:
        if value.name in halves:
            renamed[value.name] = fresh.make(value.name, "float32")
            out_of.append(_cast(renamed[value.name], value.name, halves[value.name]))
            _move(value.name, renamed[value.name], halves, facts)
    edit.rename_values((*casts, *graph.node), renamed)
    return into, out_of


def _move(name: str, wide: str, halves: dict[str, int], facts: ValueInfo) -> None:
    halves[wide] = halves.pop(name)
    facts.types[wide] = FLOAT
    facts.original[wide] = name
    if name in facts.transparent:
        facts.transparent.add(wide)
    if name in facts.shapes:
        facts.shapes[wide] = facts.shapes[name]


def _widen_attributes(node: onnx.NodeProto) -> None:
    """Set the attributes that name float16 or bfloat16 to float32."""
    for attribute in node.attribute:
        if attribute.HasField("tp"):
            _widen_type(attribute.tp)
        elif _names_half(attribute) and attribute.HasField("t"):
            edit.set_values(attribute.t, dense(attribute.t).astype("float32"))
        elif _names_half(attribute):
            attribute.i = FLOAT


def _cast(source: str, target: str, elem_type: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=elem_type)


@compiler_pass()
def upcast_float16_pass(model: Model, context: Context) -> None:
    """Change the type of all computed floats to float32, and record the original types."""
    options = context.options
    facts = model.facts
    types = set(facts.types.values())
    if not context.for_integers and not has_node_options(options) and not types & {FLOAT16, BFLOAT16}:
        return
    if options.convert_to_fp16 and DOUBLE in types:
        warn(
            "float16.float64_tensors",
            "convert_to_fp16: the model has float64 tensors; they are treated as float32",
        )
    lift_float_constants(model.proto)
    upcast(model)
    if BFLOAT16 in facts.narrow.values() and options.aic_hw_version != "ai200":
        warn(
            "float16.bfloat16",
            "the model computes in bfloat16, which the hardware family ai100 does not support; the program "
            f"computes in {'float16' if options.convert_to_fp16 else 'float32'} (aic_hw_version=ai200 keeps "
            "bfloat16)",
        )
