"""Ranks and types of operands that onnx and older engines do not check, which ends the process."""

import math
from collections.abc import Iterator
from typing import Any, Final

import onnx
from onnx import inliner, shape_inference

from qaic.compiler.ir.explicit_padding import has_output_shape, pad_small_result
from qaic.compiler.ir.graph_edits import clone, import_opset
from qaic.compiler.ir.graph_walk import all_nodes, attribute_of, nodes_of, operator_of, standard
from qaic.compiler.ir.value_info import DimsInSets, collect_types, dims_in

#: operators with two operands of the same rank, and the positions of these
_ALIKE: Final[dict[str, tuple[int, ...]]] = {
    "Conv": (0, 1),
    "ConvInteger": (0, 1),
    "ConvTranspose": (0, 1),
    "MaxUnpool": (0, 1),
    "QLinearConv": (0, 3),
}
_RECURRENT: Final = ("GRU", "LSTM", "RNN")
#: operators for which inference of older releases may end the process
_CHECKED: Final = (*_ALIKE, *_RECURRENT, "Einsum")
#: operator of the engine with packed experts, and the positions of their matrices; scales follow each matrix
_EXPERTS: Final = ("com.microsoft", "QMoE")
_EXPERT_MATRICES: Final = (2, 5)
#: first release of onnx whose inference ended no process in tests with wrong ranks for all operators
_SAFE: Final = (1, 23)
_RELEASE: Final = tuple(int(part) for part in onnx.__version__.split(".")[:2])
#: operators whose inference reads the types of their operands although they have none
_TYPED: Final = (
    *("DictVectorizer", "EyeLike", "LabelEncoder", "OneHotEncoder", "RegexFullMatch", "TreeEnsemble"),
    *(["Einsum"] if _RELEASE < _SAFE else []),
)
#: operators whose nodes may be doubtful
_DOUBTFUL: Final = frozenset((*_TYPED, *_CHECKED))
_DOMAINS: Final = ("", "ai.onnx", "ai.onnx.ml")
_HIDDEN: Final = "com.openqaic.hidden"


def rank_fault(node: onnx.NodeProto, dims: DimsInSets) -> str | None:
    """Return why the ranks of operands do not fit a node; empty if they fit, None if a rank is unknown."""
    if operator_of(node) == _EXPERTS:
        return _experts_fault(node, dims)
    if not standard(node, *_CHECKED):
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


def _experts_fault(node: onnx.NodeProto, dims: DimsInSets) -> str | None:
    """Check what the engine reads when it packs experts, before it compares the shapes of all operands."""
    given = [*node.input, *[""] * (max(_EXPERT_MATRICES) + 2)]
    for at in _EXPERT_MATRICES:
        if not given[at] or not given[at + 1]:
            return "matrices or scales of experts are left out"
        matrices, scales = dims(given[at]), dims(given[at + 1])
        if not matrices or not scales:
            return None
        if ranks := {len(sizes) for sizes in matrices} - {3}:
            return f"matrices of experts of {ranks.pop()} dims, expected 3"
        if any(0 in sizes for sizes in (*matrices, *scales)):
            return "matrices or scales of experts without elements"
    return ""


def _equation_fault(equation: bytes, ranks: list[int]) -> str:
    """Compare the terms of an equation with ranks; inference reports a missing equation."""
    terms = equation.replace(b" ", b"").partition(b"->")[0].split(b",")
    fits = len(terms) == len(ranks) and all(
        len(term) == rank or (b"..." in term and len(term) - 3 <= rank)
        for term, rank in zip(terms, ranks, strict=True)
    )
    is_fine = fits or not equation
    return (
        "" if is_fine else f"operands of {ranks} dims, which do not fit {equation.decode(errors='replace')!r}"
    )


def first_rank_fault(model: onnx.ModelProto) -> str:
    """Return why the ranks of a node's operands do not fit, in nested graphs and functions too."""
    if any(standard(node, *_CHECKED) or operator_of(node) == _EXPERTS for node in _nodes_in_functions(model)):
        model = infer_with_valid_ranks(inliner.inline_local_functions(model))
    dims = dims_in(model)
    return next(filter(None, (rank_fault(node, dims) for node in all_nodes(model.graph.node))), "")


def infer_with_valid_ranks(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """Infer types and shapes with onnx, without the nodes that would end the process.

    Older releases read beyond the dims of an operand whose rank differs from the kernel's. All releases read
    the missing type of an operand for some operators. Such nodes are hidden until the ranks and types of
    their operands are known. Those of functions are hidden if one is invalid. A ConvTranspose whose
    `output_shape` would end inference has padding instead in the result.
    """
    if not any(map(_is_doubtful, nodes_of(model))):
        return shape_inference.infer_shapes(model, **options)
    view = clone(model)
    if any(map(_is_doubtful, _nodes_in_functions(model))) and not ends_inference(model):
        return shape_inference.infer_shapes(model, **options)
    _hide_faults(view)
    inferred = shape_inference.infer_shapes(view, **options)
    for node in nodes_of(inferred):
        if node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)
    for body in _with_opsets(inferred):
        kept = [entry for entry in body.opset_import if not entry.domain.startswith(_HIDDEN)]
        del body.opset_import[:]
        body.opset_import.extend(kept)
    return inferred


def ends_inference(model: onnx.ModelProto) -> bool:
    """Return True if inference without the guards of `infer_with_valid_ranks` would end the process."""
    return any(map(_is_doubtful, nodes_of(model))) and _hide_faults(inliner.inline_local_functions(model))


def _hide_faults(view: onnx.ModelProto) -> bool:
    """Hide the nodes whose operands do not fit, and those that inference does not check in functions."""
    for body in _with_opsets(view):
        for domain in _DOMAINS:
            import_opset(body, _HIDDEN + domain, 1)
    in_functions = [node for node in _nodes_in_functions(view) if _is_doubtful(node)]
    hidden = [node for node in all_nodes(view.graph.node) if _is_doubtful(node)]
    for node in (*in_functions, *hidden):
        node.domain = _HIDDEN + node.domain
    faults: list[str | None] = []
    count: float = math.inf
    while hidden and len(hidden) < count:
        count = len(hidden)
        inferred = shape_inference.infer_shapes(view)
        dims, types = dims_in(inferred), collect_types(inferred)
        for node in hidden:
            node.domain = node.domain.removeprefix(_HIDDEN)
        faults = [
            "no type" if _reads_type(node) and not types.keys() >= {*node.input} else rank_fault(node, dims)
            for node in hidden
        ]
        for node, found in zip(hidden, faults, strict=True):
            if found == "":
                pad_small_result(node, dims)
        hidden = [node for node, found in zip(hidden, faults, strict=True) if found != ""]
        for node in hidden:
            node.domain = _HIDDEN + node.domain
    faults = [found for found in faults if found != ""]
    # Inference has no more facts about operands of unknown rank.
    for node, found in zip(hidden, faults, strict=True):
        if found is None:
            node.domain = node.domain.removeprefix(_HIDDEN)
    return bool(in_functions) or any(faults)


def _with_opsets(model: onnx.ModelProto) -> list[onnx.ModelProto | onnx.FunctionProto]:
    return [model, *model.functions]


def _nodes_in_functions(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return all_nodes(node for function in model.functions for node in function.node)


def _reads_type(node: onnx.NodeProto) -> bool:
    return node.op_type in _TYPED and node.domain in _DOMAINS


def _is_doubtful(node: onnx.NodeProto) -> bool:
    """Return True if inference does not check the operands; it compares `kernel_shape` with both."""
    if node.op_type not in _DOUBTFUL:
        return False
    if _reads_type(node) or has_output_shape(node):
        return True
    return (
        _RELEASE < _SAFE
        and standard(node, *_CHECKED)
        and (node.op_type in {"ConvTranspose", "MaxUnpool"} or not attribute_of(node, "kernel_shape", []))
    )
