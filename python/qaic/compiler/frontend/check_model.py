"""Refuses models that cannot become a program, and normalizes all others.

The onnx package marks new models with its own newest versions, which the engine may not support, even if
nothing in the model is new. An operator is the same in every version since its last change, so the model's
version is lowered to that of the latest change.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import onnx
from onnx import defs

from qaic.compiler.diagnostics.messages import damaged, refuse
from qaic.compiler.frontend import validation
from qaic.compiler.frontend.files.external_data import ExternalData
from qaic.compiler.frontend.function_calls import FunctionKey, function_key
from qaic.compiler.ir import elem_types, graph_walk
from qaic.compiler.ir.constants.in_graph import externalize_constants
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, FileRange, Weight, read_all
from qaic.compiler.ir.graph_walk import ONNX_DOMAINS, STANDARD_DOMAINS, all_graphs, all_nodes, op_types, since
from qaic.compiler.ir.interface import CustomOps
from qaic.compiler.ir.model import Context, Model, compiler_pass

#: most nodes of an expanded model; compiling this number takes minutes
MAX_NODES: Final = 1_000_000


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves or redefine something, and models that expand too far.

    Raises CompileError with the function, or the number of nodes.
    """
    if not model.functions:
        return
    _check_names(model)
    bodies = {function_key(f.domain, f.name, f.overload): _calls(f.node) for f in model.functions}
    sizes: dict[FunctionKey, int] = {}
    for function in bodies:
        _measure(function, bodies, sizes)
    called = _calls(model.graph.node)
    results = {function_key(f.domain, f.name, f.overload): len(f.output) for f in model.functions}
    # Omitted results of calls get names.
    written = sum(
        count * results.get(callee, 0)
        for calls in (called, *bodies.values())
        for callee, count in calls.items()
    )
    if max(written, _expanded(called, sizes)) > MAX_NODES:
        raise refuse(
            "functions of the model",
            code="graph_too_large",
            found=f"more than {MAX_NODES} nodes or results when every call is expanded",
            expected="fewer",
            fix="export the model without functions",
        )


def _check_names(model: onnx.ModelProto) -> None:
    """Refuse two functions with one name, and functions that redefine operators of ONNX."""
    seen: set[FunctionKey] = set()
    for function in model.functions:
        key = function_key(function.domain, function.name, function.overload)
        what = f"function {function.name!r} of domain {function.domain!r}"
        if key in seen:
            raise refuse(
                what,
                code="invalid_model",
                found="two definitions",
                expected="one for each domain, name and overload",
                fix="export the model again",
            )
        seen.add(key)
        if key[0] in ONNX_DOMAINS and defs.has(function.name, domain=key[0]):
            raise refuse(
                what,
                code="invalid_model",
                found="a definition of an operator that ONNX defines",
                expected="functions with other names",
                fix="export the model with this function in a separate domain, or without functions",
            )


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[FunctionKey]:
    return Counter(function_key(node.domain, node.op_type, node.overload) for node in all_nodes(nodes))


def _expanded(calls: Counter[FunctionKey], sizes: dict[FunctionKey, int]) -> int:
    """Count nodes, up to just over the limit, because the exact number may be huge."""
    return min(sum(count * max(sizes.get(callee, 1), 1) for callee, count in calls.items()), MAX_NODES + 1)


def _measure(
    root: FunctionKey, bodies: dict[FunctionKey, Counter[FunctionKey]], sizes: dict[FunctionKey, int]
) -> None:
    """Add the sizes of a function and its callees to `sizes`, without recursion."""
    path: dict[FunctionKey, None] = {}
    pending = [root]
    while pending:
        function = pending[-1]
        if function in sizes:
            pending.pop()
            continue
        path[function] = None
        inner = [callee for callee in bodies[function] if callee in bodies and callee not in sizes]
        again = next((callee for callee in inner if callee in path), None)
        if again is not None:
            raise refuse(
                f"function {again[1]!r} of domain {again[0]!r}",
                code="invalid_model",
                found="a call of itself, directly or through others",
                expected="functions without recursion",
                fix="export the model without functions",
            )
        if inner:
            pending.extend(inner)
            continue
        sizes[function] = _expanded(bodies[function], sizes)
        del path[function]
        pending.pop()


#: TensorProto.data_location
_EXTERNAL: Final = 1

#: most bytes that are read into the graph, for all tensors together; protobuf cannot represent a graph of 2
#: GiB
MOST_INLINE_BYTES: Final = 1 << 30


def read_inner_tensors(model: onnx.ModelProto, weights: dict[str, Weight], external: ExternalData) -> None:
    """Read external data, after the external data of the main graph's initializers was removed.

    The tensors of `model` get their data; large constants of the main graph are moved to `weights`. Raises
    CompileError if the type of a tensor has no external data, its data is outside the model's folder or does
    not fit its dims, or too much data has to be read into the graph. Raises OSError if a file cannot be
    opened.
    """
    _lift_constants(model.graph, weights, external)
    total = 0
    for tensor, place in _tensors(model):
        if tensor.data_location != _EXTERNAL:
            continue
        source = _range(tensor, place, external)
        total += source.nbytes
        if total > MOST_INLINE_BYTES:
            raise refuse(
                f"external data of {_named(tensor, place)}",
                code="graph_too_large",
                found=f"more than {MOST_INLINE_BYTES} bytes in nested graphs and functions",
                expected="large tensors in the main graph",
                fix="move them to initializers of the main graph",
            )
        tensor.raw_data = read_all(source)
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")


def check_inner_tensors(model: onnx.ModelProto) -> None:
    """Refuse tensors that declare external data without naming a file.

    The engine would search the working directory of the process that loads the program.
    Raises CompileError with the tensor and the place.
    """
    for tensor, place in _tensors(model):
        if tensor.data_location == _EXTERNAL:
            raise refuse(
                _named(tensor, place),
                code="external_data",
                found="external data without a location",
                expected="a file in the folder of the model",
                fix="export the model again; the file is damaged",
                context={"tensor": tensor.name},
            )


def _lift_constants(graph: onnx.GraphProto, weights: dict[str, Weight], external: ExternalData) -> None:
    """Turn large ``Constant`` nodes of the main graph into weights that are named like their outputs."""
    lifted: list[int] = []
    for index, node in enumerate(graph.node):
        if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS or len(node.output) != 1:
            continue
        name = node.output[0]
        for attribute in node.attribute:
            # A later check refuses all names that are not text together.
            if attribute.name != "value" or attribute.t.data_location != _EXTERNAL or type(name) is not str:
                continue
            source = _range(attribute.t, _place(node), external)
            if source.nbytes >= INLINE_LIMIT:
                if name in weights:
                    raise damaged(f"value {name!r}", "two constants of that name", "unique names")
                weights[name] = Weight(name, attribute.t.data_type, tuple(attribute.t.dims), source)
                lifted.append(index)
                break
    for index in reversed(lifted):
        del graph.node[index]


def _range(tensor: onnx.TensorProto, place: str, external: ExternalData) -> FileRange:
    """Find the data of a tensor and check its size."""
    what = _named(tensor, place)
    dims = list(tensor.dims)
    known = tensor.data_type in elem_types.TABLE and tensor.data_type != elem_types.STRING
    if not known or any(dim < 0 for dim in dims):
        raise refuse(
            what,
            code="invalid_model",
            found=f"external data of {elem_types.type_name(tensor.data_type)} {dims}",
            expected="a type of numbers and dims of at least 0",
        )
    size = elem_types.tensor_bytes(tensor.data_type, dims)
    entries = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    source = external.range(entries, what, size)
    if source.nbytes != size:
        expected = f"{size} bytes for {elem_types.type_name(tensor.data_type)} {dims}"
        raise damaged(what, f"{source.nbytes} bytes of data", expected)
    return source


def _text(value: str | bytes) -> str:
    """Read a text, which protobuf returns as bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _named(tensor: onnx.TensorProto, place: str) -> str:
    return f"tensor {tensor.name!r} in {place}"


def _place(node: onnx.NodeProto) -> str:
    return f"node {node.name!r} ({node.op_type})"


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Yield every tensor of a model with a description of its place."""
    bodies = [model.graph.node]
    for function in model.functions:
        bodies.append(function.node)
        for attribute in function.attribute_proto:
            yield from _of_attribute(attribute, f"function {function.name!r}")
            bodies += [graph.node for graph in (attribute.g, *attribute.graphs)]
    for node in all_nodes(chain.from_iterable(bodies)):
        for attribute in node.attribute:
            yield from _of_attribute(attribute, _place(node))
    for graph in all_graphs(model.graph):
        yield from _of_graph(graph, f"graph {graph.name!r}")


def _of_attribute(attribute: onnx.AttributeProto, place: str) -> Iterator[tuple[onnx.TensorProto, str]]:
    yield from ((tensor, place) for tensor in (attribute.t, *attribute.tensors))
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield sparse.values, place
        yield sparse.indices, place
    for graph in (attribute.g, *attribute.graphs):
        yield from _of_graph(graph, place)


def _of_graph(graph: onnx.GraphProto, place: str) -> Iterator[tuple[onnx.TensorProto, str]]:
    yield from ((tensor, place) for tensor in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield sparse.values, place
        yield sparse.indices, place


@compiler_pass()
def check_model_pass(model: Model, _: Context) -> None:
    """Refuse invalid text, two constants with one name, and functions that call themselves."""
    validation.check_texts(model.proto)
    validation.check_initializers(model.proto, model.weights)
    check_functions(model.proto)


@compiler_pass()
def normalize_pass(model: Model, _: Context) -> None:
    """Normalize the model for the other passes: remove documentation, and inputs that are constants."""
    check_inner_tensors(model.proto)
    validation.normalize(model.proto, model.weights)


def _check_implemented(model: onnx.ModelProto, found: CustomOps) -> None:
    """Refuse operators that have a description but no implementation for this target.

    Raises CompileError with the operators.
    """
    if not found.operators:
        return
    functions = {function.name for function in model.functions}
    wanted = found.operators.keys() - functions - found.implemented
    missing = sorted(op_types(model) & wanted)
    if missing:
        raise refuse(
            f"custom operator {missing[0]!r}",
            code="unsupported_operator",
            found="a description without a library for the interpreter, and no function in the model",
            expected="one of them",
            fix="add an implementation with the backend Interpreter to its register_custom_op file",
            context={"operators": missing},
        )


@compiler_pass()
def check_operators_pass(model: Model, context: Context) -> None:
    """Refuse operators that neither onnx nor the user defines."""
    _check_implemented(model.proto, context.custom)
    validation.check_operators(model.proto, context.custom.implemented)
    validation.check_counts(model.proto)


@compiler_pass()
def check_structure_pass(model: Model, context: Context) -> None:
    """Run the checker of onnx on the model with all types and shapes."""
    validation.check_structure(model.specialized[0])
    context.is_checked = True


@compiler_pass()
def remove_unused_pass(model: Model, _: Context) -> None:
    """Remove constants that nothing reads."""
    validation.drop_unused(model.proto, model.weights)


@compiler_pass()
def externalize_constants_pass(model: Model, _: Context) -> None:
    """Keep small constants in the graph, and store large ones outside it."""
    externalize_constants(model.proto, model.weights)


#: newest IR version of every accepted engine; later ones add element types and annotations, no operators
_IR_VERSION: Final = 10

#: operator set that every supported engine implements; models with this or an older set keep their version
_OPERATOR_SET: Final = 22


def import_standard_operators(model: onnx.ModelProto) -> None:
    """Import the standard operator set into a model that only has operators of other domains."""
    domains = {node.domain for node in all_nodes(model.graph.node)}
    domains.update(entry.domain for entry in model.opset_import)
    if domains and not domains & STANDARD_DOMAINS:
        model.opset_import.add(domain="", version=_OPERATOR_SET)


def lower_opset_version(model: onnx.ModelProto) -> None:
    """Lower IR version and operator set version of a checked model; changes `model` in place."""
    model.ir_version = min(model.ir_version, _IR_VERSION)
    used = {node.op_type for node in graph_walk.nodes_of(model) if node.domain in STANDARD_DOMAINS}
    # Functions have the version of the model.
    for entry in (*model.opset_import, *chain.from_iterable(one.opset_import for one in model.functions)):
        if entry.domain not in STANDARD_DOMAINS or entry.version <= _OPERATOR_SET:
            continue
        entry.version = max(_OPERATOR_SET, 0, *(since(name, entry.version) for name in used))


@compiler_pass()
def lower_opset_version_pass(model: Model, _: Context) -> None:
    """Set the operator set to the newest one that the engine supports."""
    lower_opset_version(model.proto)
