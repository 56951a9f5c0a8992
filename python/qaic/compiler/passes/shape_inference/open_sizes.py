"""Input sizes that the engine must not know, because it contradicts them in a branch that never runs."""

from __future__ import annotations

import onnx

from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.graph_edits import clear_dim, clone
from qaic.compiler.ir.graph_walk import all_nodes
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import Always
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.passes.shape_inference import engine_shapes


class OpenSizes(Always):
    """Leave the sizes of inputs open where the engine accepts a choice of branches only so.

    A model may choose between branches for inputs of different sizes, such as sampling rates. With fixed
    sizes the engine infers shapes in every branch and refuses one that does not fit, although it never runs.
    """

    name = "open-sizes"

    def run(self, model: Model, context: Context) -> bool:
        """Change the inputs of the graph."""
        del context
        if not any(standard(node, "If") for node in all_nodes(model.proto.graph.node)):
            return False
        opened = clone(model.proto)
        _open(opened.graph)
        if not self._is_refused(model.proto, model) or self._is_refused(opened, model):
            return False
        _open(model.proto.graph)
        return True

    @staticmethod
    def _is_refused(proto: onnx.ModelProto, model: Model) -> bool:
        # The engine infers shapes again after it has folded constants, with the sizes that they give.
        view = with_weights_as_inputs(proto, model.weights)
        return bool(engine_shapes.complete(view, (), model.library_paths, folding=True))


def _open(graph: onnx.GraphProto) -> None:
    """Leave out the sizes of all inputs; the ranks stay."""
    for value in graph.input:
        for position in range(len(value.type.tensor_type.shape.dim)):
            clear_dim(value, position)
