"""Types and shapes of ai.onnx.ml operators, which neither onnx nor the engine infers.

Converters of scikit-learn, LightGBM and XGBoost write these operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import onnx

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.elem_types import FLOAT, INT64, STRING
from qaic.compiler.ir.graph_walk import attribute_of
from qaic.compiler.ir.value_info import collect_shapes, collect_types, known_dims

Dims: TypeAlias = tuple[int, ...]
#: shapes of the operands of a node -> shapes of its results
Rule: TypeAlias = Callable[[onnx.NodeProto, Sequence[Dims]], Sequence[Dims]]

_DOMAIN: Final = "ai.onnx.ml"


def complete(found: onnx.ModelProto) -> bool:
    """Add the types and shapes of results in the main graph; returns True if a shape was added."""
    nodes = [node for node in found.graph.node if node.domain == _DOMAIN and node.op_type in _RULES]
    if not nodes:
        return False
    shapes, types = collect_shapes(found), collect_types(found)
    declared = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    learned = False
    for node in nodes:
        if not node.input or not all(shapes.get(name) for name in node.input):
            continue
        operands = [shapes[name] for name in node.input]
        # A result without a shape makes the check of sizes name the node.
        if node.op_type.startswith("TreeEnsemble") and len(operands[0]) != 2:
            continue
        dims = _RULES[node.op_type](node, operands)
        for name, result in zip(node.output, dims, strict=False):
            elem_type = types.get(name) or _elem_type(node, name, types)
            if not name or not elem_type:
                continue
            value = declared.get(name) or edit.describe_value(found.graph, name)
            if known_dims(value) is None:
                value.type.tensor_type.elem_type = elem_type
                edit.set_shape(value, result)
                learned = True
            shapes[name], types[name] = result, elem_type
    return learned


def _elem_type(node: onnx.NodeProto, name: str, types: Mapping[str, int]) -> int:
    """Return the type of a result; 0 if it is not known."""
    if node.op_type.endswith("Classifier") and name == node.output[0]:
        return STRING if attribute_of(node, "classlabels_strings", list[bytes]()) else INT64
    if node.op_type in {"ArrayFeatureExtractor", "Binarizer", "Imputer"}:
        return types.get(node.input[0], 0)
    return 0 if node.op_type == "LabelEncoder" else FLOAT


def _rows(dims: Dims) -> int:
    """Return the number of rows; an operand of rank 1 is one row."""
    return 1 if len(dims) == 1 else dims[0]


def _unchanged(_: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    return operands[:1]


def _targets(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    names = {"LinearRegressor": "targets", "TreeEnsemble": "n_targets", "TreeEnsembleRegressor": "n_targets"}
    count = attribute_of(node, names.get(node.op_type, ""), 1)
    return [(_rows(operands[0]), count)]


def _labels(node: onnx.NodeProto) -> int:
    lists = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
    return max(len(attribute_of(node, name, list[object]())) for name in lists)


def _tree_classes(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    rows = _rows(operands[0])
    return [(rows,), (rows, _labels(node))]


def _linear_classes(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    rows, scores = _rows(operands[0]), len(attribute_of(node, "intercepts", list[float]()))
    # One score of two classes is that of the second class.
    is_binary = scores == 1 and _labels(node) == 2
    return [(rows,), (rows, 2 if is_binary else scores)]


def _vector_classes(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    rows, classes = _rows(operands[0]), _labels(node)
    has_vectors = any(attribute_of(node, "vectors_per_class", list[int]()))
    has_shares = bool(attribute_of(node, "prob_a", list[float]()))
    is_paired = has_vectors and not has_shares and classes > 2
    # Pairs of classes have a score each.
    return [(rows,), (rows, classes * (classes - 1) // 2 if is_paired else classes)]


def _columns(_: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    given, chosen = operands
    count = 1
    for size in chosen:
        count *= size
    return [(1, count) if len(given) == 1 else (*given[:-1], count)]


def _vector(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    widths = attribute_of(node, "inputdimensions", list[int]())
    return [(_rows(operands[0]), sum(widths))]


def _categories(node: onnx.NodeProto, operands: Sequence[Dims]) -> Sequence[Dims]:
    lists = ("cats_int64s", "cats_strings")
    return [(*operands[0], max(len(attribute_of(node, name, list[object]())) for name in lists))]


_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("Binarizer", "Imputer", "LabelEncoder", "Normalizer", "Scaler"), _unchanged),
    **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsemble", "TreeEnsembleRegressor"), _targets),
    "ArrayFeatureExtractor": _columns,
    "FeatureVectorizer": _vector,
    "LinearClassifier": _linear_classes,
    "OneHotEncoder": _categories,
    "SVMClassifier": _vector_classes,
    "TreeEnsembleClassifier": _tree_classes,
}
