"""Expanding the functions of a model, with names that tell where a node came from (compile-options §1 row 10)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from qaic.compiler.constness import node_key
from qaic.compiler.graph_walk import STANDARD_DOMAINS
from qaic.compiler.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx

_log = logging.getLogger("qaic.compiler")

#: domain, name, overload
_Key = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Expand every call of a model-local function.

    A node of a body is called ``call/inner`` afterwards, for each function it was in; a call or node without a
    name goes by its first result.

    Parameters
    ----------
    model : onnx.ModelProto
        Model that `functions.check_functions` has accepted.

    Returns
    -------
    onnx.ModelProto
        The expanded model, or `model` where there are no functions.

    Raises
    ------
    CompileError
        A body does not fit its calls.
    """
    if not model.functions:
        return model
    from onnx import inliner

    try:
        inlined: onnx.ModelProto = inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as error:
        raise refuse(
            "functions of the model",
            code="invalid_model",
            found=f"bodies that cannot be inlined ({str(error).strip()})",
            expected="functions without recursion, with all their operator sets",
            fix="export the model without functions",
        ) from error
    bodies = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    _name(inlined.graph, _expected(model.graph.node, bodies, ""))
    return inlined


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain in STANDARD_DOMAINS else domain, name, overload


def _expected(
    nodes: Iterable[onnx.NodeProto], bodies: Mapping[_Key, onnx.FunctionProto], prefix: str
) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Walk the nodes in the order of their expansion, each with the name it is to have."""
    for node in nodes:
        own = node.name or (node_key(node) if prefix else "")
        name = f"{prefix}/{own}" if prefix else own
        body = bodies.get(_key(node.domain, node.op_type, node.overload))
        if body is None:
            yield node, name
        else:
            yield from _expected(body.node, bodies, name or node_key(node))


def _name(graph: onnx.GraphProto, expected: Iterator[tuple[onnx.NodeProto, str]]) -> None:
    """Give the nodes of an expanded graph their names; those of control flow bodies keep what they have."""
    names = []
    for node in graph.node:
        origin, name = next(expected, (None, ""))
        # The inliner also converts between operator sets, and then a node may have become several.
        if origin is None or origin.op_type != node.op_type:
            _log.debug(
                "functions were converted to another operator set: their nodes keep the inliner's names"
            )
            return
        names.append(name)
    for node, name in zip(graph.node, names, strict=True):
        node.name = name
