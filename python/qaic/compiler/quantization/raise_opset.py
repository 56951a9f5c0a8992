"""Raising the operator set of a model to the first that has the integer forms of the operators.

Version 10 brought the integer convolution, version 12 MaxPool and Clip on integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.record import warn
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.graph_edits import import_opset, remove_inputs, replace_graph
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_nodes
from qaic.compiler.ir.opset_version import standard_version
from qaic.compiler.ir.pass_contract import WhenQuantizing
from qaic.compiler.ir.precision import INTEGERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from qaic.compiler.ir.constants.weights import Weight
    from qaic.compiler.ir.context import Context
    from qaic.compiler.ir.model import Model
    from qaic.compiler.ir.precision import PrecisionClass

#: the engine fuses into operators of this version, whatever the model says
NEEDED: Final = 10
#: all operators that can run on integers do
WANTED: Final = 12

#: the only operator whose form changed between versions 11 and 12
_CHANGED_IN_12: Final = "Dropout"


def raise_operator_set(model: onnx.ModelProto, weights: dict[str, Weight]) -> bool:
    """Raise an old operator set; changes `model` in place, and no name of a value.

    Returns
    -------
    bool
        Whether the model can be quantized.
    """
    version = standard_version(model)
    if version >= WANTED:
        return True
    op_types = {node.op_type for node in all_nodes(model.graph.node)}
    if version == WANTED - 1 and _CHANGED_IN_12 not in op_types:
        for entry in model.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = WANTED
        return True
    from onnx import version_converter

    try:
        converted = version_converter.convert_version(with_weights_as_inputs(model, weights), WANTED)
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its parts do
        if version < NEEDED:
            warn(
                "quantization.operator_set",
                "quantization: the model stays in floating point; its operator set %d is older than %d and "
                "cannot be converted (%s)",
                version,
                NEEDED,
                str(error).strip().partition("\n")[0],
            )
        return version >= NEEDED
    made = {name for node in converted.graph.node for name in node.output}
    if not made.issuperset(name for node in model.graph.node for name in node.output if name):
        return version >= NEEDED
    remove_inputs(converted.graph, weights)
    for entry in model.opset_import:
        if entry.domain not in STANDARD_DOMAINS:
            import_opset(converted, entry.domain, entry.version)
    replace_graph(model, converted)
    return True


def has_integer_forms(model: onnx.ModelProto, classes: Mapping[str, PrecisionClass]) -> bool:
    """Whether nodes of a model are to be quantized, and its operator set has integer forms of them."""
    return standard_version(model) >= NEEDED and any(chosen in INTEGERS for chosen in classes.values())


class RaiseOpsetVersion(WhenQuantizing):
    """Raise an old operator set to the first that has the integer forms of the operators."""

    name = "raise-opset-version"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        before = standard_version(model.proto)
        if any(chosen in INTEGERS for chosen in context.plan.classes.values()):
            raise_operator_set(model.proto, model.weights)
        return standard_version(model.proto) != before
