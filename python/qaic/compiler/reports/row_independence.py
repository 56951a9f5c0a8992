"""Proof that the rows of a batch do not depend on each other, by static analysis of the graph.

A value is either a constant, which is the same for all rows, or rows: an array in which one dimension is the
batch in blocks, and block ``i`` is the same function of row ``i`` for every ``i``. A rule for each operator
states its effect on rows. Operators without a rule are not proved.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qaic.compiler.ir.graph_edits import add_input, clear_shape, clone, set_initializers, set_shape
from qaic.compiler.ir.graph_walk import RANDOM, SHAPE_READERS, subgraphs
from qaic.compiler.ir.value_info import collect_shapes
from qaic.compiler.passes.shape_inference import engine_shapes
from qaic.compiler.passes.shape_inference.engine_shapes import inferred
from qaic.compiler.reports import row_rules
from qaic.errors import CompileError

Shape = tuple[int, ...]

#: most sets of shapes, which are analyzed one by one
_MOST_SETS: Final = 64


def why_dependent(
    model: onnx.ModelProto, input_shapes: Sequence[Mapping[str, Shape]], weights: Mapping[str, NDArray[Any]]
) -> str:
    """Return the reason why rows are not proved to be independent; empty if they are.

    The large initializers are outside the graph, in `weights`. `input_shapes` maps the name of each input to
    its shape in each set of shapes, with the batch first. Returns the node that mixes rows or is unknown, and
    the reason.
    """
    if len(input_shapes) > _MOST_SETS:
        return f"the program has {len(input_shapes)} sets of shapes; {_MOST_SETS} at most are analyzed"
    groups: dict[tuple[Shape, ...], set[int]] = {}
    for shapes in input_shapes:
        tail = tuple(shape[1:] for shape in shapes.values())
        groups.setdefault(tail, set()).add(next(iter(shapes.values()))[0])
    for tail, sizes in groups.items():
        if sizes == {1}:
            continue
        # A batch of one is not distinct from other dimensions of 1, so another size represents it.
        analyzed = sorted({2 * max(sizes) if size == 1 else size for size in sizes})
        try:
            layouts = []
            for size in analyzed:
                shapes = {name: (size, *rest) for name, rest in zip(input_shapes[0], tail, strict=True)}
                layouts.append(Analysis(model, shapes, weights, is_one_size=len(analyzed) == 1).run())
        except row_rules.NotProvedError as reason:
            return str(reason)
        except CompileError as error:
            return f"its shapes are unknown: {error.message}"
        for name, found in layouts[0].items():
            if any(layout.get(name) != found for layout in layouts):
                return f"the batch size changes more than the batch dimension of {name!r}"
    return ""


class Analysis(row_rules.Known):
    """One set of shapes."""

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: Mapping[str, Shape],
        weights: Mapping[str, NDArray[Any]],
        *,
        is_one_size: bool,
    ) -> None:
        batch = next(iter(shapes.values()))[0]
        rows = {name: row_rules.Rows(shape, 0) for name, shape in shapes.items()}
        constants = {
            tensor.name: row_rules.Constant(tuple(tensor.dims), read=partial(_stored, tensor, weights))
            for tensor in model.graph.initializer
        }
        super().__init__(model, batch, _infer_shapes(model, shapes), {**rows, **constants})
        self.is_one_size = is_one_size

    def run(self) -> dict[str, tuple[int, Shape]]:
        """Return the layout of each value with rows: its dimension of rows, and the others."""
        for proto in self.model.graph.node:
            try:
                self._visit(row_rules.Node(proto, self))
            except row_rules.NotProvedError as reason:
                name = proto.name or next(iter(proto.output), "")
                raise row_rules.NotProvedError(f"{proto.op_type} {name!r} {reason}") from None
        for output in self.model.graph.output:
            value = self.values.get(output.name)
            if isinstance(value, row_rules.Rows):
                is_batch = (value.axis, value.shape[0]) == (0, self.batch)
            else:
                is_batch = value is not None and value.is_same_along(0, self.batch)
            if not is_batch:
                raise row_rules.NotProvedError(
                    f"the first dimension of output {output.name!r} is not the batch"
                )
        # Sizes are compared among batches, so the batch itself is excluded.
        return {
            name: (value.axis, (value.shape[value.axis] // self.batch, *_without(value.shape, value.axis)))
            for name, value in self.values.items()
            if isinstance(value, row_rules.Rows)
        }

    def _visit(self, node: row_rules.Node) -> None:
        proto = node.proto
        if any(True for _ in subgraphs(proto)):
            raise row_rules.NotProvedError("runs nested graphs")
        if proto.op_type in RANDOM:
            raise row_rules.NotProvedError("draws random numbers")
        if not node.rows:
            self._fold(node)
            return
        if proto.op_type in SHAPE_READERS:
            self._read_shape(node)
            return
        if proto.op_type == "DynamicQuantizeLinear":
            raise row_rules.NotProvedError("quantizes each row with the range of all rows")
        rule = row_rules.RULES.get(proto.op_type)
        if rule is None or proto.domain not in row_rules.DOMAINS:
            raise row_rules.NotProvedError("has no rule that keeps rows apart")
        if not self.is_one_size and any(
            value.is_sized and index not in row_rules.SHAPE_OPERANDS.get(proto.op_type, ())
            for index, value in node.constants.items()
        ):
            raise row_rules.NotProvedError("computes with the batch size, which varies")
        found = rule(node)
        axes = [found] * len(proto.output) if isinstance(found, int) else found
        for name, axis in zip(proto.output, axes, strict=False):
            if not name:
                continue
            shape = self.shape(name)
            if not 0 <= axis < len(shape) or shape[axis] % self.batch or 0 in shape:
                raise row_rules.NotProvedError("has a result without the batch dimension")
            self.values[name] = row_rules.Rows(shape, axis)

    def _fold(self, node: row_rules.Node) -> None:
        is_sized = any(value.is_sized for value in node.constants.values())
        for index, name in enumerate(node.proto.output):
            if name:
                self.values[name] = row_rules.Constant(
                    self.shape(name), is_sized, partial(_evaluate, node, index)
                )

    def _read_shape(self, node: row_rules.Node) -> None:
        (rows,) = node.rows.values()
        begin, end, _ = slice(node.attribute("start", 0), node.attribute("end", None)).indices(
            len(rows.shape)
        )
        is_shape = node.proto.op_type == "Shape"
        data = np.array(rows.shape[begin:end] if is_shape else math.prod(rows.shape), np.int64)
        is_sized = not is_shape or begin <= rows.axis < end
        self.values[node.proto.output[0]] = row_rules.Constant(data.shape, is_sized, lambda: data)


def _stored(tensor: onnx.TensorProto, weights: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    if tensor.name in weights:
        return weights[tensor.name]
    return None if tensor.external_data else numpy_helper.to_array(tensor)


def _infer_shapes(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
    view = clone(model)
    for value in view.graph.input:
        set_shape(value, shapes.get(value.name, ()))
    outside = [tensor for tensor in model.graph.initializer if tensor.external_data]
    set_initializers(view.graph, [tensor for tensor in model.graph.initializer if not tensor.external_data])
    for tensor in outside:
        add_input(view.graph, helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in view.graph.output:
        clear_shape(value)
    complete = inferred(view, {})
    found = collect_shapes(complete)
    missing = [name for node in view.graph.node for name in node.output if name and name not in found]
    if missing:
        engine_shapes.complete(complete, missing, folding=True)
        found = collect_shapes(complete)
    return found


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _evaluate(node: row_rules.Node, index: int) -> NDArray[Any] | None:
    """Compute a constant; None if that is not possible."""
    from onnx.reference import ReferenceEvaluator

    name = node.proto.output[index]
    try:
        arrays = {node.proto.input[position]: value.data for position, value in node.constants.items()}
        kept = [numpy_helper.from_array(np.ascontiguousarray(array), key) for key, array in arrays.items()]
        output = helper.make_value_info(name, helper.make_tensor_type_proto(0, None))
        graph = helper.make_graph([node.proto], "constant", [], [output], kept)
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=node.known.model.opset_import))
        (array,) = cast("list[Any]", evaluator.run(None, {}))
        return np.asarray(array)
    except Exception:  # noqa: BLE001 (what another package does not compute is not known)
        return None
