"""Small values that one scale per tensor would turn into zero: their nodes stay in floating point.

Integers have the same step for all values of a tensor. That step is too coarse for scores next to pixels,
also if one product computes both, for scores with a mask of -10000, and for operands that a logarithm or a
quotient magnifies. If the weights of a product magnify small inputs, the product stays quantized with a
warning, because products need most of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.diagnostics.messages import listing, warn
from qaic.compiler.ir.constants.in_graph import read_array
from qaic.compiler.ir.elem_types import FLOAT, NARROW_FLOATS, OF_NUMPY, TABLE
from qaic.compiler.ir.graph_walk import attribute_of, behind, node_key, producers, standard
from qaic.compiler.ir.precision import INTEGERS, FloatReason, selected_inputs
from qaic.compiler.ir.quantization import VALUE_PRESERVING, WEIGHTED, Group, quantizable, results
from qaic.compiler.quantization.parameters import FloatGraph, affine, has_constant_kernel, is_per_channel
from qaic.options.table import CompileOptions

#: fewest levels of a common scale for the values of one operand or result
_LEAST_LEVELS: Final = 16
#: fewest levels for an operand of a sum without an equalizing reader, and for a channel of an output
_LEAST_LEVELS_OF_SUM: Final = 2

#: operators whose results each come from one operand
_JOINING: Final = ("Concat", "Max", "Min", "Pad", "Scatter", "ScatterElements", "ScatterND", "Where")
_SUMMING: Final = ("Add", "Sub")
#: part of the channels of a product that may lose small inputs; channels without a signal have large weights
_CHANNELS_WITHOUT_SIGNAL: Final = 1 / 16
#: most names of nodes in a message that can be pasted
_MOST_NAMES: Final = 20
#: operators that read a part of their operand
_PICKING: Final = ("Gather", "Slice", "Split")

#: operators whose results have one range for any range of their operand
_EQUALIZING: Final = frozenset({"HardSigmoid", "Sigmoid", "Softmax", "Tanh"})

#: operators whose slope grows without limit near zero -> the position of that operand
_MAGNIFYING: Final = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}

#: operators for which the size of a step matters, not its share of the range
_ABSOLUTE: Final = ("Cos", "Exp", "Sin", "Tan")
#: operators that read places in an image -> the position of that operand
_PLACES: Final = {"DeformConv": 2, "GridSample": 1, "MaxRoiPool": 1, "RoiAlign": 1}
#: largest step of such operands: of radians or powers, and of pixels
_LARGEST_STEP: Final = 1 / 16
_LARGEST_PART_OF_PIXEL: Final = 1 / 64

#: operators whose small results come from small operands, if no operand is negative
_PROPORTIONAL: Final = VALUE_PRESERVING | {
    *("Abs", "Add", "AveragePool", "Celu", "Clip", "Concat", "Elu", "Gelu", "GlobalAveragePool"),
    *("HardSwish", "Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "PRelu", "Pow", "ReduceMax"),
    *("ReduceMean", "ReduceSum", "Relu", "Selu", "Sqrt"),
}

#: operators that round, compare or choose, so that each step of an operand may change a result by much more
_ROUNDING: Final = (
    *("ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less"),
    *("LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "Round", "Shrink", "Sign", "ThresholdedRelu"),
)
#: operators that also return the places of the values that they choose
_CHOOSING: Final = ("MaxPool", "TopK")
_DISCRETE_TYPES: Final = frozenset(
    code for code, (name, _) in TABLE.items() if "int" in name or name == "bool"
)
_ELEMENTWISE: Final = _PROPORTIONAL | _EQUALIZING | {"Div", "Neg", "Sub"}


class SmallValues:
    """Finds the nodes of a graph that would lose small values.

    Nothing is rounded inside a group.
    """

    def __init__(self, of: FloatGraph, groups: Sequence[Group], options: CompileOptions) -> None:
        nodes = of.graph.node
        self._constants, self._parameters, self._classes = of.constants, of.parameters, of.classes
        self._facts = of.facts
        self._options, self._precision = options, options.quantization_precision
        self._makers = producers(nodes)
        self._group_of = {node_key(node): group for group in groups for node in group.nodes}
        #: node that stays in floating point, by first output -> reason
        self._reasons: dict[str, FloatReason] = {}
        #: quantized products whose weights magnify small inputs -> the nodes that would have to stay in float
        self._magnifying: dict[str, list[str]] = {}
        #: quantized products that read joined values -> the node that joins these
        self._flattened: dict[str, onnx.NodeProto] = {}
        self._equalized = {name for node in nodes if node.op_type in _EQUALIZING for name in node.input}
        self._read = {name for node in nodes for name in node.input} | {
            value.name for value in of.graph.output
        }
        joined: dict[str, onnx.NodeProto] = {}
        for node in nodes:
            self._keep_joined(node, joined)
        for node in nodes:
            self._keep_picked(node)
            self._keep_magnified(node)
            self._keep_scaled(node)
            self._note_magnified(node)
            self._keep_phase(node)
        read = {name for node in nodes for name in node.input}
        for name in self._makers.keys() - read:
            self._keep_head(name)

    def reason(self, group: Group) -> FloatReason | None:
        """Return the reason to keep a group in floating point; None if there is none."""
        keys = map(node_key, group.nodes)
        return next((self._reasons[key] for key in keys if key in self._reasons), None)

    def report(self) -> None:
        """Report quantized products that read values which are small compared with others."""
        joined = {node_key(node): node.op_type for node in self._flattened.values()}
        if joined:
            named = sorted(f"{op_type} {key!r}" for key, op_type in joined.items())
            rest = f" and {len(named) - 5} more" if len(named) > 5 else ""
            warn(
                "quantization.unlike_ranges",
                f"quantization: {', '.join(named[:5])}{rest} combines values with ranges too different for "
                f"one scale, and {listing(sorted(self._flattened))} reads them as integers, so the smaller "
                "values lose most of their precision; node_precision_info_file keeps the readers in floating "
                "point, and `openqaic accuracy MODEL --to int8` shows the effect",
                nodes=sorted(joined),
            )
        magnifying = [
            key
            for key, nodes in self._magnifying.items()
            if any(name not in self._reasons and self._classes.get(name) in INTEGERS for name in nodes)
        ]
        if magnifying:
            wanted = list(dict.fromkeys(name for key in magnifying for name in self._magnifying[key]))
            lists = f"FP32NodeInstanceNames: [{', '.join(wanted)}]"
            if len(wanted) > _MOST_NAMES:
                lists = "`--target 'sqnr>=25' --find FILE` of this command writes them"
            warn(
                "quantization.magnified_inputs",
                f"quantization: the weights of {listing(magnifying)} magnify inputs that are small compared "
                "with others, so one scale leaves them few levels, and the results lose most of their "
                "precision; `openqaic accuracy MODEL --to int8` shows the effect, and "
                "node_precision_info_file keeps the nodes that compute and read such inputs in floating "
                f"point ({lists})",
                nodes=wanted,
            )

    def _keep_joined(self, node: onnx.NodeProto, joined: dict[str, onnx.NodeProto]) -> None:
        """Keep a node that joins values of different ranges, or its readers except products."""
        origin = next((joined[name] for name in node.input if name in joined), None)
        if origin is None and self._joins_unlike(node):
            origin = node
        if origin is None:
            return
        if node.op_type in WEIGHTED:
            if self._classes.get(node_key(node)) in INTEGERS:
                self._flattened[node_key(node)] = origin
            return
        self._reasons[node_key(node)] = FloatReason.UNLIKE_RANGES
        if node.op_type not in _EQUALIZING:
            joined.update(dict.fromkeys(node.output, origin))

    def _joins_unlike(self, node: onnx.NodeProto) -> bool:
        """Return True if the scale of a result leaves too few levels for one of the operands."""
        if standard(node, *_SUMMING) and self._parameters.profiled(node.output[0]):
            is_small = node.output[0] not in self._equalized
            needed = self._step(node.output[0]) * (_LEAST_LEVELS_OF_SUM if is_small else _LEAST_LEVELS)
            return any(0 < self._parameters.spread(name) < needed for name in node.input)
        if not standard(node, *_JOINING):
            return False
        sizes = {name: self._size(name) for name in node.input}
        if self._parameters.profiled(node.output[0]):
            step = self._step(node.output[0])
        else:
            # Operators without an integer form are not measured, but their readers may be quantized.
            step = max(sizes.values(), default=0.0) / (255 if self._precision == "Int8" else 65535)
        # A small constant that fills or limits has the same effect as zero.
        return self._hides_unmeasured(node) or any(
            0 < size < step * _LEAST_LEVELS
            for name, size in sizes.items()
            if node.op_type == "Concat" or name not in self._constants
        )

    def _hides_unmeasured(self, node: onnx.NodeProto) -> bool:
        """Return True if a constant sets the scale of unmeasured scores, like a mask."""
        if node.output[0] not in self._equalized:
            return False
        picked = [node.input[at] for at in selected_inputs(node, FLOAT) or () if at < len(node.input)]
        sources = {name: behind(name, self._makers, "Cast") for name in picked if name}
        masks = [found for name in sources.values() if (found := self._constants.describe(name)) is not None]
        readable = OF_NUMPY | NARROW_FLOATS.keys()
        numbers = [read_array(found).astype(float) for found in masks if found.elem_type in readable]
        least = self._parameters.spread(node.output[0]) * 15 / 16
        is_masked = any(float(np.abs(values).max(initial=0)) > least for values in numbers)
        unknown = [name for name, source in sources.items() if source not in self._constants]
        return is_masked and not all(map(self._parameters.profiled, unknown))

    def _keep_picked(self, node: onnx.NodeProto) -> None:
        """Keep a node whose results are too small for the scale of its operand, and producers of parts."""
        if not standard(node, "LRN", *_PICKING) or not self._parameters.profiled(node.input[0]):
            return
        needed = self._step(node.input[0]) * _LEAST_LEVELS
        maker: onnx.NodeProto | None = node
        if any(0 < self._size(node.output[position]) < needed for position in results(node)):
            while maker is not None:
                self._reasons.setdefault(node_key(maker), FloatReason.UNLIKE_RANGES)
                is_part = maker.op_type in VALUE_PRESERVING and maker.op_type != "LRN"
                maker = self._makers.get(maker.input[0]) if is_part else None

    def _keep_head(self, name: str) -> None:
        """Keep the product that computes an output if its weights leave too few levels for some channels."""
        path = list[onnx.NodeProto]()
        while (maker := self._makers.get(name)) is not None and maker not in path:
            path.append(maker)
            operands = [other for other in maker.input if other and other not in self._constants]
            if (
                maker.op_type in WEIGHTED
                or not standard(maker, "Add", *VALUE_PRESERVING)
                or len(operands) != 1
            ):
                break
            name = operands[0]
        if maker is None or not standard(maker, *WEIGHTED) or not self._constants.is_float(maker.input[1]):
            return
        norms = _norms(_channels(maker, self._constants.read(maker.input[1])))
        needed = norms.max(initial=0) * _LEAST_LEVELS_OF_SUM / (255 if self._precision == "Int8" else 65535)
        if np.isfinite(needed) and ((norms > 0) & (norms < needed)).any():
            for node in path:
                self._reasons.setdefault(node_key(node), FloatReason.UNLIKE_RANGES)

    def _keep_magnified(self, node: onnx.NodeProto) -> None:
        """Keep the producers of small values that a node magnifies, if no operand is negative."""
        position = _MAGNIFYING.get(node.op_type) if standard(node, *_MAGNIFYING) else None
        if position is None or (node.op_type == "Pow" and not self._is_root(node)):
            return
        names = [name for name in self._read_by_group(node, position) if self._needs_small(name)]
        self._keep(node, names, self._is_positive)

    def _keep_scaled(self, node: onnx.NodeProto) -> None:
        """Keep a product or quotient with a constant if a step would hide small values or small factors."""
        if not standard(node, "Div", "Mul"):
            return
        is_quotient = node.op_type == "Div"
        places = [at for at in ((1,) if is_quotient else (1, 0)) if self._constants.is_float(node.input[at])]
        group = self._group_of[node_key(node)]
        if not places or not self._parameters.profiled(group.output):
            return
        factors = self._constants.read(node.input[places[0]])
        value = self._shifted(node.input[1 - places[0]], group)
        sizes = np.abs(factors.astype(np.float64))
        if not sizes.size or not np.isfinite(sizes).all():
            return
        least = _LEAST_LEVELS * self._step(group.output)
        with np.errstate(divide="ignore"):
            largest = float((1 / sizes if is_quotient else sizes).max())
        found = self._parameters.profile(value)
        is_inside = self._group_of.get(value) is group
        if found is not None and not is_inside and self._step(value) * largest > least:
            self._keep(node, [value], lambda _: True)
        # The constants inside a group are not rounded.
        if node is group.node and not group.function:
            low, high = float(factors.min(initial=0)), float(factors.max(initial=0))
            step, _ = self._parameters.constant(low, high, self._precision)
            reach = 0.0 if found is None else max(-found.minimum, found.maximum)
            is_hidden = sizes.min() < _LEAST_LEVELS * step if is_quotient else step * reach > least
            if is_hidden:
                self._reasons.setdefault(node_key(node), FloatReason.MAGNIFIED)

    def _note_magnified(self, node: onnx.NodeProto) -> None:
        """Note a product whose weights magnify small inputs that a step of inputs or weights would hide."""
        group = self._group_of[node_key(node)]
        is_product = standard(node, *WEIGHTED) and node is group.node and not group.function
        if not is_product or self._classes.get(node_key(node)) not in INTEGERS:
            return
        value, found = node.input[0], self._parameters.profile(node.input[0])
        is_measured = self._parameters.profiled(group.output)
        if found is None or not is_measured or not has_constant_kernel(node, self._constants):
            return
        weight = _channels(node, self._constants.read(node.input[1]))
        factors, _ = affine(group, self._constants, len(weight))
        sizes = 1.0 if factors is None else np.abs(factors)
        norms = _norms(weight) * sizes
        if not weight.size or not np.isfinite(norms).all():
            return
        largest = self._size(group.output) / _LEAST_LEVELS
        norm = _typical_largest(norms)
        extents = np.maximum(weight.max(axis=1), -weight.min(axis=1)) * sizes
        extent = _typical_largest(extents) if is_per_channel(node, self._options) else float(extents.max())
        step, _ = self._parameters.constant(-extent, extent, self._precision)
        reach = max(-found.minimum, found.maximum)
        if max(self._step(value) * norm, step * reach) <= largest:
            return

        def is_coarse(name: str) -> bool:
            # Without the error of the weights, half of this error is as much.
            return not self._parameters.profiled(name) or self._step(name) * norm > largest / 2

        makers = [node_key(maker) for maker in self._makers_of([value], is_coarse)]
        self._magnifying[node_key(node)] = [*reversed(makers), *map(node_key, group.nodes)]

    def _shifted(self, name: str, group: Group) -> str:
        """Return the value from which a value of a group differs only by constants."""
        while self._group_of.get(name) is group and standard(self._makers[name], "Add", "Sub"):
            others = [other for other in self._makers[name].input if other not in self._constants]
            if len(others) != 1:
                break
            name = others[0]
        return name

    def _keep(self, node: onnx.NodeProto, names: list[str], is_small: Callable[[str], bool]) -> None:
        """Keep a node that magnifies values, and the producers of those that are small."""
        if names:
            self._reasons.setdefault(node_key(node), FloatReason.MAGNIFIED)
        for maker in self._makers_of(names, is_small):
            self._reasons.setdefault(node_key(maker), FloatReason.MAGNIFIED)

    def _makers_of(self, names: list[str], is_small: Callable[[str], bool]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that compute small values, and those that pass on small operands."""
        pending, seen = list(names), set[str]()
        while pending:
            name = pending.pop()
            maker = self._makers.get(name)
            if maker is None or name in seen or not is_small(name):
                continue
            seen.add(name)
            yield maker
            if maker.op_type in _PROPORTIONAL or self._has_positive_weight(maker):
                pending.extend(maker.input)

    def _keep_phase(self, node: onnx.NodeProto) -> None:
        """Keep the producers of operands whose steps change the result by more than their size."""
        is_rounding = self._is_rounding(node)
        largest = 0.0 if is_rounding else self._largest_step(node)
        if largest is None:
            return
        place = _PLACES.get(node.op_type)
        pending, seen = list(node.input if place is None else node.input[place : place + 1]), set[str]()
        while pending:
            name = pending.pop()
            maker = self._makers.get(name)
            is_passing = maker is not None and self._passes_on(maker)
            is_coarse = self._parameters.profiled(name) and self._step(name) > largest
            if is_rounding and maker is not None:
                # A product rounds its result in any case.
                is_coarse = is_passing
            if name in seen or not is_coarse:
                continue
            seen.add(name)
            self._reasons.setdefault(node_key(node), FloatReason.MAGNIFIED)
            if maker is not None:
                self._reasons.setdefault(node_key(maker), FloatReason.MAGNIFIED)
                pending.extend(maker.input if is_passing else ())

    def _is_rounding(self, node: onnx.NodeProto) -> bool:
        """Return True if a step of an operand may change integers, conditions or chosen places."""
        if standard(node, "Cast"):
            return attribute_of(node, "to", 0) in _DISCRETE_TYPES
        if standard(node, "GridSample"):
            return attribute_of(node, "mode", b"") == b"nearest"
        if standard(node, *_CHOOSING):
            return any(name and name in self._read for name in node.output[1:])
        return standard(node, *_ROUNDING)

    def _largest_step(self, node: onnx.NodeProto) -> float | None:
        """Return the largest step of an operand for which the size of steps matters; None for other nodes."""
        if standard(node, *_ABSOLUTE):
            return None if self._group_of[node_key(node)].function else _LARGEST_STEP
        if not standard(node, *_PLACES):
            return None
        if node.op_type == "GridSample":
            # The image extends from -1 to 1. A size may be unknown, or differ between sets of shapes.
            sizes = self._facts.shapes.get(node.input[0], ())[2:]
            return _LARGEST_PART_OF_PIXEL * 2 / max(sizes) if min(sizes, default=0) > 0 else 0.0
        return _LARGEST_PART_OF_PIXEL / (abs(attribute_of(node, "spatial_scale", 1.0)) or 1.0)

    def _passes_on(self, node: onnx.NodeProto) -> bool:
        """Return True if small changes of a node's operands stay small, and it is not part of a product."""
        is_product = self._group_of[node_key(node)].node.op_type in WEIGHTED
        return node.op_type in _ELEMENTWISE and not is_product

    def _is_root(self, node: onnx.NodeProto) -> bool:
        exponent = node.input[1]
        return self._constants.is_float(exponent) and bool((self._constants.read(exponent) < 1).any())

    def _read_by_group(self, node: onnx.NodeProto, position: int) -> Iterator[str]:
        """Yield the values outside a node's group that an operand is proportional to."""
        group, pending, seen = self._group_of[node_key(node)], [node.input[position]], set[str]()
        while pending:
            name = pending.pop()
            maker = self._makers.get(name)
            if name in seen:
                continue
            seen.add(name)
            if maker is None or self._group_of[node_key(maker)] is not group:
                yield name
            elif maker.op_type in _PROPORTIONAL:
                pending.extend(maker.input)

    def _is_positive(self, name: str) -> bool:
        """Return True if no measured value is negative."""
        found = self._parameters.profile(name)
        return found is None or found.minimum >= 0

    def _needs_small(self, name: str) -> bool:
        """Return True if a magnified value has positive values with too few levels."""
        maker, found = self._makers.get(name), self._parameters.profile(name)
        if found is None:
            return maker is not None and not quantizable(maker)
        # Parameters from a file do not contain the smallest value.
        return not found.is_fixed and 0 <= found.minimum < self._step(name) * _LEAST_LEVELS

    def _has_positive_weight(self, node: onnx.NodeProto) -> bool:
        if not standard(node, *WEIGHTED) or not self._constants.is_float(node.input[1]):
            return False
        return float(np.min(self._constants.read(node.input[1]), initial=0)) >= 0

    def _step(self, name: str) -> float:
        return self._parameters.of_range(name, self._precision).scale

    def _size(self, name: str) -> float:
        """Return the range of a value with zero; 0 if the value is constant or unknown."""
        if self._constants.is_float(name):
            values = self._constants.read(name)
            return float(np.max(values, initial=0)) - float(np.min(values, initial=0))
        if not self._parameters.spread(name):
            return 0.0
        params = self._parameters.of_range(name, self._precision)
        return params.scale * (params.limits[1] - params.limits[0])


def _channels(node: onnx.NodeProto, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Arrange the weight of a product as one row for each output channel."""
    if node.op_type == "ConvTranspose":
        groups = attribute_of(node, "group", 1)
        weight = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).swapaxes(1, 2)
        return weight.reshape(groups * weight.shape[1], -1)
    if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute_of(node, "transB", 0)):
        return weight.reshape(len(weight), -1)
    if weight.ndim == 1:
        return weight[None]
    return weight.swapaxes(-1, -2).reshape(-1, weight.shape[-2])


def _norms(weight: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the norm of each row."""
    squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", weight, weight, dtype=np.float64)
    return np.sqrt(squares)


def _typical_largest(numbers: npt.NDArray[np.float64]) -> float:
    """Return the largest number without a small part of the numbers."""
    return float(np.sort(numbers)[-1 - int(len(numbers) * _CHANNELS_WITHOUT_SIGNAL)])
