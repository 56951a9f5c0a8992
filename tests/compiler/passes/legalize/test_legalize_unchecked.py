"""Operands that older engines do not check; without their guards, some of these tests end the process."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from compiler_oracle import PLACES, info, kinds, lowered, model_of, node, run, whole
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

INT64 = TensorProto.INT64
ENGINE = {"domain": "com.microsoft"}
SMALLEST, LARGEST = -(2**63), 2**63 - 1


@given(
    st.sampled_from([SMALLEST, SMALLEST + 1, -(2**40), 2**40, LARGEST]) | st.integers(-6, 6),
    st.sampled_from([0, 1]),
    st.booleans(),
)
def test_any_diagonal_of_trilu(diagonal, upper, is_constant):
    model = model_of(
        [node("Trilu", ["x", "k"], ["y"], upper=upper)],
        [info("x", [3, 5]), *([] if is_constant else [info("k", [], INT64)])],
        [info("y", [3, 5])],
        [("k", np.array(diagonal))] if is_constant else [],
    )
    x = np.arange(1, 16, dtype=np.float32).reshape(3, 5)
    feeds = {"x": x} if is_constant else {"x": x, "k": np.array(diagonal)}
    near = max(-9, min(9, diagonal))
    expected = np.triu(x, near) if upper else np.tril(x, near)
    np.testing.assert_array_equal(run(whole(lowered(model)), feeds)["y"], expected)


def unpooling(indices=None):
    nodes = [node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]
    inputs = [info("x", [1, 2, 2, 2]), *([] if indices is not None else [info("i", [1, 2, 2, 2], INT64)])]
    constants = [] if indices is None else [("i", indices)]
    return model_of(nodes, inputs, [info("y", [1, 2, 4, 4])], constants)


X = np.arange(1, 9, dtype=np.float32).reshape(1, 2, 2, 2)
INDICES = np.array([0, 3, 9, 14, 16, 19, 25, 31]).reshape(X.shape)


@pytest.mark.parametrize("wrong", [-1, 32, 100, 2**62, SMALLEST, LARGEST])
@pytest.mark.parametrize("at", [0, 7])
def test_an_index_of_max_unpool_beyond_its_result_is_an_error(wrong, at):
    program = whole(lowered(unpooling()))
    expected = np.zeros(32, np.float32)
    expected[INDICES.reshape(-1)] = X.reshape(-1)
    np.testing.assert_array_equal(run(program, {"x": X, "i": INDICES})["y"].reshape(-1), expected)
    indices = INDICES.copy()
    indices.reshape(-1)[at] = wrong
    with pytest.raises(Exception, match=r"y .index beyond the result"):
        run(program, {"x": X, "i": indices})
    with pytest.raises(CompileError, match="an index outside the 32 elements"):
        lowered(unpooling(indices))


def test_indices_of_a_pool_over_such_a_tensor_are_not_checked_again():
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["p", "i"], **attributes),
        node("MaxUnpool", ["p", "i"], ["y"], **attributes),
    ]
    for size, is_checked in ((4, False), (5, True)):
        shape = [1, 2, size, size]
        program = lowered(model_of(nodes, [info("x", shape)], [info("y", [1, 2, 4, 4])]))
        assert ("Gather" in kinds(program)) is is_checked


def columns(image, block, count=9, given=(), **attributes):
    constants = [
        (name, np.array(values)) for name, values in (("image", image), ("block", block)) if name not in given
    ]
    inputs = [info("x", [1, 4, count]), *(info(name, [2], INT64) for name in given)]
    return model_of(
        [node("Col2Im", ["x", "image", "block"], ["y"], **attributes)],
        inputs,
        [info("y", [1, 1, *(image if len(image) == 2 and min(image) > 0 else [4, 4])])],
        constants,
        opset=18,
    )


def test_columns_that_fit_are_computed():
    model = columns([4, 4], [2, 2])
    feeds = {"x": np.arange(36, dtype=np.float32).reshape(1, 4, 9)}
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_array_equal(run(whole(lowered(model)), feeds)["y"], expected)


@pytest.mark.parametrize(
    ("image", "block"),
    [
        ([4, 4], [2, 0]),
        ([4, 4], [SMALLEST, 2]),
        ([4, 4], [LARGEST, 2]),
        ([4, 4], [4, 1]),
        ([4, 2**20], [2, 2]),
        ([-4, 4], [2, 2]),
        ([4], [2, 2]),
    ],
)
def test_columns_that_do_not_fit_are_refused(image, block):
    with pytest.raises(CompileError, match="Col2Im"):
        lowered(columns(image, block))


@pytest.mark.parametrize(
    ("image", "block"),
    [
        *(([4, 4], [2, wrong]) for wrong in (0, -1, 1, 3, 2**31, SMALLEST, LARGEST)),
        *(([4, wrong], [2, 2]) for wrong in (0, 3, 5, 2**20, LARGEST)),
    ],
)
def test_sizes_of_columns_that_come_as_inputs_are_checked(image, block):
    program = whole(lowered(columns([4, 4], [2, 2], given=["image", "block"])))
    feeds = {"x": np.ones((1, 4, 9), np.float32), "image": np.array(image), "block": np.array(block)}
    with pytest.raises(Exception, match=r"y .sizes that do not fit"):
        run(program, feeds)
    expected = ReferenceEvaluator(columns([4, 4], [2, 2])).run(None, {"x": feeds["x"]})[0]
    feeds |= {"image": np.array([4, 4]), "block": np.array([2, 2])}
    np.testing.assert_array_equal(run(program, feeds)["y"], expected)


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.sampled_from([(2, 2), (1, 4), (4, 1)]),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.integers(1, 9),
)
def test_sizes_of_columns_are_judged_alike_as_constants_and_as_inputs(image, block, steps, pads, count):
    attributes = {"dilations": steps[:2], "strides": steps[2:], "pads": pads}
    shape = (1, 1, *image)
    feeds = {"x": np.ones((1, 4, count), np.float32)}
    sizes = {"image": np.array(image), "block": np.array(block)}
    program = lowered(
        columns(image, block, count, given=["image", "block"], **attributes), output_shapes={"y": shape}
    )
    try:
        expected = run(whole(lowered(columns(image, block, count, **attributes))), feeds)["y"]
    except CompileError:
        with pytest.raises(Exception, match=r"y .sizes that do not fit"):
            run(whole(program), feeds | sizes)
    else:
        np.testing.assert_array_equal(run(whole(program), feeds | sizes)["y"], expected)


def recurrent(operator, gates, shape, width=3):
    weights = [(name, np.ones((1, 2 * gates, size), np.float32)) for name, size in (("w", width), ("r", 2))]
    nodes = [node(operator, ["x", "w", "r"], ["y"], hidden_size=2)]
    return model_of(nodes, [info("x", shape)], [info("y", [shape[0], 1, shape[1], 2])], weights)


@pytest.mark.parametrize(
    "model",
    [
        columns([], []),
        model_of(
            [node("Trilu", ["x", "k"], ["y"])],
            [info("x", [3, 5])],
            [info("y", [3, 5])],
            [("k", np.zeros(0, np.int64))],
        ),
        model_of(
            [node("DFT", ["x", "", "a"], ["y"])],
            [info("x", [1, 4, 1])],
            [info("y", [1, 4, 2])],
            [("a", np.zeros(0, np.int64))],
            opset=20,
        ),
        recurrent("GRU", 3, [2, 3, 0], width=0),
        model_of([node("Unique", ["x"], ["y"], axis=0)], [info("x", [3, 0])], [info("y", None)]),
        model_of(
            [node("STFT", ["x", "step", "window"], ["y"])],
            [info("x", [1, 8, 1])],
            [info("y", None)],
            [("step", np.array(1)), ("window", np.zeros(0, np.float32))],
        ),
    ],
)
def test_empty_operands_are_refused(model):
    with pytest.raises(CompileError, match="found"):
        lowered(model)


def ranked(shape, axis, count):
    sizes = [*shape]
    sizes[axis] = count
    made = node("TopK", ["x", "count"], ["y", "places"], axis=axis)
    outputs = [info("y", sizes), info("places", sizes, INT64)]
    return model_of([made], [info("x", shape)], outputs, [("count", np.array([count]))])


def one_hot(shape, axis):
    sizes = [*shape]
    sizes.insert(axis, 4)
    made = node("OneHot", ["x", "depth", "values"], ["y"], axis=axis)
    constants = [("depth", np.array(4)), ("values", np.float32([2, 5]))]
    return model_of([made], [info("x", shape, INT64)], [info("y", sizes)], constants)


def of_engine(operator, shape, **attributes):
    """A node of the engine's own set, and its other operands."""
    operands = ["x", *(["x"] if operator.startswith("Skip") else []), "vector"]
    if operator == "MultiHeadAttention":
        operands = ["x", "x", "x"]
    return model_of(
        [node(operator, operands, ["y"], **(ENGINE | attributes))],
        [info("x", shape)],
        [info("y", shape)],
        [("vector", np.ones(shape[-1], np.float32))],
    )


#: Each of these nodes ends the process of some supported engine.
EMPTY_RESULTS = [
    *(ranked(shape, axis, 1) for shape, axis in (((0, 3), 1), ((0, 0, 2), 2), ((2, 0, 3), 2))),
    *(one_hot(shape, at) for shape in ((0,), (0, 3), (3, 0), (2, 0, 3)) for at in range(1, len(shape) + 1)),
    recurrent("GRU", 3, [0, 2, 3]),
    recurrent("GRU", 3, [2, 0, 3]),
    recurrent("LSTM", 4, [2, 0, 3]),
    *(of_engine("MultiHeadAttention", shape, num_heads=2) for shape in ((0, 3, 4), (1, 0, 4), (2, 4, 0))),
    of_engine("BiasGelu", (3, 0)),
    *(of_engine(f"Skip{kind}LayerNormalization", (1, 3, 0)) for kind in ("", "Simplified")),
    *(
        model_of([node(*made[:3], **made[3])], [info("x", shape)], [info("y", shape)])
        for made, shape in (
            (("LpNormalization", ["x"], ["y"], {"axis": 0}), (0, 3)),
            (("LpNormalization", ["x"], ["y"], {"axis": 1}), (2, 0, 3)),
            (("LRN", ["x"], ["y"], {"size": 3}), (1, 0, 4, 4)),
        )
    ),
    *(
        model_of(
            [node("FeatureVectorizer", ["x"] * 2, ["y"], inputdimensions=[3, 3], domain="ai.onnx.ml")],
            [info("x", shape)],
            [info("y", [0, 6])],
        )
        for shape in ((0, 3), (0, 0))
    ),
    *(
        model_of(
            [node("QuantizeLinear", ["x", "s"], ["y"], axis=0, block_size=2)],
            [info("x", shape)],
            [info("y", shape, TensorProto.UINT8)],
            [("s", np.ones((shape[0] // 2, shape[1]), np.float32))],
            opset=21,
        )
        for shape in ((0, 4), (4, 0))
    ),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", EMPTY_RESULTS)
def test_results_without_elements_are_not_computed(model, place):
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    code = model.graph.input[0].type.tensor_type.elem_type
    x = np.zeros(sizes["x"], helper.tensor_dtype_to_np_dtype(code))
    results = run(whole(lowered(PLACES[place](model))), {"x": x})
    assert {name: list(value.shape) for name, value in results.items()} == {
        name: sizes[name] for name in sizes if name != "x"
    }


def test_a_transform_of_nothing_is_zero():
    made = node("DFT", ["x", "length"], ["y"], axis=1)
    model = model_of([made], [info("x", [1, 0, 1])], [info("y", [1, 4, 2])], [("length", np.array(4))])
    assert not run(whole(lowered(model)), {"x": np.zeros((1, 0, 1), np.float32)})["y"].any()


@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("operator", ["TopK", "OneHot"])
@pytest.mark.parametrize("axis", [1, 2, -1, -2])
@pytest.mark.parametrize("place", [0, 1])
def test_rows_that_only_the_run_counts(operator, axis, place, is_nested, options):
    # The selected rows are along the last axis but one, or along the first axis.
    constants = {"count": np.array([2]), "depth": np.array(4), "values": np.float32([2, 5])}
    nodes = [
        node("NonZero", ["chosen"], ["found"]),
        node("Squeeze", ["found", "first"], ["rows"]),
        node("Gather", ["x", "rows"], ["g"], axis=place),
    ]
    if operator == "TopK":
        nodes.append(node("TopK", ["g", "count"], ["r", "i"], axis=axis))
        nodes += [node("Cast", ["i"], ["f"], to=1), node("Mul", ["r", "f"], ["rf"])]
    else:
        nodes += [node("Cast", ["g"], ["ints"], to=INT64)]
        nodes += [node("OneHot", ["ints", "depth", "values"], ["rf"], axis=axis)]
    last = node("ReduceSum", ["rf"], ["y"], keepdims=0)
    constants["first"] = np.array([0])
    if is_nested:
        body = helper.make_graph([*nodes, last], "body", [], [info("y", [])])
        other = helper.make_graph([node("ReduceSum", ["x"], ["z"], keepdims=0)], "other", [], [info("z", [])])
        nodes, last = [], node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    inputs = [info("x", [3, 3, 4]), info("chosen", [3], TensorProto.BOOL)]
    inputs += [info("c", [], TensorProto.BOOL)] if is_nested else []
    model = model_of([*nodes, last], inputs, [info("y", [])], constants.items())
    program = whole(lowered(model, **options))
    # Releases of the reference differ for equal values and for indices beyond the depth.
    x = np.arange(0, 252, 7, np.float32).reshape(3, 3, 4) % (37 if operator == "TopK" else 4)
    for chosen in ([True, False, True], [True] * 3, [False] * 3):
        feeds = {"x": x, "chosen": np.array(chosen)} | ({"c": np.array(True)} if is_nested else {})
        too_few = operator == "TopK" and axis % 3 == place and sum(chosen) < 2
        if too_few:
            continue
        if is_nested and not any(chosen):
            # In a branch, the number of axes of the rows is not known.
            with pytest.raises(Exception, match=r"rf? .operand without elements"):
                run(program, feeds)
            continue
        expected = ReferenceEvaluator(model).run(None, feeds)[0] if any(chosen) else np.float32(0)
        np.testing.assert_allclose(run(program, feeds)["y"], expected, rtol=1e-6)


def test_sets_of_sizes_of_which_one_has_no_elements_behind_the_axis():
    sets = [SpecializationEntry(f"of {columns}", {"n": columns}) for columns in (0, 2)]
    program = whole(lowered(ranked([3, "n"], 0, 2), network_specialization_config=sets))
    for columns in (0, 2):
        x = np.float32([[1, 3], [6, 5], [2, 9]])[:, :columns]
        found = run(program, {"x": x})
        np.testing.assert_array_equal(found["y"], np.float32([[6, 9], [2, 5]])[:, :columns])
        np.testing.assert_array_equal(found["places"], np.array([[1, 2], [2, 1]])[:, :columns])


def test_sets_of_sizes_of_which_one_has_no_rows():
    model = ranked(["n", 3], 1, 2)
    sets = [SpecializationEntry(f"of {rows}", {"n": rows}) for rows in (0, 2)]
    program = whole(lowered(model, network_specialization_config=sets))
    for rows in (0, 2):
        x = np.float32([[1, 3, 2], [6, 5, 4]])[:rows]
        found = run(program, {"x": x})
        np.testing.assert_array_equal(found["y"], np.float32([[3, 2], [6, 5]])[:rows])
        np.testing.assert_array_equal(found["places"], np.array([[1, 2], [0, 1]])[:rows])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("ij,kj->ik", (2, 0)),
        ("ij,kj->ik", (0, 3)),
        ("bij, bkj -> bik", (0, 2, 3)),
        ("...j, kj", (2, 0)),
        ("...ij,...kj", (2, 0, 3)),
        ("ij,ij->", (2, 0)),
    ],
)
def test_a_sum_of_nothing_is_zero(equation, shape, dtype, place):
    x = np.ones(shape, np.float32)
    expected = np.einsum(equation.replace(" ", ""), x, x)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Cast", ["x"], ["a"], to=code),
        node("Einsum", ["a", "a"], ["b"], equation=equation),
        node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = PLACES[place](model_of(nodes, [info("x", shape)], [info("y", expected.shape)]))
    np.testing.assert_array_equal(run(whole(lowered(model)), {"x": x})["y"], expected)


@pytest.mark.parametrize("given", [[], ["image", "block"]])
@pytest.mark.parametrize(
    "attributes", [{"strides": [0, 1]}, {"dilations": [1, -1]}, {"pads": [1, 1]}, {"strides": [1]}]
)
def test_columns_with_impossible_attributes_are_refused(given, attributes):
    with pytest.raises(CompileError):
        lowered(columns([4, 4], [2, 2], given=given, **attributes))


@pytest.mark.parametrize("how", ["attribute", "constant", "input"])
@pytest.mark.parametrize("axis", [-1, 2])
def test_an_axis_of_dft_that_has_the_parts_of_numbers_is_an_error(how, axis):
    old = how == "attribute"
    nodes = [node("DFT", ["x"], ["y"], axis=axis) if old else node("DFT", ["x", "", "a"], ["y"])]
    inputs = [info("x", [1, 4, 1]), *([info("a", [], INT64)] if how == "input" else [])]
    constants = [("a", np.array(axis))] if how == "constant" else []
    model = model_of(nodes, inputs, [info("y", [1, 4, 2])], constants, opset=17 if old else 20)
    if how != "input":
        with pytest.raises(CompileError, match="real and imaginary parts"):
            lowered(model)
        return
    program, x = whole(lowered(model, output_shapes={"y": (1, 4, 2)})), np.ones((1, 4, 1), np.float32)
    with pytest.raises(Exception, match=r"y .axis of the real and imaginary parts"):
        run(program, {"x": x, "a": np.array(axis)})
    np.testing.assert_allclose(run(program, {"x": x, "a": np.array(1)})["y"][0, 0], [4, 0], atol=1e-6)


def test_an_axis_of_dft_that_is_listed_and_missing_is_the_default():
    inputs, x = [info("x", [1, 4, 1])], np.ones((1, 4, 1), np.float32)
    model = model_of([node("DFT", ["x", "", ""], ["y"])], inputs, [info("y", [1, 4, 2])], (), opset=20)
    np.testing.assert_allclose(run(whole(lowered(model)), {"x": x})["y"][0, 0], [4, 0], atol=1e-6)


@pytest.mark.parametrize("size", [8, "n"])
# The default axis of operator set 17 is the axis of the parts.
@pytest.mark.parametrize(("opset", "axis"), [(17, 0), (17, -2), (20, None), (20, 0), (20, -2)])
def test_a_signal_without_a_batch_has_its_own_transform(opset, axis, size):
    is_constant = axis is not None and opset == 20
    made = node("DFT", ["x", "", "a"] if is_constant else ["x"], ["y"])
    if axis is not None and not is_constant:
        made.attribute.append(helper.make_attribute("axis", axis))
    constants = [("a", np.array(axis))] if is_constant else []
    model = model_of([made], [info("x", [size, 1])], [info("y", [size, 2])], constants, opset=opset)
    x = np.arange(8, dtype=np.float32).reshape(8, 1) ** 2
    symbols = {} if size == 8 else {"onnx_define_symbol": {"n": 8}}
    expected = np.fft.fft(x[:, 0])
    found = run(whole(lowered(model, **symbols)), {"x": x})["y"]
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], 1), rtol=1e-5, atol=1e-4)


X2 = np.float32([1, 5]).reshape(2, 1, 1, 1) * np.ones((2, 1, 4, 4), np.float32)
BOXES = np.float32([[0, 0, 1, 1]] * 2)
ANGLES = np.linspace(0, 3, 32, dtype=np.float32).reshape(8, 4)
TOKENS = np.linspace(-1, 1, 48, dtype=np.float32).reshape(2, 3, 8)
GROUPS = {
    "packed": np.full((2, 4, 16), 0x31, np.uint8),
    "scales": np.float32([1, 2, 3, 4, 5, 6, 7, 8]),
    "product": np.linspace(-1, 1, 128, dtype=np.float32).reshape(1, 128),
}
#: Operator -> node, its other operands, the shape of its result, valid indices, and the number of them.
SELECTING = {
    "RoiAlign": (
        node("RoiAlign", ["x", "boxes", "i"], ["y"], output_height=1, output_width=1),
        {"x": X2, "boxes": BOXES},
        [2, 1, 1, 1],
        (np.array([1, 0]), 2, "images"),
    ),
    "CropAndResize": (
        node("CropAndResize", ["x", "boxes", "i", "size"], ["y"], **ENGINE),
        {"x": X2, "boxes": BOXES, "size": np.int32([1, 1])},
        [2, 1, 1, 1],
        (np.int32([1, 0]), 2, "images"),
    ),
    "RotaryEmbedding": (
        node("RotaryEmbedding", ["x", "i", "cos", "sin"], ["y"], **ENGINE),
        {"x": TOKENS, "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)},
        [2, 3, 8],
        (np.array([[0, 1, 2], [7, 0, 3]]), 8, "rows"),
    ),
    "RotaryEmbedding from a position": (
        node("RotaryEmbedding", ["x", "i", "cos", "sin"], ["y"], **ENGINE),
        {"x": TOKENS, "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)},
        [2, 3, 8],
        (np.array([5]), 6, "rows"),
    ),
    "MatMulNBits": (
        node(
            "MatMulNBits",
            ["product", "packed", "scales", "", "i"],
            ["y"],
            **(ENGINE | {"K": 128, "N": 2, "bits": 4, "block_size": 32}),
        ),
        GROUPS,
        [1, 2],
        (np.arange(128, dtype=np.int32)[::-1] // 32, 4, "groups"),
    ),
}


def rotated(x, positions):
    """Rotate the halves of each token by the angles of its position."""
    angles = ANGLES[positions].reshape(*x.shape[:2], 4)
    one, two = x[..., :4], x[..., 4:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


def multiplied(groups):
    low_first = np.float32([[1, 3] * 64] * 2) - 8
    weights = low_first * GROUPS["scales"].reshape(2, 4)[:, groups]
    return GROUPS["product"] @ weights.T


EXPECTED = {
    "RoiAlign": np.float32([5, 1]).reshape(2, 1, 1, 1),
    "CropAndResize": np.float32([5, 1]).reshape(2, 1, 1, 1),
    "RotaryEmbedding": rotated(TOKENS, np.array([[0, 1, 2], [7, 0, 3]])),
    "RotaryEmbedding from a position": rotated(TOKENS, np.array([[5, 6, 7]] * 2)),
    "MatMulNBits": multiplied(np.arange(128)[::-1] // 32),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SELECTING)
@pytest.mark.parametrize("is_constant", [False, True])
def test_indices_of_what_is_not_there_are_an_error(name, is_constant, place):
    made, operands, shape, (indices, count, word) = SELECTING[name]
    code = helper.np_dtype_to_tensor_dtype(indices.dtype)
    data = next(iter(operands)) if name != "MatMulNBits" else "product"

    def model(held):
        constants = [item for item in operands.items() if item[0] != data]
        graph = model_of(
            [made],
            [info(data, operands[data].shape), *([] if is_constant else [info("i", held.shape, code)])],
            [info("y", shape)],
            [*constants, *([("i", held)] if is_constant else [])],
        )
        return PLACES[place](graph)

    program = lowered(model(indices))
    assert ("Gather" in kinds(program)) is not is_constant
    feeds = {data: operands[data]} | ({} if is_constant else {"i": indices})
    np.testing.assert_allclose(run(whole(program), feeds)["y"], EXPECTED[name], rtol=1e-5, atol=1e-5)
    ends = np.iinfo(indices.dtype)
    for wrong in (-1, count, 10**6, ends.min, ends.max):
        other = indices.copy()
        other.reshape(-1)[-1] = wrong
        if is_constant:
            with pytest.raises(CompileError, match=f"an index outside the {count} {word}") as caught:
                lowered(model(other))
            assert caught.value.code == "compile.contradicting_sizes"
        else:
            with pytest.raises(Exception, match=f"y .index beyond the {word}"):
                run(whole(program), feeds | {"i": other})


@pytest.mark.parametrize(
    ("positions", "limit"), [(np.array([5]), 6), (np.array([[0, 1, 2], [7, 0, 3]]), 8), (np.array([[7]]), 8)]
)
def test_positions_whose_rank_only_the_run_tells_are_compared(positions, limit):
    x = TOKENS if positions.size != 1 or positions.ndim == 1 else TOKENS[:1, :1]
    branches = [
        helper.make_graph([node("Identity", [name], [result])], name, [], [info(result, None, INT64)])
        for name, result in (("given", "a"), ("other", "b"))
    ]
    other = np.zeros((1, 1) if positions.ndim == 1 else 1, np.int64)
    model = model_of(
        [
            node("If", ["c"], ["i"], then_branch=branches[0], else_branch=branches[1]),
            node("RotaryEmbedding", ["x", "i", "cos", "sin"], ["y"], **ENGINE),
        ],
        [info("x", x.shape), info("given", positions.shape, INT64), info("c", [], TensorProto.BOOL)],
        [info("y", x.shape)],
        [("other", other), ("cos", np.cos(ANGLES)), ("sin", np.sin(ANGLES))],
    )
    program = whole(lowered(model))
    feeds = {"x": x, "given": positions, "c": np.array(True)}
    tokens = positions if positions.ndim == 2 else [positions + np.arange(3)] * 2
    np.testing.assert_allclose(run(program, feeds)["y"], rotated(x, np.array(tokens)), rtol=1e-5, atol=1e-5)
    for wrong in (limit, -1):
        with pytest.raises(Exception, match=r"y .index beyond the rows"):
            run(program, feeds | {"given": np.full_like(positions, wrong)})


def attention(samples, tokens, past, rotates):
    """GroupQueryAttention with two heads of 16; the table has 8 rows."""
    names = ["q", "k", "v", "pk", "pv", "lengths", "total", *(["cos", "sin"] if rotates else [])]
    made = node("GroupQueryAttention", names, ["y", "k2", "v2"], num_heads=2, kv_num_heads=2, **ENGINE)
    made.attribute.append(helper.make_attribute("do_rotary", int(rotates)))
    rng = np.random.default_rng(5)
    feeds = {name: rng.random((samples, tokens, 32), dtype=np.float32) for name in "qkv"}
    feeds |= {name: rng.random((samples, 2, past, 16), dtype=np.float32) for name in ("pk", "pv")}
    inputs = [
        *(info(name, value.shape) for name, value in feeds.items()),
        info("lengths", [samples], TensorProto.INT32),
        info("total", [1], TensorProto.INT32),
    ]
    angles = rng.random((8, 8), dtype=np.float32)
    constants = [("cos", np.cos(angles)), ("sin", np.sin(angles))] if rotates else []
    return model_of([made], inputs, [info("y", feeds["q"].shape)], constants), feeds


@pytest.mark.parametrize(
    ("tokens", "past", "rotates", "lengths", "total", "fits"),
    [
        # One token with a cache that grows, with a cache that has free rows, and with a table of 8 rows.
        *((1, 4, False, (last, 4), 5, 0 <= last < 5) for last in (-(10**6), -1, 0, 2, 4, 5, 10**6)),
        *((1, 6, False, (last, 3), 4, 0 <= last < 6) for last in (-1, 0, 3, 5, 6, 7)),
        *((1, 12, True, (last, 3), 4, 0 <= last < 8) for last in (-1, 3, 7, 8, 11)),
        (1, 4, False, (9, 4), 20, False),
        (1, 4, False, (4, 4), -(10**6), False),
        # A first step, in which a sample can be short, and later chunks.
        *((4, 0, False, (last, 3), 4, 0 <= last < 4) for last in (-1, 0, 1, 3, 4)),
        *((4, 0, False, (0, 0), total, False) for total in (1, 3, 0)),
        *((4, 4, False, (last,), 8, 3 <= last < 8) for last in (0, 2, 3, 7, 8)),
    ],
)
def test_lengths_of_attention_stay_in_the_cache(tokens, past, rotates, lengths, total, fits):
    model, feeds = attention(len(lengths), tokens, past, rotates)
    feeds |= {"lengths": np.int32(lengths), "total": np.int32([total])}
    program = lowered(model)
    if not fits:
        with pytest.raises(Exception, match=r"y .length beyond the cache"):
            run(whole(program), feeds)
        return
    found, expected = run(whole(program), feeds)["y"], run(model, feeds)["y"]
    for sample, last in enumerate(lengths):
        # In older engines, results after the end of a sample are undefined.
        count = tokens if past else last + 1
        np.testing.assert_array_equal(found[sample, :count], expected[sample, :count])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("opset", [9, 11, 12, 13])
def test_lengths_are_compared_in_every_operator_set(opset, place):
    model, feeds = attention(2, 1, 4, rotates=True)
    model.opset_import[0].version = opset
    feeds |= {"lengths": np.int32([4, 2]), "total": np.int32([5])}
    program = whole(lowered(PLACES[place](model)))
    np.testing.assert_array_equal(run(program, feeds)["y"], run(model, feeds)["y"])
    with pytest.raises(Exception, match=r"y .length beyond the cache"):
        run(program, feeds | {"lengths": np.int32([4, 5])})


@pytest.mark.parametrize(
    "operator", ["RotaryEmbedding", "GroupQueryAttention", "CropAndResize", "MatMulNBits"]
)
@pytest.mark.parametrize("count", range(1, 7))
def test_a_node_with_few_or_wrong_operands_is_left_to_the_engine(operator, count):
    names = [f"x{at}" for at in range(count)]
    made = node(
        operator, names, ["y"], num_heads=2, kv_num_heads=2, K=16, N=16, bits=4, block_size=16, **ENGINE
    )
    constants = [(name, np.array(["text"])) for name in names[1:]]
    # Any other exception is a defect of the guards.
    with suppress(CompileError):
        lowered(model_of([made], [info("x0", [1, 1, 32])], [info("y", [1, 1, 32])], constants))


def decoder(layers):
    """Layers with separate caches, which share positions, lengths and a table of angles."""
    nodes, inputs = [], [info("x", [1, 1, 32])]
    inputs += [info("positions", [1, 1], INT64), info("lengths", [1], TensorProto.INT32)]
    inputs.append(info("total", [1], TensorProto.INT32))
    value = "x"
    for at in range(layers):
        q, k, y = (f"{name}{at}" for name in "qky")
        cache, grown = [f"pk{at}", f"pv{at}"], [f"grown_k{at}", f"grown_v{at}"]
        nodes += [
            node("RotaryEmbedding", [value, "positions", "cos", "sin"], [q], num_heads=2, **ENGINE),
            node("RotaryEmbedding", [value, "positions", "cos", "sin"], [k], num_heads=2, **ENGINE),
            node(
                "GroupQueryAttention",
                [q, k, value, *cache, "lengths", "total"],
                [y, *grown],
                num_heads=2,
                kv_num_heads=2,
                **ENGINE,
            ),
        ]
        inputs += [info(name, [1, 2, 4, 16]) for name in cache]
        value = y
    angles = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    constants = [("cos", np.cos(angles)), ("sin", np.sin(angles))]
    return model_of(nodes, inputs, [info(value, [1, 1, 32])], constants)


def test_layers_of_a_decoder_share_their_checks():
    added = {
        layers: sum(kind != "Constant" for kind in kinds(lowered(decoder(layers)))) - 3 * layers
        for layers in (1, 22)
    }
    assert added[1] == added[22] <= 30, added


def test_limits_follow_the_set_of_sizes():
    model, _ = attention(1, 4, 4, rotates=True)
    for value in model.graph.input[:3]:
        value.type.tensor_type.shape.dim[1].dim_param = "s"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "s"
    model.graph.input.append(info("first", [1], INT64))
    rotary = node("RotaryEmbedding", ["q", "first", "cos", "sin"], ["turned"], num_heads=2, **ENGINE)
    model.graph.node[0].input[0] = "turned"
    model.graph.node.insert(0, rotary)
    sets = [SpecializationEntry(f"of {tokens}", {"s": tokens}) for tokens in (1, 4)]
    program = lowered(model, network_specialization_config=sets)
    for tokens in (1, 4):
        _, feeds = attention(1, tokens, 4, rotates=True)
        feeds["first"] = np.array([8 - tokens])
        feeds |= {"lengths": np.int32([3 + tokens]), "total": np.int32([4 + tokens])}
        np.testing.assert_array_equal(run(whole(program), feeds)["y"], run(model, feeds)["y"])
        with pytest.raises(Exception, match=r"turned .index beyond the rows"):
            run(whole(program), feeds | {"first": np.array([9 - tokens])})
        for wrong in (4 + tokens, tokens - 2):
            with pytest.raises(Exception, match=r"y .length beyond the cache"):
                run(whole(program), feeds | {"lengths": np.int32([wrong])})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_embedding_with_fewer_results_than_the_engine_describes(count):
    tables = [(name, np.eye(6, 8, dtype=np.float32)) for name in ("words", "places")]
    vectors = [("gamma", np.ones(8, np.float32)), ("beta", np.zeros(8, np.float32))]
    names = ["ids", "", "words", "places", "", "gamma", "beta"]
    made = node("EmbedLayerNormalization", names, ["y", "mask", "sum"][:count], **ENGINE)
    model = model_of(
        [made], [info("ids", [1, 4], TensorProto.INT32)], [info("y", [1, 4, 8])], tables + vectors
    )
    ids = np.int32([[0, 5, 2, 1]])
    total = tables[0][1][ids] + tables[1][1][:4]
    expected = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
    np.testing.assert_allclose(run(whole(lowered(model)), {"ids": ids})["y"], expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_frames_of_no_length_are_an_error(dtype):
    kind = INT64 if dtype is np.int64 else TensorProto.INT32
    nodes = [node("STFT", ["x", "step", "", "length"], ["y"])]

    def model(length):
        constants = [("step", dtype(4)), *([] if length is None else [("length", dtype(length))])]
        inputs = [info("x", [1, 16, 1]), *([info("length", [], kind)] if length is None else [])]
        return model_of(nodes, inputs, [info("y", [1, 3, 5, 2])], constants, opset=17)

    with pytest.raises(CompileError, match="frame length of 0"):
        lowered(model(0))
    x = np.ones((1, 16, 1), np.float32)
    program = whole(lowered(model(None), output_shapes={"y": (1, 3, 5, 2)}))
    with pytest.raises(Exception, match=r"y .frame length of 0"):
        run(program, {"x": x, "length": np.array(0, dtype)})
    for found in (
        run(program, {"x": x, "length": np.array(8, dtype)}),
        run(whole(lowered(model(8))), {"x": x}),
    ):
        np.testing.assert_allclose(found["y"][0, 0, :, 0], [8, 0, 0, 0, 0], atol=1e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    ("attributes", "least"),
    [
        ({}, (3, 2)),
        ({"pads": [1, 0, 0, 0]}, (2, 2)),
        ({"pads": [1, 1, 1, 1]}, (1, 1)),
        ({"auto_pad": "VALID"}, (3, 2)),
        ({"auto_pad": "SAME_UPPER"}, (1, 1)),
    ],
)
def test_a_pool_with_the_channels_last_needs_a_window(attributes, least, is_cut, place):
    attributes |= {"kernel_shape": [3, 2], "channels_last": 1}
    nodes = [
        node("Slice", ["x", "first", "end", "axes"], ["i"]),
        node("QLinearAveragePool", ["i", "s", "z", "s", "z"], ["p"], **attributes, **ENGINE),
        node("Cast", ["p"], ["f"], to=1),
        node("ReduceSum", ["f"], ["y"], keepdims=0),
    ]
    constants = {"s": np.float32(0.5), "z": np.uint8(3), "first": np.array([0, 0]), "axes": np.array([1, 2])}
    shape, x = (2, 4, 3, 3), np.arange(72, dtype=np.uint8).reshape(2, 4, 3, 3)
    high, wide = least

    def made(sizes):
        given = [] if is_cut else [("end", np.array(sizes))]
        inputs = [info("x", shape, TensorProto.UINT8), *([info("end", [2], INT64)] if is_cut else [])]
        return model_of(nodes, inputs, [info("y", [])], [*constants.items(), *given])

    if not is_cut:
        for sizes in ((high - 1, wide), (high, wide - 1)):
            with pytest.raises(CompileError, match="without a window"):
                lowered(PLACES[place](made(sizes)))
    program = whole(lowered(PLACES[place](made(least))))
    feeds = {"x": x} | ({"end": np.array(least)} if is_cut else {})
    assert run(program, feeds)["y"] == run(made(least), feeds)["y"]
    for sizes in ((high - 1, wide), (high, wide - 1), (0, 0)) if is_cut else ():
        with pytest.raises(Exception, match=r"p .no window in the operand"):
            run(program, {"x": x, "end": np.array(sizes)})
