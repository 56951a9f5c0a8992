"""Places of a program's tensors in DMA buffers, and the card's transfers of these.

It moves whole buffers: those of the inputs to its memory, then those of the outputs back. One semaphore shows
the cores that all inputs are there, another one lets the outputs go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qaic.compiler.backend.op_profiling.settings import StatsSettings
from qaic.compiler.ir.interface import MAX_BYTES, TensorSpec

#: every tensor starts at a cache line of its DMA buffer, every DMA buffer at one of the card's memory
BUFFER_ALIGNMENT: Final = 64
#: the buffer by which the host tells the card about one inference: which shapes, whether to measure it
CONTROL_BYTES: Final = 64

TO_DEVICE: Final = 0
FROM_DEVICE: Final = 1

#: requests number their buffers with 16 bits, of which the highest value is none
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
class Placement:
    """Tensors of one direction: buffer number and byte offset of each; sizes of the buffers."""

    places: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


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
    #: number of the buffer that describes an inference; the last one
    control: int | None = None

    @property
    def messages(self) -> list[dict[str, int]]:
        """``dma_buffers`` of the network descriptor."""
        return [{"size": size, "dir": direction} for size, direction in self.buffers]

    def metadata(self) -> dict[str, object]:
        """Return what a card moves the buffers by; nothing for more than it can number."""
        if len(self.buffers) > _MOST_BUFFERS:
            return {}
        requests: list[dict[str, object]] = []
        end = 0
        for wanted in (TO_DEVICE, FROM_DEVICE):
            side = [(num, size) for num, (size, direction) in enumerate(self.buffers) if direction == wanted]
            made: list[dict[str, object]] = []
            # What has nothing to move synchronizes all the same.
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
                # Transfers are asynchronous. The cores may begin when the inputs are there and the outputs of
                # the inference before are fetched: they write those of this one to the same memory.
                made[-1]["semaphoreOps"] = [
                    {"semNum": _INPUTS_THERE, "semOp": _INCREMENT, "inSyncFence": 1, "outSyncFence": 1}
                ]
            else:
                # The driver repeats what is before a transfer for each piece of memory that the buffer is in,
                # so what is before must not count.
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
    placed_in = place(inputs, 0, combine=combine_inputs)
    placed_out = place(outputs, len(placed_in.sizes), combine=combine_outputs)
    buffers = [(size, TO_DEVICE) for size in placed_in.sizes]
    buffers += [(size, FROM_DEVICE) for size in placed_out.sizes]
    stats_buffer = control = None
    if stats is not None:
        stats_buffer = len(buffers)
        buffers.append((stats.buffer_bytes(), FROM_DEVICE))
    if stats is not None or has_specializations:
        control = len(buffers)
        buffers.append((CONTROL_BYTES, TO_DEVICE))
    return DmaBuffers(placed_in.places, placed_out.places, tuple(buffers), stats_buffer, control)


def place(specs: Sequence[TensorSpec], first_buffer: int, *, combine: bool) -> Placement:
    """Lay out the tensors of one direction in DMA buffers.

    No buffer is empty: a card has none of that kind. With `combine`, there is one buffer for all, unless its
    size has no room in an u32.
    """
    if combine and specs:
        places = []
        end = 0
        for spec in specs:
            start = _aligned(end)
            places.append((first_buffer, start))
            end = start + spec.nbytes
        if _aligned(end) <= MAX_BYTES:
            return Placement(tuple(places), (_buffer_bytes(end),))
    sizes = tuple(_buffer_bytes(spec.nbytes) for spec in specs)
    return Placement(tuple((first_buffer + i, 0) for i in range(len(specs))), sizes)


def _buffer_bytes(size: int) -> int:
    # The very last bytes of an u32 cannot be rounded up; such a buffer keeps its exact size.
    return max(BUFFER_ALIGNMENT, _aligned(size)) if _aligned(size) <= MAX_BYTES else size


def _aligned(size: int) -> int:
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
