"""Nodes that observe one value: sums, counts and selected elements, all in float32."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import add_input, add_output, clone, register_initializer
from qaic.compiler.ir.graph_walk import FreshNames
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Model

#: first operator set in which the steps of Slice and the number of TopK are inputs
_STEPS_AS_INPUT: Final = 10
#: largest number of elements whose count is faster than the choice of a branch by the engine
_FEW_ELEMENTS: Final = 1 << 12


class ObserverNodes:
    """Creates nodes and constants for a graph. Methods add the nodes of a value, and return its name.

    Constants are added to `graph`, and its names are not reused; `version` is the version of the standard
    operators.
    """

    def __init__(self, graph: onnx.GraphProto, version: int) -> None:
        self.graph = graph
        self.version = version
        self.fresh = FreshNames(graph)
        #: added nodes that are not in the graph yet, in topological order
        self.observers: list[onnx.NodeProto] = []
        #: values that nested graphs may read; passes need their types
        self.flats: list[str] = []
        self.numbers: dict[tuple[str, tuple[float, ...]], str] = {}
        #: operator and value -> its result, if it is visible here
        self.made: dict[tuple[str, str], str] = {}

    def _flat(self, name: str) -> str:
        if found := self.made.get(("flat", name)):
            return found
        flat = self.made["flat", name] = self._node("Reshape", [name, self._integer(1, -1)], "flat")
        self.flats.append(flat)
        return flat

    def _reduced(self, operator: str, name: str) -> str:
        return self._node(operator, [name], keepdims=1)

    def _distance(self, name: str, flat: str) -> str:
        """Sum the squares of differences from the reference; both are flat."""
        return self._reduced("ReduceSumSquare", self._node("Sub", [name, flat], "difference"))

    def _count(self, condition: str) -> str:
        return self._reduced("ReduceSum", self._node("Cast", [condition], "number", to=FLOAT))

    def _binary(self, operator: str, left: str, right: str) -> str:
        return self._node(operator, [left, right])

    def _abs(self, name: str) -> str:
        if ("abs", name) not in self.made:
            self.made["abs", name] = self._node("Abs", [name])
        return self.made["abs", name]

    def _counted_beyond(
        self, found: dict[str, str], low: str, high: str, size: int | None, count: Callable[[], str]
    ) -> str:
        """Count among `size` elements; if there are many, only in runs with an element out of bounds."""
        if size is not None and size <= _FEW_ELEMENTS:
            return count()
        condition = self._binary(
            "Or", self._binary("Less", found["minimum"], low), self._binary("Less", high, found["maximum"])
        )
        outside, self.observers = self.observers, []
        made = self.made.copy()
        counted = count()
        inside, self.observers, self.made = self.observers, outside, made
        zero = self.fresh.make(condition, "none")
        counting = helper.make_graph(
            inside, "counted", [], [helper.make_tensor_value_info(counted, FLOAT, [1, 1])]
        )
        nothing = helper.make_graph(
            [helper.make_node("Identity", [self._number([[0.0]])], [zero])],
            "none",
            [],
            [helper.make_tensor_value_info(zero, FLOAT, [1, 1])],
        )
        scalar = self._node("Reshape", [condition, self._integer(1)], "any")
        return self._node("If", [scalar], "count", then_branch=counting, else_branch=nothing)

    def _spaced(self, flat: str, size: int | None, most: int) -> tuple[str, int | None]:
        """Select evenly spaced elements; return their name and number, None if it depends on the run."""
        if size is not None and size <= most:
            return flat, size
        if size is None:
            size_name = self._size(flat)
            # The least odd step that gives at most so many elements: (size + most - 1) / most | 1.
            step = self._binary("Div", self._plus(size_name, most - 1), self._integer(most))
            half = self._binary("Div", step, self._integer(2))
            step = self._plus(self._binary("Mul", half, self._integer(2)), 1)
            ends = (self._integer(0), size_name, self._integer(1), step)
            return self._node("Slice", [flat, *ends], "spaced"), None
        stride = -(-size // most) | 1
        places = range(0, size, stride)
        if self.version < _STEPS_AS_INPUT:
            return self._node("Gather", [flat, self._integer(*places)], "spaced", axis=1), len(places)
        ends = (self._integer(0), self._integer(size), self._integer(1), self._integer(stride))
        return self._node("Slice", [flat, *ends], "spaced"), len(places)

    def _has_elements(self, size: int | None) -> bool:
        """Return True if elements can be selected; old operator sets cannot select a computed number."""
        return self.version >= _STEPS_AS_INPUT if size is None else size > 0

    def _thousandth(self, name: str, size: int | None) -> int | str:
        """Return a thousandth of a number of elements, rounded up."""
        if size is not None:
            return max(1, math.ceil(size / 1000))
        return self._binary("Div", self._plus(self._size(name), 999), self._integer(1000))

    def _length(self, flat: str, size: int | None) -> str:
        """Return the name of a number of elements as a float."""
        if size is not None:
            return self._number([[float(size)]])
        number = self._node("Cast", [self._size(flat)], "number", to=FLOAT)
        return self._node("Reshape", [number, self._integer(1, 1)], "length")

    def _size(self, flat: str) -> str:
        """Return the name of the number of elements of a flat value, an integer of shape [1]."""
        return self._node("Gather", [self._node("Shape", [flat], "shape"), self._integer(1)], "size")

    def _plus(self, name: str, number: int) -> str:
        return self._binary("Add", name, self._integer(number))

    def _integer(self, *numbers: int) -> str:
        return self._number([*numbers], integers=True)

    def _channel_largest(self, sizes: str, axes: list[int]) -> str:
        if self.version >= 18:
            return self._node("ReduceMax", [sizes, self._integer(*axes)], "largest", keepdims=1)
        return self._node("ReduceMax", [sizes], "largest", keepdims=1, axes=axes)

    def _nth_largest(self, name: str, number: int | str) -> str:
        outputs = [self.fresh.make(name, "top"), self.fresh.make(name, "places")]
        is_old = self.version < _STEPS_AS_INPUT
        given = [] if is_old else [self._integer(number) if isinstance(number, int) else number]
        attributes: dict[str, Any] = {"k": number} if is_old else {}
        self.observers.append(helper.make_node("TopK", [name, *given], outputs, **attributes))
        return outputs[0] if number == 1 else self._reduced("ReduceMin", outputs[0])

    def _node(self, operator: str, inputs: Sequence[str], suffix: str = "", **attributes: Any) -> str:
        """Add a node; its result is named after the first input, with a suffix or the operator."""
        output = self.fresh.make(inputs[0], suffix or operator.lower())
        self._add_node(operator, inputs, output, **attributes)
        return output

    def _add_node(self, operator: str, inputs: Iterable[str], output: str, **attributes: Any) -> None:
        self.observers.append(make_node(operator, inputs, output, **attributes))

    def _number(self, values: Any, *, integers: bool = False) -> str:
        array = np.array(values, np.int64 if integers else np.float32)
        key = (array.dtype.str, array.shape, *array.reshape(-1).tolist())
        if key not in self.numbers:
            self.numbers[key] = self.fresh.make("accuracy", "number")
            register_initializer(self.graph, numpy_helper.from_array(array, self.numbers[key]))
        return self.numbers[key]


def make_node(operator: str, inputs: Iterable[str], output: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node with one output."""
    return helper.make_node(operator, list(inputs), [output], **attributes)


def extend_interface(model: Model, added: Sequence[TensorSpec], reference: str, zero_name: str) -> None:
    """Declare inputs and outputs, for every set of shapes.

    The graph of `model` already has the inputs and outputs of the reference, whose names begin with
    `reference`. `added` are outputs that are the same for every set of shapes; this function also declares
    them in the graph. `zero_name` is the name of an input of one element that the graph may have.
    """
    graph = model.proto.graph
    declared = [helper.make_tensor_value_info(spec.name, FLOAT, spec.dims) for spec in added]
    for value in declared:
        add_output(graph, value)
    known = model.interface
    count = len(known.inputs)
    own_outputs = {value.name for value in graph.output}
    inputs = tuple(replace(spec, name=reference + spec.name) for spec in known.inputs)
    kept = [at for at, spec in enumerate(known.outputs) if reference + spec.name in own_outputs]
    outputs = tuple(replace(known.outputs[at], name=reference + known.outputs[at].name) for at in kept)
    has_zero = any(value.name == zero_name for value in graph.input)
    zeros = (TensorSpec(zero_name, FLOAT, (1,)),) if has_zero else ()
    specializations = tuple(
        replace(
            item,
            inputs=(*item.inputs, *item.inputs, *(spec.dims for spec in zeros)),
            outputs=(*item.outputs, *(item.outputs[at] for at in kept), *(spec.dims for spec in added)),
        )
        for item in known.specializations
    )
    model.known = Interface(
        (*known.inputs, *inputs, *zeros), (*known.outputs, *outputs, *added), specializations
    )
    specialized = []
    for given in model.specialized:
        form = clone(given)
        for value in given.graph.input[:count]:
            add_input(form.graph, value, reference + value.name)
        if has_zero:
            add_input(form.graph, helper.make_tensor_value_info(zero_name, FLOAT, [1]))
        for value in given.graph.output:
            add_output(form.graph, value, reference + value.name)
        for value in declared:
            add_output(form.graph, value)
        specialized.append(form)
    model.specialized = specialized
