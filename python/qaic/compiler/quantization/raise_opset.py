"""Converts the operator set of a model to the first one with the integer operators.

Version 10 brought the integer convolution, version 12 MaxPool and Clip on integers.
"""

from collections.abc import Mapping
from typing import Final

import onnx
from onnx import defs, helper, version_converter

from qaic.compiler.diagnostics.record import warn
from qaic.compiler.ir.constants.propagation import ConstantReader, node_key
from qaic.compiler.ir.constants.weights import Weight, with_weights_as_inputs
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_edits import (
    add_attribute,
    import_opset,
    remove_inputs,
    replace_graph,
    set_attributes,
)
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_nodes, find_nodes, read_values, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.opset_version import standard_version
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass, is_quantizing
from qaic.compiler.ir.precision_ops import attribute_of

#: the engine fuses into operators of this version, whatever the version of the model
NEEDED: Final = 10
#: all operators that can run on integers do
WANTED: Final = 12

#: the first set whose Resize has an attribute for its coordinates
_COORDINATES_VERSION: Final = 11
#: operators that become a Resize of that set
_ENLARGING: Final = frozenset({"Resize", "Upsample"})

#: the only operator whose form changed between versions 11 and 12
_CHANGED_IN_12: Final = "Dropout"


def raise_operator_set(model: onnx.ModelProto, weights: dict[str, Weight]) -> bool:
    """Raise an old operator set, but change no name of a value; return True if it has integer forms."""
    version = standard_version(model)
    if version >= WANTED:
        return True
    op_types = {node.op_type for node in all_nodes(model.graph.node)}
    if version == WANTED - 1 and _CHANGED_IN_12 not in op_types:
        for entry in model.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = WANTED
        return True
    masks = {name for node in find_nodes(model.graph.node, {_CHANGED_IN_12}) for name in node.output[1:]}
    if masks & read_values(model.graph):
        return _as_it_is(version, "the mask of Dropout has another type or value in newer sets")
    if _changes_inside(model, version):
        return _as_it_is(version, "a nested graph has operators that differ in newer operator sets")
    constants = ConstantReader(model.graph, weights)
    rounding = {
        node_key(node): _nearest_mode(node, constants)
        for node in model.graph.node
        if node.op_type in _ENLARGING and version < _COORDINATES_VERSION
    }
    if None in rounding.values():
        return _as_it_is(version, "newer sets have no Resize that shrinks one dimension and enlarges another")
    try:
        converted = version_converter.convert_version(with_weights_as_inputs(model, weights), WANTED)
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its parts do
        return _as_it_is(version, str(error).strip().partition("\n")[0])
    made = {name for node in converted.graph.node for name in node.output}
    if not made.issuperset(name for node in model.graph.node for name in node.output if name):
        return _as_it_is(version, "onnx gives values other names")
    remove_inputs(converted.graph, weights)
    for node in converted.graph.node:
        _drop_unknown_attributes(node)
        nearest_mode = rounding.get(node_key(node)) if node.op_type == "Resize" else None
        if nearest_mode is not None:
            _keep_coordinates(node, nearest_mode)
    for entry in model.opset_import:
        if entry.domain not in STANDARD_DOMAINS:
            import_opset(converted, entry.domain, entry.version)
    replace_graph(model, converted)
    return True


def _as_it_is(version: int, reason: str) -> bool:
    """Keep the operator set of a model; shows whether it can be quantized, and warns where it cannot."""
    if version < NEEDED:
        warn(
            "quantization.operator_set",
            "quantization: the model stays in floating point; its operator set %d is older than %d and "
            "cannot be converted (%s)",
            version,
            NEEDED,
            reason,
        )
    return version >= NEEDED


def _changes_inside(model: onnx.ModelProto, version: int) -> bool:
    """Return whether a nested graph has an operator of another form in the wanted set.

    onnx converts the main graph only.
    """
    inner = {
        node.op_type
        for outer in model.graph.node
        for graph in subgraphs(outer)
        for node in all_nodes(graph.node)
        if node.domain in STANDARD_DOMAINS and defs.has(node.op_type, version, "")
    }
    return any(
        not defs.has(name, WANTED, "")
        or defs.get_schema(name, version, "").since_version != defs.get_schema(name, WANTED, "").since_version
        for name in inner
    )


def _nearest_mode(node: onnx.NodeProto, constants: ConstantReader) -> str | None:
    """Name the rounding by which a Resize picks what an Upsample or Resize of a set before 11 picks.

    Upsample takes the element before a coordinate, Resize the one behind it where it shrinks. None where
    that is not known or differs between dimensions.
    """
    if node.op_type == "Upsample":
        return "floor"
    if len(node.input) < 2 or node.input[1] not in constants:
        return None
    scales = constants.read(node.input[1]).reshape(-1)
    if all(scale >= 1 for scale in scales):
        return "floor"
    return "ceil" if all(scale <= 1 for scale in scales) else None


def _drop_unknown_attributes(node: onnx.NodeProto) -> None:
    """Remove attributes that an operator no longer has; onnx's converter leaves those that meant nothing."""
    if node.domain not in STANDARD_DOMAINS:
        return
    known = defs.get_schema(node.op_type, WANTED, "").attributes
    set_attributes(node, [attribute for attribute in node.attribute if attribute.name in known])


def _keep_coordinates(node: onnx.NodeProto, nearest_mode: str) -> None:
    """Give a converted Resize the coordinates of the sets before 11, which onnx's converter leaves out."""
    added = {"coordinate_transformation_mode": "asymmetric"}
    if attribute_of(node, "mode", b"nearest") == b"nearest":
        added["nearest_mode"] = nearest_mode
    given = {attribute.name for attribute in node.attribute}
    for name, value in added.items():
        if name not in given:
            add_attribute(node, helper.make_attribute(name, value))


def has_integer_forms(model: onnx.ModelProto, classes: Mapping[str, PrecisionClass]) -> bool:
    """Return whether nodes of a model are to be quantized, and its operator set has integer forms of them."""
    return standard_version(model) >= NEEDED and any(chosen in INTEGERS for chosen in classes.values())


@compiler_pass(lambda context: is_quantizing(context.options))
def raise_opset_version_pass(model: Model, context: Context) -> bool:
    """Convert an old operator set to the first one with the integer operators."""
    before = standard_version(model.proto)
    if any(chosen in INTEGERS for chosen in context.plan.classes.values()):
        raise_operator_set(model.proto, model.weights)
    return standard_version(model.proto) != before
