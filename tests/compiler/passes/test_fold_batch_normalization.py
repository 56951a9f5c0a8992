"""A convolution and the normalization behind it as one node."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import info, model_of, node
from single_pass import applied, before, content, ops, outputs, skipped

INTEGERS = "fold-batch-normalization-for-integers"
FLOAT16 = "fold-batch-normalization-for-float16"


def normalized(*, bias=True, extra=(), norm=None, outputs=("y",)):
    """Make a convolution of 3 to 4 channels and its normalization."""
    random = np.random.default_rng(3)
    constants = [("k", random.standard_normal((4, 3, 3, 3), np.float32))]
    constants += [("b", random.standard_normal(4, np.float32))] if bias else []
    constants += [(name, random.standard_normal(4, np.float32)) for name in ("scale", "shift", "mean")]
    constants += [("variance", random.uniform(0.5, 2, 4).astype(np.float32))]
    conv = node("Conv", ["x", "k", *(["b"] if bias else [])], ["c"], name="conv", pads=[1, 1, 1, 1])
    return model_of(
        [
            conv,
            node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"], **(norm or {})),
            *extra,
        ],
        [info("x", [1, 3, 5, 5])],
        [info(name, [1, 4, 5, 5]) for name in outputs],
        constants,
        opset=13,
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
    # The types and shapes of what was added are known.
    assert all(model.facts.types[name] == TensorProto.FLOAT for name in model.proto.graph.node[0].input)


def test_folding_twice_changes_nothing():
    model, context = before(INTEGERS, normalized(), convert_to_quantize=True)
    applied(INTEGERS, model, context)
    found = content(model)
    assert not applied(INTEGERS, model, context)
    assert content(model) == found


@pytest.mark.parametrize(
    "kept",
    [
        {"extra": [node("Relu", ["c"], ["z"])], "outputs": ("y", "z")},
        {"outputs": ("y", "c")},
    ],
)
def test_convolution_with_another_reader_stays(kept):
    model, context = before(INTEGERS, normalized(**kept), convert_to_quantize=True)
    found = content(model)
    assert not applied(INTEGERS, model, context)
    assert content(model) == found


@pytest.mark.parametrize("computed", ["k", "b", "scale", "shift", "mean", "variance"])
def test_numbers_that_an_input_changes_stay(computed):
    proto = normalized()
    for vertex in proto.graph.node:
        vertex.input[:] = ["given" if name == computed else name for name in vertex.input]
    proto.graph.input.append(info("given", [4, 3, 3, 3] if computed == "k" else [4]))
    model, context = before(INTEGERS, proto, convert_to_quantize=True)
    assert not applied(INTEGERS, model, context)
    assert ops(model) == ["Conv", "BatchNormalization"]


def test_nodes_that_a_file_names_stay_apart(tmp_path):
    file = tmp_path / "precision.yaml"
    file.write_text("FP16NodeInstanceNames: [c]\n")
    options = {"convert_to_quantize": True, "node_precision_info_file": str(file)}
    model, context = before(INTEGERS, normalized(), **options)
    assert not applied(INTEGERS, model, context)


def test_reasons_for_normalizations_that_stay_are_reported():
    model, context = before(INTEGERS, normalized(outputs=("y", "c")), convert_to_quantize=True)
    assert skipped(INTEGERS, model, context) == [
        f"{INTEGERS} left 1 node (first 'y'): the result of the convolution has other readers"
    ]


def test_float16_folds_what_is_rounded_as_one_unit():
    model, context = before(FLOAT16, normalized(), convert_to_fp16=True)
    assert applied(FLOAT16, model, context)
    assert ops(model) == ["Conv"]


def test_float32_folds_nothing():
    model, context = before(FLOAT16, normalized())
    found = content(model)
    assert not applied(FLOAT16, model, context)
    assert content(model) == found
