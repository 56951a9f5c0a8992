"""Weights that are converted to another float type while they are read, and counts of lost values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from qaic.compiler.diagnostics.messages import Diagnostic
from qaic.compiler.ir.constants.packed import Facts, converted
from qaic.compiler.ir.constants.weights import TensorSource
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT16, TABLE
from qaic.support.text import counted

#: largest finite float16
FLOAT16_MAX: Final = 65504.0

#: most constants that one warning describes
_MOST_TOLD: Final = 5

#: bits of infinity
_NOT_FINITE: Final = 0x7C00


def beyond_float16(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return where an array has finite values that float16 makes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        beyond: npt.NDArray[np.bool_] = np.isinf(values.astype(np.float16)) & np.isfinite(values)
    return beyond


@dataclass(slots=True)
class Overflows:
    """Finite constants beyond float16, and constants that it turns into zeros, by name of the initializer.

    Filled during the conversion of constants, and complete after the container was written.
    """

    clip: bool
    counts: dict[str, int] = field(default_factory=dict)
    #: constant -> its finite value of the largest magnitude beyond the range
    farthest: dict[str, float] = field(default_factory=dict)
    #: constant -> its largest magnitude in an array that became 0 everywhere
    lost: dict[str, float] = field(default_factory=dict)
    #: constants with another array that did not become 0 everywhere
    survived: set[str] = field(default_factory=set)
    #: constant -> a node that reads it
    readers: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, facts: Facts) -> None:
        """Record the facts about a whole constant, in place of those of an earlier read."""
        for record in (self.counts, self.farthest, self.lost):
            record.pop(name, None)
        self.survived.discard(name)
        if facts.has_survivors:
            self.survived.add(name)
        if facts.lost:
            self.lost[name] = facts.lost
        if facts.beyond:
            self.counts[name], self.farthest[name] = facts.beyond, facts.farthest

    def note_lost(self, name: str, values: npt.NDArray[np.generic]) -> None:
        """Count an array if it has values and float16 turns all of them into zeros."""
        with np.errstate(over="ignore"):
            if values.any() and not values.astype(np.float16).any():
                self.lost[name] = max(self.lost.get(name, 0.0), float(np.abs(values).max()))

    def note_beyond(self, name: str, values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        """Count the finite values of an array that float16 makes infinite; returns a mask of them."""
        beyond = beyond_float16(values)
        if beyond.any():
            lost = values[beyond]
            self.counts[name] = self.counts.get(name, 0) + lost.size
            farthest = [self.farthest.get(name, 0.0), float(lost.min()), float(lost.max())]
            self.farthest[name] = max(farthest, key=abs)
        return beyond

    def round_to(
        self, name: str, values: npt.NDArray[np.generic], float_format: int
    ) -> npt.NDArray[np.generic]:
        """Round half to even; a finite value out of range becomes infinite, or is clipped if `clip`.

        The range of bfloat16 is that of float32, whose very largest values round to infinity without being
        counted.
        """
        if float_format == BFLOAT16:
            import ml_dtypes

            return values.astype(ml_dtypes.bfloat16)
        with np.errstate(over="ignore", invalid="ignore"):
            half = values.astype(np.float16)
        # Infinity and NaN have the highest exponent; isfinite takes half as long as the conversion.
        highest = int((half.view(np.uint16) & 0x7FFF).max(initial=0))
        if highest:
            self.survived.add(name)
        else:
            self.note_lost(name, values)
        if highest >= _NOT_FINITE:
            lost = self.note_beyond(name, values)
            if self.clip:
                half[lost] = np.copysign(np.float16(FLOAT16_MAX), half[lost])
        return half


def converted_floats(
    source: TensorSource, from_type: int, to_type: int, name: str, overflows: Overflows
) -> TensorSource:
    """Convert a payload of float64, float32, float16 or bfloat16 to another of these, rounded half to even.

    `source` is little-endian. When it was read, `overflows` counts under `name` the finite values that
    float16 does not have.
    """
    return converted(
        source,
        (TABLE[from_type][0], TABLE[to_type][0]),
        clip=overflows.clip,
        listener=partial(overflows.note, name) if to_type == FLOAT16 else None,
    )


def overflow_warning(overflows: Overflows) -> Iterator[Diagnostic]:
    """Yield a warning about the constants read so far that became 0, and one about those beyond float16."""
    vanished = {name: value for name, value in overflows.lost.items() if name not in overflows.survived}
    if vanished:
        yield Diagnostic(
            "warning",
            "float16.underflow",
            f"{counted(len(vanished), 'constant')} too small for float16 became 0, so a division or "
            "logarithm that needs them can return infinity or NaN; node_precision_info_file keeps "
            "their nodes in float32: " + _described(overflows, vanished),
            tuple(sorted(vanished)),
        )
    if overflows.counts:
        names, total = sorted(overflows.counts), sum(overflows.counts.values())
        became = (
            "the largest finite value (clip_fp16_constants=False makes them infinite"
            if overflows.clip
            else "infinite (clip_fp16_constants=False"
        )
        yield Diagnostic(
            "warning",
            "float16.overflow",
            f"{counted(total, 'constant')} beyond the range of float16 became {became}; "
            "`openqaic accuracy MODEL --to fp16` shows the effect on accuracy): "
            + _described(overflows, overflows.farthest),
            tuple(names),
        )


def _described(overflows: Overflows, values: Mapping[str, float]) -> str:
    """List constants, each with one of its values and a node that reads it."""
    texts = [
        f"{name!r} ({value:.3g}"
        + (f", read by {overflows.readers[name]!r})" if name in overflows.readers else ")")
        for name, value in sorted(values.items())
    ]
    more = f" and {len(texts) - _MOST_TOLD} more" if len(texts) > _MOST_TOLD else ""
    return ", ".join(texts[:_MOST_TOLD]) + more
