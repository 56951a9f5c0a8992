"""Differences between two program containers, as plain values.

Each section contains only differences, and may be empty. Large parts are compared in pieces of the mapped
files. A part that cannot be read is listed under ``problems``, and only its bytes are compared.
"""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from os.path import commonprefix
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, helper, numpy_helper

from qaic.cli.qpc.facts import facts, value_text
from qaic.compiler.frontend.validation import check_texts
from qaic.errors import CompileError, QpcError, QpcFormatError
from qaic.qpc import Qpc
from qaic.support.text import escape_unprintable, shape_text

_Json = dict[str, Any]

#: number of bytes of a constant or segment that are compared at a time
PIECE: Final = 4 << 20
#: facts with one value each
_PROGRAM: Final = ("kind", "target", "producer", "name", "cores", "devices", "batch", "stats", "memory_bytes")
#: facts of a binding, without its position in a DMA buffer, which `segments` shows
_BINDING: Final = ("dtype", "shape", "bytes", "partial", "stages")
#: facts of a weight that are not compared, because its position depends on all other weights
_PLACES: Final = frozenset({"name", "offset", "size"})


def differences(a: Qpc, b: Qpc) -> _Json:
    """Compare two containers.

    Returns ``same`` and the sections. A change is the list ``[in a, in b]``; None means a missing value.
    """
    one, two = facts(a), facts(b)
    problems = [f"{side}: {text}" for side, found in (("a", one), ("b", two)) for text in found["problems"]]
    shapes = [side.get("shapes", []) for side in (one, two)]
    found: _Json = {
        "program": _values({key: one.get(key) for key in _PROGRAM}, {key: two.get(key) for key in _PROGRAM}),
        "options": {
            "set": _values(one.get("options") or {}, two.get("options") or {}),
            "effective": _values(_mapping(one, "effective_options"), _mapping(two, "effective_options")),
        },
        "bindings": {side: _bindings(one.get(side, []), two.get(side, [])) for side in ("inputs", "outputs")},
        "shapes": shapes if shapes[0] != shapes[1] else [],
        "metadata": _values(one.get("metadata") or {}, two.get("metadata") or {}),
    }
    found["constants"], found["graph"] = _contents(a, b, problems)
    found["segments"] = _segments(a, b)
    found["slices"] = _slices(a, b)
    found["problems"] = problems
    is_same = not any(_differs(section) for key, section in found.items() if key != "problems")
    return {"a": one["file"], "b": two["file"], "same": is_same, **found}


def _differs(section: object) -> bool:
    return any(_differs(value) for value in section.values()) if isinstance(section, dict) else bool(section)


def _mapping(found: _Json, key: str) -> _Json:
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def _values(a: Mapping[str, Any], b: Mapping[str, Any]) -> _Json:
    """Return the keys whose values differ."""
    keys = [*a, *(key for key in b if key not in a)]
    return {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}


def _named(a: Mapping[str, Any], b: Mapping[str, Any], compare: Callable[[Any, Any, str], _Json]) -> _Json:
    """Return names that exist only on one side, and the differences for names of both sides."""
    changed = {}
    for name in a:
        if name in b and (differing := compare(a[name], b[name], name)):
            changed[name] = differing
    found = {
        "removed": [name for name in a if name not in b],
        "added": [name for name in b if name not in a],
        "changed": changed,
    }
    return {key: value for key, value in found.items() if value}


def _bindings(a: list[_Json], b: list[_Json]) -> _Json:
    one, two = ({binding["name"]: binding for binding in side} for side in (a, b))
    found = _named(
        one,
        two,
        lambda x, y, _: _values({key: x[key] for key in _BINDING}, {key: y[key] for key in _BINDING}),
    )
    if not found and list(one) != list(two):
        found["order"] = [list(one), list(two)]
    return found


def _segments(a: Qpc, b: Qpc) -> _Json:
    def compare(x: Any, y: Any, _: str) -> _Json:
        if x.size == y.size and _equal_bytes(x.data, y.data):
            return {}
        return {"bytes": [x.size, y.size], "crc32": [f"{_crc(side.data):08x}" for side in (x, y)]}

    return _named(a.segments, b.segments, compare)


def _slices(a: Qpc, b: Qpc) -> _Json:
    found = {}
    for name in a.slices:
        if name in b.slices:
            try:
                inner = differences(a.slices[name], b.slices[name])
            except QpcError as error:
                inner = {"same": False, "problems": [error.message]}
            if not inner["same"]:
                found[name] = inner
    return found


def _contents(a: Qpc, b: Qpc, problems: list[str]) -> tuple[_Json, _Json]:
    """Compare the weights and the graph, which only the compiler of this package writes."""
    graphs, weights = [], []
    for side, qpc in (("a", a), ("b", b)):
        try:
            graph = graph_of(qpc)
        except QpcError as error:
            problems.append(f"{side}: graph: {error.message}")
            graph = None
        graphs.append(graph)
        weights.append(_weights(qpc, small_constants(graph), side, problems))
    found = _named(weights[0], weights[1], _Constants(problems).differ)
    if graphs[0] is None or graphs[1] is None:
        return found, {}
    return found, graph_differences(graphs[0], graphs[1])


def _weights(qpc: Qpc, small: Mapping[str, Any], side: str, problems: list[str]) -> _Json:
    """Map each name to its entry in the plan, and to a function that returns its array."""
    weights: _Json = {
        name: ({"dtype": str(array.dtype), "dims": list(array.shape)}, array) for name, array in small.items()
    }
    if not qpc.is_program:
        return weights
    try:
        records = (qpc.plan or {}).get("initializers", [])
        stored = qpc.initializers
    except QpcError as error:
        problems.append(f"{side}: constants: {error.message}")
        return weights
    for record in records:
        name = record["name"]
        recorded = {key: value for key, value in record.items() if key not in _PLACES}
        weights[name] = (recorded, stored)
    return weights


class _Constants:
    """Compares weights and records those it could not read."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def differ(self, a: Any, b: Any, name: str) -> _Json:
        """Return the difference between two weights of one name."""
        found = _values(a[0], b[0])
        arrays = []
        for side, (_, holder) in (("a", a), ("b", b)):
            try:
                arrays.append(holder if isinstance(holder, np.ndarray) else holder[name])
            except QpcError as error:
                self._problems.append(f"{side}: {error.message}")
                return found
        if {"dtype", "dims"} & found.keys():
            return found
        # A weight in another format may have the same or similar values.
        return {**found, **_content(arrays[0], arrays[1])}


def _content(a: NDArray[Any], b: NDArray[Any]) -> _Json:
    """Compare two arrays of one type and shape, piece by piece."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return {"stored": [f"{side.dtype} {list(side.shape)}" for side in (a, b)]}
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    if a.dtype.hasobject:
        count = int(np.count_nonzero(flat_a != flat_b))
        return {"different": count, "of": a.size} if count else {}
    step = max(PIECE // max(a.itemsize, 1), 1)
    different, largest, is_float = 0, 0.0, a.dtype.kind == "f" or a.dtype.name in {"bfloat16"}
    for start in range(0, a.size, step):
        x, y = flat_a[start : start + step], flat_b[start : start + step]
        if np.array_equal(x.view(np.uint8), y.view(np.uint8)):
            continue
        unequal = (x.view(np.uint8).reshape(x.size, -1) != y.view(np.uint8).reshape(x.size, -1)).any(axis=1)
        different += int(np.count_nonzero(unequal))
        if is_float:
            wide = np.abs(x[unequal].astype(np.float64) - y[unequal].astype(np.float64))
            # Differences between equal infinities, and from NaN, have no meaning.
            finite = wide[np.isfinite(wide)]
            largest = max(largest, float(finite.max()) if finite.size else 0.0)
    if not different:
        return {}
    found: _Json = {"different": different, "of": a.size}
    if is_float:
        found["max_abs_difference"] = largest
    return found


def _equal_bytes(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    return all(
        np.array_equal(a[start : start + PIECE], b[start : start + PIECE])
        for start in range(0, a.size, PIECE)
    )


def _crc(data: NDArray[np.uint8]) -> int:
    value = 0
    for start in range(0, data.size, PIECE):
        # The stubs of numpy do not declare an array as a buffer.
        value = zlib.crc32(data[start : start + PIECE].data, value)
    return value


#: most entries of a list that are shown; --json has all
_MOST: Final = 20
_LONGEST: Final = 200

#: facts of a constant that are not pairs of values
_COUNTS: Final = frozenset({"different", "of", "max_abs_difference"})

_TITLES: Final = {
    "program": "program",
    "options": "options",
    "bindings": "inputs and outputs",
    "shapes": "allowed shapes",
    "constants": "constants",
    "graph": "graph",
    "metadata": "metadata",
    "segments": "segments",
}


def diff_text(found: _Json) -> str:
    """Return the text that ``qaic-qpc diff`` shows."""
    return "\n".join(_lines(found))


def _lines(found: _Json) -> Iterator[str]:
    yield from (f"problem: {escape_unprintable(text)}" for text in found["problems"])
    if found["same"]:
        yield "no difference"
        return
    for key, title in _TITLES.items():
        lines = list(_section(key, found.get(key)))
        if lines:
            yield title
            yield from (f"  {line}" for line in lines)
    for name, inner in found.get("slices", {}).items():
        yield f"--- {escape_unprintable(name)}"
        yield from (f"  {line}" for line in _lines(inner))


def _section(key: str, section: Any) -> Iterator[str]:
    if not section:
        return
    if key == "shapes":
        yield from _sets_text(*section)
    elif key in {"program", "metadata"}:
        yield from _changes(section)
    elif key == "options":
        for kind in ("set", "effective"):
            yield from (f"{kind}: {line}" for line in _changes(section[kind]))
    elif key == "bindings":
        for side in ("inputs", "outputs"):
            yield from (f"{side}: {line}" for line in _named_text(section[side]))
    else:
        for part in ("operator_sets", "operators"):
            yield from (f"{part.replace('_', ' ')}: {line}" for line in _changes(section.get(part, {})))
        yield from _named_text(section)


def _named_text(section: _Json) -> Iterator[str]:
    """Return names that exist only on one side, with the signs of `diff`, and changes for other names."""
    for sign, part in (("-", "removed"), ("+", "added")):
        yield from _limited([f"{sign} {escape_unprintable(name)}" for name in section.get(part, ())])
    yield from _limited(
        [
            f"{escape_unprintable(name)}: {'; '.join(_changes(changes))}"
            for name, changes in section.get("changed", {}).items()
        ]
    )
    if "order" in section:
        yield "the same in another order"


def _changes(changes: _Json) -> Iterator[str]:
    if "different" in changes:
        # Differences of constants are counts of elements, because values would fill the terminal.
        text = f"{changes['different']} of {changes['of']} elements differ"
        if "max_abs_difference" in changes:
            text += f", by at most {changes['max_abs_difference']:g}"
        yield text
    for key, values in changes.items():
        if key in _COUNTS:
            continue
        for path, before, after in _parts(key, *values):
            one, two = _shown(before, after)
            yield f"{escape_unprintable(path)}  {one} -> {two}"


def _parts(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of each part that differs: of mappings, and of lists of these."""
    if before == after:
        return
    both = (before, after)
    if all(isinstance(value, dict) and value for value in both):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _parts(f"{path}.{name}", before.get(name), after.get(name))
    elif all(isinstance(value, list) and any(isinstance(item, dict) for item in value) for value in both):
        for place, (one, two) in enumerate(zip_longest(before, after)):
            yield from _parts(f"{path}[{place}]", one, two)
    else:
        yield path, before, after


def _shown(*values: Any) -> list[str]:
    """Write different values as different texts; long texts begin shortly before their first difference."""
    texts = ["(none)" if value is None else value_text(value) or "(empty)" for value in values]
    if len(set(texts)) < len(texts):
        # A number and its text, for example.
        texts = [json.dumps(value) for value in values]
    start = 0
    if max(map(len, texts)) > _LONGEST:
        start = max(0, len(commonprefix(texts)) - _LONGEST // 4)  # noqa: RUF071 (no paths)
    return [_cut(text, start) for text in texts]


def _cut(text: str, start: int) -> str:
    before, after = "..." if start else "", "..." if len(text) > start + _LONGEST else ""
    return f"{before}{escape_unprintable(text[start : start + _LONGEST])}{after}"


def _sets_text(a: list[_Json], b: list[_Json]) -> Iterator[str]:
    """Return the sets of shapes of one side, with the signs of `diff`; bindings of one shape are omitted."""
    every = [*a, *b]
    names = dict.fromkeys(name for shapes in every for name in shapes)
    differing = [name for name in names if any(shapes.get(name) != every[0].get(name) for shapes in every)]

    def text(shapes: _Json) -> str:
        shown = (name for name in differing or names if name in shapes)
        return ", ".join(f"{escape_unprintable(name)} {shape_text(shapes[name])}" for name in shown)

    lines = [f"- {text(shapes)}" for shapes in a if shapes not in b]
    lines += [f"+ {text(shapes)}" for shapes in b if shapes not in a]
    yield from _limited(lines or ["the same in another order or number"])


def _limited(lines: list[str]) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"... and {len(lines) - _MOST} more"


#: most elements of a list that is shown in full
_SHOWN: Final = 16
#: TensorProto.data_location
_EXTERNAL: Final = 1
#: most nested graphs; protobuf reads at most 100 nested messages
_DEEPEST: Final = 32


def graph_of(qpc: Qpc) -> onnx.ModelProto | None:
    """Read the graph of a container; None if another compiler wrote the container.

    Raises QpcFormatError if the bytes are not an ONNX model.
    """
    if not qpc.is_program:
        return None
    data = qpc.graph
    if data is None:
        return None
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data.tobytes())
    except DecodeError as error:
        raise QpcFormatError(f"the graph is not an ONNX model ({error})", code="qpc.graph") from error
    try:
        check_texts(model)
    except CompileError as error:
        raise QpcFormatError(f"the graph is damaged: {error.message}", code="qpc.graph") from error
    return model


def small_constants(model: onnx.ModelProto | None) -> dict[str, NDArray[Any]]:
    """Return the initializers inside the graph; types that numpy does not have as bytes."""
    if model is None:
        return {}
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
    sides = one, two = dict(_nodes(a)), dict(_nodes(b))
    opsets = [{entry.domain or "ai.onnx": entry.version for entry in model.opset_import} for model in (a, b)]
    counts = [Counter(map(_kind, side.values())) for side in sides]
    found = _named(one, two, lambda x, y, _: _values(_described(x), _described(y)))
    for part, side in (("removed", one), ("added", two)):
        if part in found:
            found[part] = [f"{key} ({_kind(side[key])})" for key in found[part]]
    # An operator set that one side does not have is None there, and a missing count of operators is 0.
    domains, kinds = (sorted(one.keys() | two.keys()) for one, two in (opsets, counts))
    heads = {
        "operator_sets": _values(*({domain: side.get(domain) for domain in domains} for side in opsets)),
        "operators": _values(*({kind: side[kind] for kind in kinds} for side in counts)),
    }
    return {**{key: value for key, value in heads.items() if value}, **found}


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


def _described(node: onnx.NodeProto) -> _Json:
    return {
        "operator": _kind(node),
        "inputs": list(node.input),
        "outputs": list(node.output),
        **{f"attribute {attribute.name}": _value(attribute) for attribute in node.attribute},
    }


def _value(attribute: onnx.AttributeProto) -> Any:
    """Describe the value of an attribute; long values by their digest."""
    kind = attribute.type
    if kind in {AttributeProto.FLOAT, AttributeProto.INT}:
        return helper.get_attribute_value(attribute)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "backslashreplace")[:200]
    if kind in {AttributeProto.FLOATS, AttributeProto.INTS}:
        values = list(helper.get_attribute_value(attribute))
        return values if len(values) <= _SHOWN else [*values[:_SHOWN], _digest(attribute)]
    if kind in {AttributeProto.GRAPH, AttributeProto.GRAPHS}:
        # Nodes of a nested graph are compared one by one.
        return "graph"
    return _digest(attribute)


def _digest(attribute: onnx.AttributeProto) -> str:
    content = attribute.SerializeToString(deterministic=True)
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:16]}"
