"""Operators of ai.onnx.ml with contradicting attributes; some of them end or hang the process."""

from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from compiler_oracle import PLACES, info, lowered, model_of, node, run, whole
from ml_operators import ENSEMBLE, VALID, X, as_tensors
from qaic.errors import CompileError

INT64, STRING = TensorProto.INT64, TensorProto.STRING
#: Lists that can have other lengths: extra entries are ignored, or none is needed.
TOLERATED = {
    *(
        (what, name, "longer")
        for what in ("SVMClassifier, pairs", "SVMClassifier, probabilities", "SVMRegressor")
        for name in ("coefficients", "rho")
    ),
    ("SVMClassifier, linear", "rho", "longer"),
    ("SVMRegressor, linear", "rho", "longer"),
    ("LinearClassifier", "classlabels_ints", "longer"),
    ("LinearClassifier, strings", "classlabels_strings", "longer"),
    ("LinearRegressor", "intercepts", "left out"),
    ("Imputer", "imputed_value_floats", "shorter"),
    *(("TreeEnsemble", name, "longer") for name in ("membership_values", "tree_roots")),
    ("TreeEnsemble", "membership_values", "shorter"),
    *(
        (f"TreeEnsemble{kind}", name, "left out")
        for kind in ("", "Classifier", "Regressor")
        for name in ("nodes_hitrates", "nodes_missing_value_tracks_true", "base_values")
    ),
}


def model_with(what, attributes, columns=2, source="x", before=()):
    """Build a model of one node that reads three rows; all its results are outputs."""
    name = what.partition(",")[0]
    results = ["labels", "scores"] if name.endswith("Classifier") else ["y"]
    operator = node(name, [source], results, name="mine", domain="ai.onnx.ml", **as_tensors(attributes))
    nodes, outputs = [*before, operator], [info(results[-1], None)]
    if len(results) > 1 and "classlabels_strings" not in attributes:
        outputs.append(info("labels", [3], INT64))
    model = model_of(nodes, [info("x", [3, columns])], outputs)
    if name == "TreeEnsemble":
        next(entry for entry in model.opset_import if entry.domain == "ai.onnx.ml").version = 5
    return model


@cache
def computed(what):
    """Return the results of a node with valid attributes, computed by the engine."""
    return run(model_with(what, VALID[what]), {"x": X}, optimize=False)


def compiled(what, model):
    """Compile a model whose results have the same shapes as with valid attributes."""
    # Shapes are inferred, unless the size of the operand is computed.
    is_cut = "cut" in model.graph.node[-1].input
    shapes = {name: value.shape for name, value in computed(what).items()} if is_cut else {}
    return lowered(model, output_shapes=shapes)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", VALID)
def test_attributes_that_agree_are_computed(what, place):
    model = model_with(what, VALID[what])
    for name, value in run(whole(compiled(what, PLACES[place](model))), {"x": X}).items():
        np.testing.assert_array_equal(value, computed(what)[name])


LISTS = [
    (what, name)
    for what, attributes in VALID.items()
    for name, values in attributes.items()
    if isinstance(values, list | np.ndarray) and len(values)
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", ["shorter", "longer", "left out"])
@pytest.mark.parametrize(("what", "name"), LISTS)
def test_lists_of_other_lengths_are_refused(what, name, change, place):
    given = VALID[what]
    values = list(given[name])
    changed = {"shorter": values[:-1], "longer": [*values, values[-1]], "left out": []}[change]
    attributes = {key: value for key, value in given.items() if key != name}
    if changed:
        is_array = isinstance(given[name], np.ndarray)
        attributes[name] = np.array(changed, given[name].dtype) if is_array else changed
    model = PLACES[place](model_with(what, attributes))
    if (what, name, change) in TOLERATED:
        compiled(what, model)
        return
    with pytest.raises(CompileError, match=r"node '[^']*mine' \(") as caught:
        compiled(what, model)
    assert caught.value.code == "compile.engine_refused"


@pytest.mark.parametrize(
    ("what", "name", "at", "number"),
    [
        *(("SVMClassifier, pairs", "vectors_per_class", 0, number) for number in (-1, 2, 2**40, -(2**62))),
        *(("TreeEnsembleClassifier", "class_ids", 2, number) for number in (-1, 3, 2**40)),
        *(("TreeEnsembleRegressor", "target_ids", 0, number) for number in (-1, 2, 2**40)),
        *(("TreeEnsembleRegressor", "nodes_featureids", 0, number) for number in (-1, 2, 2**26, 2**40)),
        *(("TreeEnsembleClassifier", "nodes_featureids", 1, number) for number in (-1, 2, 2**26, 2**40)),
        *(("TreeEnsembleRegressor", "nodes_truenodeids", 1, number) for number in (-1, 0, 1, 5, 2**40)),
        *(("TreeEnsembleClassifier", "nodes_falsenodeids", 1, number) for number in (-1, 0, 1, 5, 2**40)),
        *(("TreeEnsemble", "leaf_targetids", 3, number) for number in (-1, 2, 2**40)),
        *(("TreeEnsemble", "tree_roots", 0, number) for number in (-1, 3, 2**40)),
        *(("TreeEnsemble", "nodes_featureids", 2, number) for number in (-1, 2, 2**26, 2**40)),
        *(("TreeEnsemble", "nodes_truenodeids", 0, number) for number in (-1, 0, 3, 2**40)),
        *(("TreeEnsemble", "nodes_falsenodeids", 2, number) for number in (-1, 4, 2**40)),
        *(("TreeEnsemble", "nodes_modes", 1, number) for number in (7, 255)),
        ("TreeEnsemble", "nodes_trueleafs", 2, 0),
        ("FeatureVectorizer", "inputdimensions", 0, -1),
    ],
)
def test_numbers_that_are_no_indices_are_refused(what, name, at, number):
    values = VALID[what][name].copy()
    values[at] = number
    with pytest.raises(CompileError, match="node 'mine'"):
        compiled(what, model_with(what, VALID[what] | {name: values}))


@pytest.mark.parametrize("number", [-1, 0, 2**40])
@pytest.mark.parametrize(
    ("what", "name"),
    [("LinearRegressor", "targets"), ("TreeEnsembleRegressor", "n_targets"), ("TreeEnsemble", "n_targets")],
)
def test_numbers_of_targets_that_the_lists_do_not_have_are_refused(what, name, number):
    with pytest.raises(CompileError, match=r"node 'mine'|output 'y'"):
        compiled(what, model_with(what, VALID[what] | {name: number}))


def test_a_tree_whose_shared_nodes_double_at_each_level_is_refused():
    levels = 60
    chain = {
        "nodes_falsenodeids": [*range(1, levels), 1],
        "nodes_truenodeids": [*range(1, levels), 0],
        **{f"nodes_{side}leafs": [0] * (levels - 1) + [1] for side in ("true", "false")},
        "nodes_featureids": [0] * levels,
        "nodes_modes": np.zeros(levels, np.uint8),
        "nodes_splits": np.zeros(levels, np.float32),
    }
    given = {name: ENSEMBLE[name] for name in ("n_targets", "leaf_targetids", "leaf_weights", "tree_roots")}
    with pytest.raises(CompileError, match="if shared ones are repeated"):
        compiled("TreeEnsemble", model_with("TreeEnsemble", given | chain))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("what", "name"), [(what, name) for what, attributes in VALID.items() for name in attributes]
)
def test_attributes_of_other_types_are_refused(what, name, place):
    value = VALID[what][name]
    other = (
        value.tolist() if isinstance(value, np.ndarray) else value[0] if isinstance(value, list) else [value]
    )
    untyped = model_with(what, VALID[what])
    for attribute in untyped.graph.node[-1].attribute:
        if attribute.name == name:
            attribute.ClearField("type")
    for model in (model_with(what, VALID[what] | {name: other}), untyped):
        with pytest.raises(CompileError, match=f"attribute '{name}' of node '[^']*mine' ") as caught:
            compiled(what, PLACES[place](model))
        assert caught.value.code == "compile.invalid_model"


@pytest.mark.parametrize(
    "what", ["FeatureVectorizer", "LinearRegressor", "Normalizer", "Scaler", "SVMRegressor"]
)
def test_an_operator_without_operands_is_refused(what):
    model = model_with(what, {} if what == "FeatureVectorizer" else VALID.get(what, {}))
    del model.graph.node[-1].input[:]
    with pytest.raises(CompileError) as caught:
        lowered(model, output_shapes={value.name: (3, 2) for value in model.graph.output})
    assert caught.value.code == "compile.invalid_model"


#: Operators whose attributes select columns.
READING = [what for what in VALID if what != "FeatureVectorizer"]


@pytest.mark.parametrize("columns", [0, 1, 3, 5])
@pytest.mark.parametrize("what", READING)
def test_an_operand_of_other_columns_is_refused(what, columns):
    model = model_with(what, VALID[what], columns)
    if what.startswith("TreeEnsemble") and columns > 2:
        # Trees can omit columns.
        x = np.zeros((3, columns), np.float32)
        x[:, :2] = X
        for name, value in run(whole(compiled(what, model)), {"x": x}).items():
            np.testing.assert_array_equal(value, computed(what)[name])
        return
    with pytest.raises(CompileError, match=rf"node 'mine'.*found {columns} columns? of 'x', expected 2"):
        compiled(what, model)


@pytest.mark.parametrize("what", READING)
def test_columns_that_only_the_run_counts_are_compared(what):
    cut = node("Slice", ["x", "start", "stop", "axis"], ["cut"])
    constants = [
        node("Constant", [], [name], value=numpy_helper.from_array(np.array([number])))
        for name, number in (("start", 0), ("axis", 1))
    ]
    model = model_with(what, VALID[what], 5, "cut", [*constants, cut])
    model.graph.input.append(info("stop", [1], INT64))
    program = whole(compiled(what, model))
    x = np.concatenate([X, X, X], axis=1)[:, :5]
    for name, value in run(program, {"x": x, "stop": np.array([2])}).items():
        np.testing.assert_array_equal(value, computed(what)[name])
    for columns in (0, 1, 3):
        if columns == 3 and what.startswith("TreeEnsemble"):
            continue
        with pytest.raises(Exception, match=r"mine .columns that do not fit the attributes: 2"):
            run(program, {"x": x, "stop": np.array([columns])})


def resized(what, choices):
    """Build a model whose run selects the sizes of the operand, and their number, among these."""
    before = [
        node("Constant", [], ["choices"], value=numpy_helper.from_array(np.array(choices))),
        node("Compress", ["choices", "chosen"], ["sizes"]),
        node("Reshape", ["x", "sizes"], ["resized"]),
    ]
    model = model_with(what, VALID[what], source="resized", before=before)
    size = int(np.prod(choices))
    model.graph.input[0].CopyFrom(info("x", [size]))
    model.graph.input.append(info("chosen", [len(choices)], TensorProto.BOOL))
    # The results have one shape.
    model.graph.node[-1].output[0] = "sized"
    model.graph.initializer.append(numpy_helper.from_array(np.array([size]), "one"))
    model.graph.node.append(node("Reshape", ["sized", "one"], ["y"]))
    return model


@pytest.mark.parametrize("what", ["Scaler", "Imputer"])
def test_columns_of_an_unknown_number_of_dims_are_those_of_the_second(what):
    choices, x = [1, 1, 2, 1], np.float32([3, 5])
    program = whole(lowered(resized(what, choices)))
    expected = run(model_with(what, VALID[what]), {"x": X[:0].reshape(0, 2)} | {"x": np.tile(x, (3, 1))})[
        "y"
    ][0]
    for at in ([2], [1, 2], [1, 2, 3], [0, 1, 2], [2, 3], [0, 1, 2, 3]):
        sizes = [choices[position] for position in at]
        feeds = {"x": x, "chosen": np.isin(range(len(choices)), at)}
        if sizes[min(len(sizes), 2) - 1] == 2:
            np.testing.assert_array_equal(run(program, feeds)["y"], expected)
        else:
            with pytest.raises(Exception, match=r"mine .columns that do not fit the attributes: 2"):
                run(program, feeds)


@pytest.mark.parametrize("what", ["Scaler", "Imputer"])
def test_columns_of_more_dims_that_only_the_run_counts_are_compared(what):
    before = node("Compress", ["x", "kept"], ["cut"], axis=1)
    open_model, plain = model_with(what, VALID[what], 4, "cut", [before]), model_with(what, VALID[what])
    open_model.graph.input.append(info("kept", [4], TensorProto.BOOL))
    for model, rows in ((open_model, 4), (plain, 2)):
        model.graph.input[0].CopyFrom(info("x", [3, rows, 7]))
    x = np.random.default_rng(1).standard_normal((3, 4, 7)).astype(np.float32)
    program = whole(lowered(open_model, output_shapes={"y": (3, 2, 7)}))
    found = run(program, {"x": x, "kept": np.array([True, False, True, False])})["y"]
    np.testing.assert_array_equal(found, run(plain, {"x": x[:, ::2]}, optimize=False)["y"])
    with pytest.raises(Exception, match=r"mine .columns that do not fit the attributes: 2"):
        run(program, {"x": x, "kept": np.array([True, True, True, False])})


#: Operators, with the ranks that their first operand cannot have.
RANKS = [
    *((what, 0) for what in (*VALID, "Normalizer")),
    *((what, 3) for what in (*VALID, "Normalizer") if what not in {"Imputer", "Scaler", "FeatureVectorizer"}),
]


@pytest.mark.parametrize(("what", "rank"), RANKS)
def test_operands_of_other_ranks_are_refused(what, rank):
    model, shape = model_with(what, VALID.get(what, {})), [3, 2, 2][:rank]
    model.graph.input[0].CopyFrom(info("x", shape))
    model.graph.output[0].CopyFrom(info(model.graph.output[0].name, [3, 2]))
    with pytest.raises(CompileError, match="node 'mine'"):
        lowered(model)


@pytest.mark.parametrize("rows", [1, 4])
def test_operands_with_other_numbers_of_rows_are_refused(rows):
    made = node("FeatureVectorizer", ["x", "z"], ["y"], domain="ai.onnx.ml", inputdimensions=[2, 1])
    for count, is_refused in ((3, False), (rows, True)):
        model = model_of([made], [info("x", [3, 2]), info("z", [count, 1])], [info("y", [3, 3])])
        if is_refused:
            with pytest.raises(CompileError, match="other rows of 'z' than of 'x'"):
                lowered(model)
        else:
            feeds = {"x": X, "z": np.float32([[7], [8], [9]])}
            expected = np.concatenate([X, feeds["z"]], axis=1)
            np.testing.assert_array_equal(run(whole(lowered(model)), feeds)["y"], expected)


@pytest.mark.parametrize("cut", [["x"], ["z"], ["x", "z"]])
def test_rows_that_only_the_run_counts_are_compared(cut):
    operands = [f"{name}_cut" if name in cut else name for name in ("x", "z")]
    nodes = [node("Compress", [name, f"{name}_kept"], [f"{name}_cut"], axis=0) for name in cut]
    made = node(
        "FeatureVectorizer", operands, ["y"], name="mine", domain="ai.onnx.ml", inputdimensions=[2, 1]
    )
    shapes = {name: [5 if name in cut else 3, columns] for name, columns in (("x", 2), ("z", 1))}
    inputs = [info(name, shape) for name, shape in shapes.items()]
    inputs += [info(f"{name}_kept", [5], TensorProto.BOOL) for name in cut]
    program = whole(lowered(model_of([*nodes, made], inputs, [info("y", [3, 3])])))
    feeds = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()
    }
    kept = {f"{name}_kept": np.array([True, True, True, False, False]) for name in cut}
    expected = np.concatenate([feeds["x"][:3], feeds["z"][:3]], axis=1)
    np.testing.assert_array_equal(run(program, feeds | kept)["y"], expected)
    for count in (1, 2, 4, 5):
        other = {f"{cut[-1]}_kept": np.arange(5) < count}
        with pytest.raises(Exception, match=r"mine .operands with other rows than 'x"):
            run(program, feeds | kept | other)


@pytest.mark.parametrize("index", [-(2**40), -3, -1, 2, 2**40])
def test_indices_of_columns_are_checked(index):
    made = node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    inputs = [info("x", [3, 2]), info("i", [2], INT64)]
    program = whole(lowered(model_of([made], inputs, [info("y", [3, 2])])))
    right = np.array([1, 0])
    np.testing.assert_array_equal(run(program, {"x": X, "i": right})["y"], X[:, right])
    with pytest.raises(Exception, match=r"y .index beyond the columns"):
        run(program, {"x": X, "i": np.array([0, index])})
    constant = [("i", np.array([0, index]))]
    with pytest.raises(CompileError, match="an index outside the 2 columns"):
        lowered(model_of([made], inputs[:1], [info("y", [3, 2])], constant))
