"""Colors of kinds of operations, which are the same on every page."""

from typing import Final

from qaic.stats.reports.capture import op_info

#: Light enough for dark letters in both color schemes, distinct also with color blindness.
PALETTE: Final = (
    "#7fb2e5", "#f2b36b", "#8fd0a5", "#e58f8f", "#c0a3e0", "#e6d36a",
    "#79cdd0", "#e8a2cb", "#b7c37a", "#c9a284", "#9aa9f0", "#a8d8f0",
)  # fmt: skip
#: color of kinds without a known category
OTHER: Final = "#b9c0ca"

#: category -> index in the palette of the page
_PLACES: Final = {
    op_info.COMPUTE: 0,
    op_info.MOVEMENT: 1,
    op_info.CONVERT: 2,
    op_info.NORMALIZE: 3,
    op_info.ELEMENTWISE: 4,
    op_info.DEQUANTIZE: 5,
    op_info.SYNC: 6,
    op_info.BARRIER: 7,
    op_info.SEMAPHORE: 8,
    op_info.FLUSH: 9,
    op_info.CONTROL: 11,
}
#: matrix products, which models have in addition to convolutions
_PRODUCTS: Final = 10


def color_of(kind: str) -> int:
    """Return the index of a kind's color in the palette; -1 if its category is unknown."""
    category = op_info.category_of(kind)
    if category == op_info.COMPUTE and "conv" not in kind.lower():
        return _PRODUCTS
    return _PLACES.get(category, -1)
