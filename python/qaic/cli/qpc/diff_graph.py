"""Differences between the graphs of two containers compiled here.

A node goes by its first result, which is unique in a graph; one inside another node or a function goes by
the path to it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import onnx

from qaic.compiler.frontend.validation import check_texts
from qaic.errors import CompileError, QpcFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qaic.qpc import Qpc

_Json = dict[str, Any]

#: elements of a list that are shown in full
_SHOWN: Final = 16
#: TensorProto.data_location
_EXTERNAL: Final = 1
#: graphs inside nodes inside graphs; protobuf itself reads no more than 100 messages deep
_DEEPEST: Final = 32


def graph_of(qpc: Qpc) -> onnx.ModelProto | None:
    """Read the graph of a container; None for one that was not compiled here.

    Raises
    ------
    QpcFormatError
        It is no ONNX model.
    """
    if not qpc.is_program:
        return None
    data = qpc.graph
    if data is None:
        return None
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data.tobytes())
    except DecodeError as error:
        raise QpcFormatError(f"the graph is no ONNX model ({error})", code="qpc.graph") from error
    try:
        check_texts(model)
    except CompileError as error:
        raise QpcFormatError(f"the graph is damaged: {error.message}", code="qpc.graph") from error
    return model


def small_constants(model: onnx.ModelProto | None) -> dict[str, NDArray[Any]]:
    """Give the initializers that are in the graph itself; those of types numpy has not as their bytes."""
    if model is None:
        return {}
    import numpy as np
    from onnx import numpy_helper

    found: dict[str, NDArray[Any]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == _EXTERNAL:
            continue
        try:
            found[tensor.name] = numpy_helper.to_array(tensor)
        except (KeyError, OverflowError, TypeError, ValueError):
            found[tensor.name] = np.frombuffer(tensor.SerializeToString(deterministic=True), np.uint8)
    return found


def graph_differences(a: onnx.ModelProto, b: onnx.ModelProto) -> _Json:
    """Compare two graphs: operator sets, counts of operators, nodes."""
    one, two = dict(_nodes(a)), dict(_nodes(b))
    opsets = [{entry.domain or "ai.onnx": entry.version for entry in model.opset_import} for model in (a, b)]
    counts = [Counter(_kind(node) for node in side.values()) for side in (one, two)]
    kinds = sorted(counts[0].keys() | counts[1].keys())
    changed = {}
    for key, node in one.items():
        if key in two and (differing := _node_differences(node, two[key])):
            changed[key] = differing
    found = {
        "operator_sets": {
            domain: [opsets[0].get(domain), opsets[1].get(domain)]
            for domain in sorted(opsets[0].keys() | opsets[1].keys())
            if opsets[0].get(domain) != opsets[1].get(domain)
        },
        "operators": {
            kind: [counts[0][kind], counts[1][kind]] for kind in kinds if counts[0][kind] != counts[1][kind]
        },
        "removed": [f"{key} ({_kind(node)})" for key, node in one.items() if key not in two],
        "added": [f"{key} ({_kind(node)})" for key, node in two.items() if key not in one],
        "changed": changed,
    }
    return {key: value for key, value in found.items() if value}


def _nodes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    yield from _of(model.graph.node, "", _DEEPEST)
    for function in model.functions:
        yield from _of(function.node, f"function {function.domain}.{function.name}: ", _DEEPEST)


def _of(nodes: Any, prefix: str, depth: int) -> Iterator[tuple[str, onnx.NodeProto]]:
    for position, node in enumerate(nodes):
        key = prefix + (next((name for name in node.output if name), "") or f"#{position}")
        yield key, node
        for attribute in node.attribute if depth else ():
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _of(graph.node, f"{key}/{attribute.name}/", depth - 1)


def _kind(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _node_differences(a: onnx.NodeProto, b: onnx.NodeProto) -> _Json:
    one, two = (
        {
            "operator": _kind(node),
            "inputs": list(node.input),
            "outputs": list(node.output),
            **{f"attribute {name}": value for name, value in _attributes(node).items()},
        }
        for node in (a, b)
    )
    return {
        key: [one.get(key), two.get(key)]
        for key in (*one, *(two.keys() - one.keys()))
        if one.get(key) != two.get(key)
    }


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def _value(attribute: onnx.AttributeProto) -> Any:
    """Describe the value of an attribute; what is long by its digest."""
    from onnx import AttributeProto

    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "backslashreplace")[:200]
    if kind in {AttributeProto.FLOATS, AttributeProto.INTS}:
        values = list(attribute.floats if kind == AttributeProto.FLOATS else attribute.ints)
        return values if len(values) <= _SHOWN else [*values[:_SHOWN], _digest(attribute)]
    if kind in {AttributeProto.GRAPH, AttributeProto.GRAPHS}:
        # Its nodes are compared one by one.
        return "graph"
    return _digest(attribute)


def _digest(attribute: onnx.AttributeProto) -> str:
    content = attribute.SerializeToString(deterministic=True)
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:16]}"
