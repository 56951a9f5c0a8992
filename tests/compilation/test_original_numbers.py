"""Operators of every operator set, in every precision, compared with onnxruntime on the user's model."""

import logging
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as EngineNotImplemented

import engine_version
import qaic
import session_models
from operator_cases import OPERATOR_SETS, OPERATORS, drawn
from qaic.errors import QaicError

INT8 = {"convert_to_quantize": True, "enable_channelwise": True}


def reference(model, feeds):
    """Run a model in onnxruntime without optimization."""
    return session_models.engine(model, optimize=False).run(None, feeds)[0]


def found(model, feeds, **options):
    if "convert_to_quantize" in options:
        options["calibration_data"] = [feeds]
    with qaic.Session(model.SerializeToString(), **options) as session:
        return np.array(next(iter(session.run(feeds).values())))


def sqnr(expected, got):
    assert got.shape == expected.shape
    noise = float(((expected - got).astype(np.float64) ** 2).sum())
    power = float((expected.astype(np.float64) ** 2).sum())
    return np.inf if noise == 0 else 10 * np.log10(power / noise) if power else -np.inf


def is_new_form(name, opset):
    """Return True if an operator has changed since the previous set in the list."""
    before = max((older for older in OPERATOR_SETS if older < opset), default=0)
    op_type = "Upsample" if name == "Resize" and opset < 10 else name
    return onnx.defs.get_schema(op_type, opset, "").since_version > before


@pytest.mark.parametrize("opset", OPERATOR_SETS)
def test_operator_means_what_its_set_says(opset):
    wrong = []
    for name, (since, _) in OPERATORS.items():
        if opset < since or not is_new_form(name, opset):
            continue
        at = drawn(["Conv", name], opset, seed=sum(map(ord, name)))
        model = at.model()
        feeds = {"x": np.random.default_rng(5).standard_normal(at.given).astype(np.float32)}
        try:
            expected = reference(model, feeds)
        except EngineNotImplemented:
            # Older engines lack some operators of the newest sets.
            continue
        for least, options in ((100, {}), (38, {"convert_to_fp16": True}), (15, INT8)):
            try:
                decibels = sqnr(expected, found(model, feeds, **options))
            except QaicError as error:
                wrong.append((name, options, str(error)))
                continue
            if not decibels >= least:
                wrong.append((name, options, decibels))
    assert not wrong


#: First set whose form ONNX's evaluator computes by the formula, like onnxruntime.
EVALUATED_FROM = {
    # The evaluator uses the epsilon of another version, and divides alpha by another size.
    "BatchNormalization": 14,
    "LRN": 99,
    # The evaluator supports no linear mode and no separate scales, and does not flatten to two dimensions.
    "Resize": 11,
    "Softmax": 13,
    "LogSoftmax": 13,
}


@pytest.mark.skipif(not engine_version.is_newest(), reason="older onnx evaluates some operators wrongly")
@pytest.mark.parametrize("opset", OPERATOR_SETS)
def test_operator_means_what_onnx_evaluates(opset):
    # A fault of onnxruntime would be on both sides in the other test.
    wrong = []
    for name, (since, _) in OPERATORS.items():
        if opset < since or not is_new_form(name, opset) or opset < EVALUATED_FROM.get(name, 0):
            continue
        at = drawn(["Conv", name], opset, seed=sum(map(ord, name)))
        model = at.model()
        feeds = {"x": np.random.default_rng(5).standard_normal(at.given).astype(np.float32)}
        expected = ReferenceEvaluator(model).run(None, feeds)[0]
        try:
            decibels = sqnr(expected, found(model, feeds))
        except QaicError as error:
            wrong.append((name, str(error)))
            continue
        if not decibels >= 100:
            wrong.append((name, decibels))
    assert not wrong


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "opset", "scales"),
    [
        ("Upsample", 7, (1.25, 3)),
        ("Upsample", 9, (1.25, 3)),
        ("Resize", 10, (1.25, 3)),
        ("Resize", 10, (0.8, 0.6)),
        ("Resize", 10, (0.8, 2)),
    ],
)
def test_int8_keeps_the_coordinates_of_old_sets(mode, op, opset, scales):
    sizes = np.float32([1, 1, *scales])
    constants = [
        numpy_helper.from_array(
            np.random.default_rng(2).standard_normal((2, 2, 1, 1)).astype(np.float32), "w"
        )
    ]
    if opset == 7:
        node = helper.make_node(op, ["c"], ["y"], mode=mode, scales=sizes.tolist())
    else:
        node = helper.make_node(op, ["c", "s"], ["y"], mode=mode)
        constants.append(numpy_helper.from_array(sizes, "s"))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), node],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 2, 5, 10])],
        [helper.make_tensor_value_info("y", 1, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 2, 5, 10)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds, **INT8)) > 22


def reads(op, name, attribute, kind, value="a", result="c"):
    """Build a node of a function's body whose attribute is that of the function."""
    node = helper.make_node(op, [value] if value else [], [result], domain="local" if op == "G" else "")
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=attribute, type=kind))
    return node


FLOAT, INT, INTS = onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.INTS
BODIES = {
    "a slope": ([reads("LeakyRelu", "alpha", "slope", FLOAT)], {"slope": 0.5}),
    "an axis": ([reads("Softmax", "axis", "along", INT)], {"along": 0}),
    "a permutation": (
        [reads("Transpose", "perm", "order", INTS, result="t"), helper.make_node("Transpose", ["t"], ["c"])],
        {"order": [1, 0]},
    ),
    "a constant": (
        [
            reads("Constant", "value_float", "number", FLOAT, value="", result="k"),
            helper.make_node("Mul", ["a", "k"], ["c"]),
        ],
        {"number": 3.0},
    ),
    "what an inner function is given": ([reads("G", "alpha", "slope", FLOAT)], {"slope": 0.5}),
    "what an inner function is not given": (
        [helper.make_node("G", ["a"], ["c"], domain="local")],
        {"slope": 0.5},
    ),
}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 100), ({"always_expand_onnx_functions": True}, 100), ({"convert_to_fp16": True}, 38), (INT8, 20)],
)
def test_defaults_of_functions_hold_in_every_precision(what, options, least):
    body, defaults = BODIES[what]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            name,
            ["a"],
            ["c"],
            nodes,
            sets,
            [],
            [helper.make_attribute(*item) for item in values.items()],
        )
        for name, nodes, values in (
            ("F", body, defaults),
            ("G", [reads("LeakyRelu", "alpha", "alpha", FLOAT)], {"alpha": 0.25}),
        )
    ]
    nodes = [
        helper.make_node("F", ["x"], ["z"], domain="local"),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 6])],
        [helper.make_tensor_value_info("y", 1, [2, 4])],
        [numpy_helper.from_array(rng.standard_normal((6, 4)).astype(np.float32), "w")],
    )
    model = helper.make_model(graph, functions=functions, opset_imports=sets, ir_version=10)
    feeds = {"x": rng.standard_normal((2, 6)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds, **options)) > least


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_int8_takes_attributes_that_mean_nothing_in_their_mode(mode, opset):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Pad", ["a"], ["b"], mode=mode, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5),
        helper.make_node("Conv", ["b", "w"], ["y"]),
    ]
    rng = np.random.default_rng(6)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 2, 5, 5])],
        [helper.make_tensor_value_info("y", 1, [1, 4, 7, 7])],
        [numpy_helper.from_array(rng.standard_normal((4, 2, 1, 1)).astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    feeds = {"x": rng.standard_normal((1, 2, 5, 5)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds, **INT8)) > 20


@pytest.mark.parametrize("places", [[0, 5, 11], [[0, 0], [1, 1], [2, 3]]])
@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 100), ({"convert_to_fp16": True}, 38), (INT8, 20)],
    ids=["float32", "float16", "int8"],
)
def test_sparse_constants_have_the_numbers_of_dense_ones(options, least, places):
    dense = np.zeros((3, 4), np.float32)
    numbers = [2.0, -3.0, 0.5]
    dense.reshape(-1)[[0, 5, 11]] = numbers
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", 1, [3], numbers),
        helper.make_tensor("i", 7, np.shape(places), np.ravel(places)),
        [3, 4],
    )
    nodes = [
        helper.make_node("Constant", [], ["w"], sparse_value=sparse),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    model = session_models.model(nodes, [("x", 1, [3, 3])], [("y", 1, [3, 4])], opset=13)
    x = np.random.default_rng(7).standard_normal((3, 3)).astype(np.float32)
    assert sqnr(x @ dense + dense, found(model, {"x": x}, **options)) > least


@pytest.mark.parametrize("attributes", [{"ceil_mode": 1, "count_include_pad": 1}, {"dilations": [2, 2]}])
def test_int8_average_pool_that_the_integer_kernel_cannot_compute(attributes):
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], **attributes)
    value = [helper.make_tensor_value_info("x", 1, [1, 2, 7, 9])]
    graph = helper.make_graph([node], "g", value, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 2, 7, 9)).astype(np.float32) - 3}
    assert sqnr(reference(model, feeds), found(model, feeds, **INT8)) > 30


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize(
    ("stride", "pads"), [([2, 2], [1, 1, 1, 1]), ([3, 3], [0, 0, 0, 0]), ([3, 2], [0, 1, 0, 1])]
)
def test_pool_whose_last_window_holds_padding_alone(op, opset, stride, pads):
    first, second = (
        helper.make_node(op, [name], [result], kernel_shape=[2, 2], strides=stride, pads=pads, ceil_mode=1)
        for name, result in (("x", "m"), ("m", "y"))
    )
    value = [helper.make_tensor_value_info("x", 1, [1, 2, 7, 9])]
    graph = helper.make_graph([first, second], "g", value, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 2, 7, 9)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds)) > 100


@pytest.mark.parametrize("order", [("s", "k"), ("k", "s")])
@pytest.mark.parametrize("chained", [False, True])
def test_float16_keeps_integer_sums_until_they_are_scaled(order, chained):
    rng = np.random.default_rng(5)
    scaled = (
        [helper.make_node("Mul", ["f", order[0]], ["m"]), helper.make_node("Mul", ["m", order[1]], ["y"])]
        if chained
        else [helper.make_node("Mul", list(order), ["m"]), helper.make_node("Mul", ["f", "m"], ["y"])]
    )
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        *scaled,
    ]
    model = session_models.model(
        nodes,
        [("x", 1, [3, 512])],
        [("y", 1, [3, 8])],
        {"w": rng.integers(-127, 128, (512, 8)).astype(np.int8), "k": np.float32(1e-5)},
    )
    feeds = {"x": rng.standard_normal((3, 512)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds, convert_to_fp16=True)) > 50


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (TensorProto.INT4, (-8, 8)),
        (TensorProto.UINT4, (0, 16)),
        (TensorProto.INT8, (-128, 128)),
        (TensorProto.UINT8, (0, 256)),
    ],
)
@pytest.mark.parametrize("form", [{"axis": 1}, {"axis": 0, "block_size": 32}])
@pytest.mark.parametrize("rows", [1, 5])
def test_weights_that_are_dequantized_meet_activations_in_float32(kind, numbers, form, rows):
    """By default, the engine fuses the two and rounds the activations to int8."""
    rng = np.random.default_rng(kind)
    scales = [64 // form["block_size"], 24] if "block_size" in form else [24]
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["f"], **form),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [rows, 64])],
        [helper.make_tensor_value_info("y", 1, [rows, 24])],
        [
            helper.make_tensor("w", kind, [64, 24], rng.integers(*numbers, 64 * 24)),
            numpy_helper.from_array(rng.uniform(0.01, 0.1, scales).astype(np.float32), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": rng.standard_normal((rows, 64)).astype(np.float32)}
    assert sqnr(reference(model, feeds), found(model, feeds)) > 100


def quotient(*middle, opset=17, constants=None):
    nodes = [*middle, helper.make_node("Div", ["x", "d"], ["y"])]
    return session_models.model(
        nodes,
        [("x", 1, [2, 8])],
        [("y", 1, [2, 8])],
        {name: np.array(value) for name, value in (constants or {}).items()},
        opset=opset,
    )


TINY = np.float32(1e-12)


@pytest.mark.parametrize(
    "model",
    [
        quotient(helper.make_node("Add", ["x", "e"], ["d"], name="n"), constants={"e": TINY}),
        quotient(helper.make_node("Max", ["x", "e"], ["d"], name="n"), constants={"e": TINY}),
        quotient(helper.make_node("Clip", ["x"], ["d"], min=1e-12, name="n"), opset=9),
        quotient(
            helper.make_node("Cast", ["e"], ["f"], to=1),
            helper.make_node("Add", ["x", "f"], ["d"], name="n"),
            constants={"e": np.float64(1e-12)},
        ),
        quotient(
            helper.make_node("Mul", ["e", "e"], ["f"]),
            helper.make_node("Add", ["x", "f"], ["d"], name="n"),
            constants={"e": np.float32(1e-6)},
        ),
    ],
    ids=["added", "largest", "attribute", "cast", "computed"],
)
def test_float16_names_the_constant_that_becomes_zero(model, caplog):
    with caplog.at_level(logging.WARNING, "qaic"):
        found(model, {"x": np.zeros((2, 8), np.float32)}, convert_to_fp16=True)
    (said,) = [
        record.getMessage() for record in caplog.records if "too small for float16" in record.getMessage()
    ]
    assert "1e-12" in said
    # A cast selects values, so it reads the rounded constant.
    assert re.search(r"read by '[nf]'|'n\.min'", said)


@pytest.mark.parametrize(
    ("constant", "clip", "value"),
    [
        (np.float32(-1e9), True, -65504),
        (np.float32(-1e9), False, -np.inf),
        (np.float32([1, 1e6] * 4), True, 65504),
    ],
    ids=["clipped", "infinite", "one of several"],
)
@pytest.mark.parametrize("how", ["stored", "cast", "multiplied", "filled"])
def test_float16_names_the_constant_that_is_beyond_it(constant, clip, value, how, caplog):
    made = {
        "stored": [helper.make_node("Identity", ["e"], ["f"])],
        "cast": [helper.make_node("Cast", ["e"], ["f"], to=1)],
        "multiplied": [helper.make_node("Mul", ["e", "one"], ["f"])],
        "filled": [
            helper.make_node(
                "ConstantOfShape", ["shape"], ["f"], value=numpy_helper.from_array(constant.reshape(-1)[-1:])
            )
        ],
    }[how]
    made.append(helper.make_node("Max" if value > 0 else "Min", ["x", "f"], ["d"], name="n"))
    stored = constant.astype(np.float64) if how == "cast" else constant
    model = quotient(*made, constants={"e": stored, "one": np.float32(1), "shape": np.array([1, 8])})
    with caplog.at_level(logging.WARNING, "qaic"):
        found(model, {"x": np.ones((2, 8), np.float32)}, convert_to_fp16=True, clip_fp16_constants=clip)
    (said,) = [record.getMessage() for record in caplog.records if "beyond the range" in record.getMessage()]
    assert f"({constant.reshape(-1)[-1]:.3g}, read by 'n')" in said.replace("'f'", "'n'")
    assert said.startswith(f"{4 if constant.ndim and how != 'filled' else 1} constant")


def test_float16_is_silent_about_constants_that_keep_a_value(caplog):
    model = quotient(
        helper.make_node("Add", ["x", "e"], ["d"]), constants={"e": np.float32([1e-12] * 7 + [1])}
    )
    with caplog.at_level(logging.WARNING, "qaic"):
        found(model, {"x": np.ones((2, 8), np.float32)}, convert_to_fp16=True)
    assert not [record for record in caplog.records if "too small" in record.getMessage()]


def detector(*tail):
    """Build boxes in pixels and scores below one, concatenated to ``c`` along the channels."""
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["b0"]),
        helper.make_node("Sigmoid", ["b0"], ["b1"]),
        helper.make_node("Mul", ["b1", "size"], ["boxes"]),
        helper.make_node("Conv", ["x", "w2"], ["s0"]),
        helper.make_node("Sigmoid", ["s0"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["c"], axis=1),
        *tail,
    ]
    constants = {
        "w1": rng.standard_normal((4, 8, 1, 1)),
        "w2": rng.standard_normal((3, 8, 1, 1)),
        "w3": rng.standard_normal((5, 7, 1, 1)),
        "size": 640,
    }
    return session_models.model(
        nodes,
        [("x", 1, [1, 8, 8, 8])],
        [(nodes[-1].output[0], 1, None)],
        {name: np.float32(value) for name, value in constants.items()},
    )


@pytest.mark.parametrize(
    ("tail", "scores"),
    [
        ([], np.s_[:, 4:]),
        ([helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1])], np.s_[..., 4:]),
        ([helper.make_node("Neg", ["c"], ["n"]), helper.make_node("Neg", ["n"], ["y"])], np.s_[:, 4:]),
        (
            [helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Mul", ["r", "size"], ["y"])],
            np.s_[:, 4:],
        ),
    ],
    ids=["output", "transposed", "negated", "scaled"],
)
def test_int8_keeps_scores_that_are_joined_with_boxes(tail, scores, caplog):
    model = detector(*tail)
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 8, 8, 8)).astype(np.float32)}
    assert sqnr(reference(model, feeds)[scores], found(model, feeds, **INT8)[scores]) > 30
    assert "ranges too different" not in caplog.text


def test_int8_names_the_concat_that_a_product_reads_with_one_scale(caplog):
    model = detector(helper.make_node("Conv", ["c", "w3"], ["y"]))
    with caplog.at_level(logging.WARNING, "qaic"):
        found(model, {"x": np.random.default_rng(3).standard_normal((1, 8, 8, 8)).astype(np.float32)}, **INT8)
    assert "Concat 'c' combines values with ranges too different" in caplog.text
