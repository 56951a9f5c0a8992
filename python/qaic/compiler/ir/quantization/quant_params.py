"""How a tensor is quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qaic.compiler.ir.elem_types import INT16, UINT8

#: what an int8 number grows by when it is stored as uint8
UNSIGNED_SHIFT: Final = 128


@dataclass(frozen=True, slots=True)
class QuantParams:
    """How a tensor of activations is quantized: real = scale x (q - offset), q of a signed type.

    The engine's fast kernels on x86 want unsigned activations with signed weights, so int8 is stored as
    uint8, shifted by 128.
    """

    scale: float
    offset: int
    precision: str

    @property
    def elem_type(self) -> int:
        """Element type of the stored integers."""
        return UINT8 if self.precision == "Int8" else INT16

    @property
    def zero_point(self) -> int:
        """The stored integer that means zero."""
        return self.offset + (UNSIGNED_SHIFT if self.precision == "Int8" else 0)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest stored integer."""
        return (0, 255) if self.precision == "Int8" else (-32768, 32767)

    def store(self, value: float) -> int:
        """Quantize one number the way the engine does, to the stored integer."""
        import numpy as np

        low, high = self.limits
        level = float(np.float32(value) / np.float32(self.scale))
        return high if level >= high else low if level <= low - high else self._clip(round(level))

    def _clip(self, level: int) -> int:
        low, high = self.limits
        return max(low, min(high, level + self.zero_point))
