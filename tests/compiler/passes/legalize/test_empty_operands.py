"""Operands whose sizes are known only at run time; without checks, some of these tests end the process."""

import itertools
import math

import numpy as np
import pytest
from onnx import numpy_helper

from compiler_oracle import PLACES, as_branches, info, kinds, lowered, model_of, node, run, whole
from qaic.compiler.ir.graph_walk import all_nodes

ENGINE = {"domain": "com.microsoft"}
INT64 = 7


def grid(*shape):
    return np.linspace(-1, 2, math.prod(shape), dtype=np.float32).reshape(shape)


CUBE, SQUARE, VECTOR = {"x": grid(4, 4, 4)}, {"x": grid(4, 4)}, {"b": grid(4)}
GRU = node("GRU", ["x", "w", "u"], ["r"], hidden_size=2), CUBE | {"w": grid(1, 6, 4), "u": grid(1, 6, 2)}
LSTM = node("LSTM", ["x", "w", "u"], ["r"], hidden_size=2), CUBE | {"w": grid(1, 8, 4), "u": grid(1, 8, 2)}
LRN = node("LRN", ["x"], ["r"], size=3), {"x": grid(2, 4, 4, 4)}
NORMS = [(node("LpNormalization", ["x"], ["r"], axis=axis), CUBE) for axis in (0, 1, -1)]
UNIQUES = [(node("Unique", ["x"], ["r"], axis=axis), SQUARE) for axis in (0, 1)]
DFTS = [(node("DFT", ["x"], ["r"], **given), {"x": grid(4, 4, 1)}) for given in ({}, {"axis": 1})]
LATE_DFT = node("DFT", ["x", "", "a"], ["r"]), {"x": grid(4, 4, 1), "a": np.array(1)}
STFT = node("STFT", ["x", "step", "b"], ["r"]), VECTOR | {"x": grid(1, 16, 1), "step": np.array(4)}
MHA = node("MultiHeadAttention", ["x", "x", "v"], ["r"], num_heads=1, **ENGINE), CUBE | {"v": grid(4, 4, 4)}
BIAS = node("BiasGelu", ["x", "b"], ["r"], **ENGINE), SQUARE | VECTOR
SKIPS = [
    (node(f"Skip{kind}LayerNormalization", ["x", "x", "b"], ["r"], **ENGINE), CUBE | VECTOR)
    for kind in ("", "Simplified")
]
VECTORS = node("FeatureVectorizer", ["x", "x"], ["r"], inputdimensions=[4, 4], domain="ai.onnx.ml"), SQUARE
BLOCKS = [
    (
        node("QuantizeLinear", ["x", "s"], ["r"], axis=axis, block_size=2),
        SQUARE | {"s": np.abs(grid(*shape)) + 1},
    )
    for axis, shape in enumerate(((2, 4), (4, 2)))
]
#: Node and operands, the dims that are reduced at run time, whether no elements are an error, and the
#: operator set.
CUT = [
    *((GRU, cuts, True, 17) for cuts in ("x0", "x1", "x0 x1", "x2 w2", "x0 x1 x2 w2")),
    *((LSTM, cuts, cuts != "x0", 17) for cuts in ("x0", "x1", "x0 x1", "x2 w2", "x0 x1 x2 w2")),
    *((LRN, cut, cut == "x1", 17) for cut in ("x0", "x1", "x2")),
    *((norm, f"x{dim}", dim == at, 17) for at, norm in enumerate(NORMS) for dim in range(3)),
    *((UNIQUES[0], cuts, cuts == "x1", 17) for cuts in ("x0", "x1", "x0 x1")),
    *((UNIQUES[1], cuts, False, 17) for cuts in ("x0", "x1")),
    *((made, f"x{dim}", dim == 1, 17) for made in DFTS for dim in (0, 1)),
    *((made, f"x{dim}", dim == 1, 20) for made in (DFTS[0], LATE_DFT) for dim in (0, 1)),
    (STFT, "b0", True, 17),
    *((MHA, cuts, True, 17) for cuts in ("x0 v0", "x1 v1", "x2 v2", "v2")),
    *((BIAS, cuts, "b0" in cuts, 17) for cuts in ("x0", "x1 b0")),
    *((skip, cuts, "b0" in cuts, 17) for skip in SKIPS for cuts in ("x0", "x1", "x2 b0")),
    *((VECTORS, cut, cut == "x0", 17) for cut in ("x0", "x1")),
    ((VECTORS[0], {"x": grid(4)}), "x0", False, 17),
    *((BLOCKS[0], cuts, True, 21) for cuts in ("x0 s0", "x1 s1")),
    *((BLOCKS[1], cuts, "x1" in cuts, 21) for cuts in ("x0 s0", "x1 s1")),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("made", "cuts", "is_error", "opset"),
    CUT,
    ids=[f"{at}-{made[0].op_type}-{cuts}" for at, (made, cuts, *_) in enumerate(CUT)],
)
def test_no_elements_end_a_run_with_an_error_only_where_they_would_end_the_process(
    made, cuts, is_error, opset, place
):
    model, feeds = cut_model(*made, cuts.split(), opset)
    program = whole(lowered(PLACES[place](model)))
    for share in (1, 2, 4, *([] if is_error else [0])):
        expected = run(model, feeds(share))
        for name, value in run(program, feeds(share)).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)
    if is_error:
        with pytest.raises(Exception, match=f"r .operand without elements: {made[0].op_type} needs sizes"):
            run(program, feeds(0))


@pytest.mark.parametrize(("cut", "other", "is_error"), [("x0", "x1", True), ("x1", "x0", False)])
def test_recurrent_operators_need_a_batch_in_both_layouts(cut, other, is_error):
    made = node("LSTM", ["x", "w", "u"], ["r"], hidden_size=2, layout=1)
    operands = LSTM[1] | {"x": np.ascontiguousarray(LSTM[1]["x"].swapaxes(0, 1))}
    model, feeds = cut_model(made, operands, [cut], 17)
    plain, others = cut_model(*LSTM, [other], 17)
    program = whole(lowered(model))
    for share in (1, 4, *([] if is_error else [0])):
        expected = run(plain, others(share))
        for name, value in run(program, feeds(share)).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5)
    if is_error:
        with pytest.raises(Exception, match=r"r .operand without elements: LSTM needs sizes"):
            run(program, feeds(0))


@pytest.mark.parametrize(
    ("maker", "place"),
    [
        *itertools.product(["initializer", "Constant", "ConstantOfShape", "Slice"], PLACES.values()),
        # Inference in a branch does not compute the shapes of others.
        *itertools.product(["initializer", "Constant"], [as_branches]),
    ],
)
@pytest.mark.parametrize(
    ("pieces", "axis", "kept"),
    [
        ([(3, 2), (3, 0), (3, 2)], 1, 2),
        ([(3, 2), (0, 2), (1, 2), (0, 2)], -2, 2),
        ([(2, 3, 4), (2, 3, 0), (2, 3, 4)], -1, 2),
    ],
)
def test_pieces_without_elements_are_not_concatenated(pieces, axis, kept, maker, place):
    """The engine moves the Transpose after the Concat, and transposes the constants."""
    x, nodes, constants, names = grid(*pieces[0]).T, [node("Transpose", ["x"], ["t"])], {}, []
    for at, shape in enumerate(pieces):
        names.append("t" if shape == pieces[0] else f"c{at}")
        if names[-1] == "t":
            continue
        if maker == "Slice":
            constants |= {f"all{at}": grid(9, *shape), f"from{at}": np.array([4]), f"to{at}": np.array([5])}
            nodes.append(node("Slice", [f"all{at}", f"from{at}", f"to{at}"], [f"one{at}"]))
            nodes.append(node("Squeeze", [f"one{at}", "zero"], [f"c{at}"]))
            constants["zero"] = np.array([0])
        elif maker == "ConstantOfShape":
            constants[f"shape{at}"] = np.array(shape)
            nodes.append(node(maker, [f"shape{at}"], [f"c{at}"]))
        elif maker == "Constant":
            nodes.append(node(maker, [], [f"c{at}"], value=numpy_helper.from_array(grid(*shape))))
        else:
            constants[f"c{at}"] = grid(*shape)
    nodes += [node("Concat", names, ["r"], axis=axis), node("Transpose", ["r"], ["y"])]
    program = lowered(place(model_of(nodes, [info("x", x.shape)], [info("y", None)], constants.items())))
    concats = [one for one in all_nodes(program.model.graph.node) if one.op_type == "Concat"]
    assert {len(one.input) for one in concats} == {kept}
    found = run(whole(program), {"x": x})["y"]
    assert found.shape == np.concatenate([np.empty(shape) for shape in pieces], axis).T.shape
    if maker == "initializer":
        expected = [x.T if name == "t" else constants[name] for name in names]
        np.testing.assert_array_equal(found, np.concatenate(expected, axis).T)


@pytest.mark.parametrize(
    ("op", "rows"),
    [
        *((op, rows) for op in ("Add", "Max", "Mean", "Pow", "Sum", "Where") for rows in (0, 1)),
        *(("Concat", 0), ("PRelu", 0)),
    ],
)
@pytest.mark.parametrize("place", [*PLACES.values(), as_branches])
def test_operators_compute_no_result_without_elements(op, rows, place):
    """The engine moves the Transpose after the operator, and transposes the constant."""
    operands = (
        ["c", "t", "t"] if op == "Where" else ["t", "c", "t"] if op in {"Max", "Mean", "Sum"} else ["t", "c"]
    )
    more = {"axis": 0} if op == "Concat" else {}
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node(op, operands, ["r"], **more),
        node("Transpose", ["r"], ["y"]),
    ]
    constant = np.zeros((3, 0), bool if op == "Where" else np.float32)
    model = model_of(nodes, [info("x", [rows, 3])], [info("y", None)], [("c", constant)])
    program = lowered(place(model))
    assert op not in {one.op_type for one in all_nodes(program.model.graph.node)}
    assert run(whole(program), {"x": grid(rows, 3)})["y"].shape == (0, 6 if op == "Concat" else 3)


def cut_model(last, operands, cuts, opset):
    """Build a model of one node; some of its operands are cut to a size that the model reads.

    A cut has the name of an operand and a dim, such as x1. Returns the model, and a function that creates its
    inputs for a part of each dim, which has 4 elements.
    """
    nodes, constants = [], {"first": np.array([0])}
    names, ends = {name: name for name in operands}, {}
    for cut in cuts:
        operand, dim = cut[0], int(cut[1])
        constants[f"dim{dim}"] = np.array([dim])
        nodes.append(node("Slice", [names[operand], "first", f"end_{cut}", f"dim{dim}"], [cut]))
        names[operand], ends[f"end_{cut}"] = cut, operands[operand].shape[dim]
    made = node(last.op_type, [names.get(name, name) for name in last.input], ["r"], domain=last.domain)
    # The shape of an output must be known.
    made.attribute.extend(last.attribute)
    nodes += [made, node("Cast", ["r"], ["f"], to=1), node("ReduceSum", ["f"], ["y"], keepdims=0)]
    nodes.append(node("Size", ["r"], ["count"]))
    inputs = [info("x", operands["x"].shape), *(info(name, [1], INT64) for name in ends)]
    if "a" in operands:
        inputs.append(info("a", [], INT64))
    constants |= {name: value for name, value in operands.items() if name not in {"x", "a"}}

    def feeds(share):
        given = {name: np.array([-(-share * size // 4)]) for name, size in ends.items()}
        return given | {name: operands[name] for name in ("x", "a") if name in operands}

    outputs = [info("y", []), info("count", [], INT64)]
    return model_of(nodes, inputs, outputs, constants.items(), opset), feeds


@pytest.mark.parametrize("at", range(len(CUT)))
def test_sizes_that_the_compiler_knows_are_not_checked(at):
    made, _, _, opset = CUT[at]
    model, _ = cut_model(*made, [], opset)
    assert {"Reshape", "Shape"}.isdisjoint(kinds(lowered(model)))


def test_nodes_that_read_one_operand_share_its_check():
    model, feeds = cut_model(*GRU, ["x1"], 17)
    twin = node("GRU", ["x1", "w", "u"], ["other"], hidden_size=2)
    model.graph.node.insert(1, twin)
    model.graph.node.extend([node("ReduceSum", ["other"], ["more"], keepdims=0)])
    model.graph.output.append(info("more", []))
    program = lowered(model)
    assert kinds(program).count("Reshape") == 1
    assert run(whole(program), feeds(2))["more"] == run(model, feeds(2))["more"]


@pytest.mark.parametrize(
    ("equation", "cuts"),
    [
        *(("ij,jk->ik", cuts) for cuts in ("x0", "v1", "x1 v0", "x0 x1 v0 v1")),
        *(("ij, kj", cuts) for cuts in ("x0", "v0", "x1 v1")),
        *(("ij,ij->", cuts) for cuts in ("x0 v0", "x1 v1")),
        *(("...j,kj", cuts) for cuts in ("x0", "v0", "x1 v1")),
        *(("i...,j...->...ji", cuts) for cuts in ("x0", "v0", "x1 v1")),
    ],
)
@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
def test_sums_over_a_size_that_only_the_run_knows(equation, cuts, options):
    operands = SQUARE | {"v": grid(4, 4)[::-1] ** 2}
    model, feeds = cut_model(node("Einsum", ["x", "v"], ["r"], equation=equation), operands, cuts.split(), 17)
    program = whole(lowered(model, **options))
    for share in (0, 1, 3, 4):
        kept = {name: [share if f"{name}{dim}" in cuts else 4 for dim in (0, 1)] for name in operands}
        parts = [operands[name][:rows, :columns] for name, (rows, columns) in kept.items()]
        expected = np.einsum(equation.replace(" ", ""), *parts)
        found = run(program, feeds(share))
        assert found["count"] == expected.size
        np.testing.assert_allclose(found["y"], expected.sum(), rtol=2e-2 if options else 1e-5, atol=1e-5)
