"""The network descriptor and the metadata of a CPU program, and its DMA buffers.

A card moves whole buffers: those of the inputs to its memory, then those of the outputs back. One semaphore
signals to the cores that all inputs have arrived, and another permits the transfer of the outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qaic.compiler.backend.op_profiling.settings import StatsSettings
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.interface import MAX_BYTES, Specialization, TensorSpec
from qaic.support.program_names import STATS_OUTPUT

#: alignment in bytes, a cache line: of tensors in their DMA buffer, and of DMA buffers in the card's memory
BUFFER_ALIGNMENT: Final = 64
#: the buffer that describes one inference to the card: its shapes, and whether to measure it
CONTROL_BYTES: Final = 64

TO_DEVICE: Final = 0
FROM_DEVICE: Final = 1

#: requests number their buffers with 16 bits; the highest value means no buffer
_MOST_BUFFERS: Final = 0xFFFF
#: semaphores, in the order of `semaphoreInitState`
_INPUTS_THERE: Final = 0
_OUTPUTS_THERE: Final = 1
_INCREMENT: Final = 2
_DECREMENT: Final = 3
_WAIT_GREATER_OR_EQUAL: Final = 5
_DDR: Final = 1
_PORTS: Final = {TO_DEVICE: 100, FROM_DEVICE: 101}


@dataclass(frozen=True, slots=True)
class DmaBuffers:
    """All DMA buffers of a program."""

    #: buffer number and byte offset of each tensor
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    #: bytes and direction of each buffer
    buffers: tuple[tuple[int, int], ...]
    #: number of the buffer with statistics
    stats: int | None = None
    #: number of the buffer that describes an inference, which is the last buffer
    control: int | None = None

    @property
    def messages(self) -> list[dict[str, int]]:
        """Return ``dma_buffers`` of the network descriptor."""
        return [{"size": size, "dir": direction} for size, direction in self.buffers]

    def metadata(self) -> dict[str, object]:
        """Return the metadata for a card's transfers; empty for more buffers than a card can number."""
        if len(self.buffers) > _MOST_BUFFERS:
            return {}
        requests: list[dict[str, object]] = []
        end = 0
        for wanted in (TO_DEVICE, FROM_DEVICE):
            side = [(num, size) for num, (size, direction) in enumerate(self.buffers) if direction == wanted]
            made: list[dict[str, object]] = []
            # A request without bytes to move still synchronizes.
            for num, size in side or [(0, 0)]:
                made.append(
                    {
                        "num": num,
                        "size": size,
                        "inOut": wanted,
                        "devAddrSpace": _DDR,
                        "devOffset": end,
                        "portId": _PORTS[wanted],
                    }
                )
                end += _aligned(size)
            if wanted == TO_DEVICE:
                # Transfers are asynchronous. The cores may start when the inputs have arrived and the
                # outputs of the previous inference are fetched: both write outputs to the same memory.
                made[-1]["semaphoreOps"] = [
                    {"semNum": _INPUTS_THERE, "semOp": _INCREMENT, "inSyncFence": 1, "outSyncFence": 1}
                ]
            else:
                # The driver repeats the wait before a transfer for each piece of memory of the buffer,
                # so that wait must not change the semaphore.
                made[0]["semaphoreOps"] = [
                    {
                        "semNum": _OUTPUTS_THERE,
                        "semOp": _WAIT_GREATER_OR_EQUAL,
                        "semValue": 1,
                        "preOrPost": 1,
                    },
                    {"semNum": _OUTPUTS_THERE, "semOp": _DECREMENT},
                ]
            requests += made
        return {
            "dmaRequests": requests,
            "numSemaphores": 2,
            "semaphoreInitState": [0, 0],
            "staticSharedDDRSize": end,
        }


def dma_buffers(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    combine_inputs: bool,
    combine_outputs: bool,
    has_specializations: bool = False,
    stats: StatsSettings | None = None,
) -> DmaBuffers:
    """Lay out the DMA buffers of a program: inputs, outputs, statistics, control."""
    places_in, sizes_in = place(inputs, 0, combine=combine_inputs)
    places_out, sizes_out = place(outputs, len(sizes_in), combine=combine_outputs)
    buffers = [(size, TO_DEVICE) for size in sizes_in]
    buffers += [(size, FROM_DEVICE) for size in sizes_out]
    stats_buffer = control = None
    if stats is not None:
        stats_buffer = len(buffers)
        buffers.append((stats.buffer_bytes(), FROM_DEVICE))
    if stats is not None or has_specializations:
        control = len(buffers)
        buffers.append((CONTROL_BYTES, TO_DEVICE))
    return DmaBuffers(places_in, places_out, tuple(buffers), stats_buffer, control)


def place(
    specs: Sequence[TensorSpec], first_buffer: int, *, combine: bool
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Lay out the tensors of one direction in DMA buffers.

    Returns the buffer number and byte offset of each tensor, and the sizes of the buffers.

    No buffer is empty, because a card has no empty buffers. `combine` creates one buffer for all tensors,
    unless its size exceeds a u32.
    """
    if combine and specs:
        places = []
        end = 0
        for spec in specs:
            start = _aligned(end)
            places.append((first_buffer, start))
            end = start + spec.nbytes
        if _aligned(end) <= MAX_BYTES:
            return tuple(places), (_buffer_bytes(end),)
    sizes = tuple(_buffer_bytes(spec.nbytes) for spec in specs)
    return tuple((first_buffer + i, 0) for i in range(len(specs))), sizes


def _buffer_bytes(size: int) -> int:
    # A size near the maximum of u32 cannot be rounded up; such a buffer keeps its exact size.
    return max(BUFFER_ALIGNMENT, _aligned(size)) if _aligned(size) <= MAX_BYTES else size


def _aligned(size: int) -> int:
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


#: ONNX element type -> (buffer type code, scale, offset)
_BUFFER_TYPES: Final[dict[int, tuple[int, float, int]]] = {
    elem_types.FLOAT: (0, 0.0, 0),
    elem_types.FLOAT16: (1, 0.0, 0),
    elem_types.UINT8: (3, 1.0, -128),
    elem_types.INT16: (4, 1.0, 0),
    elem_types.INT32: (6, 0.0, 0),
    elem_types.INT64: (7, 0.0, 0),
    elem_types.INT8: (8, 0.0, 0),
    elem_types.BOOL: (8, 0.0, 0),
    # Only custom I/O tensors of programs for ai200 have this type.
    elem_types.BFLOAT16: (11, 0.0, 0),
}

#: buffer type code of int8 with its own scale and offset
_INT8_QUANTIZED: Final = 2

_COPY_TO_DMA: Final = 6
#: per NSP: 8 MiB of vector memory and 1 MiB of second-level memory
_VTCM_BYTES: Final = 8 << 20
_L2TCM_BYTES: Final = 1 << 20


#: threads of a core of a card, as in containers of the vendor
_CARD_THREADS: Final[dict[str, object]] = {
    "num_threads": 6,
    "num_hvx_threads": 4,
    "thread_groups": [0, 0, 0, 0, 1, 2],
    "thread_group_issue_count": 3,
    "thread_group_names": ["HVX", "HMX", "DMAIssue"],
}
#: measured threads: the engine reports only the thread that calls it
_CPU_THREADS: Final[dict[str, object]] = {
    "num_threads": 1,
    "num_hvx_threads": 0,
    "thread_groups": [0],
    "thread_group_issue_count": 1,
    "thread_group_names": ["CPU"],
}


def network_descriptor(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    buffers: DmaBuffers,
    *,
    cores: int,
    batch: int,
    specializations: Sequence[Specialization] = (),
    stats: StatsSettings | None = None,
) -> dict[str, object]:
    """Build the JSON form of the network descriptor; zero values may be omitted.

    `specializations` is empty for one set of shapes. The binding of `stats`, if there is one, is the last
    output.
    """
    measured: list[tuple[TensorSpec, tuple[int, int]]] = []
    instrumented: dict[str, object] = dict(_CARD_THREADS)
    if stats is not None and buffers.stats is not None:
        if stats.is_asked:
            spec = TensorSpec(STATS_OUTPUT, elem_types.INT8, (buffers.buffers[buffers.stats][0],))
            measured.append((spec, (buffers.stats, 0)))
        instrumented = {**_CPU_THREADS, "stats": stats.message(buffers.stats)}
    return {
        "major_version": 9,
        "network_name": name,
        "inputs": [
            _binding(spec, where, TO_DEVICE) for spec, where in zip(inputs, buffers.inputs, strict=True)
        ],
        "outputs": [
            _binding(spec, where, FROM_DEVICE)
            for spec, where in (*zip(outputs, buffers.outputs, strict=True), *measured)
        ],
        "dma_buffers": buffers.messages,
        "num_cores": cores,
        **instrumented,
        "batch_size": batch,
        "cluster_offsets": [0],
        "allowed_shapes": [
            _shapes(specialization, (*inputs, *outputs), [spec for spec, _ in measured])
            for specialization in specializations
        ],
    }


def metadata(
    name: str, buffers: DmaBuffers, *, cores: int, constants_size: int, hardware: str | None = None
) -> dict[str, object]:
    """Build the JSON form of the metadata.

    The commands for the threads of a core are zero: no card of silicon runs this program.

    The family ai100 is version 2. No document states the number of ai200. The next number keeps devices of
    the other family from accepting the program.
    """
    return {
        "versionMajor": 1,
        "networkName": name,
        "numNSPs": cores,
        "hwVersionMajor": 3 if hardware == "ai200" else 2,
        "staticConstantsSize": constants_size,
        "hasHvxFP": 1,
        "hasHmxFP": 1,
        "VTCMSize": _VTCM_BYTES,
        "L2TCMSize": _L2TCM_BYTES,
        **buffers.metadata(),
    }


def batch_of(inputs: Sequence[TensorSpec]) -> int:
    """Return the batch: the first dim that all inputs with dims share, or 1."""
    firsts = {spec.dims[0] for spec in inputs if spec.dims}
    batch = firsts.pop() if len(firsts) == 1 else 1
    return batch if 1 <= batch <= 0x7FFF_FFFF else 1


def _shapes(
    specialization: Specialization, specs: Sequence[TensorSpec], constant: Sequence[TensorSpec]
) -> dict[str, object]:
    """Describe one permitted combination of shapes; `constant` specs at the end do not vary."""
    specs = (*specs, *constant)
    dims = (*specialization.inputs, *specialization.outputs, *(spec.dims for spec in constant))
    return {
        "shapes": [
            {"type": _buffer_type(spec)[0], "dims": list(sizes)}
            for spec, sizes in zip(specs, dims, strict=True)
        ]
    }


def _buffer_type(spec: TensorSpec) -> tuple[int, float, int]:
    return (_INT8_QUANTIZED, *spec.quantized) if spec.quantized is not None else _BUFFER_TYPES[spec.elem_type]


def _binding(spec: TensorSpec, where: tuple[int, int], direction: int) -> dict[str, object]:
    """Describe one tensor that is copied unchanged."""
    code, scale, offset = _buffer_type(spec)
    dims = list(spec.dims)
    descriptor = {"type": code, "qscale": scale, "qoffset": offset, "dims": dims, "layout": 0}
    buffer, start = where
    binding: dict[str, object] = {
        "name": spec.name,
        "io_initial": descriptor,
        "io_transformed": descriptor,
        "transformseq": [
            {
                "kind": _COPY_TO_DMA,
                "type": code,
                "scale": 1.0,
                "offset": offset,
                "dims": dims,
                "copy_dma_buffer": {"dir": direction, "offset": start, "buffer_num": buffer},
            }
        ],
    }
    if direction == TO_DEVICE:
        binding["align"] = elem_types.TABLE[spec.elem_type][1] // 8
    return binding
