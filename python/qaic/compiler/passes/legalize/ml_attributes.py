"""Attributes of ai.onnx.ml operators that contradict each other or the operand.

Kernels index lists of an operator with its other lists and with the columns of its operand. Older engines do
not check these indices: they read and write outside a list, or follow a cycle of tree nodes, when they load a
model. If columns or rows of an operand are known only at run time, nodes before the operator compare them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import onnx
from onnx import defs, helper

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.ir.constants.in_graph import dense
from qaic.compiler.ir.elem_types import BOOL, INT64
from qaic.compiler.ir.graph_walk import all_nodes, node_label
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import DimsInSets
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand
from qaic.support.text import counted

_DOMAIN: Final = "ai.onnx.ml"

#: gamma, first coefficient and degree of a support vector machine
_KERNEL_PARAMS: Final = 3
#: lists of a tree ensemble with an entry for each node; some may also be empty
_NODE_LISTS: Final = tuple(
    f"nodes_{name}" for name in ("falsenodeids", "featureids", "modes", "nodeids", "treeids", "truenodeids")
)
_LATE_NODE_LISTS: Final = tuple(
    f"nodes_{name}"
    for name in ("falseleafs", "falsenodeids", "featureids", "modes", "splits", "trueleafs", "truenodeids")
)
_OPTIONAL_NODE_LISTS: Final = ("nodes_hitrates", "nodes_missing_value_tracks_true")
_LEAF: Final = b"LEAF"
#: mode of nodes that compare with a set; the largest mode
_MEMBER: Final = 6
#: most nodes of a tree if shared nodes are repeated
_MOST_NODES: Final = 1 << 24

#: finding and expectation
_Fault = tuple[str, str]


class _Attributes:
    """Attributes of an operator, without attributes that the calls of its function set.

    Raises CompileError if an attribute has a wrong type. The onnx checker refuses wrong names later.
    """

    def __init__(self, node: onnx.NodeProto) -> None:
        types: Mapping[str, Any] = defs.get_schema(node.op_type, domain=_DOMAIN).attributes
        given = [entry for entry in node.attribute if entry.name in types and not entry.ref_attr_name]
        for entry in given:
            if entry.type != (wanted := types[entry.name].type).value:
                raise refuse(
                    f"attribute {entry.name!r} of node {node_label(node)!r} ({node.op_type})",
                    code="invalid_model",
                    found=f"type {onnx.AttributeProto.AttributeType.Name(entry.type)}",
                    expected=f"type {wanted.name}",
                    fix="export the model again with an attribute of this type",
                )
        self._given = {entry.name: helper.get_attribute_value(entry) for entry in given}
        self.operands = len(node.input)

    def numbers(self, name: str) -> list[Any]:
        """Return the numbers of a list or tensor attribute."""
        value = self._given.get(name) or self._given.get(f"{name}_as_tensor", ())
        return dense(value).reshape(-1).tolist() if isinstance(value, onnx.TensorProto) else list(value)

    def number(self, name: str, default: int) -> int:
        return int(self._given.get(name, default))

    def labels(self, integers: str) -> int:
        return len(self.numbers("classlabels_strings") or self.numbers(integers))

    def has(self, name: str, *counts: int) -> Iterator[_Fault]:
        """Yield a fault if a list has none of the lengths `counts`."""
        found = len(self.numbers(name))
        if found not in counts:
            yield f"{counted(found, 'entry')} in {name!r}", " or ".join(map(str, sorted({*counts})))

    def has_least(self, name: str, least: int) -> Iterator[_Fault]:
        found = len(self.numbers(name))
        if found < least:
            yield f"{counted(found, 'entry')} in {name!r}", f"{least} or more"

    def is_inside(self, name: str, stop: int) -> Iterator[_Fault]:
        """Yield a fault if a list contains a number that is not an index below `stop`."""
        if wrong := [number for number in self.numbers(name) if not 0 <= number < stop]:
            yield f"{wrong[0]} in {name!r}", f"indices of {counted(stop, 'entry')}"


def _negative(numbers: list[int], name: str) -> Iterator[_Fault]:
    if min(numbers, default=0) < 0:
        yield f"{min(numbers)} in {name!r}", "no negative numbers"


def _features(at: _Attributes) -> list[int]:
    """List the columns that the branches of trees compare."""
    pairs = zip(at.numbers("nodes_featureids"), at.numbers("nodes_modes"), strict=True)
    return [feature for feature, mode in pairs if mode != _LEAF]


def _svm_classifier(at: _Attributes) -> Iterator[_Fault]:
    classes, counts = at.labels("classlabels_ints"), at.numbers("vectors_per_class")
    vectors, pairs = sum(counts), classes * (classes - 1) // 2
    yield from at.has("kernel_params", _KERNEL_PARAMS)
    if not classes:
        yield "no class labels", "one for each class"
    yield from _negative(counts, "vectors_per_class")
    if vectors:
        yield from at.has("vectors_per_class", classes)
        yield from _divides(at, "support_vectors", vectors)
        yield from at.has_least("coefficients", max(classes - 1, 1) * vectors)
        for name in ("prob_a", "prob_b"):
            if at.numbers("prob_a") or at.numbers("prob_b"):
                yield from at.has_least(name, pairs)
    else:
        yield from at.has("support_vectors", 0)
        yield from _divides(at, "coefficients", classes)
    yield from at.has("prob_b", len(at.numbers("prob_a")))
    yield from at.has_least("rho", pairs if vectors else 1)


def _svm_regressor(at: _Attributes) -> Iterator[_Fault]:
    vectors = at.number("n_supports", 0)
    yield from at.has("kernel_params", _KERNEL_PARAMS)
    yield from at.has_least("rho", 1)
    yield from at.has_least("coefficients", max(vectors, 1))
    if vectors > 0:
        yield from _divides(at, "support_vectors", vectors)
    else:
        yield from at.has("support_vectors", 0)


def _divides(at: _Attributes, name: str, count: int) -> Iterator[_Fault]:
    found = len(at.numbers(name))
    if not found or found % count:
        yield f"{counted(found, 'entry')} in {name!r}", f"as many for each of {count}"


def _linear_classifier(at: _Attributes) -> Iterator[_Fault]:
    classes = len(at.numbers("intercepts"))
    yield from at.has_least("intercepts", 1)
    yield from _divides(at, "coefficients", classes)
    if classes > 1 and at.labels("classlabels_ints") < classes:
        yield f"{at.labels('classlabels_ints')} class labels", f"{classes}, as in 'intercepts'"


def _linear_regressor(at: _Attributes) -> Iterator[_Fault]:
    targets = at.number("targets", 1)
    if targets < 1:
        yield f"{targets} as 'targets'", "1 or more"
    else:
        yield from _divides(at, "coefficients", targets)
        yield from at.has("intercepts", 0, targets)


def _early_trees(at: _Attributes, kind: str, targets: int) -> Iterator[_Fault]:
    nodes = len(at.numbers("nodes_nodeids"))
    for name in (*_NODE_LISTS, "nodes_values"):
        yield from at.has(name, nodes)
    for name in _OPTIONAL_NODE_LISTS:
        yield from at.has(name, 0, nodes)
    for name in ("nodeids", "treeids", "weights"):
        yield from at.has(f"{kind}_{name}", len(at.numbers(f"{kind}_ids")))
    yield from at.is_inside(f"{kind}_ids", targets)
    yield from _negative(_features(at), "nodes_featureids")
    trees = at.numbers("nodes_treeids")
    places = {key: place for place, key in enumerate(zip(trees, at.numbers("nodes_nodeids"), strict=True))}
    children = []
    for tree, mode, *ids in zip(
        trees, *map(at.numbers, ("nodes_modes", "nodes_truenodeids", "nodes_falsenodeids")), strict=True
    ):
        keys = [] if mode == _LEAF else [(tree, child) for child in ids]
        if wrong := [child for child in keys if child not in places]:
            yield f"a branch to node {wrong[0][1]} of tree {wrong[0][0]}", "a node of the tree"
            return
        children.append([places[key] for key in keys])
    yield from _circle(children)


def _tree_classifier(at: _Attributes) -> Iterator[_Fault]:
    classes = at.labels("classlabels_int64s")
    yield from at.has("base_values", *(range(3) if classes <= 2 else (0, classes)))
    yield from _early_trees(at, "class", classes)


def _tree_regressor(at: _Attributes) -> Iterator[_Fault]:
    targets = at.number("n_targets", 0)
    if targets < 1:
        yield f"{targets} as 'n_targets'", "1 or more"
    yield from at.has("base_values", 0, targets)
    yield from _early_trees(at, "target", targets)


def _trees(at: _Attributes) -> Iterator[_Fault]:
    nodes, leaves = len(at.numbers("nodes_featureids")), len(at.numbers("leaf_targetids"))
    for name in _LATE_NODE_LISTS:
        yield from at.has(name, nodes)
    for name in _OPTIONAL_NODE_LISTS:
        yield from at.has(name, 0, nodes)
    yield from at.has("leaf_weights", leaves)
    yield from at.is_inside("leaf_targetids", at.number("n_targets", 0))
    yield from at.has_least("tree_roots", 1)
    yield from at.is_inside("tree_roots", nodes)
    yield from at.is_inside("nodes_modes", _MEMBER + 1)
    sets = [0]
    for value in at.numbers("membership_values"):
        sets[-1] += not math.isnan(value)
        if math.isnan(value):
            sets.append(0)
    yield from _negative(_features(at), "nodes_featureids")
    members = at.numbers("nodes_modes").count(_MEMBER)
    if not all((sets + [0] * members)[:members]):
        yield (
            f"{counted(sum(map(bool, sets)), 'set')} in 'membership_values'",
            f"{members}, none of them empty",
        )
    children: list[list[int]] = [[] for _ in range(nodes)]
    for side in ("true", "false"):
        ids, flags = at.numbers(f"nodes_{side}nodeids"), at.numbers(f"nodes_{side}leafs")
        for node, (child, is_leaf) in enumerate(zip(ids, flags, strict=True)):
            if not 0 <= child < (leaves if is_leaf else nodes):
                yield f"{child} in 'nodes_{side}nodeids'", "a node or leaf"
                return
            if not is_leaf:
                children[node].append(child)
    yield from _circle(children)


def _circle(children: Sequence[Sequence[int]]) -> Iterator[_Fault]:
    """Yield a fault if a tree contains a cycle, or if trees share so many nodes that they are too large."""
    parents = Counter(chain.from_iterable(children))
    order = [node for node in range(len(children)) if node not in parents]
    for node in order:
        for child in children[node]:
            parents[child] -= 1
            if not parents[child]:
                order.append(child)
    if len(order) < len(children):
        yield "nodes of a tree that lead back to themselves", "nodes that lead to leaves"
        return
    sizes = [1] * len(children)
    for node in reversed(order):
        sizes[node] += sum(sizes[child] for child in children[node])
    if max(sizes, default=0) > _MOST_NODES:
        yield f"a tree of more than {_MOST_NODES} nodes, if shared ones are repeated", "fewer"


def _scaler(at: _Attributes) -> Iterator[_Fault]:
    yield from at.has_least("scale", 1)
    yield from at.has("offset", len(at.numbers("scale")))


def _imputer(at: _Attributes) -> Iterator[_Fault]:
    floats, integers = (len(at.numbers(f"imputed_value_{kind}")) for kind in ("floats", "int64s"))
    if bool(floats) == bool(integers):
        yield f"{floats} floats and {integers} integers to impute", "some of one kind"


def _feature_vectorizer(at: _Attributes) -> Iterator[_Fault]:
    yield from at.has("inputdimensions", at.operands)
    yield from _negative(at.numbers("inputdimensions"), "inputdimensions")


_RULES: Final[Mapping[str, Callable[[_Attributes], Iterator[_Fault]]]] = {
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
    "TreeEnsemble": _trees,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}


#: operator -> least and largest rank of its first operand
_RANKS: Final = {
    **dict.fromkeys(("ArrayFeatureExtractor", "FeatureVectorizer", "Imputer", "Scaler"), (1, 8)),
    **dict.fromkeys(("LinearClassifier", "LinearRegressor", "Normalizer", "SVMClassifier"), (1, 2)),
    **dict.fromkeys(("SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier"), (1, 2)),
    "TreeEnsembleRegressor": (1, 2),
}
#: operators that this module checks
CHECKED: Final = frozenset((_DOMAIN, name) for name in {*_RULES, *_RANKS})


def _columns(node: onnx.NodeProto) -> tuple[int, int | None]:
    """Return the least and the largest number of columns of the first operand; None for any number."""
    at, op_type = _Attributes(node), node.op_type
    if op_type in {"Imputer", "Scaler"}:
        names = ("scale", "imputed_value_floats", "imputed_value_int64s")
        count = max(len(at.numbers(name)) for name in names)
        return (0, None) if count <= 1 else (count, count)
    if op_type.startswith("TreeEnsemble"):
        return max((feature + 1 for feature in _features(at)), default=0), None
    vectors = sum(at.numbers("vectors_per_class")) or at.number("n_supports", 0)
    if vectors > 0:
        count = len(at.numbers("support_vectors")) // vectors
        return count, count
    rows = {
        "LinearClassifier": len(at.numbers("intercepts")),
        "LinearRegressor": at.number("targets", 1),
        "SVMClassifier": at.labels("classlabels_ints"),
        "SVMRegressor": 1,
    }.get(op_type, 0)
    count = len(at.numbers("coefficients")) // rows if rows else 0
    return (count, count) if rows else (0, None)


def checked_operand(node: onnx.NodeProto, guards: GuardNodes) -> tuple[int, str]:
    """Return the position of an operand, and its value, with a check if sizes are known only at run time.

    Raises CompileError if, in some set of sizes, columns do not fit the attributes or rows differ.
    """
    source, (least, most), (low, high) = node.input[0], _columns(node), _RANKS[node.op_type]
    known, wanted = guards.dims(source), f"{least}" if least == most else f"{least} or more"
    columns = [shape[1] if len(shape) > 1 else shape[0] for shape in known if shape]
    if wrong := [len(shape) for shape in known if not low <= len(shape) <= high]:
        raise refused_operand(node, f"{wrong[0]} dims of {source!r}", f"{low} to {high}")
    if wrong := [count for count in columns if count is not None and not least <= count <= (most or count)]:
        raise refused_operand(
            node, f"{counted(wrong[0], 'column')} of {source!r}", f"{wanted}, as in the attributes"
        )
    others = _open_rows(node, guards.dims) if node.op_type == "FeatureVectorizer" else []
    is_open = (None in columns or not known) and (least or most is not None)
    # The check for operands without elements applies to the first operand of a FeatureVectorizer.
    at = max(others, default=0)
    guarded = node.input[at]
    if not (is_open or others) or guarded not in guards.types:
        return at, guarded
    test, shape = partial(guards.compute, source, elem_type=BOOL), guards.compute(guarded, "Shape", guarded)
    if others:
        rows = _count(source, guards, rows=True)
        counts = [_count(node.input[other], guards, rows=True) for other in others]
        faults = [test("Not", test("Equal", other, rows)) for other in counts]
        fault = f"operands with other rows than {source!r}"
    else:
        count = _count(source, guards)
        faults = [test("Less", count, least)]
        if most is not None:
            faults.append(test("Less", most, count))
        if not known:
            faults.append(test("Less", high, guards.compute(source, "Size", shape)))
        fault = f"columns that do not fit the attributes: {wanted} expected in {source!r}"
    target = guards.reject(shape, INT64, f"{node_label(node)} ({fault})", *faults)
    result = guards.value(guarded, "fitting", guarded, guards.types[guarded])
    return at, guards.add("Reshape", [guarded, target], result)


def _count(name: str, guards: GuardNodes, *, rows: bool = False) -> str:
    """Append nodes that compute the number of columns or rows of an operand; a vector is one row."""
    shape = guards.compute(name, "Shape", name)
    has_rows = guards.compute(name, "Less", 1, guards.compute(name, "Size", shape), elem_type=BOOL)
    axis = guards.compute(name, "Cast", has_rows, to=INT64)
    sizes = guards.compute(name, "Concat", np.array([1]), shape, axis=0) if rows else shape
    return guards.compute(name, "Gather", sizes, axis, axis=0)


def _open_rows(node: onnx.NodeProto, dims: DimsInSets) -> list[int]:
    """List the positions of operands whose numbers of rows can only be compared at run time.

    Raises CompileError if the numbers of rows differ in some set of sizes.
    """
    rows = [[shape[0] if len(shape) > 1 else 1 for shape in dims(name)] for name in node.input]
    found = []
    for at, name in enumerate(node.input):
        pairs = [*zip(rows[0], rows[at], strict=False)]
        if any(None not in pair and len({*pair}) > 1 for pair in pairs):
            raise refused_operand(node, f"other rows of {name!r} than of {node.input[0]!r}", "equal numbers")
        if name != node.input[0] and (not pairs or None in chain.from_iterable(pairs)):
            found.append(at)
    return found


@compiler_pass()
def check_ml_attributes_pass(model: Model, _: Context) -> None:
    """Refuse operators of ai.onnx.ml with attributes that contradict each other."""
    for node in all_nodes(model.proto.graph.node):
        if node.domain == _DOMAIN and node.op_type in _RULES:
            for found, expected in _RULES[node.op_type](_Attributes(node)):
                raise refused_operand(node, found, expected)
