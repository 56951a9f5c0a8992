"""Number of slots of a cache: the size of the dimension that positions index.

Exporters use different layouts of caches. The dimension of the slots is therefore the one in which the graph
writes at indices that it computes from the input of positions.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import onnx

from qaic.compiler.ir.graph_walk import attribute_of, behind, producers, standard
from qaic.support.program_names import RETAINED_STATE_SUFFIX


def cache_slots(graph: onnx.GraphProto, dims: Mapping[str, Sequence[int]], positions: str) -> dict[str, int]:
    """Count the slots of the caches of a decoder.

    Functions of the graph are expanded; `dims` are the sizes of its inputs, and `positions` is the input of
    positions. State that is not written at positions is skipped, and state with reduced positions, such as a
    sliding window.
    """
    makers = producers(graph.node)
    found = {}
    for output in graph.output:
        name = output.name.removesuffix(RETAINED_STATE_SUFFIX)
        if name == output.name or name not in dims:
            continue
        axis = _written_axis(makers, output.name, positions)
        if axis is not None and -len(dims[name]) <= axis < len(dims[name]):
            found[name] = dims[name][axis]
    return found


def _written_axis(makers: Mapping[str, onnx.NodeProto], value: str, positions: str) -> int | None:
    node = makers.get(behind(value, makers, "Cast", "Identity"))
    if node is None:
        return None
    if standard(node, "ScatterElements", "Scatter"):
        return attribute_of(node, "axis", 0) if _counts(makers, node.input[1], positions) else None
    if not standard(node, "ScatterND"):
        return None
    for part in _behind(makers, node.input[1]):
        # Concatenation along the first dimension adds index tuples; along the last, it extends each tuple.
        if standard(part, "Concat") and attribute_of(part, "axis", 0):
            chosen = [at for at, name in enumerate(part.input) if _counts(makers, name, positions)]
            if chosen:
                return chosen[0] if len(chosen) == 1 else None
    # If indices are not tuples, they are indices of the first dimension.
    return 0 if _counts(makers, node.input[1], positions) else None


def _behind(makers: Mapping[str, onnx.NodeProto], value: str) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that a value depends on, the nearest first."""
    pending, seen = deque([value]), {value}
    while pending:
        node = makers.get(pending.popleft())
        if node is None:
            continue
        yield node
        if not standard(node, "Shape", "Size"):
            new = [part for part in dict.fromkeys(node.input) if part and part not in seen]
            seen.update(new)
            pending.extend(new)


def _counts(makers: Mapping[str, onnx.NodeProto], value: str, positions: str) -> bool:
    """Return True if a value contains positions that are not reduced by a remainder."""
    nodes = list(_behind(makers, value))
    if any(standard(node, "Mod") for node in nodes):
        return False
    read = {name for node in nodes if not standard(node, "Shape", "Size") for name in node.input}
    return positions in read | {value}
