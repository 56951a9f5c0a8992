"""The report names planted faults at their nodes, and no other node."""

import re

import numpy as np
import pytest

import accuracy_models as models
from qaic import accuracy


def reasons(report):
    return {str(row["name"]): str(row["reason"]) for row in report.nodes if row["reason"] != "none"}


@pytest.mark.parametrize("places", [(), (1,), (0, 3), (1, 2)])
def test_overflows(places):
    model, samples, planted = models.overflowing(places)
    report = accuracy.compare(model, to="fp16", samples=samples)
    found = reasons(report)
    assert found == dict.fromkeys(planted, "overflow")
    if places:
        offender = report.first_offender
        assert offender.name == f"square{places[0]}"
        assert offender.reason == "overflow"
        assert "float32" in offender.remedy
        assert report["fp16"].verdict == "wrong"
    else:
        assert report.first_offender is None
        assert report["fp16"].verdict == "good"


def test_cancellation():
    model, samples, planted = models.cancelling()
    report = accuracy.compare(model, to="fp16", samples=samples)
    assert reasons(report) == {"lowered": "cancellation"}
    assert report.first_offender.name in planted


def test_underflow():
    model, samples, planted = models.underflowing()
    report = accuracy.compare(model, to="fp16", samples=samples)
    assert reasons(report) == dict.fromkeys(planted, "underflow")


def test_outlier_channel():
    model, samples = models.convolutional(outlier=1000.0)
    report = accuracy.compare(model, to="int8", samples=samples, enable_channelwise=True)
    # The weights that read the channel are smaller by the same factor, and all channels share one scale.
    assert reasons(report) == {"r1": "outlier channel", "c2": "weight rounding"}
    assert report.first_offender.name == "r1"
    calm, samples = models.convolutional()
    assert (
        "outlier channel"
        not in reasons(accuracy.compare(calm, to="int8", samples=samples, enable_channelwise=True)).values()
    )


def test_weights_are_told_apart_from_activations():
    model, samples = models.attention()
    report = accuracy.compare(model, to="mxfp6", samples=samples)
    for row in report.nodes:
        # Only products have rounded weights; other operators compute in float32.
        assert np.isfinite(row["own_sqnr_db"]) == bool(re.match("query|key|values|out", row["name"]))
        if np.isfinite(row["own_sqnr_db"]):
            assert 20 < row["own_sqnr_db"] < 40


def test_the_first_nodes_inherit_only_what_they_add():
    model, samples = models.convolutional()
    rows = accuracy.compare(model, to="fp16", samples=samples).nodes
    assert rows["name"].tolist() == ["r1", "c2", "s2", "pooled", "flat", "logits", "y"][: len(rows)]
    assert rows["fused"][0] == ("c1",)
    assert (rows["inherited_sqnr_db"] <= rows["own_sqnr_db"] + 3).all()


def masking(constant, *, outputs=("y",), more=()):
    """Scores of four keys, of which a mask of 0 and 1 removes some; ``constant`` is added to these."""
    nodes = [
        models.node("MatMul", "x w", "scores"),
        models.node("Sub", "one mask", "removed"),
        models.node("Mul", "removed least", "bias"),
        models.node("Add", "scores bias", "masked"),
        models.node("Softmax", "masked", "weights", axis=-1),
        models.node("MatMul", "weights v", "y"),
        *more,
    ]
    rng = np.random.default_rng(5)
    constants = {
        "w": rng.standard_normal((8, 4)).astype(np.float32),
        "v": rng.standard_normal((4, 8)).astype(np.float32),
        "one": np.array([1.0], np.float32),
        "least": np.array([constant], np.float32),
    }
    shapes = {"y": [3, 8], "masked": [3, 4], "z": [3, 4]}
    inputs = {"x": [3, 8], "mask": [1, 4]}
    model = models.model_of(nodes, inputs, {name: shapes[name] for name in outputs}, constants)
    x = models.samples({"x": [3, 8]})
    return model, [{**sample, "mask": np.float32([[1, 1, 0, 0]])} for sample in x]


@pytest.mark.parametrize("constant", [-2e3, -1e9, -3.4e38])
def test_masked_scores_are_explained_and_no_offender(constant, tmp_path):
    """Regression: the line of the page fell there without an explanation, and the mask was the offender."""
    model, samples = masking(constant)
    report = accuracy.compare(model, to="fp16", samples=samples)
    assert reasons(report) == {"bias": "masked", "masked": "masked"}
    assert report["fp16"].verdict == "good"
    assert report.first_offender is None
    assert {"bias", "masked"}.isdisjoint(report.nodes["name"][report["fp16"].worst(9)])
    assert (
        "Masked scores are in &#x27;bias&#x27;, &#x27;masked&#x27;"
        in report.page(tmp_path / "p.html").read_text()
    )


@pytest.mark.parametrize(
    "more",
    [
        {"outputs": ("y", "masked")},
        {"outputs": ("y", "z"), "more": [models.node("Tanh", "masked", "z")]},
    ],
)
def test_large_scores_that_others_read_are_not_called_masked(more):
    report = accuracy.compare(*masking(-1e9, **more)[:1], to="fp16", samples=masking(-1e9)[1])
    assert "masked" not in reasons(report).values()


def test_a_mask_without_a_finite_softmax_is_the_offender():
    model, samples = masking(-3.4e38)
    samples = [{**sample, "mask": np.zeros((1, 4), np.float32)} for sample in samples]
    report = accuracy.compare(model, to="fp16", samples=samples, clip_fp16_constants=False)
    assert reasons(report)["masked"] == "overflow"
    assert report["fp16"].verdict == "wrong"
    assert report.first_offender.reason == "overflow"
