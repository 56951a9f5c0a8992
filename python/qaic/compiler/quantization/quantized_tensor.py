"""Constants stored as integers: quantized while they are written, never kept in memory twice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qaic import _core
from qaic.compiler.ir.constants.propagation import read_array
from qaic.compiler.ir.constants.weights import MemoryRange, Weight
from qaic.compiler.ir.elem_types import FLOAT, INT8, INT16, UINT8

_WIDTHS: Final = {"Int8": 1, "Int16": 2}


@dataclass(frozen=True, slots=True)
class QuantizedSource:
    """The integers of a float32 constant."""

    inner: Weight
    scales: npt.NDArray[np.float32]
    offset: int
    axis: int | None
    precision: str
    unsigned: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.inner.source.nbytes // 4 * _WIDTHS[self.precision]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Quantize as a whole: a scale per channel does not care where pieces end."""
        values = read_array(self.inner)
        if self.axis is None:
            scale = float(self.scales.reshape(-1)[0])
            stored = _core.quantize_tensor(values, scale, self.offset, self.precision)
        else:
            offsets = np.full(len(self.scales), self.offset, np.int32)
            stored = _core.quantize_tensor(values, self.scales, offsets, self.precision, self.axis)
        if self.unsigned:
            stored = stored.view(np.uint8) ^ np.uint8(0x80)
        yield from MemoryRange(stored.tobytes()).chunks()


def quantized_weight(
    name: str,
    inner: Weight,
    scales: npt.NDArray[np.float32],
    offset: int,
    *,
    axis: int | None,
    precision: str,
    unsigned: bool,
) -> Weight:
    """Describe the integers of a float32 constant as a weight of their own.

    There is one scale, or one per channel along `axis`; the offset is that of all of them, in the signed
    view. `precision` is ``Int8`` or ``Int16``. With `unsigned`, int8 is stored as uint8, shifted by 128.
    """
    if inner.elem_type != FLOAT:
        raise TypeError(inner.name)
    elem_type = INT16 if precision == "Int16" else UINT8 if unsigned else INT8
    source = QuantizedSource(inner, scales, offset, axis, precision, unsigned and precision == "Int8")
    return Weight(name, elem_type, inner.dims, source)
