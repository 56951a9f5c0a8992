"""Giving every value its type and shape, in each set of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.compiler.frontend import symbols
from qaic.compiler.ir.pass_contract import Always
from qaic.compiler.ir.value_info import ValueInfo, collect_types
from qaic.compiler.passes.shape_inference.dynamic_shapes import infer_specializations

if TYPE_CHECKING:
    from qaic.compiler.ir.context import Context
    from qaic.compiler.ir.model import Model


class InferShapes(Always):
    """Infer types and shapes, unless they are those of the model as it is."""

    name = "infer-shapes"

    def run(self, model: Model, context: Context) -> bool:
        """Learn the shapes."""
        if not model.specialized:
            model.specialized, model.known = infer_specializations(
                model.proto, model.weights, model.symbol_sizes, model.requested, model.library_paths
            )
            for specialized_model, sizes in zip(model.specialized, model.symbol_sizes, strict=False):
                symbols.check_outputs(specialized_model, context.options.output_shapes, sizes)
            # Which set of shapes it is makes no difference to a type.
            model.facts = ValueInfo(collect_types(model.specialized[0]), model.specialized)
        return False
