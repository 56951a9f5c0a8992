"""Memory of a model on a card, and the configurations that fit."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from qaic.compiler.ir.elem_types import CODES, FLOATS
from qaic.forecast.analysis import Analysis, ShapeSet
from qaic.forecast.operations import weight_bytes
from qaic.forecast.speed import Card

#: assumed share of the weights, and bytes, that a program of the card needs for code, tables and buffers
_ADDED_SHARE: Final = 0.1
_ADDED_BYTES: Final = 256 << 20
ASSUMPTION: Final = (
    "The size of code, tables and buffers of a card program is not public; 10 % of the weights and 256 MiB "
    "are assumed. Activations are an upper bound: the values alive at one time, each in separate memory."
)
#: devices that a model may be split over
_MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """Needs of one instance with its largest set of shapes, in bytes."""

    #: Weights in the precision of the program, which instances of a device share.
    weight_bytes: int
    #: State that stays on the card between inferences, as caches of decoders.
    state_bytes: int
    #: Largest live set of one inference.
    activation_bytes: int
    #: Inputs and outputs of one inference.
    transfer_bytes: int
    #: Assumed for the program itself.
    added_bytes: int
    #: Memory of a device.
    device_bytes: int
    #: Number of devices for the weights and one instance; None if `_MOST_DEVICES` are not enough.
    devices: int | None
    #: Most samples of one inference of one instance on one device, if the batch is the first dimension of all
    #: values; 0 if the weights do not fit.
    largest_batch: int
    #: Most tokens of a cache on the available devices; None for a model without caches.
    longest_context: int | None

    @property
    def needed_bytes(self) -> int:
        """Sum for one instance."""
        varying_bytes = self.state_bytes + self.activation_bytes + self.transfer_bytes
        return self.weight_bytes + self.added_bytes + varying_bytes

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {**asdict(self), "needed_bytes": self.needed_bytes, "assumption": ASSUMPTION}


def memory_of(analysis: Analysis, precision: str, card: Card, devices: int) -> Memory:
    """Compute the memory that a model needs on a device.

    `precision` is that of stored weights and activations; `devices` is the number of devices that the model
    may be split over.
    """
    largest = max(analysis.sets, key=lambda one: one.activation_bytes + one.table.state_bytes)
    weights = _weight_bytes(analysis, largest, precision)
    half = {"fp32": 1.0, "int8": 0.25}.get(precision, 0.5)
    table = largest.table
    activations = int(largest.activation_bytes * half)
    transfers = table.input_bytes + table.output_bytes
    added = int(weights * _ADDED_SHARE) + _ADDED_BYTES
    fixed, varying = weights + added, table.state_bytes + activations + transfers
    room = card.memory_bytes - fixed
    needed = next(
        (
            count
            for count in range(1, _MOST_DEVICES + 1)
            if (weights + int(weights * _ADDED_SHARE) + varying) / count + _ADDED_BYTES <= card.memory_bytes
        ),
        None,
    )
    context = None
    # The tokens of the caches are the longest second-last dimension of a state of four dimensions.
    cached = max((dims[2] for dims in largest.states.values() if len(dims) == 4), default=0)
    if table.state_bytes and cached:
        spread = card.memory_bytes * devices - fixed - _ADDED_BYTES * (devices - 1) - activations - transfers
        context = max(0, int(spread / (table.state_bytes / cached)))
    return Memory(
        weights,
        table.state_bytes,
        activations,
        transfers,
        added,
        card.memory_bytes,
        needed,
        max(0, int(room / max(varying / table.samples, 1))),
        context,
    )


def _weight_bytes(analysis: Analysis, shapes: ShapeSet, precision: str) -> int:
    """Return the bytes of all weights, floats in the size of the precision; MXFP6 is only for products."""
    rows = shapes.table.rows
    of_products = float((rows["count"] * rows["weights"] * (1 - rows["convolves"])).sum())
    share = min(of_products / max(analysis.weights.count, 1), 1.0)
    of_float = share * weight_bytes(precision) + (1 - share) * weight_bytes(precision, products=False)
    total = 0.0
    for name, size in analysis.weights.stored_bytes.items():
        code = CODES.get(name)
        total += size if code not in FLOATS else size * of_float / _SIZES[name]
    return int(total)


#: bytes of an element of the floats that models store
_SIZES: Final = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
