"""Writes a model program as a container.

The same model, options and version give the same bytes: messages are serialized deterministically, and
nothing depends on paths, times or the order of a hash table. Constants are streamed; the rest is small and
built in memory.
"""

import contextlib
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnx

from qaic import _core
from qaic.compiler.backend import descriptor
from qaic.compiler.backend.descriptor import DmaBuffers, dma_buffers
from qaic.compiler.backend.engine_refusal import raise_with_node
from qaic.compiler.backend.op_profiling.settings import StatsSettings, settings_of
from qaic.compiler.diagnostics import messages
from qaic.compiler.diagnostics.messages import Diagnostic, changed, refuse
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.ir.constants.packed import JoinedSource, as_packed
from qaic.compiler.ir.constants.weights import TensorSource, Weight, initializers_of
from qaic.compiler.ir.elem_types import BFLOAT16, INTERFACE_TYPES, type_name
from qaic.compiler.ir.graph_walk import has_loops
from qaic.compiler.ir.interface import MAX_BYTES, TensorSpec
from qaic.compiler.ir.model import Model, StateRows
from qaic.errors import CompileError
from qaic.options.table import CompileOptions
from qaic.support.json import canonical_json
from qaic.support.program_names import DIAGNOSTICS_SECTION, GRAPH_SECTION, OPERATIONS_SECTION, PLAN_SECTION

#: version of a plan that every reader can run
PLAN_VERSION: Final = 1
#: version of a plan with specializations, retained state or weights in blocks
STATEFUL_PLAN_VERSION: Final = 2
#: version of a plan whose graph computes rows of the state instead of the whole next state
ROWS_PLAN_VERSION: Final = 3
#: version of a plan with weights in a layout of the device's kernels
STORED_PLAN_VERSION: Final = 4
#: CRC-32 of the other segments, in the order of the table; only with `qpc_crc`
CHECKSUMS_SEGMENT: Final = "openqaic.crc"
#: description of the operations, only in programs that measure operations
OPERATIONS_SEGMENT: Final = "opstatsdesc.open"

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})

#: alignment of payloads in the container and of initializers in `constants.bin`
_ALIGNMENT: Final = 64
#: bytes of weights above which the engine checks the graph without weights, because it would copy every byte
_LARGE_CONSTANTS: Final = 8 << 20
#: protobuf cannot read a message larger than this
_GRAPH_LIMIT: Final = (1 << 31) - 1


def write_program(
    path: Path,
    model: Model,
    options: CompileOptions,
    set_options: Mapping[str, object],
    effective: Mapping[str, object],
    *,
    progress: Progress,
    said: Callable[[], Sequence[Diagnostic]] = tuple,
) -> None:
    """Write a program, and load it once as proof that it loads.

    The file must not exist, and a failure leaves no file. `effective` contains the options with their
    defaults. `said` returns the messages about the weights that were read so far. Raises CompileError if the
    engine cannot run the graph, or the graph is too large, and OSError if the file cannot be written.
    """
    stats = settings_of(options, set_options)
    light = light_form(model)
    notes = {"options": dict(set_options), "effective": dict(effective)}
    progress.stage("write", model.copy_for_tools)
    try:
        if stats is not None and model.operations is not None:
            stats = replace(stats, table=model.operations)
        content, diagnostics = _content_of(model), said()
        _write(path, content, options, notes=notes, stats=stats, diagnostics=diagnostics, progress=progress)
        if diagnostics != (complete := said()):
            # Some weights were converted only now, and may exceed the range of their new type.
            path.unlink()
            _write(path, content, options, notes=notes, stats=stats, diagnostics=complete, progress=progress)
        progress.stage("load")
        prove(path, model, light, options)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_unchecked(path: Path, model: Model, options: CompileOptions) -> None:
    """Write a program for an immediate load, in which the engine checks it. The program measures nothing.

    The file must not exist, and a failure leaves no file.
    """
    _write(path, _content_of(model), options)


def light_form(model: Model) -> Model | None:
    """Return a program without its weights if the engine would copy too many of them."""
    size = sum(weight.source.nbytes for weight in initializers_of(model.weights))
    return _without_weights(model) if size >= _LARGE_CONSTANTS else None


def prove(path: Path, model: Model, light: Model | None, options: CompileOptions) -> None:
    """Let the engine load a program; a program with large weights is first loaded without them.

    Raises CompileError if the engine refuses the program.
    """
    if light is not None:
        trial = path.with_name(f"{path.name.removesuffix('.tmp')}.check.tmp")
        try:
            write_unchecked(trial, light, options)
            _core.check_program(str(trial))
        except CompileError:
            pass
        else:
            return
        finally:
            trial.unlink(missing_ok=True)
    try:
        _core.check_program(str(path))
    except CompileError as error:
        raise_with_node(error, model)


@dataclass(frozen=True, slots=True)
class _Content:
    """Contents that all containers of a program share."""

    model: Model
    #: the graph, whose weights are declared to be in ``constants.bin``
    graph: bytes
    #: byte offset of each weight in ``constants.bin``
    places: Mapping[str, int]
    constants_size: int


def _content_of(model: Model) -> _Content:
    places, constants_size = _place_constants(model)
    with declared(model, places):
        return _Content(model, _serialized(model.proto), places, constants_size)


def _write(
    path: Path,
    content: _Content,
    options: CompileOptions,
    *,
    notes: Mapping[str, object] | None = None,
    stats: StatsSettings | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    progress: Progress | None = None,
) -> None:
    """Write the container; `notes` are entries of the plan that only inform."""
    model, constants_size = content.model, content.constants_size
    batch = descriptor.batch_of(model.inputs)
    buffers = dma_buffers(
        model.inputs,
        model.outputs,
        combine_inputs=options.combine_inputs,
        combine_outputs=options.combine_outputs,
        has_specializations=bool(model.specializations),
        stats=stats,
    )
    network = _core.encode_network_desc(
        json.dumps(
            descriptor.network_descriptor(
                model.name,
                model.inputs,
                model.outputs,
                buffers,
                cores=options.aic_num_cores,
                batch=batch,
                specializations=model.specializations,
                stats=stats,
            )
        )
    )
    metadata = _metadata(model, options, constants_size, buffers)
    described = None if stats is None else stats.operations(model.name)
    operations = None if described is None else canonical_json(described)
    plan = canonical_json(
        {
            **_plan(content, options, batch),
            **_transfers(buffers),
            **_stats(stats, buffers, network if operations is None else operations),
            **(notes or {}),
        }
    )
    sections = [("metadata_fb", metadata), (GRAPH_SECTION, content.graph), (PLAN_SECTION, plan)]
    if operations is not None:
        # The ELF also contains the operations, because a card receives only the ELF and the constants.
        sections.append((OPERATIONS_SECTION, operations))
    if any(item.is_of_program for item in diagnostics):
        sections.append((DIAGNOSTICS_SECTION, messages.encode(diagnostics)))
    elf = _core.encode_elf(sections)
    small = {
        "constantsdesc.bin": struct.pack("<QQBB6x", constants_size, 0, 0, 0),
        "metadata_fb.crc": struct.pack("<I", zlib.crc32(metadata)),
        "network.elf": bytes(elf),
        # The CRC covers the bytes that a card would load; here there are none.
        "network.elf.crc": struct.pack("<I", zlib.crc32(b"")),
        "networkdesc.bin": bytes(network),
    }
    if operations is not None:
        small[OPERATIONS_SEGMENT] = operations
    sizes = {name: len(data) for name, data in small.items()}
    if options.qpc_crc:
        sizes[CHECKSUMS_SEGMENT] = 4 * (len(small) + (2 if constants_size else 0))
    if constants_size:
        sizes |= {"constants.bin": constants_size, "constants.bin.crc": 4}
    segments = [
        (name, sizes[name], constants_size if name == "constants.bin" else 0) for name in sorted(sizes)
    ]
    writer = _core.QpcWriter(str(path), segments, _ALIGNMENT)
    for name, data in small.items():
        writer.write(name, data)
    if constants_size:
        _write_constants(writer, model, content.places, constants_size, progress)
    if options.qpc_crc:
        others = (name for name, _, _ in segments if name != CHECKSUMS_SEGMENT)
        sums = b"".join(struct.pack("<I", writer.crc32(name)) for name in others)
        writer.write(CHECKSUMS_SEGMENT, sums)
    writer.finish()


def _metadata(model: Model, options: CompileOptions, constants_size: int, buffers: DmaBuffers) -> bytes:
    fields = descriptor.metadata(
        model.name,
        buffers,
        cores=options.aic_num_cores,
        constants_size=constants_size,
        hardware=options.aic_hw_version,
    )
    return bytes(_core.encode_metadata(json.dumps(fields)))


def _plan(content: _Content, options: CompileOptions, batch: int) -> dict[str, object]:
    """Return the entries of the plan that the device needs."""
    model = content.model
    return {
        "version": _plan_version(model, options),
        "target": "cpu",
        "producer": f"openqaic {_core.__version__}",
        "batch": batch,
        "cores": options.aic_num_cores,
        "inputs": [_spec_json(spec) for spec in model.inputs],
        "outputs": [_spec_json(spec) for spec in model.outputs],
        "initializers": [
            {
                "name": weight.name,
                "dtype": type_name(weight.elem_type),
                "dims": list(weight.dims),
                "offset": content.places[weight.name],
                "size": weight.source.nbytes,
                **_form(weight),
            }
            for weight in model.weights.values()
        ],
        "loops": has_loops(model.proto),
        **({"hardware": options.aic_hw_version} if options.aic_hw_version == "ai200" else {}),
        **_shapes_and_state(model, options),
    }


def _transfers(buffers: DmaBuffers) -> dict[str, object]:
    """Describe the positions of the tensors in DMA buffers, and the buffer that describes an inference.

    The network descriptor stays on the host, so a card reads these positions from the plan.
    """
    entries: dict[str, object] = {"places": {"inputs": buffers.inputs, "outputs": buffers.outputs}}
    if buffers.control is not None:
        entries["control_buffer"] = buffers.control
    return entries


def _stats(stats: StatsSettings | None, buffers: DmaBuffers, described: bytes) -> dict[str, object]:
    """Describe the measurements for the device: their buffer, and the number of records of each kind.

    `described` is the content of the segment that describes the operations.
    """
    if stats is None:
        return {}
    entries: dict[str, object] = {
        "level": stats.level,
        "op_level": stats.op_level,
        "batch_size": stats.batch,
        "buffer": buffers.stats,
        "capacity": stats.capacity(),
        "fingerprint": hashlib.sha256(described).hexdigest()[:32],
    }
    if stats.counts_ddr:
        entries["ddr"] = True
    if stats.pmu_events:
        entries["pmu_events"] = list(stats.pmu_events)
    return {"stats": entries}


def _shapes_and_state(model: Model, options: CompileOptions) -> dict[str, object]:
    """Return the entries of the plan that few programs have."""
    entries: dict[str, object] = {}
    if model.specializations:
        entries["variants"] = [
            {
                "name": specialization.name,
                "symbols": dict(specialization.symbols),
                "inputs": specialization.inputs,
                "outputs": specialization.outputs,
            }
            for specialization in model.specializations
        ]
    if model.libraries:
        entries["custom_op_libraries"] = [library.to_json() for library in model.libraries]
    if options.retained_state:
        entries["retained_state"] = True
        if options.split_retained_state_io:
            entries["split_retained_state_io"] = True
    if model.state_rows is not None:
        entries["state_rows"] = _state_rows(model.state_rows)
    if model.own_operators:
        entries["own_operators"] = list(model.own_operators)
    if options.io_crc:
        # 0 means one checksum per buffer.
        entries["io_crc"] = options.io_crc_stride or 0
    if options.mdp_load_partition_config is not None:
        entries["devices"] = options.mdp_load_partition_config.devices
    return entries


def _state_rows(state_rows: StateRows) -> dict[str, object]:
    return {
        "tensors": [
            {"name": tensor.name, "dtype": type_name(tensor.elem_type), "dims": list(map(list, tensor.dims))}
            for tensor in state_rows.tensors
        ],
        "updates": [
            {
                "input": update.input,
                "output": update.output,
                "rows": update.rows,
                "indices": update.indices,
                **({"skips_outside": True} if update.skips_outside else {}),
                **({"reads_blocks": True} if update.reads_blocks else {}),
            }
            for update in state_rows.updates
        ],
    }


def _write_constants(
    writer: _core.QpcWriter, model: Model, places: Mapping[str, int], total: int, progress: Progress | None
) -> None:
    done = 0
    for weight in model.weights.values():
        writer.write("constants.bin", bytes(places[weight.name] - done))
        done = places[weight.name]
        for size in _write_source(writer, weight.source):
            done += size
            if progress is not None:
                progress.advance(done, total)
        if done != places[weight.name] + weight.source.nbytes:
            expected = f"{weight.source.nbytes} bytes as when the model was opened"
            raise changed(f"initializer {weight.name!r}", f"{done - places[weight.name]} bytes", expected)
    writer.write("constants.bin.crc", struct.pack("<I", writer.crc32("constants.bin")))


def _write_source(writer: _core.QpcWriter, source: TensorSource) -> Iterator[int]:
    """Append a payload to the constants; yields the number of bytes of each step."""
    if isinstance(source, JoinedSource):
        for part in source.parts:
            yield from _write_source(writer, part)
    elif (packed := as_packed(source)) is not None:
        yield from packed.write(writer, "constants.bin")
    else:
        for piece in source.chunks():
            writer.write("constants.bin", piece)
            yield len(piece)


def _place_constants(model: Model) -> tuple[dict[str, int], int]:
    """Give each weight an offset in ``constants.bin``; returns the offsets and the size of the payload."""
    places: dict[str, int] = {}
    end = 0
    for weight in model.weights.values():
        places[weight.name] = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = places[weight.name] + weight.source.nbytes
    return places, end


@contextlib.contextmanager
def declared(model: Model, places: Mapping[str, int] = _NOWHERE) -> Iterator[None]:
    """Add the weights of a model to its graph for a block, without their values.

    `places` are byte offsets in ``constants.bin``, 0 for other weights. The graph may be replaced in the
    block.
    """
    graph = model.proto.graph
    weights = initializers_of(model.weights)
    for weight in weights:
        tensor = onnx.TensorProto(
            name=weight.name,
            data_type=weight.elem_type,
            dims=weight.dims,
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in (
            ("location", "constants.bin"),
            ("offset", str(places.get(weight.name, 0))),
            ("length", str(weight.source.nbytes)),
        ):
            tensor.external_data.add(key=key, value=value)
        graph.initializer.append(tensor)
    try:
        yield
    finally:
        # The declared weights are the last initializers, also in graphs derived from this one.
        initializers = model.proto.graph.initializer
        if weights:
            del initializers[len(initializers) - len(weights) :]


def _serialized(model: onnx.ModelProto) -> bytes:
    size = model.ByteSize()
    if size > _GRAPH_LIMIT:
        raise refuse(
            "graph without its large initializers",
            code="graph_too_large",
            found=f"{size} bytes",
            expected=f"at most {_GRAPH_LIMIT}",
            fix="move constants out of control-flow bodies and functions to the main graph",
        )
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def _plan_version(model: Model, options: CompileOptions) -> int:
    if any(weight.layout is not None for weight in model.weights.values()):
        return STORED_PLAN_VERSION
    if model.state_rows is not None:
        return ROWS_PLAN_VERSION
    has_blocks = any(weight.blocks is not None for weight in model.weights.values())
    return (
        STATEFUL_PLAN_VERSION
        if model.specializations or options.retained_state or has_blocks
        else PLAN_VERSION
    )


def _form(weight: Weight) -> dict[str, object]:
    """Describe how to decode or read a payload whose bytes are not a dense tensor."""
    entries: dict[str, object] = {}
    if weight.blocks is not None:
        entries |= {"encoding": weight.blocks.encoding, "axis": weight.blocks.axis}
    if weight.layout is not None:
        entries["layout"] = weight.layout.name
        if weight.layout.group:
            entries["group"] = weight.layout.group
    return entries


def _spec_json(spec: TensorSpec) -> dict[str, object]:
    """Describe a tensor, and its form in the model if that differs."""
    entry: dict[str, object] = {"name": spec.name, "dtype": spec.dtype, "dims": list(spec.dims)}
    if spec.model is not None:
        entry["model"] = {"dtype": spec.model.dtype, "dims": list(spec.model.dims)}
    if spec.quantized is not None:
        entry["scale"], entry["offset"] = spec.quantized
    if spec.mxint8 is not None:
        entry["mxint8"] = spec.mxint8
    return entry


def _without_weights(model: Model) -> Model | None:
    """Return a program whose weights are inputs, without the weights that the engine never reads.

    An engine that loads a program may copy every byte of its constants. The shapes of the weights are enough
    to check the operators, types and shapes. A kernel may require a constant operand, so a refusal of this
    form is not final.

    Returns None if a weight cannot be an input: its type has no buffer, or it is too large for one.
    """
    specs = []
    for weight in initializers_of(model.weights):
        spec = TensorSpec(weight.name, weight.elem_type, weight.dims)
        if (
            spec.elem_type not in {*INTERFACE_TYPES, BFLOAT16}
            or spec.nbytes > MAX_BYTES
            or max(spec.dims) > 0x7FFF_FFFF
        ):
            return None
        specs.append(spec)
    interface = replace(
        model.interface,
        inputs=(*model.inputs, *specs),
        specializations=tuple(
            replace(specialization, inputs=(*specialization.inputs, *(spec.dims for spec in specs)))
            for specialization in model.specializations
        ),
    )
    proto = model.copy_for_tools()
    stored = {name: weight for name, weight in model.weights.items() if weight.layout is not None}
    return replace(model, proto=proto, weights=stored, known=interface)
