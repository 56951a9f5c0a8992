"""Ranks of operands that older releases of onnx and of the engine do not check, so the process ends."""

import math
from typing import Any, Final

import onnx
from onnx import shape_inference

from qaic.compiler.ir.graph_edits import clone, import_opset
from qaic.compiler.ir.graph_walk import all_nodes, attribute_of, standard
from qaic.compiler.ir.value_info import DimsInSets, dims_in

#: operators of which two operands have the same rank, and their positions
_ALIKE: Final[dict[str, tuple[int, ...]]] = {
    "Conv": (0, 1),
    "ConvInteger": (0, 1),
    "ConvTranspose": (0, 1),
    "MaxUnpool": (0, 1),
    "QLinearConv": (0, 3),
}
_RECURRENT: Final = ("GRU", "LSTM", "RNN")
#: operators that inference of older releases may end the process for
_CHECKED: Final = (*_ALIKE, "Einsum")
#: first release of onnx whose inference was tried with wrong ranks of all operators, and ended no process
_SAFE: Final = (1, 23)
_RELEASE: Final = tuple(int(part) for part in onnx.__version__.split(".")[:2])
_HIDDEN: Final = "com.openqaic.hidden"


def rank_fault(node: onnx.NodeProto, dims: DimsInSets) -> str | None:
    """Return why the ranks of operands do not fit a node; empty if they fit, None if one is not known."""
    if not standard(node, *_CHECKED, *_RECURRENT):
        return ""
    others = range(3 if node.op_type in _RECURRENT else len(node.input))
    places = _ALIKE.get(node.op_type, tuple(others))
    if max(places, default=0) >= len(node.input):
        return ""
    if not all(node.input[at] for at in places):
        return "a required operand is left out"
    known = [{len(sizes) for sizes in dims(node.input[at])} for at in places]
    if any(len(ranks) != 1 for ranks in known):
        return None
    ranks = [found.pop() for found in known]
    if node.op_type in _ALIKE:
        return "" if ranks[0] == ranks[1] >= 3 else f"{ranks[0]} and {ranks[1]} dims"
    if node.op_type in _RECURRENT:
        if any(0 in sizes[:1] for at in (1, 2) for sizes in dims(node.input[at])):
            return "weights of no direction"
        return "" if ranks == [3, 3, 3] else f"operands of {ranks} dims, expected 3"
    equations = (one.s for one in node.attribute if one.name == "equation" and one.type == one.STRING)
    return _equation_fault(next(equations, b""), ranks)


def _equation_fault(equation: bytes, ranks: list[int]) -> str:
    """Compare the terms of an equation with ranks; inference names an equation that is missing."""
    terms = equation.replace(b" ", b"").partition(b"->")[0].split(b",")
    fits = len(terms) == len(ranks) and all(
        len(term) == rank or (b"..." in term and len(term) - 3 <= rank)
        for term, rank in zip(terms, ranks, strict=True)
    )
    is_fine = fits or not equation
    return (
        "" if is_fine else f"operands of {ranks} dims, which do not fit {equation.decode(errors='replace')!r}"
    )


def infer_with_valid_ranks(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """Infer types and shapes with onnx, without the nodes that would end the process.

    Older releases read beyond the dims of an operand whose rank differs from the kernel's. Such nodes are
    hidden until the ranks of their operands are known.
    """
    if _RELEASE >= _SAFE or not _doubtful(model):
        return shape_inference.infer_shapes(model, **options)
    view = clone(model)
    import_opset(view, _HIDDEN, 1)
    hidden = _doubtful(view)
    for node in hidden:
        node.domain = _HIDDEN
    count: float = math.inf
    while hidden and len(hidden) < count:
        count = len(hidden)
        dims = dims_in(shape_inference.infer_shapes(view))
        for node in hidden:
            node.domain = ""
        faults = [rank_fault(node, dims) for node in hidden]
        hidden = [node for node, found in zip(hidden, faults, strict=True) if found != ""]
        for node in hidden:
            node.domain = _HIDDEN
    # Inference knows no more about operands of unknown rank.
    for node, found in zip(hidden, [found for found in faults if found != ""], strict=True):
        node.domain = "" if found is None else _HIDDEN
    inferred = shape_inference.infer_shapes(view, **options)
    for node in all_nodes(inferred.graph.node):
        if node.domain == _HIDDEN:
            node.domain = ""
    kept = [entry for entry in inferred.opset_import if entry.domain != _HIDDEN]
    del inferred.opset_import[:]
    inferred.opset_import.extend(kept)
    return inferred


def _doubtful(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """List the nodes whose operands inference does not check; it compares `kernel_shape` with both."""
    return [
        node
        for node in all_nodes(model.graph.node)
        if standard(node, *_CHECKED)
        and (node.op_type in {"ConvTranspose", "MaxUnpool"} or not attribute_of(node, "kernel_shape", []))
    ]
