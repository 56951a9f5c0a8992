"""Operands without elements, for which kernels of some engines end the process.

A node over no elements is replaced by zeros if its results are zeros, and refused otherwise. If a size is
known only at run time, a Reshape before the node keeps all sizes, and fails if a size is 0 that must not be.
The Reshape neither reads nor copies elements. Operands of Einsum are padded, because its results are valid.
The optimizer of onnxruntime 1.22 divides by zero if it transposes a constant without elements, so operators
that it moves a Transpose behind read none.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir.elem_types import BOOL, INT64
from qaic.compiler.ir.graph_edits import clone, replace_input_with, set_attributes, set_inputs
from qaic.compiler.ir.graph_walk import attribute_of, find_nodes, node_label, operator_of, standard
from qaic.compiler.ir.value_info import DimsInSets, ShapesInSets, dims_in
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand

_ENGINE_DOMAIN: Final = "com.microsoft"
#: position of the axis among the operands of DFT from operator set 20
_AXIS: Final = 2
#: position after the last element of any dim
_END: Final = 2**31


@dataclass(frozen=True, slots=True)
class _Needed:
    """Dims of an operand, from `first` to before `stop`, none of which may be 0."""

    at: int = 0
    #: a dim, or the name of a value that contains it
    first: int | str = 0
    stop: int | None = None
    #: true if the engine computes the node if a dim before `first` is also 0
    is_behind: bool = False
    #: rank of the operand; 0 for any
    rank: int = 0
    #: position of an operand with the same last dim
    twin: int | None = None

    @property
    def is_single(self) -> bool:
        return isinstance(self.first, str) or (self.first + 1 or None) == self.stop

    def is_missing(self, shape: tuple[int, ...]) -> bool:
        """Return True if one of the dims is 0 in a shape."""
        if isinstance(self.first, str):
            return 0 in shape
        return 0 in shape[self.first : self.stop] and not (self.is_behind and 0 in shape[: self.first])

    def kept(self, node: onnx.NodeProto, dims: DimsInSets) -> list[int] | None:
        """Return a shape with which Reshape fails if a dim is 0; [] if no dim can be 0, None if unknown."""
        known = dims(node.input[self.at]) or ((None,) * self.rank,)
        if not known[0] or len({*map(len, known)}) != 1:
            return None
        filled = [all(sizes) for sizes in zip(*known, strict=True)]
        twins = () if self.twin is None else dims(next(iter(node.input[self.twin :]), ""))
        filled[-1] |= bool(twins) and all(sizes and sizes[-1] for sizes in twins)
        needed = range(len(filled))[0 if isinstance(self.first, str) else self.first : self.stop]
        if all(filled[dim] for dim in needed):
            return []
        others = [dim for dim, is_filled in enumerate(filled) if not is_filled and dim not in needed]
        # Reshape divides the number of elements by the kept sizes to derive the remaining size.
        free = others or [dim for dim, is_filled in enumerate(filled) if is_filled][-1:]
        if len(free) != 1 or self.is_behind or isinstance(self.first, str):
            return None
        return [-1 if dim in free else 0 for dim in range(len(filled))]

    def missing(self, base: str, shape: str, guards: GuardNodes) -> str:
        """Append nodes that compare the dims of a shape with 0; returns a boolean value."""

        def part(first: int, stop: int) -> str:
            return guards.compute(base, "Slice", shape, np.array([first]), np.array([stop]))

        if self.is_single:
            sizes = guards.compute(base, "Gather", shape, self.first, axis=0)
        elif isinstance(self.first, str) or (self.first == 0 and self.stop is None):
            sizes = shape
        else:
            sizes = part(self.first, self.stop or _END)
            if self.is_behind:
                front = guards.compute(base, "ReduceProd", part(0, self.first), keepdims=0)
                is_empty = guards.compute(base, "Equal", front, 0, elem_type=BOOL)
                sizes = guards.compute(base, "Where", is_empty, 1, sizes)
        return guards.compute(base, "Equal", sizes, 0, elem_type=BOOL)


_RECURRENT: Final = _Needed(first=0, stop=2, rank=3, twin=1)
#: operator -> dims that must not be 0; attributes determine further dims
_NEEDED: Final[Mapping[tuple[str, str], tuple[_Needed, ...]]] = {
    ("", "DFT"): (_Needed(),),
    ("", "GRU"): (_RECURRENT, _Needed(1, 2, rank=3)),
    ("", "LRN"): (_Needed(first=1, stop=2),),
    # For an input of width 0, the gates contain uninitialized memory.
    ("", "LSTM"): (replace(_RECURRENT, first=1), _Needed(1, 2, rank=3)),
    ("", "LpNormalization"): (),
    ("", "OneHot"): (_Needed(),),
    ("", "QuantizeLinear"): (),
    ("", "STFT"): (_Needed(2, rank=1),),
    ("", "TopK"): (_Needed(),),
    ("", "Unique"): (),
    (_ENGINE_DOMAIN, "BiasGelu"): (_Needed(1, rank=1),),
    (_ENGINE_DOMAIN, "GroupQueryAttention"): (_Needed(first=2, stop=3),),
    (_ENGINE_DOMAIN, "MultiHeadAttention"): (_Needed(), _Needed(2, 2, 3)),
    (_ENGINE_DOMAIN, "SkipLayerNormalization"): (_Needed(2, rank=1),),
    (_ENGINE_DOMAIN, "SkipSimplifiedLayerNormalization"): (_Needed(2, rank=1),),
    # An operand with one dim is one row.
    ("ai.onnx.ml", "FeatureVectorizer"): (_Needed(stop=-1),),
}
#: operators that are rewritten if sizes are known only at run time, or whose sizes the model declares
_NOT_CHECKED: Final = frozenset({"GroupQueryAttention", "OneHot", "TopK"})
#: operators whose results are zeros if they sum no elements
_SUMS: Final = ("DFT", "Einsum")
#: operators that the optimizer moves a Transpose of one operand behind, so that it transposes the others
COMBINING: Final = frozenset(
    {
        *("Add", "And", "Concat", "Div", "Equal", "Greater", "Less", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
#: operators that may end the process over no elements
OVER_NOTHING: Final = frozenset({("", "Einsum"), *_NEEDED})


def _along(axis: int) -> _Needed:
    return _Needed(first=axis, stop=axis + 1 or None)


def _needed(node: onnx.NodeProto) -> tuple[_Needed, ...]:
    found = _NEEDED.get(operator_of(node), ())
    if standard(node, "LpNormalization"):
        found = (_along(attribute_of(node, "axis", -1)),)
    elif standard(node, "LSTM") and attribute_of(node, "layout", 0):
        found = (replace(found[0], first=0, stop=1), *found[1:])
    elif standard(node, "QuantizeLinear") and attribute_of(node, "block_size", 0):
        found = (_Needed(first=attribute_of(node, "axis", 1)),)
    elif standard(node, "Unique") and (first := attribute_of(node, "axis", -1) + 1):
        # Unique compares slices along an axis, element by element of the later dims.
        found = (_Needed(first=first, is_behind=True),)
    return tuple(one for one in found if one.at < len(node.input) and node.input[one.at])


def is_over_nothing(node: onnx.NodeProto, shapes: ShapesInSets) -> bool:
    """Return True if an operand has no elements in some set of sizes, and the kernel may end the process."""
    if standard(node, "Einsum"):
        return any(0 in shape for name in node.input for shape in shapes(name))
    return any(one.is_missing(shape) for one in _needed(node) for shape in shapes(node.input[one.at]))


def nothing_fault(node: onnx.NodeProto, shapes: ShapesInSets) -> str:
    """Describe the first operand of a node that has no elements."""
    sizes = [list(shape) for name in node.input if name for shape in shapes(name) if 0 in shape]
    return f"an operand of {sizes[0]}, which has no elements"


def is_zero(node: onnx.NodeProto, results: Iterable[tuple[int, ...]]) -> bool:
    """Return True if all results of a node over no elements are zeros or empty."""
    return standard(node, *_SUMS) or not any(map(math.prod, results))


def results_in(node: onnx.NodeProto, shapes: ShapesInSets) -> list[tuple[tuple[int, ...], ...]]:
    """List the distinct shapes of the results in all sets of sizes; [] if a shape is not known."""
    known = [shapes(name) for name in node.output if name]
    return list(dict.fromkeys(zip(*known, strict=True))) if all(known) else []


def reads_nothing(inferred: onnx.ModelProto) -> bool:
    """Return True if an operator that the optimizer moves a Transpose behind reads no elements."""
    dims = dims_in(inferred)
    nodes = find_nodes(inferred.graph.node, COMBINING)
    return any(0 in sizes for node in nodes for name in node.input for sizes in dims(name))


def drop_empty_operands(model: onnx.ModelProto, types: Mapping[str, int], dims: DimsInSets) -> None:
    """Remove operands that add no element to a result in any set of sizes; changes `model` in place."""
    # Models whose shapes are not inferred have no dims of these.
    empty = {
        node.output[0]: (tuple(attribute.t.dims),)
        for node in find_nodes(model.graph.node, {"Constant"})
        for attribute in node.attribute
        if 0 in attribute.t.dims
    }
    for node in find_nodes(model.graph.node, COMBINING):
        known = {name: dims(name) or empty.get(name, ()) for name in (*node.input, *node.output)}
        if not any(0 in sizes for sets in known.values() for sizes in sets):
            continue
        result = node.output[0]
        sizes = known[result][0] if len({*known[result]}) == 1 else ()
        made = [size for size in sizes if size is not None]
        if 0 in made and len(made) == len(sizes) and result in types:
            value = helper.make_tensor("", types[result], made, [])
            node.op_type = "Constant"
            set_inputs(node, ())
            set_attributes(node, [helper.make_attribute("value", value)])
        elif node.op_type == "Concat":
            axis = attribute_of(node, "axis", 0)
            kept = [
                name
                for name in node.input
                if not known[name] or any(sizes[axis] != 0 for sizes in known[name])
            ]
            set_inputs(node, kept or node.input[:])


def zeros(
    node: onnx.NodeProto, results: tuple[tuple[int, ...], ...], guards: GuardNodes
) -> list[onnx.NodeProto]:
    """Create nodes of zeros that replace a node over no elements."""
    for result, sizes in zip(filter(None, node.output), results, strict=True):
        if result not in guards.types:
            raise refused_operand(node, "an operand without elements", "at least one element")
        value = helper.make_tensor("", guards.types[result], [1], [0])
        shape = guards.constant(result, np.array(sizes, np.int64))
        guards.add("ConstantOfShape", [shape], result, value=value)
    guards.nodes[-1].name = node.name
    return guards.nodes


def with_elements(node: onnx.NodeProto, guards: GuardNodes) -> str:
    """Append nodes that return the first operand, and fail if it has no elements."""
    source = node.input[0]
    is_empty = guards.compute(source, "Equal", guards.compute(source, "Size", source), 0, elem_type=BOOL)
    return guards.reject(source, guards.types[source], _title(node, source), is_empty)


def _title(node: onnx.NodeProto, operand: str) -> str:
    what = f"operand without elements: {node.op_type} needs sizes of 1 or more in {operand!r}"
    return f"{node_label(node)} ({what}; skip it for others with an If)"


def checked_operands(
    node: onnx.NodeProto, guards: GuardNodes, checked: dict[tuple[Any, ...], str], *, dft_axis: int | None
) -> Iterator[tuple[int, str]]:
    """Yield position and checked value of each operand that may have no elements when a program runs.

    `checked` contains the values of checks that nodes of the graph share. `dft_axis` is the axis of a DFT;
    None if it is not constant.
    """
    for one in () if node.op_type in _NOT_CHECKED else _needed(node):
        needed, source = one, node.input[one.at]
        if standard(node, "DFT"):
            needed = replace(one, first=node.input[_AXIS]) if dft_axis is None else _along(dft_axis)
        kept = needed.kept(node, guards.dims)
        if kept == [] or source not in guards.types:
            continue
        key = (source, needed.first, needed.stop, needed.is_behind)
        if key not in checked:
            title = _title(node, source)
            if kept is None:
                shape = guards.compute(source, "Shape", source)
                target = guards.reject(shape, INT64, title, needed.missing(source, shape, guards))
            else:
                target = guards.constant(source, np.array(kept))
            result = guards.value(source, "filled", source, guards.types[source])
            checked[key] = guards.add("Reshape", [source, target], result)
            if kept is not None:
                guards.nodes[-1].name = title
        yield one.at, checked[key]


def padded_sum(node: onnx.NodeProto, guards: GuardNodes) -> list[onnx.NodeProto]:
    """Create nodes that compute an Einsum of several operands, some of which may have no elements.

    A dim of 0 is padded to 1 with zeros, which do not change sums, and is removed from the result. Returns []
    for other nodes, and if ranks are not known.
    """
    terms, types = _labels(node, guards.dims) if standard(node, "Einsum") else [], guards.types
    if len(terms) < 3 or any(name not in types for name in node.input):
        return []
    padded, base, ends = clone(node), node.output[0], dict[str, str]()
    compute = partial(guards.compute, base)
    for at, (name, term) in enumerate(zip(node.input, terms, strict=False)):
        known = guards.dims(name) or ((None,) * len(term),)
        filled = [all(sizes) for sizes in zip(*known, strict=True)]
        if all(filled) or len(filled) != len(term):
            continue
        # `counts` contains 0 for each dim of size 0, and 1 for other dims.
        counts = compute("Cast", compute("Cast", compute("Shape", name), elem_type=BOOL, to=BOOL), to=INT64)
        pads = compute("Concat", np.zeros(len(term)), compute("Sub", 1, counts), axis=0)
        result = guards.value(name, "padded", None, types[name])
        replace_input_with(padded, at, guards.add("Pad", [name, pads], result))
        for dim, label in enumerate(term):
            if label in terms[-1] and not filled[dim]:
                count = compute("Gather", counts, np.array([dim]), axis=0)
                ends[label] = compute("Mul", ends[label], count) if label in ends else count
    if not guards.nodes:
        return []
    guards.nodes.append(padded)
    if ends:
        found = guards.move(padded, 0, "padded", types[node.input[0]])
        stop = compute("Mul", compute("Concat", *ends.values(), axis=0), _END)
        axes = guards.constant(base, np.array([terms[-1].index(label) for label in ends]))
        start = guards.constant(base, np.zeros(len(ends), np.int64))
        guards.add("Slice", [found, start, stop, axes], base)
    return guards.nodes


def _labels(node: onnx.NodeProto, dims: DimsInSets) -> list[list[str]]:
    """List the labels of the dims of each operand of an Einsum, then of its result; [] for unknown ranks."""
    before, arrow, after = attribute_of(node, "equation", b"").decode().replace(" ", "").partition("->")
    letters = before.replace(",", "").replace(".", "")
    if not arrow:
        once = sorted(letter for letter in letters if letters.count(letter) == 1)
        after = "".join(["..." if "." in before else "", *once])
    terms, most = [], 0
    for name, term in zip([*node.input, ""], [*before.split(","), after], strict=False):
        front, dots, back = term.partition("...")
        ranks = {len(sizes) for sizes in dims(name)} if dots and name else {0}
        if len(ranks) != 1:
            return []
        more = ranks.pop() - len(front) - len(back) if dots and name else most if dots else 0
        most = max(most, more)
        # Dims of an ellipsis are numbered from the last dim.
        terms.append([*front, *map(str, reversed(range(more))), *back])
    return terms if len(terms) == len(node.input) + 1 else []
