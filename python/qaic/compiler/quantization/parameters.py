"""Scale and offset of tensors, from its profile or values and the options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic import _core
from qaic.compiler.diagnostics.compile_error import listing, refuse
from qaic.compiler.diagnostics.record import note, warn
from qaic.compiler.ir.constants.propagation import ConstantReader
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.quantization import CalibrationProfile, QuantParams, TensorProfile
from qaic.compiler.ir.value_info import ValueInfo
from qaic.options.table import CompileOptions

_BITS: Final = {"Int8": 8, "Int16": 16}

#: schemas whose offset is always 0
_CENTERED: Final = frozenset({"symmetric", "symmetric_with_power2_scale"})


class QuantParamsChooser:
    """Chooses scales and offsets.

    `profile` is about the float graph; `options` give schemas, precision and calibration.
    """

    def __init__(self, profile: CalibrationProfile, options: CompileOptions) -> None:
        self._tensors = profile.tensors
        self._activations = options.quantization_schema_activations
        self._constants = options.quantization_schema_constants
        self._method = options.quantization_calibration
        self._percentile = options.percentile_calibration_value
        self.bias_precision = options.quantization_precision_bias
        self._known: dict[tuple[str, str], QuantParams] = {}
        self._centered = 0
        #: tensors that calibration cannot shrink, because they have no histogram
        self._whole: list[str] = []

    def profiled(self, name: str) -> bool:
        """Return whether the profile has a tensor."""
        return name in self._tensors

    def profile(self, name: str) -> TensorProfile | None:
        """Return the profile of a tensor."""
        return self._tensors.get(name)

    def spread(self, name: str) -> float:
        """Return the distance of the smallest and largest value of a tensor; 0 where it has no profile."""
        found = self._tensors.get(name)
        return 0.0 if found is None else found.maximum - found.minimum

    def activation(self, name: str, precision: str, *, scalar: bool) -> QuantParams:
        """Choose for a profiled tensor; a scalar is never calibrated."""
        key = (name, precision)
        if key not in self._known:
            self._known[key] = self._choose(name, precision, scalar=scalar)
        return self._known[key]

    def of_range(self, name: str, precision: str) -> QuantParams:
        """Return the parameters for the range of a profiled tensor, without storing them."""
        if (fixed := self.fixed_params(name, precision)) is not None:
            return fixed
        low, high = self._tensors[name].minimum, self._tensors[name].maximum
        return QuantParams(*_core.quant_range(low, high, self._activations, precision), precision)

    def _choose(self, name: str, precision: str, *, scalar: bool) -> QuantParams:
        if (fixed := self.fixed_params(name, precision)) is not None:
            return fixed
        found = self._tensors[name]
        low, high = found.minimum, found.maximum
        if self._method != "None" and not scalar:
            if found.histogram is None:
                self._whole.append(name)
            else:
                low, high = _core.calibrate_range(
                    found.histogram, low, high, self._method, self._activations, precision, self._percentile
                )
        scale, offset = _core.quant_range(low, high, self._activations, precision)
        return QuantParams(scale, offset, precision)

    def fixed(self, name: str, precision: str) -> TensorProfile | None:
        """Find the entry of a tensor whose parameters a file fixed for this precision.

        Parameters for another precision still contain a range.
        """
        found = self._tensors.get(name)
        return found if found is not None and found.is_fixed and found.bits == _BITS[precision] else None

    def fixed_params(self, name: str, precision: str) -> QuantParams | None:
        """Return the parameters of a whole tensor that a file fixed for this precision."""
        found = self.fixed(name, precision)
        if found is None or found.scale is None:
            return None
        return QuantParams(found.scale, found.offset or 0, precision)

    def constant(self, low: float, high: float, precision: str) -> tuple[float, int]:
        """Choose scale and offset for the range of a constant, bias included."""
        return _core.quant_range(low, high, self._constants, precision)

    def channels(
        self, lows: npt.NDArray[np.float32], highs: npt.NDArray[np.float32], precision: str
    ) -> tuple[npt.NDArray[np.float32], int]:
        """Choose a scale per channel of a weight and the one offset that they share.

        Kernels have one zero point for all channels. Where the schema gives channels different ones, all
        channels are quantized as by the schema `symmetric`.
        """
        pairs = [
            self.constant(low, high, precision)
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]
        offsets = {offset for _, offset in pairs}
        if len(offsets) > 1:
            self._centered += 1
            pairs = [
                _core.quant_range(low, high, "symmetric", precision)
                for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
            ]
            offsets = {0}
        return np.array([scale for scale, _ in pairs], np.float32), offsets.pop()

    def report(self) -> None:
        """Report once the decisions that differ from the options."""
        if self._whole:
            warn(
                "quantization.no_histogram",
                f"quantization_calibration={self._method} has no effect on {len(self._whole)} tensors, "
                f"whose profile has no histogram: {listing(self._whole)}",
                nodes=self._whole,
            )
        if self._centered and self._constants not in _CENTERED:
            note(
                "quantization.one_offset",
                "quantization: %d weights with a scale per channel use offset 0, as with schema symmetric, "
                "because %s gives their channels different offsets",
                self._centered,
                self._constants,
            )


@dataclass(frozen=True, slots=True)
class FloatGraph:
    """A graph whose nodes are to be quantized, and the facts about it."""

    graph: onnx.GraphProto
    constants: ConstantReader
    facts: ValueInfo
    #: precision of each node, by first output
    classes: Mapping[str, PrecisionClass]
    parameters: QuantParamsChooser


def value_range(
    values: npt.NDArray[np.float32], name: str, axis: int | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Find the smallest and the largest value of a constant, of all of it or of each channel.

    Raises CompileError if a value is not finite.
    """
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    low = np.asarray(np.min(values, axis=others, initial=0))
    high = np.asarray(np.max(values, axis=others, initial=0))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        count = int(np.count_nonzero(~np.isfinite(values)))
        raise refuse(
            f"constant {name!r}",
            code="not_finite",
            found=f"{count} values that are infinite or not a number",
            expected="finite values, to quantize it",
            fix="repair the model, or keep its operator in float with keep_original_precision_for_nodes",
            context={"tensor": name, "count": count},
        )
    return low, high
