"""The instrumented program: the float graph with the tensors to be measured as outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.compiler.backend.cpu.qpc_writer import write_unchecked
from qaic.compiler.frontend import specialization, validation
from qaic.compiler.ir import initializers
from qaic.compiler.ir.shape_inference.dynamic_shapes import inferred_forms
from qaic.compiler.quantization import precision
from qaic.options.models import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from qaic.compiler.calibration.float_graph import FloatGraph


def write_instrumented(path: Path, graph: FloatGraph, results: Sequence[str]) -> int:
    """Write a container that computes the model in its own precision and hands out more than its outputs.

    Parameters
    ----------
    path
        File to write; must not exist.
    graph
        The float graph; not changed.
    results
        Results of nodes that become outputs, as far as they are none yet.

    Returns
    -------
    int
        Bytes of all outputs of one inference.
    """
    from qaic.compiler.pipeline import Lowered

    model = type(graph.model)()
    model.CopyFrom(graph.model)
    weights = dict(graph.weights)
    outputs = {value.name for value in model.graph.output}
    for name in results:
        if name not in outputs:
            value = model.graph.output.add()
            value.name = name
            value.type.tensor_type.elem_type = graph.facts.types[name]
    forms, interface = inferred_forms(
        model, weights, graph.sizes, graph.entries, [library.path for library in graph.libraries]
    )
    overflows = precision.round_as_model(model, weights, graph.facts, graph.hardware)
    validation.drop_unused(model, weights)
    initializers.settle_sizes(model, weights)
    specialization.fix_interface(model, forms)
    lowered = Lowered(
        name=model.graph.name or "unnamed",
        model=model,
        weights=weights,
        inputs=interface.inputs,
        outputs=interface.outputs,
        variants=interface.variants,
        overflows=overflows,
        side_files=[],
        custom_op_libraries=graph.libraries,
    )
    # One buffer for all outputs could be larger than a buffer may be.
    plain = CompileOptions(retained_state=graph.has_state, combine_outputs=False)
    write_unchecked(path, lowered, plain)
    return sum(edge.nbytes for edge in interface.outputs)
