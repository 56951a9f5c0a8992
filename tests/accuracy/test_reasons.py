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
