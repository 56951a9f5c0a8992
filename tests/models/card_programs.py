"""Programs in the form of compilers for cards, without a plan for a host, and their results on a card.

The cores of the card do nothing: the host can read the data that it wrote to the card's memory, if the
semaphores permit it (docs/reference/card.md). This model shares no code with the emulator.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from qaic import _core
from qpc_support import container

IN, OUT = 0, 1
MULTICAST, DDR = 0, 1
#: Bytes from the window of a multicast id to the next window.
WINDOW = 0x80_0000

NOP, INIT, INC, DEC, WAIT_EQ, WAIT_GE, P = range(7)
POST, PRE = 0, 1

#: Bytes in slices for which a card's ring has space.
RING = 511
_INT8 = 2


@dataclass(frozen=True)
class Semaphore:
    """An operation of a request."""

    number: int
    op: int
    value: int = 0
    when: int = POST
    fences: tuple[int, int] = (0, 0)

    def message(self):
        return {
            "semNum": self.number,
            "semOp": self.op,
            "semValue": self.value,
            "preOrPost": self.when,
            "inSyncFence": self.fences[0],
            "outSyncFence": self.fences[1],
        }


@dataclass(frozen=True)
class Request:
    """A transfer, or with size 0 an element that transfers nothing."""

    buffer: int
    side: int
    size: int
    host: int = 0
    device: int = 0
    space: int = DDR
    mc_id: int = 0
    semaphores: tuple[Semaphore, ...] = ()
    #: Offset, data, size code, multicast id.
    doorbells: tuple[tuple[int, int, int, int], ...] = ()

    def message(self):
        return {
            "num": self.buffer,
            "inOut": self.side,
            "size": self.size,
            "hostOffset": self.host,
            "devOffset": self.device,
            "devAddrSpace": self.space,
            "mcId": self.mc_id,
            "portId": 100 + self.side,
            "semaphoreOps": [op.message() for op in self.semaphores],
            "doorbellOps": [
                {"offset": offset, "data": data, "size": size, "mcId": mc_id}
                for offset, data, size, mc_id in self.doorbells
            ],
        }


@dataclass(frozen=True)
class Binding:
    """An int8 tensor of one dimension, its place in a DMA buffer, and the place of its header if it is
    partial.
    """

    name: str
    side: int
    buffer: int
    offset: int
    size: int
    is_partial: bool = False
    align: int = 1

    def message(self):
        tensor = {"type": _INT8, "dims": [self.size], "qscale": 1.0}
        place = {"dir": self.side, "buffer_num": self.buffer, "offset": self.offset}
        copy = {"kind": 6, "type": _INT8, "scale": 1.0, "dims": [self.size], "copy_dma_buffer": place}
        return {
            "name": self.name,
            "io_initial": tensor,
            "io_transformed": tensor,
            "transformseq": [copy],
            "is_partial_allowed": self.is_partial,
            "align": self.align,
        }


@dataclass(frozen=True)
class CardProgram:
    """A program; ``buffers`` contains the size and direction of each DMA buffer."""

    buffers: tuple[tuple[int, int], ...]
    requests: tuple[Request, ...]
    bindings: tuple[Binding, ...]
    constants: bytes = b""
    metadata: dict = field(default_factory=dict)

    def of_side(self, side):
        return [binding for binding in self.bindings if binding.side == side]

    def container(self) -> bytes:
        """Return the bytes of the container."""
        network = {
            "major_version": 9,
            "network_name": "made to order",
            "num_cores": 1,
            "batch_size": 1,
            "inputs": [binding.message() for binding in self.of_side(IN)],
            "outputs": [binding.message() for binding in self.of_side(OUT)],
            "dma_buffers": [{"size": size, "dir": side} for size, side in self.buffers],
        }
        metadata = {
            "versionMajor": 1,
            "networkName": "made to order",
            "hwVersionMajor": 2,
            "numNSPs": 1,
            "VTCMSize": 1,
            "L2TCMSize": 1,
            "dmaRequests": [request.message() for request in self.requests],
            **self.metadata,
        }
        elf = _core.encode_elf([("metadata_fb", bytes(_core.encode_metadata(json.dumps(metadata))))])
        return container(
            [
                ("constants.bin", self.constants, len(self.constants)),
                ("constantsdesc.bin", struct.pack("<QQBB6x", len(self.constants), 0, 0, 0), 0),
                ("network.elf", bytes(elf), 0),
                ("networkdesc.bin", bytes(_core.encode_network_desc(json.dumps(network))), 0),
            ]
        )

    def is_partial(self) -> bool:
        return any(binding.is_partial for binding in self.of_side(IN))

    def is_refused(self) -> bool:
        """Return True if no card can run the program, or if it would not end on any card."""
        current, begun = None, set()
        for request in self.requests:
            ops = request.semaphores
            if len(ops) > 4 or sum(op.when == PRE for op in ops) > 1 or request.side not in (IN, OUT):
                return True
            if any(op.number > 31 or op.op > P or op.value > 4095 or op.when > PRE for op in ops):
                return True
            if len(request.doorbells) == 1:
                offset, _, code, mc_id = request.doorbells[0]
                if code > 2 or offset % (1 << code) or mc_id * WINDOW + offset >= 2**64:
                    return True
            if request.size == 0:
                current = None
                continue
            if request.space not in (MULTICAST, DDR) or request.buffer >= len(self.buffers):
                return True
            if request.host + request.size > self.buffers[request.buffer][0]:
                return True
            if request.space == MULTICAST and request.mc_id * WINDOW + request.device >= 2**64:
                return True
            if current != (request.buffer, request.side):
                if request.buffer in begun:
                    return True
                current = (request.buffer, request.side)
                begun.add(request.buffer)
        if any(size and number not in begun for number, (size, _) in enumerate(self.buffers)):
            return True
        counts = [sum(r.buffer == number and r.size > 0 for r in self.requests) for number in begun]
        too_many = self.is_partial() and any(count > 1 for count in counts)
        return not 0 < len(self.requests) <= RING or too_many


class Card:
    """State that an activation of a program with one exec object keeps between inferences."""

    def __init__(self, program: CardProgram) -> None:
        self.program = program
        self.memory: dict[tuple[int, int], int] = {}
        self.semaphores = [0] * 32
        self.buffers = [bytearray(size) for size, _ in program.buffers]
        #: An element waits for a semaphore that no element raises any more.
        self.is_stuck = False

    def infer(self, inputs: dict[str, bytes]) -> dict[str, bytes] | None:
        """Outputs of an inference; ``None`` if it does not end."""
        if self.is_stuck:
            return None
        requests = self.program.requests
        moved = self._stage(inputs)
        outbound = [index for index, request in enumerate(requests) if request.side == OUT and request.size]
        # The buffer of the last output, with all of its slices, ends an inference.
        end = len(requests) if not outbound else outbound[-1] + 1
        for index, request in enumerate(requests):
            if not self._element(request, moved.get(request.buffer)):
                self.is_stuck = True
                if index < end:
                    return None
                break
        return {
            binding.name: bytes(self.buffers[binding.buffer][binding.offset : binding.offset + binding.size])
            for binding in self.program.of_side(OUT)
        }

    def _stage(self, inputs: dict[str, bytes]) -> dict[int, int]:
        """Write the inputs to their buffers; returns the used bytes of buffers with partial inputs."""
        given = [(binding, inputs[binding.name]) for binding in self.program.of_side(IN)]
        used = [0] * len(self.buffers)
        headers = [0] * len(self.buffers)
        for binding, _ in given:
            if binding.is_partial:
                headers[binding.buffer] += 8
            else:
                used[binding.buffer] = max(used[binding.buffer], binding.offset + binding.size)
        partial = {}
        for binding, data in given:
            place, at = self.buffers[binding.buffer], binding.offset
            if binding.is_partial:
                begin = max(used[binding.buffer], headers[binding.buffer])
                begin = -(-begin // binding.align) * binding.align
                used[binding.buffer] = max(used[binding.buffer], begin + len(data))
                partial[binding.buffer] = used[binding.buffer]
                if data:
                    place[at : at + 8] = struct.pack("<II", begin, len(data))
                    place[begin : begin + len(data)] = data
            else:
                place[at : at + len(data)] = data
        return partial

    def _element(self, request: Request, in_use: int | None) -> bool:
        if not all(self._operate(op) for op in request.semaphores if op.when == PRE):
            return False
        size = request.size
        if in_use is not None:
            size = min(size, max(in_use - request.host, 0))
        base = 0 if request.space == DDR else request.mc_id * WINDOW
        for offset in range(size):
            key, at = (request.space, base + request.device + offset), request.host + offset
            if request.side == IN:
                self.memory[key] = self.buffers[request.buffer][at]
            else:
                self.buffers[request.buffer][at] = self.memory.get(key, 0)
        return all(self._operate(op) for op in request.semaphores if op.when == POST)

    def _operate(self, op: Semaphore) -> bool:
        """Execute an operation; return false if it waits."""
        held = self.semaphores[op.number]
        if op.op in (WAIT_EQ, WAIT_GE, P):
            wanted = {WAIT_EQ: held == op.value, WAIT_GE: held >= op.value, P: held > 0}[op.op]
            if not wanted:
                return False
        change = {INIT: op.value - held, INC: 1, DEC: -1, P: -1}.get(op.op, 0)
        self.semaphores[op.number] = (held + change) % 4096
        return True


def one_place_for_two() -> CardProgram:
    """Two inputs pass through one address of the device, one after the other, each to its own output.

    Semaphores with fences in one direction keep the inputs apart: the semaphore of an input is raised when
    its data has arrived, that of an output when its data has been fetched. The program also contains slices,
    windows and doorbells of every kind.
    """
    raised, fetched = (1, 0), (0, 1)
    requests = (
        Request(0, IN, 64, 0, 0x1000, semaphores=(Semaphore(3, INC, 0, POST, raised),)),
        Request(
            1, OUT, 64, 0, 0x1000, semaphores=(Semaphore(3, P, 0, PRE), Semaphore(4, INC, 0, POST, fetched))
        ),
        Request(2, IN, 32, 0, 0x1000, semaphores=(Semaphore(4, P, 0, PRE),), doorbells=((8, 0x5A, 0, 1),)),
        Request(2, IN, 32, 32, 0x1020, semaphores=(Semaphore(5, INIT, 7, POST, raised),)),
        Request(3, IN, 16, 0, 0x40, MULTICAST, 2, doorbells=((64, 0x1234, 1, 0),)),
        Request(
            4,
            OUT,
            64,
            0,
            0x1000,
            semaphores=(Semaphore(5, WAIT_EQ, 7, PRE), Semaphore(5, INIT, 0, POST, fetched)),
            doorbells=((4, 0xDEADBEEF, 2, 0),),
        ),
        # This request precedes the last output. After that output, the next inference would find it in the
        # ring only by chance.
        Request(0, IN, 0, semaphores=(Semaphore(6, WAIT_GE, 0, POST, (1, 1)),)),
        Request(5, OUT, 16, 0, 0x40, MULTICAST, 2),
    )
    sides = (IN, OUT, IN, IN, OUT, OUT)
    sizes = (64, 64, 64, 16, 64, 16)
    return CardProgram(
        buffers=tuple(zip(sizes, sides, strict=True)),
        requests=requests,
        bindings=tuple(
            Binding(f"b{number}", side, number, 0, size)
            for number, (size, side) in enumerate(zip(sizes, sides, strict=True))
        ),
        constants=bytes(range(48)),
    )
