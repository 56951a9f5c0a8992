"""Operands that older engines do not check; without their guards some of these tests end the process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from compiler_oracle import info, kinds, lowered, model_of, node, run, whole
from qaic.errors import CompileError

INT64 = TensorProto.INT64
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
PLACES = np.array([0, 3, 9, 14, 16, 19, 25, 31]).reshape(X.shape)


@pytest.mark.parametrize("wrong", [-1, 32, 100, 2**62, SMALLEST, LARGEST])
@pytest.mark.parametrize("at", [0, 7])
def test_an_index_of_max_unpool_beyond_its_result_is_an_error(wrong, at):
    program = whole(lowered(unpooling()))
    expected = np.zeros(32, np.float32)
    expected[PLACES.reshape(-1)] = X.reshape(-1)
    np.testing.assert_array_equal(run(program, {"x": X, "i": PLACES})["y"].reshape(-1), expected)
    indices = PLACES.copy()
    indices.reshape(-1)[at] = wrong
    with pytest.raises(Exception, match=r"y .index beyond the result"):
        run(program, {"x": X, "i": indices})
    with pytest.raises(CompileError, match="an index that is not one of the 32 elements"):
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
    ],
    ids=["Col2Im", "Trilu", "DFT"],
)
def test_empty_operands_are_refused(model):
    with pytest.raises(CompileError):
        lowered(model)


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


@pytest.mark.parametrize("wrong", [-1, 2, 10**6, SMALLEST, LARGEST])
@pytest.mark.parametrize("is_constant", [False, True])
def test_regions_of_images_that_are_not_there_are_an_error(wrong, is_constant):
    def model(indices):
        return model_of(
            [node("RoiAlign", ["x", "regions", "i"], ["y"], output_height=1, output_width=1)],
            [info("x", [2, 1, 4, 4]), *([] if is_constant else [info("i", [2], INT64)])],
            [info("y", [2, 1, 1, 1])],
            [
                ("regions", np.float32([[0, 0, 2, 2]] * 2)),
                *([("i", np.array(indices))] if is_constant else []),
            ],
            opset=16,
        )

    x = np.float32([1, 5]).reshape(2, 1, 1, 1) * np.ones((2, 1, 4, 4), np.float32)
    if is_constant:
        with pytest.raises(CompileError, match="an index that is none of the 2 images"):
            lowered(model([1, wrong]))
        found = run(whole(lowered(model([1, 0]))), {"x": x})
    else:
        program = whole(lowered(model(None)))
        with pytest.raises(Exception, match=r"y .index beyond the images"):
            run(program, {"x": x, "i": np.array([1, wrong])})
        found = run(program, {"x": x, "i": np.array([1, 0])})
    np.testing.assert_array_equal(found["y"].reshape(-1), [5, 1])


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
