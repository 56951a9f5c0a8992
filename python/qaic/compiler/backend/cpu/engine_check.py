"""Letting the engine judge a graph without giving it the large weights.

An engine that loads a program may copy every byte of its constants. To learn whether it takes the operators,
types and shapes, the shapes of the weights are enough: the same graph with its weights as inputs is judged in
milliseconds at any size. A kernel may insist that an operand is constant, so a refusal of this form is not
final.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qaic.compiler.ir.constants.weights import initializers_of
from qaic.compiler.ir.elem_types import BFLOAT16, INTERFACE_TYPES
from qaic.compiler.ir.interface import MAX_BYTES, TensorSpec

if TYPE_CHECKING:
    from qaic.compiler.ir.model import Model


def without_weights(model: Model) -> Model | None:
    """Make the form of a program whose weights are inputs, but those that the engine never sees.

    Returns None if a weight cannot be an input: its type has no buffer, or it is too large for one.
    """
    specs = []
    for weight in initializers_of(model.weights):
        spec = TensorSpec(weight.name, weight.elem_type, weight.dims)
        if (
            spec.elem_type not in {*INTERFACE_TYPES, BFLOAT16}
            or spec.nbytes > MAX_BYTES
            or max(spec.dims) > 0x7FFF_FFFF
        ):
            return None
        specs.append(spec)
    interface = replace(
        model.interface,
        inputs=(*model.inputs, *specs),
        specializations=tuple(
            replace(specialization, inputs=(*specialization.inputs, *(spec.dims for spec in specs)))
            for specialization in model.specializations
        ),
    )
    proto = model.copy_for_tools()
    stored = {name: weight for name, weight in model.weights.items() if weight.layout is not None}
    return replace(model, proto=proto, weights=stored, known=interface)
