"""The operations of a program, for segment ``opstatsdesc.open``.

The operations are the nodes of the engine's optimized graph, which is created with the settings of a load.
Their numbers are their positions: nodes of a nested graph follow the node that contains it. A loaded program
identifies its operations by the values of the program that they compute, and by their positions between
these. Another engine or processor may optimize differently; operations that are not in the list count as the
last one.

The CPU device has no float16 or bfloat16 arithmetic: a program computes in float32 and rounds. The result of
a node ``y`` is called ``y/unrounded``. It is cast to the format and back, and the result of the last cast has
the name ``y``. By element types alone, such a node would count as float32.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import onnx
from onnx import AttributeProto, defs, helper, inliner

from qaic import _core
from qaic.compiler.backend.op_profiling.provenance import Origins
from qaic.compiler.backend.op_profiling.values import ValueTable
from qaic.compiler.backend.qpc_writer import declared, light_form, prove, write_unchecked
from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.elem_types import type_name
from qaic.compiler.ir.graph_walk import (
    DEVICE_DOMAIN,
    all_graphs,
    all_nodes,
    attribute_of,
    standard,
    subgraphs,
    usages,
)
from qaic.compiler.ir.model import Context, Model, OpsTable, compiler_pass
from qaic.compiler.ir.precision import (
    FLOAT_FORMATS,
    UNROUNDED,
    cast_target,
    parameter_inputs,
    selected_inputs,
)
from qaic.support.atomic_io import work_folder

_log = logging.getLogger("qaic.compiler")

#: assumed iterations of a loop with an unknown count; only the first ones of a longer loop are recorded
_UNKNOWN_TRIPS: Final = 100
#: events of a run after which the engine stops reporting
_MOST_EXECUTIONS: Final = 1_000_000
#: spare records for executions of nodes that another engine adds
_SPARE: Final = 16
#: most elements of an attribute that are shown
_SHOWN: Final = 16

#: name of the operation that represents all operations without a separate record
_OTHERS: Final = "engine"
_MEMORY: Final = "HOST"


def named_throughout(model: onnx.ModelProto, optimized: onnx.ModelProto) -> onnx.ModelProto | None:
    """Expand the standard functions that the engine expands, because the engine gives their nodes no names.

    Returns a graph with the same operators and results; None if there is nothing to expand.
    """
    if all(node.name for node in all_nodes(optimized.graph.node)):
        return None
    origins = Origins(model.graph, optimized.graph)
    by_name = {node.name: node for node in all_nodes(model.graph.node)}
    nameless = (place for place, node in enumerate(origins.engine_nodes) if not node.name)
    sources = [by_name[name] for place in nameless for name in origins.computed[place]]
    functions = sorted(
        {(node.domain, node.op_type) for node in sources if defs.has(node.op_type, node.domain)}
    )
    if not functions:
        return None
    try:
        written_out: onnx.ModelProto = inliner.inline_selected_functions(
            model, functions, inline_schema_functions=True
        )
    except Exception as error:  # noqa: BLE001 - of any kind; what has no name is then counted to the last operation
        _log.debug("standard functions cannot be expanded: %s", error)
        return None
    return written_out


class _Table:
    """Describes the operations that the engine runs for a program.

    `owners` maps a node of the program to the user's nodes that it computes. `specialized` contains, for
    each set of sizes, the finished and the earlier program with inferred types and shapes.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        program: onnx.ModelProto,
        owners: Mapping[str, tuple[str, ...]],
        specialized: Sequence[Sequence[onnx.ModelProto]],
    ) -> None:
        self._graph = graph
        self._optimized = optimized = program.graph
        self._owners = owners
        self._sources = {node.name: node for node in all_nodes(graph.node)}
        self._origins = Origins(graph, optimized)
        self._values = ValueTable(specialized)
        self._constants = {tensor.name for inner in all_graphs(optimized) for tensor in inner.initializer}
        for inner in all_graphs(optimized):
            self._values.add_constants(inner.initializer)
        for new, old in self._origins.renamed.items():
            self._values.rename(old, new)
        self._values.complete(program)
        # For each operation, the node it is named after.
        self._main_origins = [self._main_origin(place) for place in range(len(self._origins.engine_nodes))]
        self._macs = self._multiplications()
        floats = {
            name
            for node in graph.node
            for name in node.output
            if self._values.get(name).elem_type == onnx.TensorProto.FLOAT
        }
        self._rounded = rounded_nodes(graph, floats)

    def made(self) -> OpsTable:
        nodes = self._origins.engine_nodes
        deps = _dependencies(self._optimized)
        ops = [self._op(place, deps[place]) for place in range(len(nodes))]
        others = {"name": f"{_OTHERS}/__{len(ops)}", "kind": _OTHERS, "engine_name": "*"}
        ops.append({**others, "group": 0, "memory": _MEMORY, "types": "", "output_bytes": 0})
        # An engine that fuses nothing runs the nodes of the program.
        executions = max(_executions(self._optimized), _executions(self._graph)) + _SPARE
        return OpsTable(ops, min(executions, _MOST_EXECUTIONS))

    def _op(self, place: int, deps: Sequence[int]) -> dict[str, Any]:
        node = self._origins.engine_nodes[place]
        computed = self._origins.computed[place]
        main_origin = self._main_origins[place]
        path = node.name or node.op_type if main_origin is None else self._user_path(main_origin)
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        values = [self._values.get(name) for name in outputs]
        sizes = [value.nbytes for value in values]
        entry: dict[str, Any] = {
            "name": f"{path}/__{place}",
            "engine_name": _without_number(node),
            "nodes": list(dict.fromkeys(owner for name in computed for owner in self._owners[name])),
            # The engine renames the nodes it creates at each load, so only these identify an operation again.
            "outputs": [name for name in outputs if name in self._origins.values],
            "kind": node.op_type,
            "group": 0,
            "memory": _MEMORY,
            "types": self._types((*inputs, *outputs)),
            "precision": self._precision(main_origin, outputs),
            "shape": ", ".join(f"[{value.shape}]" for value in values),
            "operands": self._operands(node),
            "output_bytes": 0 if None in sizes else sum(size or 0 for size in sizes),
            "macs": self._macs[place],
            "constant_bytes": sum(
                self._values.get(name).nbytes or 0 for name in set(inputs) if name in self._constants
            ),
            "attributes": _attributes(node),
            "deps": [{"core": 0, "oc": maker, "data": True} for maker in deps],
        }
        # A descriptor omits empty entries.
        return {key: value for key, value in entry.items() if value or key in _ALWAYS}

    def _user_path(self, name: str) -> str:
        """Return the user's name of a node of the program, which may do the work of several nodes."""
        owners = self._owners.get(name, ())
        # Other nodes are preferred to nodes that only compute its constants.
        return name if not owners or name in owners else owners[0]

    def _main_origin(self, place: int) -> str | None:
        """Choose the node that an operation is named after, among those it computes."""
        named = self._origins.main_origin(place)
        computed = self._origins.computed[place]
        if named is not None or not computed:
            return named
        kind = self._origins.engine_nodes[place].op_type
        return max(
            computed,
            key=lambda name: (
                # `FusedConv` computes a `Conv`.
                self._sources[name].op_type in kind,
                self._values.macs(self._sources[name]),
                computed.index(name),
            ),
        )

    def _multiplications(self) -> list[int]:
        """Count the multiplications of each operation; no node counts for two of them."""
        holders: dict[str, tuple[bool, bool, int]] = {}
        for place, names in enumerate(self._origins.computed):
            kind, main_origin = self._origins.engine_nodes[place].op_type, self._origins.main_origin(place)
            for name in names:
                claim = (name == main_origin, self._sources[name].op_type in kind, place)
                holders[name] = max(claim, holders.get(name, claim))
        found = [0] * len(self._main_origins)
        for name, (_, _, place) in holders.items():
            found[place] += self._values.macs(self._sources[name])
        return found

    def _types(self, names: Iterable[str]) -> str:
        types = {value.elem_type: value.dtype for value in map(self._values.get, names)}
        return ", ".join(types[code] for code in sorted(types) if types[code])

    def _precision(self, main_origin: str | None, outputs: Sequence[str]) -> str:
        """Return the precision of an operation on a card; emulated float16 is rounded float32."""
        results = [] if main_origin is None else self._sources[main_origin].output
        emulated = next((self._rounded[name] for name in results if name in self._rounded), None)
        return emulated or next((dtype for name in outputs if (dtype := self._values.get(name).dtype)), "")

    def _operands(self, node: onnx.NodeProto) -> list[str]:
        """Describe operands in the form of traces."""
        found = []
        for direction, names in (("in", node.input), ("out", node.output)):
            for number, name in enumerate(names):
                if not name:
                    continue
                value = self._values.get(name)
                size = "N/A" if value.nbytes is None else f"{value.nbytes / 1024:.2f}KB"
                role = f"Src{number}" if direction == "in" else f"Dest{number or ''}"
                dtype = value.dtype or "N/A"
                found.append(f"{direction} [{_MEMORY}] {role} {name} {dtype} <{value.shape}> {size}")
        return found


#: entries that an operation has even if empty
_ALWAYS: Final = frozenset({"name", "kind", "group", "memory", "types", "output_bytes"})


def _dependencies(graph: onnx.GraphProto) -> list[list[int]]:
    """List, per node in the order of `all_nodes`, the positions of the nodes that compute its operands."""
    found: list[list[int]] = []

    def walk(nodes: Iterable[onnx.NodeProto], outer: Mapping[str, int]) -> None:
        makers = dict(outer)
        for node in nodes:
            place = len(found)
            found.append(sorted({makers[name] for name in node.input if name in makers}))
            for inner in subgraphs(node):
                own = {value.name for value in inner.input}
                walk(inner.node, {name: maker for name, maker in makers.items() if name not in own})
            makers.update((name, place) for name in node.output if name)

    walk(graph.node, {})
    return found


def _executions(graph: onnx.GraphProto) -> int:
    """Count how often the nodes of a graph can be executed in a run."""
    read = constant_reader(graph)

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            inside = sum(count(inner.node) for inner in subgraphs(node))
            total = min(total + 1 + inside * _trips(node, read), _MOST_EXECUTIONS)
        return total

    return count(graph.node)


def _trips(node: onnx.NodeProto, read: Callable[[str], npt.NDArray[Any] | None]) -> int:
    """Return how often a node executes its nested graphs."""
    if node.op_type == "If":
        return 1
    limit = read(node.input[0]) if node.op_type == "Loop" and node.input else None
    return _UNKNOWN_TRIPS if limit is None or limit.size != 1 else max(int(limit.reshape(-1)[0]), 1)


def _attributes(node: onnx.NodeProto) -> str:
    """Write the attributes of a node as ``{Key: value, ...}``; tensors and graphs by their kind."""
    parts = []
    # The engine returns attributes in no particular order.
    for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
        match attribute.type:
            case AttributeProto.GRAPH | AttributeProto.GRAPHS:
                text = "graph"
            case AttributeProto.TENSOR:
                text = f"tensor <{' x '.join(map(str, attribute.t.dims)) or '1'}>"
            case AttributeProto.INTS | AttributeProto.FLOATS | AttributeProto.STRINGS:
                items = helper.get_attribute_value(attribute)
                shown = [_plain(item) for item in items[:_SHOWN]]
                text = f"[{', '.join([*shown, '...'] if len(items) > _SHOWN else shown)}]"
            case AttributeProto.INT | AttributeProto.FLOAT | AttributeProto.STRING:
                text = _plain(helper.get_attribute_value(attribute))
            case _:
                text = "..."
        parts.append(f"{attribute.name}: {text}")
    return f"{{{', '.join(parts)}}}" if parts else ""


def _without_number(node: onnx.NodeProto) -> str:
    """Return the name of a node, without the number that the engine added to a name of its own."""
    kind, token, number = node.name.rpartition("_token_")
    return kind if token and number.isdecimal() and kind == node.op_type else node.name


def _plain(value: object) -> str:
    match value:
        case bytes():
            return value[:100].decode("utf-8", "replace")
        case float():
            return f"{value:g}"
        case _:
            return str(value)


#: depth of nesting of the standard functions that an engine has no kernel for
_FUNCTION_DEPTH: Final = 4


@compiler_pass(lambda context: context.measures_operations)
def describe_operations_pass(model: Model, context: Context) -> None:
    """Let the engine optimize the program, and record its operations by name."""
    if model.provenance is None:
        return
    provenance = model.provenance
    with context.work_folder() as folder:
        with declared(model):
            owners = provenance(model.proto)
        optimized = _optimized(folder / "program.bin", model, context)
        for _ in range(_FUNCTION_DEPTH):
            with declared(model):
                written_out = named_throughout(model.proto, optimized)
                if written_out is not None:
                    model.proto = written_out
                    owners = provenance(written_out)
            if written_out is None:
                break
            optimized = _optimized(folder / "program.bin", model, context)
    with declared(model):
        model.operations = _Table(model.proto.graph, optimized, owners, model.described).made()


def _optimized(path: Path, model: Model, context: Context) -> onnx.ModelProto:
    """Return the graph that the engine runs for a program, without the values of larger constants.

    Blocking, for as long as a load of the program. Raises DeviceError if the engine cannot load the program.
    """
    write_unchecked(path, model, context.options)
    prove(path, model, light_form(model), context.options)
    # The engine also writes the weights.
    with work_folder(path.parent) as folder:
        optimized = onnx.load(_core.save_optimized_graph(path, str(folder)), load_external_data=False)
    path.unlink()
    return optimized


def rounded_nodes(graph: onnx.GraphProto, floats: set[str]) -> dict[str, str]:
    """Find the nodes of the main graph whose floats are rounded to a format.

    `floats` are the float32 values. Returns a map from the first output of a node to ``float16`` or
    ``bfloat16``. The casts of a rounding belong to its node.
    """
    #: casts to a format -> the value that they round; also constants stored in a format
    narrow = {tensor.name: ("", tensor.data_type) for tensor in graph.initializer}
    #: values in a format
    in_format: dict[str, int] = {}
    formats: dict[str, int] = {}
    #: values before the rounding of their node
    unrounded: dict[str, int] = {}
    for node in graph.node:
        if not node.output:
            continue
        result = node.output[0]
        if float_format := cast_target(node):
            narrow[result] = (node.input[0], float_format)
            formats[result] = float_format
            continue
        own_format = attribute_of(node, "rounding", 0) if node.domain == DEVICE_DOMAIN else 0
        if own_format in FLOAT_FORMATS:
            formats[result] = in_format[result] = own_format
            continue
        source, float_format = narrow.get(node.input[0], ("", 0)) if standard(node, "Cast") else ("", 0)
        if float_format in FLOAT_FORMATS and result in floats:
            if source.startswith(f"{result}{UNROUNDED}"):
                unrounded[source] = float_format
        else:
            float_format = _picked_format(node, floats, in_format)
        if float_format in FLOAT_FORMATS:
            formats[result] = float_format
            in_format.update((name, float_format) for name in node.output if name in floats)
    readers = usages(graph.node)
    for node in reversed(graph.node):
        if not node.output or node.output[0] in formats:
            continue
        found = [unrounded[name] for name in node.output if name in unrounded]
        # A node in a format that reads an unrounded value rounds it itself.
        found += [
            formats.get(reader.output[0], 0)
            for name in node.output
            if name in floats
            for reader, position in readers.get(name, ())
            if not cast_target(reader) and position not in parameter_inputs(reader)
        ]
        if any(found):
            formats[node.output[0]] = max(found)
    return {name: type_name(float_format) for name, float_format in formats.items()}


def _picked_format(node: onnx.NodeProto, floats: set[str], in_format: dict[str, int]) -> int:
    """Return the format of all floats from which a node selects its results; 0 for none."""
    for float_format in FLOAT_FORMATS:
        picked = selected_inputs(node, float_format) or ()
        read = [
            node.input[place] for place in picked if place < len(node.input) and node.input[place] in floats
        ]
        if read and all(in_format.get(name) == float_format for name in read):
            return float_format
    return 0
