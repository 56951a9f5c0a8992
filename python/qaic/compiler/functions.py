"""How large a model is when its functions are expanded, which tools do without asking.

Each function may call the next one twice, so a kilobyte of model can stand for more nodes than any memory
holds; and a function that calls itself has no size at all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from qaic.compiler.graph_walk import STANDARD_DOMAINS, all_nodes
from qaic.compiler.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

#: nodes of an expanded model at most; compiling as many takes minutes
MAX_NODES: Final = 1_000_000

#: domain, name, overload
_Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves, and a model that is too large when all are expanded.

    Raises
    ------
    CompileError
        The message names the function, or the number of nodes.
    """
    bodies = {_key(f.domain, f.name, f.overload): _calls(f.node) for f in model.functions}
    sizes: dict[_Key, int] = {}
    for function in bodies:
        _measure(function, bodies, sizes)
    total = _expanded(_calls(model.graph.node), sizes)
    if model.functions and total > MAX_NODES:
        raise refuse(
            "functions of the model",
            code="graph_too_large",
            found=f"more than {MAX_NODES} nodes when every call is expanded",
            expected="fewer",
            fix="export the model without functions",
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
