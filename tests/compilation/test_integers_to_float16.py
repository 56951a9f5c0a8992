"""Integers beyond float16 in float16 programs stay exact until they are scaled, or a warning names them."""

import logging

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic

node = helper.make_node
LARGE = np.array([[70000, 250000, -90000], [1000, 65504, 65536]])
TABLE = np.array([[100000, 7, -300000], [66000, 12, 5]])


def graph_of(nodes, inputs, outputs, constants=()):
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()],
    )


def branch(*nodes, kind=TensorProto.INT64):
    return graph_of(list(nodes), {}, {nodes[-1].output[0]: kind})


LOOPED = helper.make_graph(
    [node("Identity", ["c"], ["d"]), node("Add", ["k", "i"], ["l"])],
    "body",
    [
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("k", TensorProto.INT64, [2, 3]),
    ],
    [
        helper.make_tensor_value_info("d", TensorProto.BOOL, []),
        helper.make_tensor_value_info("l", TensorProto.INT64, [2, 3]),
    ],
)
#: Nodes that compute the integers "s" from the input "i" -> True if the integers can exceed float16.
SOURCES = {
    "given": ([node("Identity", ["i"], ["s"])], None),
    "sum": ([node("Add", ["i", "i"], ["s"])], True),
    "difference": ([node("Sub", ["i", "t"], ["s"])], True),
    "product": ([node("Mul", ["i", "t"], ["s"])], True),
    "power": ([node("Pow", ["i", "two"], ["s"])], True),
    "sum of rows": ([node("ReduceSum", ["i", "one"], ["s"])], True),
    "sum of squares": ([node("ReduceSumSquare", ["i"], ["s"], axes=[1])], True),
    "cumulated": ([node("CumSum", ["i", "one0"], ["s"])], True),
    "matrix": ([node("Transpose", ["t"], ["u"]), node("MatMul", ["i", "u"], ["s"])], True),
    "looked up": (
        [
            node("ArgMax", ["i"], ["a"], axis=0),
            node("Mod", ["a", "two0"], ["b"]),
            node("Gather", ["t", "b"], ["s"]),
        ],
        True,
    ),
    "moved sum": (
        [
            node("Add", ["i", "i"], ["a"]),
            node("Concat", ["a", "t"], ["b"], axis=0),
            node("Neg", ["b"], ["s"]),
        ],
        True,
    ),
    "larger": ([node("Add", ["i", "one"], ["a"]), node("Max", ["a", "t"], ["s"])], True),
    "branch": (
        [
            node(
                "If",
                ["yes"],
                ["s"],
                then_branch=branch(node("Add", ["i", "i"], ["p"])),
                else_branch=branch(node("Identity", ["i"], ["q"])),
            )
        ],
        True,
    ),
    "loop": ([node("Loop", ["three", "", "i"], ["s"], body=LOOPED)], True),
    "small sum": (
        [
            node("Cast", ["yes"], ["a"], to=TensorProto.INT64),
            node("Add", ["a", "one"], ["b"]),
            node("CumSum", ["b", "zero"], ["s"]),
        ],
        False,
    ),
    "small size": ([node("Shape", ["i"], ["a"]), node("Add", ["a", "a"], ["s"])], False),
    "top": ([node("Add", ["i", "i"], ["a"]), node("TopK", ["a", "one"], ["s", "at"], axis=1)], True),
    "unique": (
        [
            node("Add", ["i", "i"], ["a"]),
            node("Unique", ["a"], ["b"]),
            node("Gather", ["b", "places"], ["s"]),
        ],
        True,
    ),
    "counted": (
        [
            node("ConstantOfShape", ["two_sizes"], ["a"], value=numpy_helper.from_array(np.array([0]))),
            node("Mul", ["i", "zero"], ["b"]),
            node("ScatterElements", ["a", "b", "t"], ["s"], axis=1, reduction="add"),
        ],
        True,
    ),
    "small filling": (
        [node("ConstantOfShape", ["two_sizes"], ["s"], value=numpy_helper.from_array(np.array([7])))],
        False,
    ),
    "small position": ([node("ArgMax", ["i"], ["s"], axis=1)], False),
}
#: Nodes that scale the float "f" to the output "y".
SCALES = {
    "factor": [node("Mul", ["f", "small"], ["y"])],
    "factor in front": [node("Mul", ["small", "f"], ["y"])],
    "divisor": [node("Div", ["f", "large"], ["y"])],
    "input": [node("Mul", ["f", "x"], ["y"])],
    "two": [node("Mul", ["f", "half"], ["m"]), node("Mul", ["m", "small"], ["y"])],
    "moved": [
        node("Neg", ["f"], ["m"]),
        node("Unsqueeze", ["m", "zero"], ["n"]),
        node("Mul", ["n", "x"], ["y"]),
    ],
    "offset": [node("Sub", ["f", "half"], ["m"]), node("Mul", ["m", "small"], ["y"])],
    "joined": [node("Concat", ["f", "f"], ["m"], axis=0), node("Div", ["m", "large"], ["y"])],
    "divides": [node("Div", ["top", "f"], ["m"]), node("Mul", ["m", "half"], ["y"])],
    "in a branch": [
        node(
            "If",
            ["yes"],
            ["y"],
            then_branch=branch(node("Mul", ["f", "small"], ["v"]), kind=1),
            else_branch=branch(node("Div", ["f", "large"], ["w"]), kind=1),
        )
    ],
}


def model_of(source, ends):
    constants = {
        "t": TABLE,
        "two": np.array(2),
        "three": np.array(3),
        "one": np.array([1]),
        "one0": np.array(1),
        "two0": np.array(2),
        "zero": np.array([0]),
        "places": np.arange(6).reshape(2, 3),
        "two_sizes": np.array([2, 3]),
        "small": np.float32(1e-7),
        "half": np.float32(0.5),
        "large": np.float32(1e7),
        "top": np.float32(6e4),
    }
    read = {name for one in (*source, *ends) for name in one.input} | {"small", "large"}
    graph = graph_of(
        [*source, node("Cast", ["s"], ["f"], to=1, name="cast"), *ends],
        {"i": (TensorProto.INT64, [2, 3]), "x": (1, [1]), "yes": (TensorProto.BOOL, [1])},
        {"y": 1},
        {name: value for name, value in constants.items() if name in read},
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(divisor=1):
    return {"i": LARGE // divisor, "x": np.float32([3e-7]), "yes": np.array([True])}


def compared(model, feeds, **options):
    """Run a model in float16 and in onnxruntime; return the largest error relative to the largest value."""
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    assert np.isfinite(expected).all()
    assert expected.any()
    with qaic.Session(model.SerializeToString(), convert_to_fp16=True, **options) as session:
        got = np.array(session.run(feeds)["y"])
    return float((np.abs(got - expected) / np.abs(expected).max()).max())


def told(caplog):
    return [one.getMessage() for one in caplog.records if "integers become float16" in one.getMessage()]


@pytest.mark.parametrize(
    ("source", "scale"),
    [
        *(("sum", scale) for scale in SCALES),
        *(
            (source, scale)
            for source, (_, is_large) in SOURCES.items()
            for scale in ("factor", "input")
            if is_large is not False and source != "sum"
        ),
    ],
)
def test_integers_survive_until_they_are_scaled(source, scale, caplog):
    made, _ = SOURCES[source]
    assert compared(model_of(made, SCALES[scale]), feeds_of()) < 1e-3
    assert not told(caplog)


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.UINT32, TensorProto.UINT64])
@pytest.mark.parametrize("scale", ["factor", "input", "divides"])
def test_types_of_integers_survive_until_they_are_scaled(kind, scale):
    made = [node("Abs", ["i"], ["a"]), node("Cast", ["a"], ["s"], to=kind)]
    assert compared(model_of(made, SCALES[scale]), feeds_of()) < 1e-3


ENDS = {
    "added": ([node("Add", ["f", "x"], ["y"], name="reader")], "reader"),
    "enlarged": ([node("Mul", ["f", "large"], ["y"], name="reader")], "reader"),
    "root": ([node("Abs", ["f"], ["m"]), node("Sqrt", ["m"], ["y"], name="reader")], "reader"),
    "output": ([node("Identity", ["f"], ["y"])], "outputs of the model"),
    "beside a scale": (
        [
            node("Mul", ["f", "small"], ["m"]),
            node("Tanh", ["f"], ["n"], name="reader"),
            node("Add", ["m", "n"], ["y"]),
        ],
        "reader",
    ),
}


@pytest.mark.parametrize(
    ("source", "end"), [*((source, "added") for source in SOURCES), *(("sum", end) for end in ENDS)]
)
def test_integers_without_a_scale_are_named(source, end, caplog):
    made, is_large = SOURCES[source]
    nodes, reader = ENDS[end]
    model = model_of(made, nodes)
    with caplog.at_level(logging.WARNING, "qaic"):
        qaic.Session(model.SerializeToString(), convert_to_fp16=True).close()
    assert len(told(caplog)) == bool(is_large)
    if is_large:
        assert (f"'{reader}'" if reader == "reader" else reader) in told(caplog)[0]


@pytest.mark.parametrize(
    ("nodes", "readers", "kept"),
    [
        ([node("Sqrt", ["f"], ["r"]), node("Mul", ["r", "half"], ["y"])], "'r'", "f, r"),
        ([node("Identity", ["f"], ["y"])], "outputs of the model", "f, y"),
    ],
)
def test_the_fix_of_the_warning_keeps_the_numbers(nodes, readers, kept, caplog, tmp_path):
    model = model_of([node("Mul", ["i", "i"], ["s"])], nodes)
    assert not compared(model, feeds_of(100)) < 1e-3
    assert f", read by {readers}" in told(caplog)[0]
    caplog.clear()
    lists = tmp_path / "lists.yaml"
    lists.write_text(f"FP32NodeInstanceNames: [{kept}]\n")
    assert compared(model, feeds_of(100), node_precision_info_file=lists) < 1e-3
    assert not told(caplog)


@pytest.mark.parametrize("reader", ["Div", "Add"])
@pytest.mark.parametrize("size", [8, 300])
@pytest.mark.parametrize("is_stored", [False, True])
def test_sizes_divide_in_float32_and_are_named_elsewhere(size, reader, is_stored, caplog):
    # The mean of an image: 300 x 300 exceeds float16.
    nodes = [
        node("Identity", ["count"], ["n"]) if is_stored else node("Size", ["x"], ["n"]),
        node("Cast", ["n"], ["f"], to=1),
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node(reader, ["m", "f"], ["y"], name="reader"),
    ]
    constants = {"count": np.array(size**2)} if is_stored else {}
    graph = graph_of(nodes, {"x": (1, [size, size])}, {"y": 1}, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with caplog.at_level(logging.WARNING, "qaic"):
        error = compared(model, {"x": np.full((size, size), 6e4, np.float32)})
    if reader == "Div" or size == 8:
        assert error < 1e-3
        assert "'reader'" not in caplog.text
    else:
        assert caplog.text.count("'reader'") == 1
