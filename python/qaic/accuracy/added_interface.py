"""Declaring what instrumenting adds to a program: inputs and outputs of the reference, and sums."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import add_input, add_output, clone
from qaic.compiler.ir.interface import Interface, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.compiler.ir.model import Model


def extend_interface(model: Model, added: Sequence[TensorSpec], reference: str, zero_name: str) -> None:
    """Declare inputs and outputs, for every set of shapes.

    Parameters
    ----------
    model
        The program, whose graph has the inputs and outputs of the reference already.
    added
        Outputs that are the same for every set of shapes, which are declared in the graph here.
    reference
        In front of the names of the inputs and outputs of the reference.
    zero_name
        Name of an input of one element, which the graph may have.
    """
    from onnx import helper

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
            outputs=(
                *item.outputs,
                *(item.outputs[at] for at in kept),
                *(spec.dims for spec in added),
            ),
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
