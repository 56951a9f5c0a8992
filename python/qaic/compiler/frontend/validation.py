"""Checks of a model before the passes, as far as possible without shapes.

The onnx checker reads the model with weights as inputs, so it needs no payloads.
"""

from collections import Counter
from collections.abc import Collection, Iterator, MutableSequence, Sequence
from typing import Final

import onnx
from google.protobuf.message import Message
from onnx import checker, defs, inliner

from qaic.compiler.diagnostics.messages import listing, refuse
from qaic.compiler.frontend.function_calls import ENGINE_DOMAINS, normalize_functions
from qaic.compiler.ir.constants.in_graph import as_weight
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.graph_edits import clone, import_opset, rename_output, set_inputs
from qaic.compiler.ir.graph_walk import (
    ONNX_DOMAINS,
    STANDARD_DOMAINS,
    FreshNames,
    all_graphs,
    all_nodes,
    attribute_of,
    constant_names,
    find_nodes,
    node_label,
    node_lists,
    nodes_of,
    read_values,
    standard,
    standard_version,
)
from qaic.support.text import nearest_name

_ENGINE_DOMAIN: Final = "com.microsoft"
#: message of the checker for a declaration without a shape, which bodies of control flow may have
_MISSING_SHAPE: Final = "Field 'shape' of 'type' is required but missing."

#: standard operators whose results the engine always writes, even without names
_WRITING_ALL: Final = frozenset({"BatchNormalization", "If", "Loop", "Scan", "Split"})
#: operator of the engine that ends the process if its second result has no name
_EMBEDDING: Final = (_ENGINE_DOMAIN, "EmbedLayerNormalization")

#: operators that the engine has in every standard set; its optimizers write them
_ENGINE_ONLY: Final = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
#: these, and one that onnx deprecates in the sets 18 to 20
_UNCHECKED: Final = _ENGINE_ONLY | {"GroupNormalization"}

#: operators with a count of operands or results -> its attribute
_COUNTS: Final = {"Scan": "num_scan_inputs", "Split": "num_outputs"}
#: operator of the engine, an operand or attribute that makes others necessary, and the positions of these
#: operands and results; all operands if none are listed
_UNGUARDED: Final[Sequence[tuple[str, int | str, tuple[int, ...], tuple[int, ...]]]] = (
    ("AttnLSTM", 0, (8, 9, 10, 11, 13), ()),
    ("ConvTransposeWithDynamicPads", 0, (2,), ()),
    ("DecoderMaskedMultiHeadAttention", 7, (), (1, 2)),
    ("EmbedLayerNormalization", 1, (4,), ()),
    ("GroupQueryAttention", "do_rotary", (7, 8), ()),
    ("MultiHeadAttention", 8, (), (1, 2)),
    ("QEmbedLayerNormalization", 1, (4, 10, 15), ()),
    ("QLinearConcat", 0, (), ()),
    ("QLinearLeakyRelu", 0, (4,), ()),
    ("QLinearSigmoid", 0, (4,), ()),
)
#: first operator set whose Scan has no lengths of sequences
_SCAN_WITHOUT_LENGTHS: Final = 9

#: first IR version in which an initializer need not also be an input
_IR_FREE_INITIALIZERS: Final = 4

#: largest model, in bytes, whose names are read one by one
_FEW_BYTES: Final = 1 << 13


def normalize(model: onnx.ModelProto, weights: Collection[str]) -> None:
    """Convert the model to the form that the passes expect; changes `model` in place.

    Initializers stop being inputs and have no second declaration, negative sizes become unknown, and every
    graph gets a name. `normalize_functions` normalizes functions and their calls. Documentation and traces of
    exporters are removed, because they contain paths of the machine that exported the model.
    """
    normalize_functions(model)
    graph = model.graph
    constants = constant_names(graph).union(weights)
    _keep_others(graph.input, constants)
    model.ir_version = max(model.ir_version, _IR_FREE_INITIALIZERS)
    model.ClearField("doc_string")
    # Exporters add an entry each time they change a file. Only the last is valid; the checker accepts only
    # one.
    properties = {entry.key: entry for entry in model.metadata_props}
    if len(properties) != len(model.metadata_props):
        entries = [type(entry).FromString(entry.SerializeToString()) for entry in properties.values()]
        del model.metadata_props[:]
        model.metadata_props.extend(entries)
    _name_left_out(model)
    for body in node_lists(model):
        for node in find_nodes(body, {"DFT"}):
            # The engine would read a listed axis without a name through a null pointer.
            if node.input[2:] == [""]:
                set_inputs(node, node.input[:2])
    for current in all_graphs(graph):
        current.name = current.name or "unnamed"
        current.ClearField("doc_string")
        # Shape inference ignores declared shapes, and it needs the shape of a constant to read its value.
        _keep_others(current.value_info, constants | {tensor.name for tensor in current.initializer})
        for value in (*current.input, *current.output, *current.value_info):
            for dim in value.type.tensor_type.shape.dim:
                # Exporters write -1 or ? for an unknown size; neither is a size or a symbol.
                if dim.dim_param == "?" or (dim.HasField("dim_value") and dim.dim_value < 0):
                    dim.Clear()
            _clear_notes(value)
        for tensor in current.initializer:
            _clear_notes(tensor)
    for part in (*model.functions, *nodes_of(model)):
        _clear_notes(part)


def _clear_notes(part: Message) -> None:
    part.ClearField("doc_string")
    part.ClearField("metadata_props")


def _name_left_out(model: onnx.ModelProto) -> None:
    """Name unnamed results that the engine writes, because it would write them through a null pointer."""
    for body in node_lists(model):
        nodes = [node for node in find_nodes(body, _WRITING_ALL) if "" in node.output]
        for node in all_nodes(body):
            is_training = standard(node, "BatchNormalization") and attribute_of(node, "training_mode", 0)
            least = 3 if is_training else 2 if (node.domain, node.op_type) == _EMBEDDING else 0
            if len(node.output) < least:
                node.output.extend([""] * (least - len(node.output)))
                nodes.append(node)
        if not nodes:
            continue
        fresh = FreshNames(onnx.GraphProto(node=body))
        for node in nodes:
            for position, name in enumerate(node.output):
                if not name:
                    rename_output(node, position, fresh.make(node.name or node.op_type, "left_out"))


def _keep_others(values: MutableSequence[onnx.ValueInfoProto], names: Collection[str]) -> None:
    """Remove the declarations of these names."""
    kept = [value for value in values if value.name not in names]
    if len(kept) != len(values):
        copies = [clone(value) for value in kept]
        del values[:]
        values.extend(copies)


def check_texts(model: onnx.ModelProto) -> None:
    """Refuse names that are not UTF-8; protobuf returns those as bytes, which no pass expects.

    Raises CompileError if a name of a value, operator, attribute or domain is not text.
    """
    # For a small model, reading each name is faster than declaring the checked messages.
    if model.ByteSize() > _FEW_BYTES and _is_all_text(model):
        return
    for texts in _texts(model):
        if set(map(type, texts)) - {str}:
            broken = next(text for text in texts if not isinstance(text, str))
            raise refuse(
                "names in the model",
                code="invalid_model",
                found=f"{broken!r}",
                expected="UTF-8 text",
                fix="the file is damaged; export the model again",
            )


def check_initializers(model: onnx.ModelProto, weights: Collection[str]) -> None:
    """Refuse two constants of the main graph with one name, and small constants whose data does not fit.

    Raises CompileError with the name.
    """
    names = [tensor.name for tensor in model.graph.initializer]
    names += weights
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise refuse(
            f"initializer {twice!r}", code="invalid_model", found="two of that name", expected="unique names"
        )
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL:
            as_weight(tensor)


def _is_all_text(model: onnx.ModelProto) -> bool:
    """Return True if every string of a model is UTF-8, including strings that no pass reads.

    The onnx package declares its messages in proto2, whose parser does not check strings.
    Parsing the same messages as proto3, which checks them, costs a tenth of reading each name.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    declared = descriptor_pb2.FileDescriptorProto()
    model.DESCRIPTOR.file.CopyToProto(declared)
    declared.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(declared)
    checked = message_factory.GetMessageClass(pool.FindMessageTypeByName(model.DESCRIPTOR.full_name))
    try:
        checked.FromString(model.SerializeToString())
    except DecodeError:
        return False
    return True


def _texts(model: onnx.ModelProto) -> Iterator[list[object]]:
    """Yield every name in a model, in lists by kind; a generator of single names takes twice as long."""
    yield [model.graph.name, *(entry.domain for entry in model.opset_import)]
    for function in model.functions:
        yield [function.name, function.domain, *function.input, *function.output]
        yield [entry.domain for entry in function.opset_import]
    for graph in all_graphs(model.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        yield [value.name for value in values]
        yield [dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim]
        yield [tensor.name for tensor in graph.initializer]
    nodes = list(nodes_of(model))
    yield [node.name for node in nodes]
    yield [node.op_type for node in nodes]
    yield [node.domain for node in nodes]
    yield [name for node in nodes for name in node.input]
    yield [name for node in nodes for name in node.output]
    yield [attribute.name for node in nodes for attribute in node.attribute]


def drop_unused(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Remove initializers of the main graph that nothing reads."""
    used = read_values(model.graph)
    dead = [i for i, tensor in enumerate(model.graph.initializer) if tensor.name not in used]
    for position in reversed(dead):
        del model.graph.initializer[position]
    for name in [name for name in weights if name not in used]:
        del weights[name]


def check_counts(model: onnx.ModelProto) -> None:
    """Refuse nodes whose operands or results are fewer than the engine reads or writes.

    Each of these nodes ends the process.
    """
    own = all_nodes(node for function in model.functions for node in function.node)
    if any(
        node.domain == _ENGINE_DOMAIN
        or (standard(node, *_COUNTS) and any(one.ref_attr_name for one in node.attribute))
        for node in own
    ):
        # Calls set these counts, and leave out operands.
        model = inliner.inline_local_functions(model)
    # The first operand was the lengths of sequences before set 9.
    first = int(standard_version(model) < _SCAN_WITHOUT_LENGTHS)
    for node in nodes_of(model):
        found = expected = ""
        if standard(node, *_COUNTS):
            found, expected = _wrong_count(node, len(node.input) - first)
        elif node.domain == _ENGINE_DOMAIN:
            found, expected = _left_out(node), "a value there, which the engine does not check"
        if found:
            raise refuse(
                f"node {node_label(node)!r} ({node.op_type})",
                code="invalid_model",
                found=found,
                expected=expected,
                fix="check the model",
                context={"node": node_label(node)},
            )


def _wrong_count(node: onnx.NodeProto, scanned: int) -> tuple[str, str]:
    """Return a wrong count, and the expected one; `scanned` is the number of operands of a Scan."""
    name = _COUNTS[node.op_type]
    given = [one.i for one in node.attribute if one.name == name]
    if node.op_type == "Scan":
        is_valid = 1 <= sum(given) <= scanned
        expected = f"1 to {scanned}, the number of inputs" if scanned > 0 else "at least one input"
    else:
        is_valid = not given or given[0] >= len(node.output)
        expected = f"{len(node.output)}, the number of results"
    return ("" if is_valid else f"{given[0]} in {name!r}" if given else f"no {name!r}"), expected


def _left_out(node: onnx.NodeProto) -> str:
    for name, condition, operands, results in _UNGUARDED:
        is_given = isinstance(condition, int) and any(node.input[condition : condition + 1])
        if name != node.op_type or not (is_given or attribute_of(node, str(condition), 0)):
            continue
        needed = operands or range(0 if results else len(node.input))
        for what, given, places in (("input", node.input, needed), ("output", node.output, results)):
            if missing := [at for at in places if not any(given[at : at + 1])]:
                return f"no {what} {missing[0]}"
    return ""


def check_operators(model: onnx.ModelProto, custom: Collection[str] = ()) -> None:
    """Refuse operators without an implementation, all in one error.

    `custom` are operators that a library implements. Raises CompileError if an operator set is missing or
    newer than supported, a domain is unknown, or a domain has no such operator.
    """
    versions = {("" if s.domain == "ai.onnx" else s.domain): s.version for s in model.opset_import}
    if not versions:
        raise refuse(
            "operator sets of the model",
            code="unsupported_opset",
            found="none",
            expected="at least one opset_import",
            fix="export the model again with a current exporter",
        )
    functions = {(f.domain, f.name) for f in model.functions}
    newest = defs.onnx_opset_version()
    if versions.get("", 0) > newest:
        raise refuse(
            "operator set of the model",
            code="unsupported_opset",
            found=f"version {versions['']} of ai.onnx",
            expected=f"at most {newest}",
            fix=f"export with opset_version={newest} or lower, or install a newer onnx",
        )
    unknown: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    # The engine fails in functions with operators that only it knows.
    in_functions = {node.op_type for function in model.functions for node in all_nodes(function.node)}
    for node in nodes_of(model):
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        key = (domain, node.op_type)
        if (
            key in seen
            or node.op_type in custom
            or (node.domain, node.op_type) in functions
            or domain in ENGINE_DOMAINS
        ):
            continue
        seen.add(key)
        version = versions.get(domain)
        at = f"node {node_label(node)!r}"
        if domain not in ONNX_DOMAINS:
            unknown[f"{domain}.{node.op_type}"] = at
        elif version is None:
            unknown[f"{domain}.{node.op_type}"] = f"{at}: its operator set is not imported"
        elif not defs.has(node.op_type, version, domain) and (
            domain or node.op_type not in _ENGINE_ONLY - in_functions
        ):
            unknown[node.op_type] = f"{at}: not in version {version} of {domain or 'ai.onnx'}"
    if unknown:
        names = sorted(unknown)
        meant = nearest_name(names[0], {schema.name for schema in defs.get_all_schemas()})
        raise refuse(
            f"operator{'s' if names[1:] else ''} {listing(names, 20)}",
            code="unsupported_operator",
            found=f"no definition ({unknown[names[0]]}{f'; did you mean {meant}?' if meant else ''})",
            expected="ONNX or com.microsoft operators, or functions inside the model",
            fix="export without custom operators, give them a function body, or describe their library with "
            "register_custom_op",
            context={"operators": names},
        )


def check_structure(view: onnx.ModelProto) -> None:
    """Run the onnx checker for names, order, attributes and arity.

    `view` has its weights as inputs and inferred shapes. Raises CompileError if the model breaks a rule of
    the ONNX specification.
    """
    text = _broken_rule(view)
    if any(f"{name} is deprecated" in text or f"for {name} with" in text for name in _UNCHECKED):
        view = _without_unchecked(view)
        text = _broken_rule(view)
    if "Node ()" in text:
        text = _broken_rule(with_named_nodes(view))
    if text not in {"", _MISSING_SHAPE}:
        raise refuse(
            "structure of the model",
            code="invalid_model",
            found=f"a broken rule ({text})",
            expected="a model that passes onnx.checker.check_model",
            fix="run the checker where the model is exported",
        )


def _without_unchecked(view: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model, with the operators that onnx refuses in a domain that its checker does not know."""
    copy = clone(view)
    for node in find_nodes(nodes_of(copy), _UNCHECKED):
        node.domain = "com.microsoft"
    import_opset(copy, "com.microsoft", 1)
    return copy


def _broken_rule(view: onnx.ModelProto) -> str:
    try:
        checker.check_model(view)
    except (checker.ValidationError, ValueError) as error:
        return " ".join(str(error).strip().split("\n\n")[0].split())
    return ""


def with_named_nodes(view: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model and name all its nodes: messages of onnx contain a node's own name only."""
    named = clone(view)
    for node in all_nodes(named.graph.node):
        node.name = node_label(node)
    return named
