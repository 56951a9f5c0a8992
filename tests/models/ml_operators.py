"""Valid attributes of operators of ai.onnx.ml, for an operand with two columns."""

import numpy as np
from onnx import numpy_helper

NUMBERS = [1.0, -2.0, 3.0, -4.0, 5.0, 6.0]
X = np.float32([[-1, 2], [0.25, 0.5], [3, -4]])
SVM = {
    "kernel_params": [0.5, 0.1, 2.0],
    "vectors_per_class": [1, 1, 1],
    "support_vectors": NUMBERS,
    "coefficients": NUMBERS,
    "rho": [0.1, 0.2, 0.3],
    "classlabels_ints": [5, 6, 7],
}
TREE = {
    "nodes_treeids": [0] * 5,
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [1, 0, 0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.1, 0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 2, 0, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0],
    "nodes_hitrates": [1.0] * 5,
    "nodes_missing_value_tracks_true": [0] * 5,
}
LEAVES = {"treeids": [0, 0, 0], "nodeids": [2, 3, 4], "ids": [0, 1, 1], "weights": [1.0, 2.0, 3.0]}
ENSEMBLE = {
    "n_targets": 2,
    "leaf_targetids": [0, 1, 0, 1],
    "leaf_weights": np.float32([1, 2, 3, 4]),
    "membership_values": np.float32([1, 2, np.nan, 3, np.nan]),
    "nodes_falseleafs": [0, 1, 1],
    "nodes_falsenodeids": [2, 1, 3],
    "nodes_featureids": [0, 1, 0],
    "nodes_hitrates": np.float32([1, 1, 1]),
    "nodes_missing_value_tracks_true": [0, 0, 0],
    "nodes_modes": np.uint8([0, 6, 6]),
    "nodes_splits": np.float32([0.5, 1, 2]),
    "nodes_trueleafs": [0, 1, 1],
    "nodes_truenodeids": [1, 0, 2],
    "tree_roots": [0],
}
PROBABILITIES = {"prob_a": [-0.1, -0.2, -0.3], "prob_b": [0.1, 0.2, 0.3]}
LINEAR = {"coefficients": NUMBERS, "intercepts": [0.1, 0.2, 0.3], "classlabels_ints": [5, 6, 7]}
#: Operator -> valid attributes.
VALID = {
    "SVMClassifier, pairs": SVM,
    "SVMClassifier, probabilities": {**SVM, **PROBABILITIES, "kernel_type": "RBF"},
    "SVMClassifier, linear": {
        **{name: SVM[name] for name in ("kernel_params", "coefficients", "classlabels_ints")},
        "rho": [0.5],
    },
    "SVMRegressor": {
        **{name: SVM[name] for name in ("kernel_params", "support_vectors")},
        "rho": [0.5],
        "coefficients": [1.0, -2.0, 3.0],
        "n_supports": 3,
        "kernel_type": "POLY",
    },
    "SVMRegressor, linear": {
        "kernel_params": SVM["kernel_params"],
        "coefficients": [1.0, -2.0],
        "rho": [0.5],
    },
    "LinearClassifier": LINEAR,
    "LinearClassifier, strings": {
        **{name: LINEAR[name] for name in ("coefficients", "intercepts")},
        "classlabels_strings": ["a", "b", "c"],
    },
    "LinearRegressor": {"coefficients": NUMBERS, "intercepts": [0.1, 0.2, 0.3], "targets": 3},
    "TreeEnsembleClassifier": {
        **TREE,
        **{f"class_{name}": values for name, values in LEAVES.items()},
        "classlabels_int64s": [4, 5, 6],
        "base_values": [0.1, 0.2, 0.3],
    },
    "TreeEnsembleRegressor": {
        **TREE,
        **{f"target_{name}": values for name, values in LEAVES.items()},
        "n_targets": 2,
        "base_values": [0.1, 0.2],
    },
    "TreeEnsemble": ENSEMBLE,
    "Scaler": {"scale": [1.0, 2.0], "offset": [3.0, 4.0]},
    "Imputer": {"imputed_value_floats": [1.0, 2.0], "replaced_value_float": 3.0},
    "FeatureVectorizer": {"inputdimensions": [2]},
}


def as_tensors(attributes):
    """Return attributes with a tensor for each array."""
    return {
        key: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for key, value in attributes.items()
    }
