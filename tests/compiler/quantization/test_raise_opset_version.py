"""Operator sets that are too old for integers."""

import numpy as np
import pytest

from compiler_oracle import info, model_of, node
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.quantization.prepare import raise_operator_set
from single_pass import applied, before, content, outputs

NAME = "raise-opset-version"


def product(opset, extra=()):
    nodes = [node("MatMul", ["x", "w"], ["p"]), *extra, node("Relu", ["p"], ["y"])]
    weight = np.random.default_rng(8).standard_normal((3, 4), np.float32)
    return model_of(nodes, [info("x", [2, 3])], [info("y", [2, 4])], [("w", weight)], opset=opset)


def prepared(opset, **more):
    model, context = before(NAME, product(opset, **more), convert_to_quantize=True)
    context.plan.classes["p"] = PrecisionClass.INT8
    return model, context


def versions(model):
    return {entry.domain: entry.version for entry in model.proto.opset_import}


@pytest.mark.parametrize(("opset", "raised"), [(9, 12), (10, 12), (11, 12), (12, 12), (17, 17)])
def test_old_set_becomes_the_first_with_integers_and_results_stay(opset, raised):
    model, context = prepared(opset)
    x = {"x": np.random.default_rng(9).standard_normal((2, 3), np.float32)}
    expected, imported = outputs(model, x)["y"], versions(model)
    assert applied(NAME, model, context) == (raised != opset)
    # Other domains are imported as before.
    assert versions(model) == imported | {"": raised}
    np.testing.assert_array_equal(outputs(model, x)["y"], expected)
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_float_graph_keeps_its_set():
    model, context = prepared(9)
    context.plan.classes.clear()
    assert not applied(NAME, model, context)
    assert versions(model)[""] == 9


def test_set_that_cannot_be_converted_is_said(caplog):
    model, context = prepared(9)
    model.proto.graph.node[1].op_type = "Unheard"
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found
    assert "stays in floating point" in caplog.text


def test_set_of_a_reader_of_an_unknown_type_stays(caplog):
    """The converter of onnx infers types, which ends the process for this model."""
    nodes = [node("FastGelu", ["x"], ["h"], domain="com.microsoft"), node("EyeLike", ["h"], ["y"], dtype=1)]
    assert not raise_operator_set(model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3])], opset=9), {})
    assert "an operand of an unknown type" in caplog.text


@pytest.mark.parametrize("name", ["coordinate_transformation_mode", "nearest_mode"])
def test_coordinates_of_a_converted_resize_are_given_once(name):
    nodes = [node("Resize", ["x", "s"], ["y"], **{name: ""})]
    scales = np.array([1, 1, 2, 2], np.float32)
    model = model_of(nodes, [info("x", [1, 1, 2, 2])], [info("y", [1, 1, 4, 4])], [("s", scales)], opset=10)
    assert raise_operator_set(model, {})
    (made,) = (made for made in model.graph.node if made.op_type == "Resize")
    given = sorted(attribute.name for attribute in made.attribute)
    assert given == ["coordinate_transformation_mode", "nearest_mode"]
    assert next(attribute.s for attribute in made.attribute if attribute.name == name) == b""
