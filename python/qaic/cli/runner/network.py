"""Facts about a program for ``qaic-runner``: bindings, shapes, and which outputs stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from qaic import rt
from qaic.errors import InputError
from qaic.support.program_names import RETAINED_STATE_SUFFIX, STATS_OUTPUT

#: an output of this name keeps its value for the input without the suffix
SKIPPED = (0,)


class Binding(NamedTuple):
    """One input or output of a program.

    ``position`` counts inputs first, then outputs. ``allowed`` has the shape of this binding in each
    permitted combination; it is empty when there is only one.
    """

    name: str
    position: int
    nbytes: int
    partial: bool
    data_type: int
    dims: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]

    @property
    def is_statistics(self) -> bool:
        """True for a buffer of device measurements, which is no output of the model."""
        return self.name == STATS_OUTPUT or self.name.startswith(f"{STATS_OUTPUT}_")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return self.nbytes // max(1, prod(self.dims)) or 1

    def accepts(self, nbytes: int) -> bool:
        """Return whether a buffer may have this size."""
        return nbytes == self.nbytes or (nbytes < self.nbytes and bool(self.partial or self.allowed))

    def dims_for(self, nbytes: int, where: str) -> tuple[int, ...]:
        """Shape of a buffer of which only the size is known.

        Raises
        ------
        InputError
            No shape has this size.
        """
        if nbytes == self.nbytes:
            return self.dims
        fitting = {dims for dims in self.allowed if prod(dims) * self.item_bytes == nbytes}
        if len(fitting) == 1:
            return fitting.pop()
        rows = nbytes * self.dims[0] // self.nbytes if self.dims and self.nbytes else 0
        if self.partial and nbytes < self.nbytes and rows and rows * self.nbytes == nbytes * self.dims[0]:
            return (rows, *self.dims[1:])
        smaller = " or less" if self.partial else ""
        raise InputError(
            f"{where} has {nbytes} bytes; {self.name!r} takes {self.nbytes}{smaller}",
            code="runner.file_size",
        )


class Network:
    """A program's bindings.

    Parameters
    ----------
    inputs, outputs
        Bindings in their order.
    batch
        Batch size the program was compiled for.
    """

    def __init__(self, inputs: Sequence[Binding], outputs: Sequence[Binding], batch: int) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.batch = max(1, batch)
        by_name = {output.name: output for output in outputs}
        self._state = {
            binding.name: by_name[binding.name + RETAINED_STATE_SUFFIX]
            for binding in inputs
            if binding.name + RETAINED_STATE_SUFFIX in by_name
        }

    @classmethod
    def of(cls, qpc: rt.Qpc) -> Network:
        """Read the bindings of a container."""
        sides: tuple[list[Binding], list[Binding]] = ([], [])
        for mapping in qpc.getBufferMappingsV2():
            is_input = mapping.ioType == rt.BufferIoTypeEnum.BUFFER_IO_TYPE_INPUT
            sides[0 if is_input else 1].append(
                Binding(
                    mapping.bufferName,
                    mapping.index,
                    mapping.size,
                    mapping.isPartialBufferAllowed,
                    int(mapping.dataType),
                    tuple(mapping.defaultDimensions),
                    tuple(tuple(dims) for dims in mapping.allowedDimensions),
                )
            )
        return cls(*sides, qpc.getInfo().program[0].batchSize)

    def keeps(self, binding: Binding) -> bool:
        """Return whether the device keeps a value for this input, or keeps this output for an input."""
        return binding.name in self._state or any(
            output.position == binding.position for output in self._state.values()
        )
