"""The instrumented program: the float graph with the tensors to be measured as outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qaic.compiler.frontend import specialization, validation
from qaic.compiler.ir.constants import initializers
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.graph_edits import add_output
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.emulation.emulate_float16 import round_as_model
from qaic.compiler.passes.legalize.legalize_captured_values import legalize_captured_values
from qaic.compiler.passes.shape_inference.dynamic_shapes import infer_specializations
from qaic.options.models import CompileOptions


def write_instrumented(path: Path, model: Model, context: Context, results: Sequence[str]) -> int:
    """Write a container that computes the model in its own precision and hands out more than its outputs.

    Parameters
    ----------
    path
        File to write; must not exist.
    model
        The float graph; not changed.
    context
        Options of the compilation, and what writes programs.
    results
        Results of nodes that become outputs, as far as they are none yet.

    Returns
    -------
    int
        Bytes of all outputs of one inference.
    """
    observed = model.copy()
    graph = observed.proto.graph
    outputs = {value.name for value in graph.output}
    for name in results:
        if name not in outputs:
            value = add_output(graph, name)
            value.type.tensor_type.elem_type = model.facts.types[name]
    observed.specialized, observed.known = infer_specializations(
        observed.proto, observed.weights, model.symbol_sizes, model.requested, model.library_paths
    )
    round_as_model(observed, context.options.aic_hw_version)
    legalize_captured_values(observed.proto, observed.facts.types)
    validation.drop_unused(observed.proto, observed.weights)
    initializers.externalize_constants(observed.proto, observed.weights)
    specialization.fix_interface(observed.proto, observed.specialized)
    observed.name = graph.name or "unnamed"
    # One buffer for all outputs could be larger than a buffer may be.
    plain = CompileOptions(retained_state=context.options.retained_state, combine_outputs=False)
    context.write_program(path, observed, plain)
    return sum(edge.nbytes for edge in observed.outputs)
