"""RNN, GRU and LSTM in all forms and precisions, compared with the layout that onnxruntime supports."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

import engine_version
import qaic
from compiler_oracle import as_call, info, model_of, run

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {
    "RNN": [["Tanh"], ["Relu"], ["Sigmoid"]],
    "GRU": [["Sigmoid", "Tanh"], ["HardSigmoid", "Relu"], ["Sigmoid", "Softsign"]],
    "LSTM": [["Sigmoid", "Tanh", "Tanh"], ["HardSigmoid", "Softsign", "Tanh"], ["Sigmoid", "Relu", "Tanh"]],
}
PRECISIONS = {
    "float32": ({}, 100),
    "expanded": ({"always_expand_onnx_functions": True}, 100),
    "float16": ({"convert_to_fp16": True}, 40),
    "int8": ({"convert_to_quantize": True}, 20),
}
STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 5, 6
FORMS = st.fixed_dictionaries(
    {
        "operator": st.sampled_from(sorted(GATES)),
        "direction": st.sampled_from(["forward", "reverse", "bidirectional"]),
        "activations": st.integers(0, 2),
        "opset": st.sampled_from([14, 17, 22]),
        "clip": st.sampled_from([0.0, 0.25]),
        "own": st.booleans(),
        "has_lengths": st.booleans(),
        "has_states": st.booleans(),
        "has_peepholes": st.booleans(),
        "results": st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 1, 2), (1, 2)]),
    }
)


def recurrent(form, layout):
    """Build a model of one operator; returns the model and its inputs in its layout."""
    operator, rng = form["operator"], np.random.default_rng(41)
    directions, gates = 1 + (form["direction"] == "bidirectional"), GATES[form["operator"]]

    def normal(*shape):
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    def batch_first(array):
        return np.ascontiguousarray(array.swapaxes(0, 1)) if layout else array

    feeds = {"x": batch_first(normal(STEPS, BATCH, WIDTH))}
    constants = {
        "w": normal(directions, gates * HIDDEN, WIDTH),
        "r": normal(directions, gates * HIDDEN, HIDDEN),
        "b": normal(directions, 2 * gates * HIDDEN),
    }
    operands = ["x", "w", "r", "b", "", "", "", ""]
    if form["has_lengths"]:
        operands[4], constants["lengths"] = "lengths", np.array([4, 1, 3], np.int32)
    if form["has_states"]:
        operands[5], feeds["h"] = "h", batch_first(normal(directions, BATCH, HIDDEN))
    if form["has_states"] and operator == "LSTM":
        operands[6], constants["c"] = "c", batch_first(normal(directions, BATCH, HIDDEN))
    if form["has_peepholes"] and operator == "LSTM":
        operands[7], constants["p"] = "p", normal(directions, 3 * HIDDEN)
    attributes = {"hidden_size": HIDDEN, "direction": form["direction"]}
    attributes["activations"] = ACTIVATIONS[operator][form["activations"]] * directions
    if form["clip"]:
        attributes["clip"] = form["clip"]
    if form["own"] and operator == "GRU":
        attributes["linear_before_reset"] = 1
    if layout:
        attributes["layout"] = 1
    count = 3 if operator == "LSTM" else 2
    places = [at for at in form["results"] if at < count] or [0]
    names = [f"y{at}" if at in places else "" for at in range(count)]
    while operands[-1] == "":
        operands.pop()
    made = helper.make_node(operator, operands, names, **attributes)
    inputs = [info(name, value.shape) for name, value in feeds.items()]
    outputs = [info(f"y{at}", None) for at in places]
    return model_of([made], inputs, outputs, constants.items(), form["opset"]), feeds


def in_layout(name, value, layout):
    if not layout:
        return value
    return value.transpose(2, 0, 1, 3) if name == "y0" else value.swapaxes(0, 1)


FULL = {
    "direction": "bidirectional",
    "activations": 0,
    "opset": 14,
    "clip": 0.25,
    "own": True,
    "has_lengths": True,
    "has_states": True,
    "has_peepholes": True,
    "results": (0, 1, 2),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=15)
@example(form={**FULL, "operator": "LSTM"}, layout=1, is_call=False)
@example(form={**FULL, "operator": "GRU"}, layout=1, is_call=True)
@example(form={**FULL, "operator": "RNN"}, layout=1, is_call=False)
@given(form=FORMS, layout=st.integers(0, 1), is_call=st.booleans())
def test_recurrent_operators_in_both_layouts(precision, form, layout, is_call):
    options, least = PRECISIONS[precision]
    plain, feeds = recurrent(form, 0)
    expected = run(plain, feeds, optimize=False)
    model, feeds = recurrent(form, layout)
    if is_call:
        model = as_call(model)
    if precision == "int8":
        options = options | {"calibration_data": [feeds]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        found = session.run(feeds)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        right = in_layout(name, value, layout)
        assert found[name].shape == right.shape
        noise = float(((right - found[name]).astype(np.float64) ** 2).sum())
        assert noise <= float((right.astype(np.float64) ** 2).sum()) * 10 ** (-least / 10), name


@pytest.mark.skipif(not engine_version.is_newest(), reason="the evaluator of onnx 1.18 lacks the layout")
@pytest.mark.parametrize("operator", GATES)
def test_the_other_layout_is_that_of_the_specification(operator):
    """ONNX's evaluator supports the layout in one direction and with default activations."""
    plain = dict.fromkeys(("own", "has_lengths", "has_states", "has_peepholes"), False)
    form = {**FULL, **plain, "operator": operator, "direction": "forward", "clip": 0, "results": (1,)}
    model, feeds = recurrent(form, 1)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    with qaic.Session(model.SerializeToString()) as session:
        np.testing.assert_allclose(session.run(feeds)["y1"].reshape(expected.shape), expected, atol=1e-6)
