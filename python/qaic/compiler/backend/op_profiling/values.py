"""Types, shapes and sizes of the values of an instrumented program, for its largest set of shapes."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from qaic.compiler.ir.elem_types import FLOAT, TABLE, tensor_bytes, type_name
from qaic.compiler.ir.graph_edits import clone, set_shape
from qaic.compiler.ir.graph_walk import all_graphs
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.compiler.ir.precision import cast_target
from qaic.compiler.ir.value_info import collect_shapes, known_dims, may_follow_values
from qaic.compiler.passes.shape_inference.engine_shapes import complete
from qaic.compiler.passes.shape_inference.infer_shapes import infer_specializations
from qaic.errors import QaicError


@dataclass(frozen=True, slots=True)
class Value:
    """A value; zero and None mean that a fact is unknown before the program runs."""

    elem_type: int = 0
    dims: tuple[int, ...] | None = None

    @property
    def dtype(self) -> str:
        """Name of the type; empty if unknown."""
        return type_name(self.elem_type) if self.elem_type in TABLE else ""

    @property
    def nbytes(self) -> int | None:
        """Size in bytes, if known."""
        if self.dims is None or not TABLE.get(self.elem_type, ("", 0))[1]:
            return None
        return tensor_bytes(self.elem_type, self.dims)

    @property
    def shape(self) -> str:
        """Dims as ``2 x 3``; ``?`` if unknown."""
        return "?" if self.dims is None else " x ".join(map(str, self.dims)) or "1"


class ValueTable:
    """Values by name.

    `specialized` contains, for each set of sizes, the program with inferred types and shapes; its weights are
    inputs. The first program that contains a value is used.
    """

    def __init__(self, specialized: Sequence[Sequence[onnx.ModelProto]]) -> None:
        self._shapes: list[dict[str, tuple[int, ...]]] = []
        self._types: dict[str, int] = {}
        for of_sizes in specialized:
            shapes: dict[str, tuple[int, ...]] = {}
            for graph in (
                graph for specialized_model in of_sizes for graph in all_graphs(specialized_model.graph)
            ):
                for value in (*graph.input, *graph.output, *graph.value_info):
                    self._note(shapes, value)
                self._note_constants(shapes, graph.initializer)
            self._shapes.append(shapes)

    def add_constants(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Add constants that the engine has created."""
        for tensor in tensors:
            for shapes in self._shapes:
                self._note_constants(shapes, [tensor])

    def rename(self, old: str, new: str) -> None:
        """Give a value a second name."""
        if old in self._types:
            self._types.setdefault(new, self._types[old])
        for shapes in self._shapes:
            if old in shapes:
                shapes.setdefault(new, shapes[old])

    def complete(self, optimized: onnx.ModelProto) -> None:
        """Infer the values that the engine has added to the main graph, if onnx knows the operators."""
        named = [name for node in optimized.graph.node for name in node.output if name]
        if all(name in shapes for shapes in self._shapes for name in named):
            return
        casts = [node for node in reversed(optimized.graph.node) if node.op_type == "Cast"]
        for node in casts:
            # onnx may not have the operator before a rounding cast, which reads a float32 value of its own
            # shape.
            if cast_target(node):
                self._types.setdefault(node.input[0], FLOAT)
        for shapes in self._shapes:
            for node in casts:
                if node.output[0] in shapes:
                    shapes.setdefault(node.input[0], shapes[node.output[0]])
            view = clone(optimized)
            for value in (*view.graph.input, *view.graph.output):
                _declare(value, self._types, shapes)
            del view.graph.value_info[:]
            for name in named:
                if name in shapes:
                    _declare(view.graph.value_info.add(name=name), self._types, shapes)
            try:
                inferred = infer_with_valid_ranks(view, data_prop=may_follow_values(view))
            except Exception as error:  # noqa: BLE001 - of any kind; what is not known stays so
                _log.debug("sizes of values that the engine added are unknown: %s", error)
                return
            for value in inferred.graph.value_info:
                self._note(shapes, value)

    def get(self, name: str) -> Value:
        """Describe a value by its largest shape."""
        shapes = [table.get(name) for table in self._shapes]
        known = [dims for dims in shapes if dims is not None]
        elem_type = self._types.get(name, 0)
        if len(known) < len(shapes):
            return Value(elem_type)
        return Value(elem_type, max(known, key=lambda dims: tensor_bytes(1, dims), default=None))

    def macs(self, node: onnx.NodeProto) -> int:
        """Count the multiply-accumulates of a node; 0 if unknown."""
        return max((macs_of(node, shapes) or 0 for shapes in self._shapes), default=0)

    def _note(self, shapes: dict[str, tuple[int, ...]], value: onnx.ValueInfoProto) -> None:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            return
        if tensor.elem_type:
            self._types.setdefault(value.name, tensor.elem_type)
        if (dims := known_dims(value)) is not None:
            shapes.setdefault(value.name, dims)

    def _note_constants(
        self, shapes: dict[str, tuple[int, ...]], tensors: Iterable[onnx.TensorProto]
    ) -> None:
        for tensor in tensors:
            self._types.setdefault(tensor.name, tensor.data_type)
            shapes.setdefault(tensor.name, tuple(tensor.dims))


def _declare(value: onnx.ValueInfoProto, types: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
    tensor = value.type.tensor_type
    if value.name in types:
        tensor.elem_type = types[value.name]
    if value.name in shapes:
        set_shape(value, shapes[value.name])


_log = logging.getLogger("qaic.compiler")


@compiler_pass(lambda context: context.measures_operations)
def infer_finished_pass(model: Model, _: Context) -> None:
    """Infer types and shapes of the finished graph again if operations are measured."""
    try:
        finished, _interface = infer_specializations(model)
    except QaicError as error:
        _log.debug("sizes of values that the compiler added are unknown: %s", error)
        model.described = [[specialized_model] for specialized_model in model.specialized]
        return
    for specialized_model in finished:
        shapes = collect_shapes(specialized_model)
        results = [name for node in specialized_model.graph.node for name in node.output if name]
        unknown = [name for name in results if name not in shapes]
        if unknown:
            # After constants are computed, the engine may infer shapes that the model computes from shapes.
            complete(specialized_model, unknown, model.library_paths, folding=True)
    # Facts about the earlier model still hold for values that kept their name.
    model.described = list(map(list, zip(finished, model.specialized, strict=True)))
