"""Facts that ``qaic-qpc`` prints about a container, as values that JSON can hold.

A container with a damaged part is still described: what cannot be read is named under ``problems``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qaic.cli.qpc.precision_info import (
    asks_for_integers,
    integer_coverage,
    precision,
    without_effect,
)
from qaic.errors import QaicError
from qaic.qpc.initializers import check_records
from qaic.support.profiling_types import STATS_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from qaic.qpc import Qpc

_Json = dict[str, Any]

#: element type codes; quantized ones show their scale and offset, not a name of their own
_TYPES: Final = {
    0: "float32",
    1: "float16",
    2: "int8",
    3: "uint8",
    4: "int16",
    5: "int32",
    6: "int32",
    7: "int64",
    8: "int8",
    11: "bfloat16",
}
_WIDTHS: Final = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
_QUANTIZED: Final = frozenset({2, 3, 4, 5})
_STAGES: Final = ("convert", "to_d32", "from_d32", "dequantize", "transpose", "quantize", "copy")
_COPY: Final = 6


def facts(qpc: Qpc) -> _Json:
    """Describe a container, and those inside it."""
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
                "direction": _direction(buffer),
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
    }
    options = described["options"] or {}
    described["without_effect"] = without_effect(options) if described["target"] == "cpu" else []
    graph = qpc.graph if described["target"] == "cpu" and asks_for_integers(options) else None
    coverage = None if graph is None else integer_coverage(graph.tobytes())
    described["precision"] = precision(options, coverage) if described["target"] == "cpu" else None
    return described


def _devices(plan: _Json) -> int:
    """Return the number of devices that run the program as one; a plan may hold anything."""
    devices = plan.get("devices", 1)
    return devices if isinstance(devices, int) and devices > 0 else 1


def _readable(problems: list[str], read: Callable[[], Any], what: str | None = None) -> Any:
    """Read a part; ``what`` names it among the problems, ``None`` where another part names the same one."""
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
        # The caller's side is the start of an input's sequence, the end of an output's.
        tensor = binding.get("io_initial" if incoming else "io_transformed", {})
        dtype = _type_name(tensor)
        if isinstance(edges, list) and index < len(edges) and isinstance(edges[index], dict):
            # The descriptor has no booleans; the plan knows which they are.
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
    """Size of a tensor; dims of 0 do not count in this format."""
    size = _WIDTHS.get(_type_name(tensor))
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
    """Describe what the program measures; None where that is nothing."""
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
    """Return a description of a DMA buffer's contents; a plan may hold anything."""
    if index == plan.get("control_buffer"):
        return "control"
    stats = network.get("stats")
    return "statistics" if stats is not None and index == stats.get("buff_num", 0) else "tensors"


def _direction(buffer: _Json) -> str:
    return "out" if buffer.get("dir", 0) else "in"


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
    """Add up the bytes of the weights by the format they are stored in."""
    stored: dict[str, int] = {}
    for record in check_records((qpc.plan or {}).get("initializers", [])).values():
        kind, size = record.get("encoding") or record.get("dtype"), record.get("size")
        # A size may be any number; one that no file has tells nothing.
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
