"""Recurrent operators with the batch first: options, errors, and forms that do not change."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
from compiler_oracle import as_call, info, kinds, lowered, model_of, node, run, whole
from golden_programs import partitions
from qaic.errors import CompileError

STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 32, 32
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def network(operator, layout, *, is_shared=False):
    """Multiply the input and the result of a recurrent operator; `layout` determines their dims."""
    rng = np.random.default_rng(3)

    def normal(*shape):
        return (rng.standard_normal(shape) / 4).astype(np.float32)

    x, h = normal(STEPS, BATCH, WIDTH), normal(1, BATCH, HIDDEN)
    constants = {
        "before": normal(WIDTH, WIDTH),
        "w": normal(1, GATES[operator] * HIDDEN, WIDTH),
        "r": normal(1, GATES[operator] * HIDDEN, HIDDEN),
        "after": normal(HIDDEN, HIDDEN),
    }
    feeds = {"x": x, "h": h}
    if layout:
        feeds = {name: np.ascontiguousarray(value.swapaxes(0, 1)) for name, value in feeds.items()}
    state = [] if operator == "RNN" else [info("y1", None)]
    results = ["y0", "y1"] if state else ["y0"]
    nodes = [
        node("MatMul", ["x", "before"], ["m"]),
        node(operator, ["m", "w", "r", "", "", "h"], results, hidden_size=HIDDEN, layout=layout),
        node("MatMul", ["y0", "after"], ["z"]),
    ]
    inputs = [info(name, value.shape) for name, value in feeds.items()]
    model = model_of(nodes, inputs, [info("y0", None), *state, info("z", None)], constants.items())
    return (as_call(model) if is_shared else model), feeds


#: Options that name nodes or operators.
OPTIONS = {
    "none": {"convert_to_fp16": True},
    "float32 by name": {
        "convert_to_fp16": True,
        "node_precision_info_file": {"FP32NodeInstanceNames": ["y0"]},
    },
    "float16 by name": {"node_precision_info_file": {"FP16NodeInstanceNames": ["y0"]}},
    "float32 by operator": {
        "convert_to_fp16": True,
        "keep_original_precision_for_nodes": ("RNN", "GRU", "LSTM"),
    },
    "float16 by operator": {"execute_nodes_in_fp16": ("RNN", "GRU", "LSTM")},
    "excluded": {"mxfp6_matmul": True, "exclude_mxfp6_matmul": ("m",)},
    "excluded itself": {"mxfp6_matmul": True, "exclude_mxfp6_matmul": ("y0", "z")},
    "partitions": {
        "mdp_load_partition_config": partitions(["m"], ["y0"], ["z"]),
        "allow_mxint8_mdp_io": True,
    },
}


def swapped(name, value):
    return value.swapaxes(0, 1) if name == "y1" else value.transpose(2, 0, 1, 3)


def computed(model, feeds, **options):
    with qaic.Session(model.SerializeToString(), **options) as session:
        return session.run(feeds)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize(
    ("name", "is_shared"),
    # Partitions list nodes of the main graph.
    [
        pytest.param(
            "partitions", False, marks=pytest.mark.virtual_card("cards run only programs for one device")
        ),
        *((name, is_shared) for name in OPTIONS if name != "partitions" for is_shared in (False, True)),
    ],
)
def test_options_mean_the_same_in_both_layouts(name, operator, is_shared, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "3")
    plain, turned = (network(operator, layout, is_shared=is_shared) for layout in (0, 1))
    expected, found = (computed(*made, **OPTIONS[name]) for made in (plain, turned))
    exact = run(plain[0], plain[1])
    assert any((expected[result] != exact[result]).any() for result in expected)
    for result, value in expected.items():
        np.testing.assert_array_equal(found[result], swapped(result, value))


def single(attributes, *, opset=17, **dims):
    """Build a model of one LSTM; `dims` are the dims of its inputs."""
    weights = [
        ("w", np.ones((1, 4 * HIDDEN, WIDTH), np.float32)),
        ("r", np.ones((1, 4 * HIDDEN, HIDDEN), "f")),
    ]
    made = node("LSTM", ["x", "w", "r", "", "", *(["h"] if "h" in dims else [])], ["y0"], hidden_size=HIDDEN)
    made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    given = {"x": [BATCH, STEPS, WIDTH]} | dims
    return model_of(
        [made], [info(name, value) for name, value in given.items()], [info("y0", None)], weights, opset
    )


@pytest.mark.parametrize(
    ("attributes", "opset", "found"),
    [
        ({"layout": 1}, 13, "Unrecognized attribute: layout"),
        ({"layout": 1}, 7, "Unrecognized attribute: layout"),
        ({"layout": "1"}, 17, "Mismatched attribute type"),
        ({"layout": 2}, 17, "cannot run"),
        ({"layout": -1}, 17, "cannot run"),
    ],
)
def test_other_layouts_are_refused(attributes, opset, found):
    with pytest.raises(CompileError, match=found):
        qaic.compile(single(attributes, opset=opset).SerializeToString())


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    "dims",
    [{"x": [BATCH, WIDTH]}, {"h": [BATCH, HIDDEN]}, {"h": [2, 2, HIDDEN]}],
    ids=str,
)
def test_errors_name_the_node_of_the_model(layout, dims):
    with pytest.raises(CompileError, match=r"^node 'y0' \(LSTM\): found sizes that do not fit") as caught:
        qaic.compile(single({"layout": layout}, **dims).SerializeToString())
    assert "Transpose" not in str(caught.value)


@pytest.mark.parametrize("outputs", [(), ("",), ("", "", "unread")])
def test_nodes_without_a_read_result_change_nothing(outputs):
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (1, 4 * HIDDEN, WIDTH)), ("r", (1, 4 * HIDDEN, HIDDEN)))
    ]

    def branch(name, operator):
        dead = node("LSTM", ["x", "w", "r"], list(outputs), hidden_size=HIDDEN, layout=1)
        nodes = [dead, node(operator, ["x"], [name])]
        return helper.make_graph(nodes, name, [], [info(name, [BATCH, STEPS, WIDTH])])

    choice = node("If", ["go"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs"))
    inputs = [info("x", [BATCH, STEPS, WIDTH]), info("go", [], TensorProto.BOOL)]
    model = model_of([choice], inputs, [info("y", [BATCH, STEPS, WIDTH])])
    model.graph.initializer.extend(weights)
    x = rng.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)
    for go, expected in ((True, -x), (False, abs(x))):
        found = computed(model, {"x": x, "go": np.array(go)})
        np.testing.assert_array_equal(found["y"], expected)


def test_calls_of_a_function_decide_about_the_layout():
    model, feeds = network("LSTM", 1, is_shared=True)
    (function,), (call,) = model.functions, model.graph.node
    recurrent = next(inner for inner in function.node if inner.op_type == "LSTM")
    layout = next(attribute for attribute in recurrent.attribute if attribute.name == "layout")
    layout.ref_attr_name = "order"
    layout.ClearField("i")
    function.attribute.append("order")
    call.attribute.append(helper.make_attribute("order", 1))
    plain, others = network("LSTM", 0)
    found = computed(model, feeds)
    for name, value in run(plain, others).items():
        np.testing.assert_allclose(found[name], swapped(name, value), rtol=1e-5, atol=1e-6)


def test_constants_that_a_recurrent_operator_computes_are_folded():
    """The engine folds operands of quantized nodes."""
    rng = np.random.default_rng(5)
    constants = {
        "c": rng.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32),
        "w": rng.standard_normal((1, HIDDEN, WIDTH)).astype(np.float32),
        "r": rng.standard_normal((1, HIDDEN, HIDDEN)).astype(np.float32),
    }
    shape = [BATCH, STEPS, 1, HIDDEN]
    nodes = [
        node("RNN", ["c", "w", "r"], ["k"], hidden_size=HIDDEN, layout=1),
        node("Add", ["x", "k"], ["y"]),
    ]
    model = model_of(nodes, [info("x", shape)], [info("y", shape)], constants.items())
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)}]
    program = lowered(model, convert_to_quantize=True, calibration_data=samples)
    assert "RNN" not in kinds(program)
    (x,) = (sample["x"] for sample in samples)
    plain = model_of(
        [node("RNN", ["c", "w", "r"], ["k"], hidden_size=HIDDEN)],
        [],
        [info("k", None)],
        (constants | {"c": constants["c"].swapaxes(0, 1).copy()}).items(),
    )
    expected = x + run(plain, {})["k"].transpose(2, 0, 1, 3)
    np.testing.assert_allclose(run(whole(program), samples[0])["y"], expected, atol=0.1)
