"""Cards that a forecast is made for: what is public of them.

Cores, memory and peak rates are those of the vendor's page about the architecture of Cloud AI cards (public
documentation of the Cloud AI SDK, "Architecture"). The measured cards are those with 14 cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: peak of int8 over that of float16, of the card with 14 cores: 325 TOPS and 110 TFLOPS
_INT8_GAIN: Final = 325 / 110
#: peak of float16 for each core of the measured card, in TFLOPS
_MEASURED: Final = 110 / 14


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    Parameters
    ----------
    name : str
        Name of the product.
    devices : int
        Chips on the card, each a device.
    cores : int
        Cores of a device.
    memory_bytes : int
        DDR of a device.
    tflops : float
        Peak of a device in float16.
    """

    name: str
    devices: int
    cores: int
    memory_bytes: int
    tflops: float

    @property
    def clock(self) -> float:
        """Peak rate of a core over that of the measured card."""
        return self.tflops / self.cores / _MEASURED

    @property
    def is_measured(self) -> bool:
        """True for the card that measurements are of."""
        return self.name == "standard"

    @staticmethod
    def mac_gain(precision: str) -> float:
        """Return the peak rate of multiply-accumulates over that of float16."""
        return _INT8_GAIN if "int8" in precision.split("+") else 1.0


_GIB: Final = 1 << 30
CARDS: Final = {
    card.name: card
    for card in (
        Card("standard", 1, 14, 16 * _GIB, 110),
        Card("pro", 1, 16, 32 * _GIB, 125),
        Card("ultra", 4, 16, 32 * _GIB, 290 / 4),
    )
}
