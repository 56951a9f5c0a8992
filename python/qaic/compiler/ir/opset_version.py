"""Lowers the operator sets of a model as far as its meaning stays the same.

The onnx package stamps new models with its own newest versions, which the engine may not know yet although
nothing in the model is new. An operator means the same in every version since it last changed, so the stamp
can name the version of the latest such change instead.
"""

from typing import Final

import onnx
from onnx import defs

from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_nodes
from qaic.compiler.ir.model import Model

#: IR version that every engine we accept reads; later ones add element types and annotations, no operators
_IR_VERSION: Final = 10

#: operator set that every supported engine implements; models up to it keep their version
_OPERATOR_SET: Final = 22


def standard_version(stamped: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Read the version of the standard operator set that a model or function is written in; 1 for none."""
    return max(
        (entry.version for entry in stamped.opset_import if entry.domain in STANDARD_DOMAINS), default=1
    )


def import_standard_operators(model: onnx.ModelProto) -> None:
    """Import the standard operator set into a model that has only operators of other domains."""
    domains = {node.domain for node in all_nodes(model.graph.node)}
    domains.update(entry.domain for entry in model.opset_import)
    if domains and not domains & STANDARD_DOMAINS:
        model.opset_import.add(domain="", version=_OPERATOR_SET)


def lower_opset_version(model: onnx.ModelProto) -> None:
    """Lower IR version and operator set version of a checked model; changes `model` in place."""
    model.ir_version = min(model.ir_version, _IR_VERSION)
    if model.functions:
        # Functions have their own versions, which must fit the model's.
        return
    for entry in model.opset_import:
        if entry.domain not in STANDARD_DOMAINS or entry.version <= _OPERATOR_SET:
            continue
        used = {node.op_type for node in all_nodes(model.graph.node) if node.domain in STANDARD_DOMAINS}
        changed = (defs.get_schema(name, entry.version, "").since_version for name in used)
        entry.version = max((_OPERATOR_SET, *changed))


@compiler_pass()
def lower_opset_version_pass(model: Model, _: Context) -> bool:
    """Set the operator set to the newest one that the engine supports."""
    lower_opset_version(model.proto)
    return True
