"""A convolution and its normalization, folded into one node."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import info, model_of, node
from single_pass import applied, before, content, ops, outputs, skipped

INTEGERS = "fold-batch-normalization-for-integers"
FLOAT16 = "fold-batch-normalization-for-float16"

STATISTICS = ["scale", "shift", "mean", "variance"]
OPERAND = "no convolution computes the operand"
STORED = "the normalization does not use stored statistics for each channel"
READERS = "the result of the convolution has other readers"
CONSTANT = "an operand is no float32 constant"


def normalized(
    *, bias=True, attributes=None, results=("y",), outputs=("y",), extra=(), given=None, reads=None, opset=13
):
    """Build a convolution of 3 to 4 channels and its normalization; `reads` replaces operands."""
    reads = reads or {}
    random = np.random.default_rng(3)
    constants = [("k", random.standard_normal((4, 3, 3, 3), np.float32))]
    constants += [("b", random.standard_normal(4, np.float32))] if bias else []
    constants += [(name, random.standard_normal(4, np.float32)) for name in STATISTICS[:3]]
    constants += [("variance", random.uniform(0.5, 2, 4).astype(np.float32))]
    pair = [
        node("Conv", ["x", "k", *(["b"] if bias else [])], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", *STATISTICS], results, epsilon=0.1, **(attributes or {})),
    ]
    # A second pair that is folded.
    old = {"is_test": 1} if opset < 7 else {}
    second = [
        node("Conv", ["x", "k", "b"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c2", *STATISTICS], ["y2"], **old),
    ]
    for vertex in pair:
        vertex.input[:] = [reads.get(name, name) for name in vertex.input]
    return model_of(
        [pair[0], *extra, pair[1], *(second if "y2" in outputs else [])],
        [info("x", [1, 3, 5, 5]), *([info("given", given)] if given else [])],
        [info(name, [1, 4, 5, 5]) for name in outputs],
        constants,
        opset=opset,
    )


@pytest.mark.parametrize("bias", [True, False])
def test_both_become_one_convolution_with_the_same_result(bias):
    model, context = before(INTEGERS, normalized(bias=bias), convert_to_quantize=True)
    x = {"x": np.random.default_rng(4).standard_normal((1, 3, 5, 5), np.float32)}
    expected = outputs(model, x)["y"]
    assert applied(INTEGERS, model, context)
    assert ops(model) == ["Conv"]
    assert model.proto.graph.node[0].output == ["y"]
    np.testing.assert_allclose(outputs(model, x)["y"], expected, rtol=1e-5, atol=1e-5)
    # The types and shapes of the added values are known.
    assert all(model.facts.types[name] == TensorProto.FLOAT for name in model.proto.graph.node[0].input)


def test_folding_twice_changes_nothing():
    model, context = before(INTEGERS, normalized(), convert_to_quantize=True)
    applied(INTEGERS, model, context)
    found = content(model)
    assert not applied(INTEGERS, model, context)
    assert content(model) == found


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        (OPERAND, {"extra": [node("Relu", ["c"], ["r"])], "reads": {"c": "r"}}),
        (OPERAND, {"given": [1, 4, 5, 5], "reads": {"c": "given"}}),
        (STORED, {"attributes": {"training_mode": 1}, "opset": 15}),
        (STORED, {"results": ["y", "m", "v", "m2", "v2"]}),
        (STORED, {"attributes": {"spatial": 0}, "opset": 8}),
        (STORED, {"attributes": {"is_test": 0}, "opset": 6}),
        (STORED, {"opset": 6}),
        (READERS, {"extra": [node("Relu", ["c"], ["z"])], "outputs": ["y", "z"]}),
        (READERS, {"outputs": ["y", "c"]}),
        (CONSTANT, {"given": [4, 3, 3, 3], "reads": {"k": "given"}}),
        *((CONSTANT, {"given": [4], "reads": {name: "given"}}) for name in ["b", *STATISTICS]),
    ],
)
def test_a_normalization_that_stays_has_a_reason_and_stops_no_other(reason, parts):
    proto = normalized(**parts | {"outputs": [*parts.get("outputs", ["y"]), "y2"]})
    model, context = before(INTEGERS, proto, convert_to_quantize=True)
    assert skipped(INTEGERS, model, context) == [f"{INTEGERS} left 1 node (first 'y'): {reason}"]
    conv, *_, norm, second = model.proto.graph.node
    assert (conv.output, norm.output[0], second.op_type, second.output) == (["c"], "y", "Conv", ["y2"])


def test_nodes_that_a_file_names_stay_apart(tmp_path):
    file = tmp_path / "precision.yaml"
    file.write_text("FP16NodeInstanceNames: [c]\n")
    options = {"convert_to_quantize": True, "node_precision_info_file": str(file)}
    model, context = before(INTEGERS, normalized(outputs=["y", "y2"]), **options)
    reason = "options keep the convolution and the normalization apart"
    assert skipped(INTEGERS, model, context) == [f"{INTEGERS} left 1 node (first 'y'): {reason}"]
    assert ops(model) == ["Conv", "BatchNormalization", "Conv"]


def test_float16_folds_what_is_rounded_as_one_unit():
    model, context = before(FLOAT16, normalized(), convert_to_fp16=True)
    assert applied(FLOAT16, model, context)
    assert ops(model) == ["Conv"]


def test_float32_folds_nothing():
    model, context = before(FLOAT16, normalized())
    found = content(model)
    assert not applied(FLOAT16, model, context)
    assert content(model) == found
