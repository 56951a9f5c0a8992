"""Chains of QuantizeLinear and DequantizeLinear equal the unoptimized model bit by bit."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
from compiler_oracle import PLACES, info, model_of, node, run

SHAPE = [1, 2, 4, 4]
#: Type -> zero points, and the first operator set that has the type.
TYPES = {
    "INT8": ([-128, -9, -1, 0, 127], 13),
    "UINT8": ([0, 3, 128, 255], 13),
    "INT16": ([-32768, -1, 0, 7], 21),
    "UINT16": ([0, 5, 32768], 21),
    "FLOAT8E4M3FN": ([0], 19),
    "FLOAT8E5M2": ([0], 19),
}
SCALES = [0.01, 0.05, 0.2, 1 / 3]
BETWEEN = {
    "Relu": ([], {}),
    "Clip": (["low", "high"], {}),
    "Neg": ([], {}),
    "Identity": ([], {}),
    "Transpose": ([], {"perm": [0, 1, 3, 2]}),
    "Reshape": (["shape"], {}),
    "Slice": (["start", "stop"], {}),
    "MaxPool": ([], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
}
CONSTANTS = [
    ("low", np.float32(-0.7)),
    ("high", np.float32(1.9)),
    ("shape", np.int64([0, 0, -1, 4])),
    ("start", np.int64([0])),
    ("stop", np.int64([1])),
]


def pair(at, value, opset, kind, scale, zero, form):
    """Round a value; `form` is the way in which the type is written."""
    elem_type = getattr(TensorProto, kind)
    inputs, constants = [f"s{at}"], [(f"s{at}", np.float32(scale))]
    is_typed = opset >= 21 and (form == "both" or (form == "no zero point" and zero == 0))
    typed = {"output_dtype": elem_type} if is_typed else {}
    if not typed or form == "both":
        inputs.append(f"z{at}")
        constants.append(helper.make_tensor(f"z{at}", elem_type, [], [zero]))
    read = inputs if form != "no zero point" or zero else inputs[:1]
    nodes = [
        node("QuantizeLinear", [value, *inputs], [f"q{at}"], **typed),
        node("DequantizeLinear", [f"q{at}", *read], [f"d{at}"]),
    ]
    return nodes, constants


pairs = st.sampled_from(sorted(TYPES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.sampled_from(SCALES),
        st.sampled_from(TYPES[kind][0]),
        st.sampled_from(["zero point", "no zero point", "both"]),
        st.lists(st.sampled_from(sorted(BETWEEN)), max_size=2),
    )
)


@settings(max_examples=100)
@given(
    steps=st.lists(pairs, min_size=1, max_size=4),
    opset=st.sampled_from([13, 19, 21]),
    place=st.sampled_from(sorted(PLACES)),
)
# The engine merges consecutive pairs.
@example([("INT8", 0.01, 0, "zero point", []), ("INT8", 0.2, 0, "zero point", [])], 13, "graph")
@example([("INT8", 0.05, -9, "zero point", []), ("INT8", 0.05, -1, "zero point", [])], 13, "graph")
# The engine repeats pairs after operators that move values.
@example([("INT8", 0.05, 0, "no zero point", ["Transpose"])], 13, "graph")
@example([("INT16", 0.05, 0, "no zero point", ["Identity", "Reshape"])], 21, "function")
@example([("INT8", 0.05, 3, "zero point", ["MaxPool"])], 21, "graph")
@example([("INT8", 0.05, 3, "both", [])], 21, "function")
@example([("FLOAT8E4M3FN", 0.01, 0, "zero point", ["MaxPool"])], 19, "graph")
@example([("UINT8", 0.2, 128, "both", ["MaxPool"]), ("FLOAT8E5M2", 0.2, 0, "zero point", [])], 21, "graph")
# The engine removes bounds before float8.
@example([("UINT8", 0.2, 128, "zero point", ["Relu"]), ("FLOAT8E5M2", 0.2, 0, "zero point", [])], 19, "graph")
@example([("UINT8", 0.2, 128, "zero point", ["Clip"]), ("FLOAT8E4M3FN", 0.2, 0, "both", [])], 21, "function")
def test_chains_keep_the_numbers_of_the_unoptimized_model(steps, opset, place):
    value, nodes, constants = "x", [], list(CONSTANTS)
    for at, (kind, scale, zero, form, between) in enumerate(steps):
        if TYPES[kind][1] > opset:
            continue
        made, held = pair(at, value, opset, kind, scale, zero, form)
        nodes, constants, value = nodes + made, constants + held, f"d{at}"
        for place_of, op in enumerate(between):
            operands, attributes = BETWEEN[op]
            nodes.append(node(op, [value, *operands], [f"m{at}_{place_of}"], **attributes))
            value = f"m{at}_{place_of}"
    nodes.append(node("Identity", [value], ["y"]))
    model = PLACES[place](model_of(nodes, [info("x", SHAPE)], [info("y", None)], constants, opset=opset))
    x = np.random.default_rng(len(nodes)).uniform(-4, 4, SHAPE).astype(np.float32)
    expected = run(model, {"x": x}, optimize=False)["y"]
    with qaic.Session(model.SerializeToString()) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], expected)


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["INT8", "UINT8"]),
    between=st.lists(st.sampled_from(["Transpose", "Reshape", "Slice", "Relu"]), max_size=2),
    opset=st.sampled_from([13, 21]),
    seed=st.integers(0, 99),
)
@example("UINT8", [], 13, 0)
@example("INT8", ["Reshape"], 21, 1)
def test_places_of_the_largest_values_do_not_depend_on_a_later_rounding(kind, between, opset, seed):
    """Values that round to the same integer have a largest one, whose place networks read to unpool."""
    nodes = [node("MaxPool", ["x"], ["m", "places"], kernel_shape=[2, 2], strides=[2, 2])]
    value = "m"
    for at, op in enumerate(between):
        operands, attributes = BETWEEN[op]
        nodes.append(node(op, [value, *operands], [f"m{at}"], **attributes))
        value = f"m{at}"
    made, held = pair(0, value, opset, kind, 1 / 3, 0, "zero point")
    outputs = [info("d0", None), info("places", None, TensorProto.INT64)]
    constants = [*CONSTANTS[:2], ("shape", np.int64([1, 2, 2, 2])), *CONSTANTS[3:], *held]
    model = model_of([*nodes, *made], [info("x", SHAPE)], outputs, constants, opset=opset)
    x = np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)
    expected = run(model, {"x": x}, optimize=False)
    with qaic.Session(model.SerializeToString()) as session:
        found = session.run({"x": x})
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    ("kind", "zero", "between", "opset"),
    [("INT8", 3, "Transpose", 21), ("INT8", 3, "Reshape", 21), ("INT16", 0, "Transpose", 21)],
)
def test_models_with_chains_can_be_calibrated(kind, zero, between, opset):
    """Calibration loads the model in the precision of the user."""
    nodes, constants = pair(0, "x", opset, kind, 1 / 3, zero, "zero point")
    operands, attributes = BETWEEN[between]
    nodes.append(node(between, ["d0", *operands], ["m"], **attributes))
    nodes.append(node("MatMul", ["m", "w"], ["y"]))
    rng = np.random.default_rng(4)
    constants += [*CONSTANTS, ("w", rng.normal(size=(4, 4)).astype(np.float32))]
    model = model_of(nodes, [info("x", SHAPE)], [info("y", None)], constants, opset=opset)
    x = rng.uniform(-4, 4, SHAPE).astype(np.float32)
    expected = run(model, {"x": x}, optimize=False)["y"]
    with qaic.Session(
        model.SerializeToString(), convert_to_quantize=True, calibration_data=[{"x": x}]
    ) as session:
        found = session.run({"x": x})["y"]
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
