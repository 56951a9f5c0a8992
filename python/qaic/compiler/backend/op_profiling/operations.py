"""The operations of a program, for segment ``opstatsdesc.open``.

The operations are the nodes of the engine's optimized graph, which is created with the settings of a load.
Their numbers are their places: those of a nested graph follow the node that has it. A loaded program
knows its operations by the values of the program that they give and by their places between these. Another
engine, or another processor, may optimize otherwise; what it runs that is not in the list is counted to the
last one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import AttributeProto, defs, helper, inliner, numpy_helper

from qaic import _core
from qaic.compiler.backend.cpu.qpc_writer import declared, light_form, prove, write_unchecked
from qaic.compiler.backend.op_profiling.node_precisions import rounded_nodes
from qaic.compiler.backend.op_profiling.provenance import Origins
from qaic.compiler.backend.op_profiling.values import ValueTable
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_walk import all_graphs, all_nodes, subgraphs
from qaic.compiler.ir.model import Model, OpsTable
from qaic.support.atomic_io import work_folder

_log = logging.getLogger("qaic.compiler")

#: assumed iterations of a loop whose count is not known before the run; of a longer one, the first
_UNKNOWN_TRIPS: Final = 100
#: events of a run after which the engine stops reporting
_MOST_EXECUTIONS: Final = 1_000_000
#: room for executions of nodes that another engine adds and this one does not
_SPARE: Final = 16
#: most elements of an attribute that are shown
_SHOWN: Final = 16

#: name of the operation that represents all operations without a separate record
_OTHERS: Final = "engine"
_MEMORY: Final = "HOST"


def engine_graph(program: Path) -> onnx.ModelProto:
    """Return the graph that the engine runs for a program, without the values of larger constants.

    Blocking: as long as a load of the program. Raises DeviceError if the engine cannot load the program.
    """
    # The engine writes the weights too.
    with work_folder(program.parent) as folder:
        return onnx.load(_core.save_optimized_graph(program, str(folder)), load_external_data=False)


def named_throughout(model: onnx.ModelProto, optimized: onnx.ModelProto) -> onnx.ModelProto | None:
    """Expand the standard functions that the engine expands, because it gives their nodes no names.

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


def describe_operations(
    model: onnx.ModelProto,
    optimized: onnx.ModelProto,
    owners: Mapping[str, tuple[str, ...]],
    specialized: Sequence[Sequence[onnx.ModelProto]],
) -> OpsTable:
    """Describe the operations that the engine runs for a program.

    `owners` maps a node of the program to the user's nodes that it computes. `specialized` has, for
    each set of sizes, the program with inferred types and shapes, and other facts that identify some.
    """
    return _Table(model.graph, optimized, owners, specialized).made()


class _Table:
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
        # Other nodes are preferred to nodes that only make its constants.
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
        """Return the precision of an operation on a card; emulated float16 is float32 that is rounded."""
        results = [] if main_origin is None else self._sources[main_origin].output
        emulated = next((self._rounded[name] for name in results if name in self._rounded), None)
        return emulated or next((dtype for name in outputs if (dtype := self._values.get(name).dtype)), "")

    def _operands(self, node: onnx.NodeProto) -> list[str]:
        """Describe operands in the form that traces have."""
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
    """List, per node in the order of `all_nodes`, the places of the nodes that compute what it reads."""
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
    numbers = {tensor.name: tensor for inner in all_graphs(graph) for tensor in inner.initializer}
    for node in all_nodes(graph.node):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            numbers[node.output[0]] = node.attribute[0].t

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            inside = sum(count(inner.node) for inner in subgraphs(node))
            total = min(total + 1 + inside * _trips(node, numbers), _MOST_EXECUTIONS)
        return total

    return count(graph.node)


def _trips(node: onnx.NodeProto, numbers: Mapping[str, onnx.TensorProto]) -> int:
    """Return how often a node executes its nested graphs."""
    if node.op_type == "If":
        return 1
    limit = numbers.get(node.input[0]) if node.op_type == "Loop" and node.input else None
    if limit is None or limit.data_location == limit.EXTERNAL or list(limit.dims) not in ([], [1]):
        return _UNKNOWN_TRIPS
    return max(int(numpy_helper.to_array(limit).reshape(-1)[0]), 1)


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
    """Return the name of a node; without its number where the engine has made and numbered it."""
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


#: how deep the standard functions are nested that an engine has no kernel for
_FUNCTION_DEPTH: Final = 4


@compiler_pass(lambda context: context.measures_operations)
def describe_operations_pass(model: Model, context: Context) -> bool:
    """Let the engine optimize the program, and record its operations by name."""
    if model.provenance is None:
        return False
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
        model.operations = describe_operations(model.proto, optimized, owners, model.described)
    return True


def _optimized(path: Path, model: Model, context: Context) -> onnx.ModelProto:
    """Return the engine's graph of a container that is written for this purpose."""
    write_unchecked(path, model, context.options)
    prove(path, model, light_form(model), context.options)
    optimized = engine_graph(path)
    path.unlink()
    return optimized
