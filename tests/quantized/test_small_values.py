"""Small values remain in an int8 program if one scale for a whole tensor would round them to zero."""

import logging

import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import qaic
from compiler_oracle import info, model_of, run
from qaic.compiler.diagnostics.messages import recorded

node = helper.make_node
SHAPE = (1, 4, 6, 6)
PER_CHANNEL = {"convert_to_quantize": True, "enable_channelwise": True, "enable_rowwise": True}


def compiled(nodes, constants, seed=0):
    """Compile to int8 and run; returns onnxruntime's float32 results of the same model, and the results of
    openqaic.
    """
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((1, 8, 6, 6)).astype(np.float32)}
    given_constants = {
        "w": rng.standard_normal((4, 8, 1, 1)) / 2,
        "v": rng.standard_normal((4, 8, 1, 1)) / 2,
        **constants,
    }
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", 1, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", 1, None)],
        [
            numpy_helper.from_array(
                np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else None), name
            )
            for name, value in given_constants.items()
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(model).run(None, feeds)
    options = {"convert_to_quantize": True, "enable_channelwise": True, "calibration_data": [feeds]}
    with qaic.Session(model, **options) as session:
        return expected, np.array(session.run(feeds)["y"])


def sqnr(expected, found):
    noise = float(((expected - found).astype(np.float64) ** 2).sum())
    power = float((expected.astype(np.float64) ** 2).sum())
    return 10 * np.log10(power / noise) if noise else np.inf


#: Scores between 0 and 1, and values between 0 and `size`.
PARTS = [
    *(node("Conv", ["x", "w"], ["s0"]), node("Sigmoid", ["s0"], ["scores"])),
    *(
        node("Conv", ["x", "v"], ["b0"]),
        node("Sigmoid", ["b0"], ["b1"]),
        node("Mul", ["b1", "size"], ["boxes"]),
    ),
]
CHOICE = np.random.default_rng(1).random(SHAPE) < 0.5
#: Operators that join both to `c`.
JOINED = {
    "Concat": [node("Concat", ["boxes", "scores"], ["c"], axis=1)],
    "Where": [node("Where", ["choice", "scores", "boxes"], ["c"])],
    "Max": [node("Neg", ["boxes"], ["less"]), node("Max", ["less", "scores"], ["c"])],
    "Min": [node("Min", ["boxes", "scores"], ["c"])],
    "Pad": [node("Pad", ["scores", "pads", "size"], ["c"])],
    "ScatterElements": [node("ScatterElements", ["boxes", "places", "scores"], ["c"], axis=1)],
    "stack": [
        *(node("Unsqueeze", [name, "first"], [f"{name}1"]) for name in ("boxes", "scores")),
        node("Concat", ["boxes1", "scores1"], ["c"], axis=0),
    ],
}
#: Operators that read joined values; small values stay small.
READERS = {
    "Transpose": [node("Transpose", ["{}"], ["{}t"])],
    "Neg": [node("Neg", ["{}"], ["{}n"])],
    "Mul": [node("Mul", ["{}", "half"], ["{}m"])],
    "Relu": [node("Relu", ["{}"], ["{}r"])],
    "Reshape": [node("Reshape", ["{}", "flat"], ["{}f"])],
}


def chain(value, names):
    """Append readers to a value; returns their nodes. The last node computes `y`."""
    made = []
    for name in names:
        (reader,) = READERS[name]
        made.append(
            node(
                reader.op_type,
                [text.format(value) for text in reader.input],
                [reader.output[0].format(value)],
            )
        )
        value = made[-1].output[0]
    return [*made, node("Identity", [value], ["y"])]


@settings(deadline=None, max_examples=25)
@example(join="ScatterElements", readers=["Neg", "Reshape"], exponent=2, seed=0)
@given(
    join=st.sampled_from(sorted(JOINED)),
    readers=st.lists(st.sampled_from(sorted(READERS)), max_size=3),
    exponent=st.integers(2, 6),
    seed=st.integers(0, 1000),
)
def test_scores_survive_next_to_larger_values(join, readers, exponent, seed):
    constants = {
        "size": 10.0**exponent,
        "half": 0.5,
        "choice": CHOICE,
        "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
        "places": np.broadcast_to(np.int64([0, 2, 0, 2]).reshape(1, 4, 1, 1), SHAPE),
        "first": np.int64([0]),
        "flat": np.int64([-1]),
    }
    expected, found = compiled([*PARTS, *JOINED[join], *chain("c", readers)], constants, seed)
    small = (np.abs(expected) < 1) & (expected != 0)
    assert small.any() or "Relu" in readers
    assert sqnr(expected[small], found[small]) > 20


@pytest.mark.parametrize("large", [-65504.0, -32768.0, -1e4, 300.0])
@pytest.mark.parametrize("computed", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("stored", ["", "FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E5M2"])
@pytest.mark.parametrize("how", ["input", "operator without integers"])
def test_softmax_sees_scores_that_nothing_has_measured_beside_a_mask(how, stored, computed, large):
    """The mask has the type of the scores, or another type with a cast."""
    elem_type, held = getattr(TensorProto, computed), getattr(TensorProto, stored or computed)
    x = np.random.default_rng(8).standard_normal((4, 6)).astype(np.float32)
    nodes = [
        node("Cast", ["x"], ["given"], to=elem_type),
        node("Cast", ["large"], ["cast"], to=elem_type),
        node("Einsum", ["given", "turn"], ["s"], equation="ij,jk->ik"),
        node("Where", ["choice", "cast" if stored else "large", "given" if how == "input" else "s"], ["c"]),
        node("Softmax", ["c"], ["p"]),
        node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    read = {name for made in nodes for name in made.input}
    graph = helper.make_graph(
        [made for made in nodes if made.output[0] in read | {"y"}],
        "masked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
        [
            helper.make_tensor("turn", elem_type, [6, 6], np.eye(6).reshape(-1)),
            helper.make_tensor("large", held, [], [large]),
            numpy_helper.from_array(np.arange(6) % 3 == 0, "choice"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = {"convert_to_quantize": True, "calibration_data": [{"x": x}]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        found = np.array(session.run({"x": x})["y"], np.float64)
    joined = np.where(np.arange(6) % 3 == 0, np.float64(large), x)
    exponentials = np.exp(joined - joined.max(-1, keepdims=True))
    assert sqnr(exponentials / exponentials.sum(-1, keepdims=True), found) > 25


@pytest.mark.parametrize("large", [-1e4, -1e9, 300.0])
@pytest.mark.parametrize("how", ["Add", "Sub", "Where"])
def test_softmax_sees_scores_beside_a_mask(how, large):
    mask = np.where(CHOICE, large, 0.0)
    join = {
        "Add": node("Add", ["s0", "mask"], ["c"]),
        "Sub": node("Sub", ["s0", "less"], ["c"]),
        "Where": node("Where", ["choice", "large", "s0"], ["c"]),
    }[how]
    constants = {"mask": mask, "less": -mask, "choice": CHOICE, "large": large, "size": 1.0}
    nodes = [PARTS[0], join, node("Softmax", ["c"], ["y"])]
    expected, found = compiled(nodes, constants)
    rows = CHOICE.any(-1) & ~CHOICE.all(-1) if large < 0 else ~CHOICE.any(-1)
    assert sqnr(expected[rows], found[rows]) > 25


@pytest.mark.parametrize(
    "pick",
    [
        [node("Slice", ["c", "four", "eight", "one"], ["y"])],
        [node("Gather", ["c", "last"], ["y"], axis=1)],
        [node("Split", ["c"], ["b", "y"], axis=1)],
        [
            node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
            node("Slice", ["t", "four", "eight", "three"], ["y"]),
        ],
        [node("Relu", ["c"], ["r"]), node("Slice", ["r", "four", "eight", "one"], ["y"])],
    ],
    ids=["slice", "gather", "split", "transposed", "limited"],
)
def test_what_is_read_of_an_unlike_tensor_survives(pick):
    weight = np.random.default_rng(3).standard_normal((8, 8, 1, 1))
    weight[:4] *= 500
    constants = {
        "w8": weight,
        "size": 1.0,
        "four": np.int64([4]),
        "eight": np.int64([8]),
        "one": np.int64([1]),
        "three": np.int64([3]),
        "last": np.int64([5, 7]),
    }
    assert sqnr(*compiled([node("Conv", ["x", "w8"], ["c"]), *pick], constants)) > 25


@pytest.mark.parametrize(
    "head",
    [
        [node("Conv", ["x", "w7"], ["y"])],
        [node("Conv", ["x", "w7"], ["c"]), node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1])],
        [
            *(node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]), node("MatMul", ["t", "m7"], ["c"])),
            *(node("Add", ["c", "bias"], ["d"]), node("Transpose", ["d"], ["y"], perm=[0, 3, 1, 2])),
        ],
        [
            *(node("Flatten", ["x"], ["t"]), node("Gemm", ["t", "g7", "bias"], ["y"], transB=1)),
        ],
    ],
    ids=["conv", "transposed", "matmul", "gemm"],
)
def test_scores_of_a_product_that_also_makes_boxes_survive(head):
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((7, 8)) * np.float64([300] * 4 + [0.2] * 3)[:, None]
    constants = {
        "w7": weight[..., None, None],
        "m7": weight.T,
        "g7": np.repeat(weight, 36, axis=1),
        "bias": rng.standard_normal(7) * 0.2,
        "size": 1.0,
    }
    expected, found = compiled(head, constants)
    scores = [np.moveaxis(array, list(array.shape).index(7), 0)[4:] for array in (expected, found)]
    assert sqnr(*scores) > 20


@pytest.mark.parametrize(
    "reader",
    [
        [node("Log", ["p"], ["y"])],
        [node("Sqrt", ["p"], ["y"])],
        [node("Reciprocal", ["p"], ["y"])],
        [node("Div", ["one", "p"], ["y"])],
        [node("Pow", ["p", "root"], ["y"])],
        [node("Add", ["p", "epsilon"], ["e"]), node("Log", ["e"], ["y"])],
        [node("ReduceSum", ["p", "axes"], ["e"]), node("Log", ["e"], ["y"])],
        [node("Mul", ["p", "p"], ["e"]), node("Conv", ["e", "positive"], ["f"]), node("Log", ["f"], ["y"])],
        [
            *(
                node("Conv", ["x", "v"], ["s1"]),
                node("Sigmoid", ["s1"], ["q"]),
                node("Mul", ["p", "q"], ["e"]),
            ),
            *(
                node("Mul", ["e", "e"], ["f"]),
                node("Sqrt", ["f"], ["g"]),
                node("Max", ["epsilon", "g"], ["h"]),
            ),
            *(node("Log", ["h"], ["i"]), node("Mul", ["i", "root"], ["y"])),
        ],
    ],
    ids=["log", "root", "reciprocal", "quotient", "power", "epsilon", "sum", "filters", "function"],
)
def test_what_is_magnified_keeps_its_digits(reader):
    constants = {
        "w": np.random.default_rng(3).standard_normal((4, 8, 1, 1)),
        "one": 1.0,
        "root": 0.5,
        "epsilon": 1e-6,
        "axes": np.int64([1]),
        "positive": np.eye(4).reshape(4, 4, 1, 1),
        "size": 1.0,
    }
    nodes = [PARTS[0], node("Sigmoid", ["s0"], ["p"]), *reader]
    assert sqnr(*compiled(nodes, constants)) > 20


#: factors of eight channels
WIDE = (10 ** np.linspace(-3, 2, 8)).reshape(8, 1, 1)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Div", ["x", "wide"], ["y"])],
        [node("Div", ["x", "signed"], ["y"])],
        [
            *(node("Conv", ["x", "k"], ["p"]), node("MaxPool", ["p"], ["m"], kernel_shape=[2, 2])),
            *(node("Sub", ["m", "wide"], ["d"]), node("Div", ["d", "wide"], ["y"])),
        ],
        [node("Mul", ["x", "wide"], ["p"]), node("Mul", ["p", "narrow"], ["y"])],
        [node("Mul", ["wide", "x"], ["p"]), node("Div", ["p", "wide"], ["y"])],
        [node("Conv", ["x", "k"], ["p"]), node("Relu", ["p"], ["r"]), node("Mul", ["narrow", "r"], ["y"])],
        [
            *(node("Mul", ["x", "wide"], ["p"]), node("MaxPool", ["p"], ["m"], kernel_shape=[2, 2])),
            *(node("Mul", ["m", "narrow"], ["q"]), node("Tanh", ["q"], ["y"])),
        ],
    ],
    ids=[
        "quotient",
        "signed quotient",
        "deviations",
        "product",
        "product and quotient",
        "filters",
        "function",
    ],
)
def test_constants_that_equalize_channels_keep_digits(nodes):
    """One step for all channels of an operand or of the constant would hide the small ones."""
    constants = {
        "wide": WIDE,
        "signed": WIDE * (-1) ** np.arange(8).reshape(8, 1, 1),
        "narrow": 1 / WIDE,
        "k": np.random.default_rng(3).standard_normal((8, 8, 1, 1)) * WIDE[..., None],
    }
    assert sqnr(*compiled(nodes, constants)) > 30


@pytest.mark.parametrize("size", [0.1, 10, 1000])
def test_normalized_responses_keep_their_digits(size):
    """Results of an LRN have the scale of its operand, which may be much larger."""
    nodes = [
        node("Conv", ["x", "w"], ["p"]),
        node("LRN", ["p"], ["n"], size=3, alpha=1.0, bias=1.0),
        node("Conv", ["n", "k"], ["y"]),
    ]
    rng = np.random.default_rng(7)
    constants = {"w": rng.standard_normal((4, 8, 1, 1)) * size, "k": rng.standard_normal((3, 4, 1, 1))}
    assert sqnr(*compiled(nodes, constants)) > 25


@pytest.mark.parametrize("reader", ["Sin", "Cos"])
def test_phases_keep_their_digits(reader):
    nodes = [PARTS[0], node("Mul", ["s0", "hundred"], ["p"]), node(reader, ["p"], ["y"])]
    constants = {"w": np.full((4, 8, 1, 1), 0.01), "hundred": 100.0, "size": 1.0}
    assert sqnr(*compiled(nodes, constants)) > 20


#: Nodes from quotients "d" to integers "y", as exporters write divisions of integers.
ROUNDED = {
    "Cast": [node("Cast", ["d"], ["y"], to=TensorProto.INT64)],
    **{
        kind: [node(kind, ["d"], ["f"]), node("Cast", ["f"], ["y"], to=TensorProto.INT64)]
        for kind in ("Ceil", "Floor", "Round")
    },
    "toward zero": [
        *(node("Abs", ["d"], ["a"]), node("Floor", ["a"], ["f"]), node("Sign", ["d"], ["s"])),
        *(node("Mul", ["f", "s"], ["m"]), node("Cast", ["m"], ["y"], to=TensorProto.INT64)),
    ],
    "shifted": [
        *(node("Sub", ["d", "half"], ["h"]), node("Add", ["h", "d"], ["t"]), node("Ceil", ["t"], ["f"])),
        node("Cast", ["f"], ["y"], to=TensorProto.INT32),
    ],
}


@given(kind=st.sampled_from(sorted(ROUNDED)), divisor=st.integers(1, 9), seed=st.integers(0, 100))
def test_integers_that_a_model_computes_in_floating_point_are_exact(kind, divisor, seed):
    """Detectors divide the indices of the best scores by the number of classes."""
    nodes = [node("Cast", ["x"], ["g"], to=1), node("Div", ["g", "divisor"], ["d"]), *ROUNDED[kind]]
    constants = [("divisor", np.float32(divisor)), ("half", np.float32(0.5))]
    result = TensorProto.INT32 if kind == "shifted" else TensorProto.INT64
    inputs = [info("x", [40], TensorProto.INT64)]
    model = model_of(nodes, inputs, [info("y", [40], result)], constants)
    feeds = {"x": np.random.default_rng(seed).integers(-99, 100, 40)}
    with qaic.Session(model, calibration_data=[feeds], **PER_CHANNEL) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], run(model, feeds)["y"])


#: Nodes from a value "d" to integers or conditions "y", and the type of these.
CHOICES = {
    **{
        kind: ([node(kind, ["d", "half"], ["y"])], TensorProto.BOOL)
        for kind in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "ArgMax": ([node("ArgMax", ["d"], ["y"], axis=3)], TensorProto.INT64),
    "MaxPool": ([node("MaxPool", ["d"], ["_", "y"], kernel_shape=[2, 2])], TensorProto.INT64),
    "TopK": ([node("TopK", ["d", "three"], ["_", "y"])], TensorProto.INT64),
    "Cast": ([node("Relu", ["d"], ["r"]), node("Cast", ["r"], ["y"], to=TensorProto.BOOL)], TensorProto.BOOL),
    "Sign": (
        [node("Sub", ["d", "half"], ["r"]), node("Sign", ["r"], ["s"]), node("Cast", ["s"], ["y"], to=6)],
        TensorProto.INT32,
    ),
}
#: Nodes that compute "d" from the input without a product.
BEFORE = {
    "input": [node("Identity", ["x"], ["d"])],
    "scores": [node("Sigmoid", ["x"], ["d"])],
    "sums": [node("Add", ["x", "shift"], ["a"]), node("Transpose", ["a"], ["d"], perm=[0, 1, 3, 2])],
    "scaled": [node("Mul", ["x", "half"], ["a"]), node("Concat", ["a", "x"], ["d"], axis=3)],
}


@given(
    kind=st.sampled_from(sorted(CHOICES)), before=st.sampled_from(sorted(BEFORE)), seed=st.integers(0, 100)
)
@example("MaxPool", "input", 0)
@example("TopK", "scores", 0)
def test_choices_do_not_depend_on_rounded_values(kind, before, seed):
    """Integers have many equal values, so that comparisons and choices between them give other results."""
    chosen, result = CHOICES[kind]
    rng = np.random.default_rng(seed)
    shift = rng.standard_normal((12, 12)).astype(np.float32)
    constants = [("half", np.float32(0.5)), ("three", np.int64([3])), ("shift", shift)]
    nodes = [*BEFORE[before], *chosen]
    model = model_of(nodes, [info("x", [1, 4, 12, 12])], [info("y", None, result)], constants)
    feeds = {"x": rng.standard_normal((1, 4, 12, 12)).astype(np.float32)}
    with qaic.Session(model, calibration_data=[feeds], **PER_CHANNEL) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], run(model, feeds)["y"])


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size", [8, 64])
def test_places_keep_a_part_of_a_pixel(mode, size):
    """A step of 1/128 of the image is half a pixel of 64, and a nearest pixel is another one."""
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Transpose", ["t"], ["grid"], perm=[0, 2, 3, 1]),
        node("GridSample", ["image", "grid"], ["y"], mode=mode, padding_mode="border"),
    ]
    rng = np.random.default_rng(size)
    image = rng.standard_normal((1, 2, size, size)).astype(np.float32)
    model = model_of(nodes, [info("x", [1, 2, 16, 16])], [info("y", None)], [("image", image)], opset=20)
    feeds = {"x": rng.standard_normal((1, 2, 16, 16)).astype(np.float32)}
    with qaic.Session(model, calibration_data=[feeds], **PER_CHANNEL) as session:
        assert sqnr(run(model, feeds)["y"], session.run(feeds)["y"]) > 30


def test_places_keep_a_part_of_a_pixel_of_images_of_several_sizes():
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Transpose", ["t"], ["grid"], perm=[0, 2, 3, 1]),
        node("GridSample", ["image", "grid"], ["y"], mode="linear"),
    ]
    inputs = [info("x", [1, 2, 16, 16]), info("image", [1, 2, "n", "n"])]
    model = model_of(nodes, inputs, [info("y", None)], opset=20)
    rng = np.random.default_rng(4)
    feeds = {
        name: rng.standard_normal((1, 2, size, size)).astype(np.float32)
        for name, size in (("x", 16), ("image", 256))
    }
    options = {"network_specialization_config": [{"n": 256}, {"n": 255}], **PER_CHANNEL}
    with qaic.Session(model, calibration_data=[feeds], **options) as session:
        assert sqnr(run(model, feeds)["y"], session.run(feeds)["y"]) > 30


def test_regions_keep_a_part_of_a_pixel():
    nodes = [
        node("Mul", ["x", "size"], ["rois"]),
        node("RoiAlign", ["image", "rois", "batch"], ["y"], output_height=3, output_width=3),
    ]
    rng = np.random.default_rng(5)
    image = rng.standard_normal((1, 2, 64, 64)).astype(np.float32)
    constants = [("image", image), ("size", np.float32(60)), ("batch", np.zeros(20, np.int64))]
    model = model_of(nodes, [info("x", [20, 4])], [info("y", None)], constants)
    corners = rng.uniform(0, 0.5, (20, 2))
    feeds = {"x": np.concatenate([corners, corners + 0.4], axis=1).astype(np.float32)}
    with qaic.Session(model, calibration_data=[feeds], **PER_CHANNEL) as session:
        assert sqnr(run(model, feeds)["y"], session.run(feeds)["y"]) > 30


def test_a_product_that_reads_unlike_values_is_named(caplog):
    nodes = [*PARTS, *JOINED["Where"], node("Conv", ["c", "k"], ["y"])]
    with caplog.at_level(logging.WARNING, "qaic"):
        compiled(nodes, {"size": 1e4, "choice": CHOICE, "k": np.ones((2, 4, 1, 1))})
    assert "Where 'c' combines values with ranges too different" in caplog.text
    assert "'y' reads them" in caplog.text


def equalized(kind, origin, spread, rng):
    """Build a model whose inputs have sizes between 1 and 10^spread, and weights that equalize them."""
    sizes = 10 ** rng.permutation(np.linspace(0, spread, 8))
    is_matrix = kind in {"Gemm", "MatMul"}
    origin = "product" if is_matrix and origin == "MaxPool" else origin
    shape = {"Gemm": (40, 8), "MatMul": (4, 10, 8)}.get(kind, (1, 8, 6, 6))
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    nodes, constants, last = [], {}, "x"
    if origin == "input":
        feeds["x"] *= (sizes if is_matrix else sizes[:, None, None]).astype(np.float32)
    else:
        constants["k"] = rng.standard_normal((8, 8)) * sizes
        if not is_matrix:
            constants["k"] = constants["k"].T[..., None, None]
        nodes.append(node("MatMul" if is_matrix else "Conv", ["x", "k"], ["p"]))
        more = {"kernel_shape": [2, 2]} if origin == "MaxPool" else {}
        nodes.append(node("Identity" if origin == "product" else origin, ["p"], ["u"], **more))
        last = "u"
    weight = rng.standard_normal((8, 8)) / sizes
    attributes = {}
    if is_matrix:
        attributes = {"alpha": 0.5} if kind == "Gemm" else {}
        weight = weight.T
    elif kind == "Conv":
        weight = weight[..., None, None]
    elif kind == "ConvTranspose":
        weight = weight.T[..., None, None]
    else:
        attributes = {"group": 8}
        weight = rng.standard_normal((8, 1, 3, 3)) / sizes[:, None, None, None]
    op_type = kind.removeprefix("depthwise ")
    constants |= {"w": weight, "shift": rng.standard_normal(1)}
    nodes += [node(op_type, [last, "w"], ["q"], **attributes), node("Add", ["q", "shift"], ["y"])]
    return model_of(
        nodes,
        [info("x", shape)],
        [info("y", None)],
        [(name, np.float32(value)) for name, value in constants.items()],
    ), feeds


@pytest.mark.parametrize("precision", ["Int8", "Int16"])
@pytest.mark.parametrize("dims", [(8,), (8, 5), (3, 8, 5), (3, 8, 1)])
def test_products_with_constants_of_any_rank(dims, precision):
    """A regression of scikit-learn ends with the product with a vector."""
    rng = np.random.default_rng(len(dims))
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Tanh", ["p"], ["y"])]
    constants = [("w", rng.standard_normal(dims).astype(np.float32))]
    model = model_of(nodes, [info("x", [3, 6, 8])], [info("y", None)], constants)
    feeds = {"x": rng.standard_normal((3, 6, 8)).astype(np.float32)}
    options = PER_CHANNEL | {"quantization_precision": precision}
    with qaic.Session(model, calibration_data=[feeds], **options) as session:
        assert sqnr(run(model, feeds)["y"], session.run(feeds)["y"]) > 30


KINDS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "depthwise Conv", "depthwise ConvTranspose"]
ORIGINS = ["input", "product", "LeakyRelu", "MaxPool"]


def compiled_with(model, feeds, **more):
    """Compile to int8; returns the SQNR and the nodes that the warning about small inputs names."""
    with recorded() as found, qaic.Session(model, calibration_data=[feeds], **PER_CHANNEL, **more) as session:
        result = np.array(session.run(feeds)["y"])
    named = [item.nodes for item in found.items if item.code == "quantization.magnified_inputs"]
    return sqnr(run(model, feeds)["y"], result), list(*named)


@given(
    kind=st.sampled_from(KINDS),
    origin=st.sampled_from(ORIGINS),
    spread=st.floats(0, 6),
    seed=st.integers(0, 1000),
)
def test_weights_that_magnify_small_inputs_are_named_with_the_nodes_that_keep_these(
    kind, origin, spread, seed
):
    """One step for all inputs hides the small ones, to which the weights give the same part of results."""
    model, feeds = equalized(kind, origin, spread, np.random.default_rng(seed))
    before, named = compiled_with(model, feeds)
    assert before > 12 or named
    if named:
        after, others = compiled_with(model, feeds, node_precision_info_file={"FP32NodeInstanceNames": named})
        assert after > max(before, 30)
        assert not others


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_inputs_of_similar_size_are_not_named(kind, origin):
    for seed in range(3):
        assert not compiled_with(*equalized(kind, origin, 0.5, np.random.default_rng(seed)))[1]
