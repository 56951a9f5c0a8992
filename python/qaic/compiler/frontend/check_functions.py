"""Which functions a model may bring along, and how large it is when they are expanded.

Tools expand functions without asking. Each function may call the next one twice, so a kilobyte of model can
stand for more nodes than any memory holds; and a function that calls itself has no size at all. A function
that has the name of an operator means one thing where it is expanded and another where it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import onnx

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.graph_walk import ONNX_DOMAINS, STANDARD_DOMAINS, all_nodes

#: nodes of an expanded model at most; compiling as many takes minutes
MAX_NODES: Final = 1_000_000

#: domain, name, overload
_Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves or redefine something, and a model that is too large expanded.

    Raises
    ------
    CompileError
        The message names the function, or the number of nodes.
    """
    if not model.functions:
        return
    _check_names(model)
    bodies = {_key(f.domain, f.name, f.overload): _calls(f.node) for f in model.functions}
    sizes: dict[_Key, int] = {}
    for function in bodies:
        _measure(function, bodies, sizes)
    total = _expanded(_calls(model.graph.node), sizes)
    if total > MAX_NODES:
        raise refuse(
            "functions of the model",
            code="graph_too_large",
            found=f"more than {MAX_NODES} nodes when every call is expanded",
            expected="fewer",
            fix="export the model without functions",
        )


def _check_names(model: onnx.ModelProto) -> None:
    """Refuse two functions of one name, and functions that redefine operators of ONNX."""
    from onnx import defs

    seen: set[_Key] = set()
    for function in model.functions:
        key = _key(function.domain, function.name, function.overload)
        what = f"function {function.name!r} of domain {function.domain!r}"
        if key in seen:
            raise refuse(
                what,
                code="invalid_model",
                found="two definitions",
                expected="one for each domain, name and overload",
                fix="export the model again",
            )
        seen.add(key)
        if key[0] in ONNX_DOMAINS and defs.has(function.name, domain=key[0]):
            raise refuse(
                what,
                code="invalid_model",
                found="a definition of an operator that ONNX defines",
                expected="functions under names of their own",
                fix="export the model with this function in a domain of its own, or without functions",
            )


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[_Key]:
    """Count the operators of a body, nested graphs included."""
    return Counter(_key(node.domain, node.op_type, node.overload) for node in all_nodes(nodes))


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain in STANDARD_DOMAINS else domain, name, overload


def _expanded(calls: Counter[_Key], sizes: dict[_Key, int]) -> int:
    """Count nodes; beyond the limit the exact number, which may have any length, does not matter."""
    return min(sum(count * sizes.get(callee, 1) for callee, count in calls.items()), MAX_NODES + 1)


def _measure(root: _Key, bodies: dict[_Key, Counter[_Key]], sizes: dict[_Key, int]) -> None:
    """Enter the size of a function and of all it calls into `sizes`, without recursion of our own."""
    path: dict[_Key, None] = {}
    pending = [root]
    while pending:
        function = pending[-1]
        if function in sizes:
            pending.pop()
            continue
        path[function] = None
        inner = [callee for callee in bodies[function] if callee in bodies and callee not in sizes]
        again = next((callee for callee in inner if callee in path), None)
        if again is not None:
            raise refuse(
                f"function {again[1]!r} of domain {again[0]!r}",
                code="invalid_model",
                found="a call of itself, directly or through others",
                expected="functions without recursion",
                fix="export the model without functions",
            )
        if inner:
            pending.extend(inner)
            continue
        sizes[function] = _expanded(bodies[function], sizes)
        del path[function]
        pending.pop()
