"""Folds sizes that a decoder computes for each token although they never change.

Exporters compute the shape operand of each ``Reshape`` with four small nodes. The engine folds these nodes
only for fixed shapes. A decoder has two sets of shapes, for a chunk of the prompt and for a token, and its
number of slots depends on positions. The pass writes -1 for one unknown size of a shape, and 0 for sizes that
are equal to those of the operand.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    attribute_of,
    behind,
    consumers,
    read_values,
    standard,
    subgraphs,
)
from qaic.compiler.ir.model import Context, Model, Skip, compiler_pass
from qaic.compiler.ir.value_info import collect_types, declared_dims
from qaic.compiler.passes.decoding.attention import AttentionGraph

#: most sets of shapes that are compared
_MOST_SETS: Final = 16


@compiler_pass(lambda context: context.moves_parts_of_state)
def fold_sizes_pass(model: Model, context: Context) -> None:
    """Replace sizes of decoders by constants if they are known in every specialization."""
    if model.state_rows is None or len(model.symbol_sizes) > _MOST_SETS:
        return
    folder = _Folder(model)
    if folder.learn():
        folder.fold(context.skip)


class _Folder:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = model.proto.graph
        self.of = AttentionGraph(self.graph)
        self.readers = consumers(self.graph.node)
        self.fresh = FreshNames(self.graph)
        self.read_inside: set[str] = set()
        for node in self.graph.node:
            self.read_inside.update(*(read_values(inner) for inner in subgraphs(node)))
        self.made: list[onnx.NodeProto] = []
        self.constants: dict[tuple[int, ...], str] = {}
        self.reshapes = [node for node in self.graph.node if self._is_open(node)]
        self.types: Mapping[str, int] = {}
        #: sizes of values in each set of shapes; None for an unknown size
        self.set_sizes: list[Mapping[str, Sequence[int | None]]] = []

    def _is_open(self, node: onnx.NodeProto) -> bool:
        if not standard(node, "Reshape") or node.attribute or self.of.constant(node.input[1]) is not None:
            return False
        # A later pass recognizes the Reshape before a scatter by its form, and removes it with the scatter.
        return not any(standard(reader, "ScatterND") for reader in self.readers.get(node.output[0], []))

    def learn(self) -> bool:
        """Collect the types of all values, and their sizes in each set of shapes."""
        for form in self.model.forms:
            self.set_sizes.append(declared_dims(form))
            self.types = collect_types(form)
        # No other pass reads the inferred models, which are large.
        self.model.forms = ()
        return bool(self.set_sizes)

    def fold(self, skip: Skip) -> None:
        for node in self.reshapes:
            shape = self._shape(node)
            if shape is None:
                skip("several sizes are unknown or differ between sets of shapes", node)
            else:
                edit.replace_input_with(node, 1, self._constant(shape))
        self._fold_fills()
        nodes = self._without_casts()
        edit.set_nodes(self.graph, [*self.made, *nodes])
        edit.drop_unneeded_nodes(self.graph)

    def _shape(self, node: onnx.NodeProto) -> list[int] | None:
        """Return the shape that a node computes: -1 for a derived size, 0 for a size of the operand."""
        results = [known.get(node.output[0]) for known in self.set_sizes]
        operands = [known.get(node.input[0], ()) for known in self.set_sizes]
        first = results[0]
        if first is None or any(result is None or len(result) != len(first) for result in results):
            return None
        shape: list[int | None] = []
        for place, size in enumerate(first):
            found = {result[place] for result in results if result is not None}
            shape.append(size if len(found) == 1 and size else None)
        if shape.count(None) > 1:
            for place, size in enumerate(shape):
                pairs = zip(results, operands, strict=True)
                is_kept = size is None and all(
                    result is not None
                    and place < len(operand)
                    and operand[place] is not None
                    and operand[place] == result[place]
                    for result, operand in pairs
                )
                if is_kept:
                    shape[place] = 0
        return None if shape.count(None) > 1 else [-1 if size is None else size for size in shape]

    def _constant(self, shape: Sequence[int]) -> str:
        key = tuple(shape)
        if key not in self.constants:
            name = self.constants[key] = self.fresh.make("sizes", "constant")
            value = numpy_helper.from_array(np.array(shape, np.int64))
            self.made.append(helper.make_node("Constant", [], [name], name=name, value=value))
        return self.constants[key]

    def _fold_fills(self) -> None:
        """Replace a filled tensor by a scalar if it has the shape of the other operand of Where."""
        for node in [node for node in self.graph.node if standard(node, "ConstantOfShape")]:
            shape = self.of.makers.get(node.input[0])
            if shape is None or not standard(shape, "Shape") or shape.attribute:
                continue
            if not self._is_chosen(
                node.output[0], behind(shape.input[0], self.of.makers, "Cast", "Identity")
            ):
                continue
            value = attribute_of(node, "value", None)
            number = None if value is None else numpy_helper.to_array(value).reshape(())
            name = self.fresh.make(node.output[0], "number")
            tensor = numpy_helper.from_array(np.zeros((), np.float32) if number is None else number)
            self.made.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
            for reader in self.readers.get(node.output[0], []):
                edit.rename_operands(reader, {node.output[0]: name})

    def _is_chosen(self, name: str, base: str) -> bool:
        """Return True if all readers of a value, except casts, choose between the value and `base`."""
        if name in self.of.outputs or name in self.read_inside:
            return False
        readers = self.readers.get(name, [])
        for reader in readers:
            if standard(reader, "Cast", "Identity"):
                if not self._is_chosen(reader.output[0], base):
                    return False
                continue
            others = [other for other in reader.input[1:] if other != name]
            is_choice = standard(reader, "Where") and reader.input[0] != name and len(others) == 1
            if not is_choice or behind(others[0], self.of.makers, "Cast", "Identity") != base:
                return False
        return bool(readers)

    def _without_casts(self) -> list[onnx.NodeProto]:
        """Remove casts of values that already have the type."""
        renamed: dict[str, str] = {}
        kept = []
        for node in self.graph.node:
            result = node.output[0] if node.output else ""
            if result not in self.of.outputs and self._keeps_type(node):
                source = node.input[0]
                renamed[result] = renamed.get(source, source)
            else:
                kept.append(node)
        edit.replace_all_uses_with(kept, renamed)
        return kept

    def _keeps_type(self, node: onnx.NodeProto) -> bool:
        own = self.types.get(node.input[0]) if node.input else None
        if own is None:
            return False
        if standard(node, "CastLike"):
            return self.types.get(node.input[1]) == own
        return standard(node, "Cast") and attribute_of(node, "to", 0) == own
