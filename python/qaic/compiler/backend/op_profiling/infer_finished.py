"""Inference of facts about the values of the finished graph, to which passes have added some."""

import logging

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import compiler_pass
from qaic.compiler.ir.value_info import collect_shapes
from qaic.compiler.passes.shape_inference.dynamic_shapes import infer_specializations
from qaic.compiler.passes.shape_inference.engine_shapes import complete
from qaic.errors import QaicError

_log = logging.getLogger("qaic.compiler")


@compiler_pass(lambda context: context.measures_operations)
def infer_finished_pass(model: Model, _: Context) -> bool:
    """Infer the values of the finished graph once more, where operations are measured."""
    libraries = model.library_paths
    try:
        finished, _interface = infer_specializations(
            model.proto, model.weights, model.symbol_sizes, model.requested, libraries
        )
    except QaicError as error:
        _log.debug("sizes of values that the compiler has added are not known: %s", error)
        model.described = [[specialized_model] for specialized_model in model.specialized]
        return False
    for specialized_model in finished:
        shapes = collect_shapes(specialized_model)
        results = [name for node in specialized_model.graph.node for name in node.output if name]
        unknown = [name for name in results if name not in shapes]
        if unknown:
            # With constants computed, the engine may know shapes that the model computes from shapes.
            complete(specialized_model, unknown, libraries, folding=True)
    # What was known of the model before is known of what has kept its name.
    model.described = list(map(list, zip(finished, model.specialized, strict=True)))
    return False
