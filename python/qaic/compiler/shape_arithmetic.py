"""Shapes that a model of an old operator set computes; onnx follows such arithmetic from set 15 on only.

Exporters of that time write Shape, Slice, Concat, Reshape for a fixed size. The graph in a newer set tells.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from qaic.compiler import symbols
from qaic.compiler.graph_walk import STANDARD_DOMAINS

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger("qaic.compiler")

#: the first set whose operators pass values of shapes on
_FOLLOWED_FROM: Final = 15
#: a set to which the converter can raise every older one
_TARGET: Final = 17


def complete(found: onnx.ModelProto) -> None:
    """Fill in shapes that follow in a newer operator set; changes `found` in place.

    Parameters
    ----------
    found : onnx.ModelProto
        Inferred model, weights declared as inputs. Nothing is done unless its set is old and it reads shapes.
    """
    version = next((entry.version for entry in found.opset_import if entry.domain in STANDARD_DOMAINS), 1)
    if version >= _FOLLOWED_FROM or not any(node.op_type == "Shape" for node in found.graph.node):
        return
    from onnx import version_converter

    try:
        newer = symbols.infer(version_converter.convert_version(found, _TARGET))
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its parts do; what is open stays so
        _log.debug("shape arithmetic of operator set %d: %s", version, error)
        return
    known = {
        value.name: value
        for value in (*newer.graph.value_info, *newer.graph.output)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }
    listed = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    for name in (name for node in found.graph.node for name in node.output if name in known):
        value = listed.get(name)
        if value is None:
            found.graph.value_info.add().CopyFrom(known[name])
        elif _is_open(value):
            value.type.CopyFrom(known[name].type)


def _is_open(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return value.type.HasField("tensor_type") and not (
        tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    )
