"""Random chains with planted faults: the reports contain the planted reasons and the planted set of nodes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import accuracy_models as models
from decoder_model import specializations
from qaic import accuracy
from qaic.accuracy.metrics import BINS, LEAST_EXPONENT, Histograms

KINDS = st.lists(st.sampled_from(["calm", "overflow", "cancellation", "underflow"]), min_size=1, max_size=5)


def reasons(report):
    return {str(row["name"]): str(row["reason"]) for row in report.nodes if row["reason"] != "none"}


@settings(max_examples=12)
@example(["calm"])
@example(["overflow", "calm", "cancellation", "underflow"])
@given(KINDS)
def test_reasons_are_those_that_were_planted(kinds):
    model, samples, planted = models.mixed_faults(kinds)
    assert reasons(accuracy.compare(model, to="fp16", samples=samples)) == planted


@settings(max_examples=4)
@given(st.lists(st.sampled_from(["calm", "overflow"]), min_size=1, max_size=4))
def test_the_set_is_what_was_planted(kinds):
    model, samples, planted = models.mixed_faults(kinds)
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=40")
    # A root would read infinity again in float16.
    roots = {name.replace("square", "size") for name in planted}
    assert set(plan.nodes) == set(planted) | roots


FAULTS = st.lists(st.sampled_from(["calm", "overflow", "cancellation", "underflow"]), min_size=1, max_size=4)


@settings(max_examples=3)
@example(["calm", "calm"])
@example(["overflow", "cancellation", "underflow", "calm"])
@given(FAULTS)
def test_transformers(faults):
    """The reasons and the set of nodes are the planted ones; for a model without faults, the set is empty."""
    model, samples, planted, kept = models.planted_transformer(faults)
    assert reasons(accuracy.compare(model, to="fp16", samples=samples)) == planted
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=45")
    assert set(plan.nodes) == kept
    assert plan.is_reached


@settings(max_examples=2)
@example(["calm", "calm"])
@given(st.lists(st.sampled_from(["calm", "outlier channel"]), min_size=1, max_size=3))
def test_outlier_channels_of_transformers(faults):
    """The planted channel is in the first offender; nodes that pass it on or read it also lose precision."""
    model, samples, _, _ = models.planted_transformer(faults)
    options = {"enable_channelwise": True, "enable_rowwise": True}
    report = accuracy.compare(model, to="int8", samples=samples, **options)
    places = [at for at, fault in enumerate(faults) if fault != "calm"]
    expected = {}
    for at in places:
        expected |= dict.fromkeys((f"values{at}", f"mixed{at}"), "outlier channel")
        expected[f"out{at}"] = "weight rounding"
    assert reasons(report) == expected
    if places:
        assert report.first_offender.name in {f"values{at}" for at in places}
    plan = accuracy.search(model, to="int8", samples=samples, target="sqnr>=25", **options)
    # The normalization rounds once; products read its result in float32 if their own results are float32.
    read = {f"{name}{at}" for at in places for name in ("mean", "centered", "normal")}
    assert expected.keys() <= set(plan.nodes) <= expected.keys() | read
    assert plan.after >= 25


OF_DECODERS = {
    "to": "int8",
    "samples": [{"input_ids": np.array(ids)} for ids in ([3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8])],
    "tokens": 10,
    "retained_state": True,
    "network_specialization_config": specializations(prefill=4),
    "enable_channelwise": True,
    "enable_rowwise": True,
}


def test_a_calm_decoder_has_no_outlier_channel():
    assert reasons(accuracy.compare(models.flat_decoder(), **OF_DECODERS)) == {}


@pytest.mark.parametrize("place", [0, 15])
def test_an_outlier_channel_of_a_decoder(place, caplog):
    """The values are the first offender, even if the sets of shapes have different sizes."""
    model = models.flat_decoder(place)
    report = accuracy.compare(model, **OF_DECODERS)
    passed_on = ("value", "past_value_RetainedState", "mixed")
    assert reasons(report) == {**dict.fromkeys(passed_on, "outlier channel"), "out": "weight rounding"}
    assert report.first_offender.name == "value"
    plan = accuracy.search(model, target="sqnr>=20", **OF_DECODERS)
    # The weights next to scores of -10,000 lose precision in any case.
    assert set(plan.nodes) == {"value", "shares", "mixed", "out"}
    assert not [record for record in caplog.records if "no effect" in record.message]


@pytest.mark.parametrize("place", [0, 5, 15])
def test_an_outlier_channel_is_found_where_it_is(place):
    model, samples = models.convolutional()
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, axis, factor in (("k1", 0, 1000.0), ("b1", 0, 1000.0), ("k2", 1, 1e-3)):
        values = np.frombuffer(tensors[name].raw_data, np.float32).reshape(tensors[name].dims).copy()
        np.moveaxis(values, axis, 0)[place] *= factor
        tensors[name].raw_data = values.tobytes()
    report = accuracy.compare(model, to="int8", samples=samples, enable_channelwise=True)
    assert reasons(report) == {"r1": "outlier channel", "c2": "weight rounding"}


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(width=32), st.floats(width=32)), min_size=1, max_size=4)
)
def test_histograms_are_those_of_numpy(parts):
    elements, values = [], []
    for count, a, b in parts:
        elements += [count, 0, 0]
        values += [a] * count + [b] * count
    made = Histograms(elements)
    made.add(np.array([values], np.float32))
    made.add(np.array([values], np.float32))
    for row, (count, a, b) in enumerate(parts):
        for counts, value in zip(made.of(3 * row), (a, b), strict=True):
            expected = np.zeros(BINS, int)
            if value == 0:
                place = 0
            elif not np.isfinite(value):
                place = BINS - 1
            else:
                octave = np.floor(np.log2(abs(float(value))))
                place = 1 + int(np.clip(octave - LEAST_EXPONENT, 0, BINS - 3))
            expected[place] = 2 * count
            assert counts.tolist() == expected.tolist()
    assert made.of(1) is None
