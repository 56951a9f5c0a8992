"""Float payloads of one type read as another, piece by piece."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.constants.weights import TensorSource
from qaic.compiler.ir.elem_types import BFLOAT16, DOUBLE, FLOAT, FLOAT16, TABLE


@dataclass(frozen=True, slots=True)
class ConvertedFloats:
    """A payload of float64, float32, float16 or bfloat16 as another of these types, rounded half to even.

    `inner` is little-endian. While it is read, `overflows` counts under `name` the finite values that the
    narrower type does not have.
    """

    inner: TensorSource
    from_type: int
    to_type: int
    name: str
    overflows: Overflows

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.inner.nbytes * TABLE[self.to_type][1] // TABLE[self.from_type][1]

    def chunks(self) -> Iterator[bytes]:
        """Convert piece by piece; only a short read ends a piece inside an element."""
        item_bytes = TABLE[self.from_type][1] // 8
        rest = b""
        self.overflows.forget(self.name)
        for piece in self.inner.chunks():
            data = rest + bytes(piece) if rest else piece
            whole = len(data) // item_bytes * item_bytes
            rest = bytes(data[whole:])
            yield self._converted(data, whole // item_bytes).tobytes()

    def _converted(self, data: bytes | bytearray | memoryview, count: int) -> npt.NDArray[np.generic]:
        values: npt.NDArray[np.floating]
        if self.from_type == BFLOAT16:
            # The upper half of a float32.
            values = (np.frombuffer(data, "<u2", count).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, np.dtype(TABLE[self.from_type][0]).newbyteorder("<"), count)
        if self.to_type in {FLOAT16, BFLOAT16}:
            return self.overflows.round_to(self.name, values, self.to_type)
        with np.errstate(over="ignore"):
            return values.astype(TABLE[self.to_type][0])


#: the types that are converted
CONVERTED = frozenset({FLOAT, DOUBLE, FLOAT16, BFLOAT16})
