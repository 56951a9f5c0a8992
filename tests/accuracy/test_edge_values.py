"""Infinite values, NaN and invalid samples cause clear errors or the right figures."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

import accuracy_models as models
from qaic import accuracy
from qaic.errors import CompileError, OptionError

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@pytest.fixture(scope="module")
def chain():
    model, samples, _ = models.overflowing((), length=1)
    return model, samples


def of_types(nodes, inputs, outputs):
    """Build a model of nodes; inputs and outputs map a name to (type, shape)."""
    ends = [
        [helper.make_tensor_value_info(name, *spec) for name, spec in part.items()]
        for part in (inputs, outputs)
    ]
    graph = helper.make_graph([helper.make_node(*item) for item in nodes], "types", *ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def every_form(report, folder):
    """Write a report in all its forms; return the sentences."""
    report.page(folder / "page.html")
    report.write_json(folder / "report.json")
    report.write_overlay(folder / "overlay.json")
    assert str(report)
    assert report._repr_html_()
    return "\n".join(report.sentences())


@pytest.mark.parametrize("none", [[], (), iter([])])
def test_no_samples(chain, none):
    with pytest.raises(OptionError, match="samples: found no samples, expected an iterable"):
        accuracy.compare(chain[0], to="fp16", samples=none)
    with pytest.raises(OptionError, match="samples: found no samples"):
        accuracy.search(chain[0], to="fp16", samples=[], target="sqnr>=40")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"x": np.zeros((3, 16), np.float32)},
            r"sample 2: found input 'x' of shape \[3, 16\], expected shape",
        ),
        (
            {"x": np.zeros(16, np.float32)},
            r"sample 2: found input 'x' of shape \[16\], expected shape \[4, 16\]",
        ),
        ({"x": "text"}, "sample 2: found input 'x' of shape"),
        ({}, "sample 2: found no input 'x'"),
        ({"x": np.zeros((4, 16)), "z": 1}, "sample 2: found the unknown input 'z'"),
    ],
)
def test_samples_that_do_not_fit(chain, wrong, message):
    model, samples = chain
    for call in (
        lambda given: accuracy.compare(model, to="fp16", samples=given),
        lambda given: accuracy.search(model, to="fp16", samples=given, target="sqnr>=40"),
    ):
        with pytest.raises(OptionError, match=message):
            call([samples[0], wrong])


def test_one_sample(chain, tmp_path):
    model, samples = chain
    report = accuracy.compare(model, to="fp16", samples=samples[:1])
    assert "1 sample, " in every_form(report, tmp_path)
    assert report["fp16"].samples == 1
    assert 50 < report["fp16"].outputs[0].sqnr_db < 90


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reference_that_is_not_finite_says_nothing(chain, value, tmp_path):
    """One of four rows is invalid in one of two samples; the other rows are compared without it."""
    model, samples = chain
    spoilt = samples[0]["x"].copy()
    spoilt[1, 2] = value
    report = accuracy.compare(model, to="fp16", samples=[{"x": spoilt}, samples[1]])
    (output,) = report["fp16"].outputs
    assert output.not_finite == 16
    assert output.elements == 128
    assert 50 < output.sqnr_db < 90
    assert "infinite or NaN even in float32, so not compared: 16 of 128 elements" in every_form(
        report, tmp_path
    )
    plan = accuracy.search(model, to="fp16", samples=[{"x": spoilt}, samples[1]], target="sqnr>=40")
    assert 50 < plan.before < 90
    with pytest.raises(CompileError, match="because a range is measured"):
        accuracy.compare(model, to="int8", samples=[{"x": spoilt}])


def test_nothing_that_is_finite(chain, tmp_path):
    """The normalization divides zero by zero."""
    nothing = [{"x": np.zeros((4, 16), np.float32)}] * 2
    report = accuracy.compare(chain[0], to="fp16", samples=nothing)
    assert "64 of 128" not in every_form(report, tmp_path)
    assert "infinite or NaN even in float32, so not compared: 128 of 128 elements" in every_form(
        report, tmp_path
    )
    with pytest.raises(OptionError, match="found no finite element in the outputs y0 in float32"):
        accuracy.search(chain[0], to="fp16", samples=nothing, target="sqnr>=40")


@pytest.mark.parametrize("to", ["fp16", "int8"])
def test_a_reference_of_zeros(to, tmp_path):
    inputs = {"x": [2, 4]}
    nodes = [models.node("Mul", "x x", "a"), models.node("Mul", "a zero", "y")]
    model = models.model_of(nodes, inputs, {"y": [2, 4]}, {"zero": np.array(0, np.float32)})
    report = accuracy.compare(model, to=to, samples=models.samples(inputs))
    (output,) = report[to].outputs
    assert output.is_equal
    assert math.isnan(output.cosine)
    assert math.isnan(output.largest_relative_error)
    assert f"{to}: output y is equal" in every_form(report, tmp_path)
    # A result of zero with noise: the rounding error of `x + large` remains after both subtractions.
    nodes = [
        models.node("Add", "x large", "a"),
        models.node("Sub", "a large", "b"),
        models.node("Sub", "b x", "y"),
    ]
    model = models.model_of(nodes, inputs, {"y": [2, 4]}, {"large": np.array(2048, np.float32)})
    exact = [{"x": np.full((2, 4), 0.5, np.float32)}]
    (output,) = accuracy.compare(model, to="fp16", samples=exact)["fp16"].outputs
    assert output.sqnr_db == -math.inf
    assert output.largest_error == 0.5


@pytest.mark.parametrize("to", ["fp16", "mxfp6", "fp32"])
def test_tensors_without_elements(to, tmp_path):
    nodes = [("Mul", ["x", "x"], ["a"]), ("Exp", ["a"], ["y"])]
    model = of_types(nodes, {"x": (FLOAT, [0, 4])}, {"y": (FLOAT, [0, 4])})
    empty = [{"x": np.zeros((0, 4), np.float32)}] * 2
    report = accuracy.compare(model, to=to, samples=empty)
    (output,) = report[to].outputs
    assert (output.elements, output.largest_error) == (0, 0.0)
    assert math.isnan(output.sqnr_db)
    assert report[to].verdict == "equal"
    every_form(report, tmp_path)
    with pytest.raises(OptionError, match="found no finite element in the outputs y"):
        accuracy.search(model, to=to, samples=empty, target="sqnr>=40")


def test_integers_and_booleans_that_are_outputs(tmp_path):
    """The decisions are the larger of two numbers, and the position of the largest."""
    nodes = [
        ("Mul", ["x", "x"], ["a"]),
        ("ArgMax", ["a"], ["where"]),
        ("Greater", ["a", "x"], ["is_larger"]),
    ]
    ends = {"where": (INT64, [1, 4]), "is_larger": (BOOL, [2, 4])}
    model = of_types(nodes, {"x": (FLOAT, [2, 4])}, ends)
    # 1 and 1 plus a float16 step have the same square in float16.
    close = np.array([[1, 2, 3, 4], [1 + 2.0**-13, 1, 1, 1]], np.float32)
    report = accuracy.compare(model, to="fp16", samples=[{"x": close}])
    where, is_larger = report["fp16"].outputs
    assert (where.elements, where.same) == (4, 0.75)
    assert (is_larger.elements, is_larger.same) == (8, 7 / 8)
    assert "75.0 % equal decisions" in every_form(report, tmp_path)


def test_integers_and_booleans_that_are_inputs(tmp_path):
    nodes = [
        ("Cast", ["k"], ["wide"]),
        ("Where", ["c", "wide", "x"], ["chosen"]),
        ("Exp", ["chosen"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [2, 4]), "k": (INT64, [2, 4]), "c": (BOOL, [2, 4])}
    model = of_types(nodes, inputs, {"y": (FLOAT, [2, 4])})
    model.graph.node[0].attribute.append(helper.make_attribute("to", FLOAT))
    sample = {"x": np.ones((2, 4), np.float32), "k": np.arange(8).reshape(2, 4), "c": np.eye(2, 4) > 0}
    report = accuracy.compare(model, to="fp16", samples=[sample])
    expected = np.exp(np.where(sample["c"], sample["k"], sample["x"]).astype(np.float32))
    largest = np.abs(expected.astype(np.float16) - expected.astype(np.float64)).max()
    assert report["fp16"].outputs[0].largest_error == pytest.approx(largest, rel=1e-3)
    every_form(accuracy.compare(model, to="fp16,int8", samples="random"), tmp_path)


@pytest.mark.parametrize("to", ["fp16", "int8"])
def test_a_model_of_integers_alone(to, tmp_path):
    model = of_types([("Add", ["k", "k"], ["y"])], {"k": (INT64, [2, 4])}, {"y": (INT64, [2, 4])})
    samples = [{"k": np.arange(8).reshape(2, 4)}] * 3
    report = accuracy.compare(model, to=to, samples=samples)
    assert len(report.nodes) == 0
    assert report.first_offender is None
    assert report[to].outputs[0].same == 1
    every_form(report, tmp_path)
    plan = accuracy.search(model, to=to, samples=samples, target="same>=90%")
    assert (plan.nodes, plan.before) == ((), 1.0)


def test_scalars(tmp_path):
    model = of_types([("Mul", ["x", "x"], ["y"])], {"x": (FLOAT, [])}, {"y": (FLOAT, [])})
    samples = [{"x": np.array(3.3, np.float32)}] * 2
    report = accuracy.compare(model, to="fp16", samples=samples)
    assert math.isnan(report["fp16"].outputs[0].same)
    every_form(report, tmp_path)
    with pytest.raises(OptionError, match="'same' does not apply to the outputs y"):
        accuracy.search(model, to="fp16", samples=samples, target="same>=90%")
