"""Random graphs with all operators, in every precision, compared with onnxruntime on the user's model."""

import numpy as np
import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

import engine_version
import qaic
import session_models
from operator_cases import OPERATOR_SETS, OPERATORS, drawn

#: Operators whose results change a lot if an operand changes a little, so that int8 results prove nothing.
UNSTEADY = frozenset(
    {"Div", "InstanceNormalization", "LayerNormalization", "Log", "LogSoftmax", "LpNormalization"}
) | {*("MeanVarianceNormalization", "RMSNormalization", "Sin", "Sinh", "Softmax", "Sqrt")}

PRECISIONS = {
    "float32": ({}, 90),
    "expanded": ({"always_expand_onnx_functions": True}, 90),
    "float16": ({"convert_to_fp16": True}, 30),
    "int8": ({"convert_to_quantize": True, "enable_channelwise": True}, 8),
}


def reference(model, feeds):
    """Run a model in onnxruntime without optimization."""
    return session_models.engine(model, optimize=False).run(None, feeds)[0]


def as_function(model):
    """Move the nodes of a model into a function, and add a node with a default attribute for a slope."""
    sets = [helper.make_opsetid("", model.opset_import[0].version), helper.make_opsetid("local", 1)]
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer
    ]
    slope = helper.make_node("LeakyRelu", [model.graph.node[-1].input[0]], ["sloped"])
    attribute = slope.attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "slope", 1
    body = [*constants, *list(model.graph.node)[:-1], slope]
    function = helper.make_function(
        "local", "Body", ["x"], ["sloped"], body, sets, [], [helper.make_attribute("slope", 0.5)]
    )
    call = helper.make_node("Body", ["x"], ["y"], domain="local")
    graph = helper.make_graph([call], "caller", model.graph.input, model.graph.output)
    return helper.make_model(
        graph, functions=[function], opset_imports=sets, ir_version=max(8, model.ir_version)
    )


def evaluated(at, feeds):
    """Run the nodes of `as_function` in ONNX's evaluator, which ignores default attributes of functions."""
    model = at.model()
    last = model.graph.node.pop()
    model.graph.node.append(helper.make_node("LeakyRelu", last.input, last.output, alpha=0.5))
    return ReferenceEvaluator(model).run(None, feeds)[0]


@st.composite
def cases(draw):
    opset = draw(st.sampled_from(OPERATOR_SETS))
    known = sorted(name for name, (since, _) in OPERATORS.items() if since <= opset)
    operators = draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))
    # 1 to 300 channels: constants of one element to 1 MiB, below and above 1 KiB.
    channels = draw(st.sampled_from([1, 3, 16, 255, 256, 300]))
    shape = (1, channels, draw(st.integers(3, 8)), draw(st.integers(3, 8)))
    if draw(st.booleans()):
        operators = ["Transpose", *operators, "Transpose"]
    # In older sets, Constant has only floats.
    in_function = opset >= 9 and draw(st.booleans())
    return operators, opset, draw(st.integers(0, 2**16)), shape, in_function


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=15)
@example(case=(["MeanVarianceNormalization"], 18, 3, (1, 3, 5, 6), True))
@given(case=cases())
def test_numbers_are_those_of_the_users_model(precision, case):
    operators, opset, seed, shape, in_function = case
    options, least = PRECISIONS[precision]
    if precision == "int8":
        assume(not UNSTEADY.intersection(operators) and len(operators) <= 5)
    at = drawn(operators, opset, seed, shape)
    assume(at.nodes)
    model = as_function(at.model()) if in_function else at.model()
    feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    try:
        expected = reference(model, feeds)
    except InvalidArgument:
        # The oldest engine does not normalize single elements.
        if engine_version.is_newest():
            raise
        reject()
    except Fail:
        # The engine expands some standard functions wrongly inside a function.
        assume(precision != "float32")
        expected = evaluated(at, feeds)
    power = float((expected.astype(np.float64) ** 2).sum())
    if precision == "float16":
        # Values beyond the range of float16 become infinite.
        assume("Sinh" not in operators and np.abs(expected).max() < 3e4)
    assume(np.isfinite(expected).all() and 1e-6 < power / expected.size < 1e8)
    if precision == "int8":
        options = {**options, "calibration_data": [feeds]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        found = np.array(session.run(feeds)["y"])
    assert found.shape == expected.shape
    noise = float(((expected - found).astype(np.float64) ** 2).sum())
    assert noise <= power * 10 ** (-least / 10), 10 * np.log10(power / noise)
