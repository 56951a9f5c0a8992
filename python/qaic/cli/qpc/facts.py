"""Facts that ``qaic-qpc`` prints about a container, as values that JSON can hold.

A container with a damaged part is also described; ``problems`` lists the parts that cannot be read.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from qaic.cli.stored_weights import stored_weights
from qaic.compiler.ir.elem_types import CODES, tensor_bytes
from qaic.errors import QaicError
from qaic.options.spec import Effect
from qaic.options.table import find
from qaic.qpc import DataType, Qpc
from qaic.qpc.initializers import check_records
from qaic.support.program_names import STATS_OUTPUT
from qaic.support.text import counted

_QUANTIZING: Final = ("convert_to_quantize", "load_profile", "external_quantization_file")
_DEFAULT_SCHEMA: Final = "symmetric_with_uint8"

#: operators whose results are quantized integers, and operators that only convert to and from them
_STORING: Final = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
_CONVERTING: Final = _STORING | {"Cast", "Constant", "DequantizeLinear"}

#: operators that multiply stored integers
_INTEGER: Final = frozenset({"ConvInteger", "MatMulInteger"})

#: suffix of the name of a result before it is quantized
_UNQUANTIZED: Final = "/float"


def without_effect(options: Mapping[str, Any]) -> list[str]:
    """List the set options that only affect hardware, among the options of this version."""
    found = ((name, find(name)) for name in options)
    return [name for name, spec in found if spec is not None and spec.effect is Effect.RECORDED]


def asks_for_integers(options: Mapping[str, Any]) -> bool:
    """Return True if the options request a quantized program."""
    return any(options.get(name) for name in _QUANTIZING)


def integer_coverage(graph: bytes) -> tuple[int, int] | None:
    """Count the nodes of a program's graph that compute with quantized integers, and all that compute.

    `graph` is a serialized ONNX model from a file, with any content. Returns None if the graph cannot be read
    or has no nodes.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        nodes = onnx.load_from_string(graph).graph.node
    except DecodeError:
        return None
    makers = {name: node.op_type for node in nodes for name in node.output if name}
    readers: dict[str, set[str]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    stored = {name for name, maker in makers.items() if maker in _STORING}
    integer = computing = 0
    for node in nodes:
        if node.op_type in _CONVERTING:
            continue
        computing += 1
        on_integers = bool(stored.intersection(node.input))
        if on_integers:
            stored.update(node.output)
        # The result of a floating-point node keeps its name.
        between = any(makers.get(name) == "DequantizeLinear" for name in node.input) and any(
            _UNQUANTIZED in name and "QuantizeLinear" in readers.get(name, ()) for name in node.output
        )
        integer += on_integers or between or node.op_type.startswith("QLinear") or node.op_type in _INTEGER
    return (integer, computing) if computing else None


def precision(options: Mapping[str, Any], coverage: tuple[int, int] | None = None) -> str:
    """Summarize the precision of a program.

    `options` are the options of the compilation, from a file with any content. `coverage` is the number of
    nodes that compute with integers, and of all nodes; None if unknown.
    """
    parts = ["float16" if options.get("convert_to_fp16") is True else "as in the model"]
    if asks_for_integers(options):
        both = options.get("quantization_schema", _DEFAULT_SCHEMA)
        activations = options.get("quantization_schema_activations", both)
        constants = options.get("quantization_schema_constants", both)
        method = options.get("quantization_calibration", "None")
        ranges = "whole ranges" if method == "None" else f"calibrated by {method}"
        schemas = f"{activations}" if activations == constants else f"{activations}, constants {constants}"
        wanted = options.get("quantization_precision", "Int8")
        if coverage is not None and not coverage[0]:
            parts.append(f"{wanted} for none of {counted(coverage[1], 'node')}")
        else:
            share = "" if coverage is None else f" for {coverage[0]} of {counted(coverage[1], 'node')}"
            parts.append(f"{wanted}{share} ({schemas}, {ranges}{_granularity(options)})")
    for name, text in (
        ("execute_nodes_in_fp16", "float16 for {}"),
        ("keep_original_precision_for_nodes", "unchanged for {}"),
    ):
        kinds = options.get(name)
        if isinstance(kinds, list) and kinds:
            parts.append(text.format(", ".join(map(str, kinds))))
    for name, text in (
        ("node_precision_info_file", "single nodes by a file"),
        ("mxfp6_matmul", "weights of matrix products in MXFP6"),
        ("mxint8_kv_cache", "retained state in MXINT8"),
        ("allow_mxint8_mdp_io", "traffic between partitions in MXINT8"),
    ):
        if options.get(name):
            parts.append(text)
    return "; ".join(parts)


def _granularity(options: Mapping[str, Any]) -> str:
    names = {"enable_channelwise": "by channel", "enable_rowwise": "by row"}
    return "".join(f", {text}" for name, text in names.items() if options.get(name) is True)


_Json = dict[str, Any]

#: element type codes; quantized types are shown by scale and offset, so they have no name
_TYPES: Final = {kind: kind.name.removesuffix("_Q").lower() for kind in DataType if kind is not DataType.NONE}
_QUANTIZED: Final = frozenset({2, 3, 4, 5})
_STAGES: Final = ("convert", "to_d32", "from_d32", "dequantize", "transpose", "quantize", "copy")
_COPY: Final = 6


def facts(qpc: Qpc) -> _Json:
    """Describe a container and the containers inside it."""
    problems: list[str] = []
    described: _Json = {
        "file": None if qpc.path is None else str(qpc.path),
        "bytes": qpc.header["size"],
        "kind": "program" if qpc.is_program else "slices",
    }
    if qpc.is_program:
        described |= _program(qpc, problems)
    described["segments"] = segments(qpc)
    if not qpc.is_program:
        inner = {name: _readable(problems, partial(_slice, qpc, name), name) for name in qpc.slices}
        described["slices"] = {name: found for name, found in inner.items() if found is not None}
    described["warnings"] = list(qpc.warnings)
    described["diagnostics"] = [
        {"severity": item.severity, "code": item.code, "message": item.message, "nodes": list(item.nodes)}
        for item in qpc.diagnostics
    ]
    described["problems"] = problems
    return described


def _slice(qpc: Qpc, name: str) -> _Json:
    return facts(qpc.slices[name])


def segments(qpc: Qpc) -> list[_Json]:
    """List the payloads in the order of the table."""
    return [
        {"name": segment.name, "bytes": segment.size, "start": segment.start, "offset": segment.offset}
        for segment in qpc.segments.values()
    ]


def _program(qpc: Qpc, problems: list[str]) -> _Json:
    plan = _readable(problems, lambda: qpc.plan, "plan") or {}
    network = qpc.network_descriptor
    described: _Json = {
        "target": _readable(problems, lambda: qpc.target),
        "producer": plan.get("producer"),
        "name": network.get("network_name", ""),
        "cores": network.get("num_cores", 0),
        "devices": _devices(plan),
        "batch": network.get("batch_size", 0),
        "stats": _stats(network),
        "memory_bytes": _readable(problems, lambda: qpc.program_info.total_required_memory, "buffers"),
        "inputs": _bindings(qpc, "inputs", plan),
        "outputs": _bindings(qpc, "outputs", plan),
        "shapes": [_shapes(entry, network) for entry in network.get("allowed_shapes", ())],
        "dma_buffers": [
            {
                "index": index,
                "direction": "out" if buffer.get("dir", 0) else "in",
                "bytes": buffer.get("size", 0),
                "holds": _held(index, network, plan),
            }
            for index, buffer in enumerate(network.get("dma_buffers", ()))
        ],
        "constants": _readable(problems, lambda: _constants(qpc), "constants"),
        "metadata": _readable(problems, lambda: _metadata(qpc), "metadata"),
        "options": _readable(problems, lambda: qpc.options),
        "effective_options": plan.get("effective", {}),
        "weights": _readable(problems, lambda: _weights(qpc)),
        "stored_weights": _readable(problems, lambda: stored_weights(qpc), "stored weights"),
    }
    options = described["options"] or {}
    described["without_effect"] = without_effect(options) if described["target"] == "cpu" else []
    graph = qpc.graph if described["target"] == "cpu" and asks_for_integers(options) else None
    coverage = None if graph is None else integer_coverage(graph.tobytes())
    described["precision"] = precision(options, coverage) if described["target"] == "cpu" else None
    return described


def _devices(plan: _Json) -> int:
    """Return the number of devices that run the program together; the plan is not trusted."""
    devices = plan.get("devices", 1)
    return devices if isinstance(devices, int) and devices > 0 else 1


def _readable(problems: list[str], read: Callable[[], Any], what: str | None = None) -> Any:
    """Read a part; ``what`` is its name in problems, ``None`` if another part has the same name."""
    try:
        return read()
    except QaicError as error:
        if what is not None:
            problems.append(f"{what}: {error.message}")
        return None


def _bindings(qpc: Qpc, side: str, plan: _Json) -> list[_Json]:
    incoming = side == "inputs"
    edges = plan.get(side)
    rows = []
    for index, binding in enumerate(qpc.network_descriptor.get(side, ())):
        # The caller's buffer is at the start of an input's sequence, and at the end of an output's.
        tensor = binding.get("io_initial" if incoming else "io_transformed", {})
        dtype = _type_name(tensor)
        if isinstance(edges, list) and index < len(edges) and isinstance(edges[index], dict):
            # The descriptor has no type for booleans; the plan lists boolean tensors.
            dtype = str(edges[index].get("dtype", dtype))
        stages = binding.get("transformseq", ())
        copy = next((stage for stage in stages if stage.get("kind") == _COPY), None)
        rows.append(
            {
                "name": binding.get("name", ""),
                "dtype": dtype,
                "shape": tensor.get("dims", []),
                "bytes": _bytes(tensor),
                "partial": binding.get("is_partial_allowed", False),
                "dma": None if copy is None else _place(copy),
                "stages": [_stage(stage) for stage in stages],
            }
        )
    return rows


def _type_name(tensor: _Json) -> str:
    code = tensor.get("type", 0)
    return _TYPES.get(code, f"type {code}")


def _bytes(tensor: _Json) -> int | None:
    """Return the size of a tensor; this format ignores dims of 0."""
    code = CODES.get(_type_name(tensor))
    size = None if code is None else tensor_bytes(code, [1])
    for dim in tensor.get("dims", ()):
        if size is None or dim < 0:
            return None
        size *= dim or 1
    return size


def _place(copy: _Json) -> _Json:
    where = copy.get("copy_dma_buffer") or {}
    return {"buffer": where.get("buffer_num", 0), "offset": where.get("offset", 0)}


def _stage(step: _Json) -> _Json:
    kind = step.get("kind", 0)
    stage: _Json = {
        "kind": _STAGES[kind] if 0 <= kind < len(_STAGES) else f"kind {kind}",
        "dtype": _type_name(step),
        "shape": step.get("dims", []),
    }
    if step.get("type", 0) in _QUANTIZED:
        stage |= {"scale": step.get("scale", 0.0), "offset": step.get("offset", 0)}
    if "shuffle" in step:
        stage["shuffle"] = step["shuffle"]
    return stage


def _shapes(entry: _Json, network: _Json) -> _Json:
    names = [binding.get("name", "") for side in ("inputs", "outputs") for binding in network.get(side, ())]
    return dict(zip(names, (shape.get("dims", []) for shape in entry.get("shapes", ())), strict=False))


def _stats(network: _Json) -> _Json | None:
    """Describe the measurements of the program; None if there are none."""
    stats = network.get("stats")
    if stats is None:
        return None
    buffer, buffers = stats.get("buff_num", 0), network.get("dma_buffers", ())
    outputs = (binding.get("name", "") for binding in network.get("outputs", ()))
    return {
        "level": stats.get("stats_level", 0),
        "op_level": stats.get("op_stats_level", 0),
        "batch": stats.get("batch_size", 0),
        "operations": sum(stats.get("ops_per_core", ())),
        "ddr": stats.get("count_ddr_bw", False),
        "pmu_events": [f"{event & 0xFFFF_FFFF:x}" for event in stats.get("pmu_events", ())],
        "dma_buffer": buffer,
        "bytes": buffers[buffer].get("size", 0) if buffer < len(buffers) else None,
        "output": next((name for name in outputs if name.startswith(STATS_OUTPUT)), None),
    }


def _held(index: int, network: _Json, plan: _Json) -> str:
    """Return a description of a DMA buffer's contents; the plan is not trusted."""
    if index == plan.get("control_buffer"):
        return "control"
    stats = network.get("stats")
    return "statistics" if stats is not None and index == stats.get("buff_num", 0) else "tensors"


def _constants(qpc: Qpc) -> _Json:
    constants = qpc.constants
    return {
        "static_bytes": 0 if constants.static is None else constants.static.nbytes,
        "dynamic_bytes": 0 if constants.dynamic is None else constants.dynamic.nbytes,
        "static_reserved_bytes": constants.descriptor["staticConstantsSize"],
        "dynamic_reserved_bytes": constants.descriptor["dynamicConstantsSize"],
        "initializers": len(qpc.initializers),
    }


def _weights(qpc: Qpc) -> _Json:
    """Sum the bytes of the weights by stored format."""
    stored: dict[str, int] = {}
    for record in check_records((qpc.plan or {}).get("initializers", [])).values():
        kind, size = record.get("encoding") or record.get("dtype"), record.get("size")
        # A damaged size may be any number; sizes larger than any file are ignored.
        if isinstance(kind, str) and isinstance(size, int) and 0 <= size < 1 << 63:
            stored[kind] = stored.get(kind, 0) + size
    return stored


def _metadata(qpc: Qpc) -> _Json | None:
    metadata = qpc.metadata
    if metadata is None:
        return None
    fields = metadata["fields"]
    return {
        "section": metadata["section"],
        "encoding": metadata["encoding"],
        "cores": fields["numNSPs"],
        "hardware": f"{fields['hwVersionMajor']}.{fields['hwVersionMinor']}",
        "semaphores": fields["numSemaphores"],
        "vtcm_bytes": fields["VTCMSize"],
        "l2tcm_bytes": fields["L2TCMSize"],
    }


def value_text(value: object) -> str:
    """Write a value of an option; inside others, lists and mappings are in brackets."""
    match value:
        case dict():
            return ", ".join(f"{key}={_inner_text(item)}" for key, item in value.items())
        case list():
            return ", ".join(map(_inner_text, value))
        case _:
            return _inner_text(value)


def _inner_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return f"{{{value_text(value)}}}"
        case list():
            return f"[{value_text(value)}]"
        case _:
            return str(value)
