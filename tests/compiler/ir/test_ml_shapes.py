"""Shapes of ai.onnx.ml operators equal those of the results that onnxruntime computes."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import info, lowered, model_of, node, run
from ml_operators import LEAVES, LINEAR, PROBABILITIES, SVM, TREE, VALID, as_tensors
from qaic.errors import CompileError

PAIR = {
    "classlabels_ints": [5, 6],
    "vectors_per_class": [1, 2],
    "rho": [0.1],
    "coefficients": [1.0, 2.0, 3.0],
}
#: Operator -> attributes. Operands are one or several rows of two columns.
CASES = {
    **{what: given for what, given in VALID.items() if what != "LinearClassifier, strings"},
    "Binarizer": {"threshold": 0.5},
    "Normalizer": {"norm": "L1"},
    "LabelEncoder": {"keys_floats": [1.0, 2.0], "values_floats": [3.0, 4.0]},
    "OneHotEncoder": {"cats_int64s": [0, 1, 2]},
    "TreeEnsembleClassifier, two classes": {
        **TREE,
        **{f"class_{name}": values for name, values in LEAVES.items()},
        "classlabels_int64s": [4, 5],
    },
    "TreeEnsembleClassifier, one score": {
        **TREE,
        **{f"class_{name}": values for name, values in (LEAVES | {"ids": [0, 0, 0]}).items()},
        "classlabels_int64s": [0, 1],
        "post_transform": "LOGISTIC",
    },
    "TreeEnsembleRegressor, one target": {
        **TREE,
        **{f"target_{name}": values for name, values in (LEAVES | {"ids": [0, 0, 0]}).items()},
        "n_targets": 1,
    },
    "LinearClassifier, one score": {
        "coefficients": [1.0, 2.0],
        "intercepts": [0.5],
        "classlabels_ints": [0, 1],
    },
    "LinearClassifier, two scores": {
        **LINEAR,
        "coefficients": [1.0, 2.0, 3.0, 4.0],
        "intercepts": [0.5, 0.1],
        "classlabels_ints": [0, 1],
    },
    "LinearRegressor, one target": {"coefficients": [1.0, 2.0], "intercepts": [0.5]},
    "SVMClassifier, two classes": {**SVM, **PAIR},
    "SVMClassifier, two probabilities": {**SVM, **PAIR, "prob_a": [-0.1], "prob_b": [0.1]},
    "SVMClassifier, probabilities of sums": {**SVM, **PROBABILITIES},
}


def shapes(model):
    return {spec.name: tuple(spec.dims) for spec in lowered(model).outputs}


#: Operators that read operands of rank 1, as one row.
ONE_ROW = ("Binarizer", "LabelEncoder", "Linear", "OneHotEncoder", "SVM")


@pytest.mark.parametrize(
    ("what", "dims"),
    [
        *((what, dims) for what in sorted(CASES) for dims in ([1, 2], [4, 2])),
        *((what, [2]) for what in sorted(CASES) if what.startswith(ONE_ROW)),
    ],
)
def test_shapes_are_those_of_the_results(what, dims):
    name = what.partition(",")[0]
    is_class = name.endswith("Classifier")
    results = ["labels", "scores"] if is_class else ["y"]
    operator = node(name, ["x"], results, domain="ai.onnx.ml", **as_tensors(CASES[what]))
    outputs = [info(results[-1], None)] + [info("labels", None, TensorProto.INT64)] * is_class
    model = model_of([operator], [info("x", dims)], outputs)
    if name == "TreeEnsemble":
        next(entry for entry in model.opset_import if entry.domain == "ai.onnx.ml").version = 5
    x = np.ones(dims, np.float32)
    expected = {key: value.shape for key, value in run(model, {"x": x}).items()}
    assert shapes(model) == expected


def test_trees_of_one_row_without_a_rank_of_two_are_refused():
    """onnxruntime refuses these operands, also of inner nodes."""
    attributes = as_tensors(CASES["TreeEnsembleRegressor, one target"])
    nodes = [
        node("TreeEnsembleRegressor", ["x"], ["s"], domain="ai.onnx.ml", **attributes),
        node("Tanh", ["s"], ["y"]),
    ]
    with pytest.raises(CompileError, match="found sizes that do not fit: 'x' is"):
        lowered(model_of(nodes, [info("x", [2])], [info("y", None)]))


def test_declared_sizes_of_one_sample_are_ignored():
    """The converter of LightGBM declares one label for any number of rows."""
    attributes = as_tensors(CASES["TreeEnsembleClassifier, two classes"])
    nodes = [
        node("TreeEnsembleClassifier", ["x"], ["labels", "scores"], domain="ai.onnx.ml", **attributes),
        node("Cast", ["labels"], ["y"], to=TensorProto.INT32),
    ]
    model = model_of(nodes, [info("x", [4, 2])], [info("y", [1], TensorProto.INT32)])
    assert shapes(model) == {"y": (4,)}


@pytest.mark.parametrize("dims", [[2], [4, 2], [3, 4, 2]])
def test_columns_follow_from_the_operand_and_the_indices(dims):
    nodes = [
        node("ArrayFeatureExtractor", ["x", "at"], ["c"], domain="ai.onnx.ml"),
        node("Scaler", ["c"], ["s"], domain="ai.onnx.ml", scale=[2.0], offset=[1.0]),
        node("Transpose", ["s"], ["y"]),
    ]
    model = model_of(nodes, [info("x", dims)], [info("y", None)], [("at", np.array([1, 0, 1]))])
    expected = run(model, {"x": np.zeros(dims, np.float32)})["y"].shape
    assert shapes(model) == {"y": expected}
