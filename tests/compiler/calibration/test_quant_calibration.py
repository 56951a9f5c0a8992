"""Calibrations compared with numpy code from the specification, and their error with onnxruntime's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import calibrate as ort_calibrate

import quant_oracle as oracle
from qaic import _core
from qaic.errors import InputError, OptionError

METHODS = ["None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"]
schemas = st.sampled_from(oracle.SCHEMAS)


@st.composite
def histograms(draw):
    """Distributions of tensors: bells, one-sided bells, spikes, outliers, and arbitrary counts."""
    bins = draw(st.sampled_from([1, 2, 10, 127, 254, 255, 256, 300, 511, 512]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["bell", "relu", "sparse", "noise"]))
    if kind == "noise":
        counts = random.integers(0, 50, bins)
        low, high = np.sort(random.normal(0, 3, 2))
    else:
        values = random.normal(random.normal(), 1, 4000)
        if kind == "relu":
            values = np.maximum(values, 0)
        if kind == "sparse":
            values = np.round(values, 1)
        values = np.append(values, random.normal(0, draw(st.sampled_from([1, 8])), 3))
        low, high = float(values.min()), float(values.max())
        counts, _ = np.histogram(values, bins, (low, high))
    return counts.astype(np.float32), low, high


def ours(counts, low, high, method, schema, percentile=99.5, precision="Int8"):
    return _core.calibrate_range(counts, low, high, method, schema, precision, percentile)


@settings(max_examples=60)
@given(histograms(), schemas, st.sampled_from(["KLMinimization", "KLMinimizationV2"]))
def test_windows_have_the_least_divergence(histogram, schema, method):
    found = ours(*histogram, method, schema)
    assert found == pytest.approx(oracle.calibrate(*histogram, method, schema), rel=1e-9)


@given(histograms(), schemas, st.sampled_from([50.1, 90.0, 99.0, 99.9, 99.99, 100.0]))
def test_percentiles_cut_what_they_say(histogram, schema, percentile):
    expected = oracle.calibrate(*histogram, "Percentile", schema, percentile=percentile)
    found = ours(*histogram, "Percentile", schema, percentile)
    counts, low, high = histogram
    # If a sum reaches the limit except for its last bits, the range can contain one more bin.
    assert found == pytest.approx(expected, rel=1e-9, abs=1.01 * max(abs(low), abs(high)) / counts.size)
    assert low <= found[0] <= found[1] <= high


@given(histograms(), schemas)
def test_percentiles_of_round_sums_are_exact(histogram, schema):
    for percentile in (75.0, 99.609375):
        expected = oracle.calibrate(*histogram, "Percentile", schema, percentile=percentile)
        if oracle.SCHEMAS.index(schema) == 0:
            assert ours(*histogram, "Percentile", schema, percentile) == pytest.approx(expected, rel=1e-9)


@given(histograms(), schemas, st.sampled_from(["MSE", "SQNR"]), st.sampled_from(["Int8", "Int16"]))
def test_no_candidate_has_less_error(histogram, schema, method, precision):
    counts, low, high = histogram
    found = ours(*histogram, method, schema, precision=precision)
    if low == high or not counts.any():
        assert found == (low, high)
        return
    whole = oracle.adjusted_range(low, high, schema, precision)
    symmetric = schema in oracle.SCHEMAS[1::2] or (schema == "symmetric_with_uint8" and low < 0)
    ranges = oracle.candidate_ranges(whole, symmetric, precision)
    clipping = 3 if method == "SQNR" else 1
    errors = [oracle.range_error(counts, low, high, each, precision, clipping) for each in ranges]
    # The error of the candidate counts: the last bit of a range can decide to which level a bin is rounded.
    chosen = [
        error
        for each, error in zip(ranges, errors, strict=True)
        if found == pytest.approx(each, rel=1e-9, abs=1e-300)
    ]
    assert min(chosen) == pytest.approx(min(errors), rel=1e-6)


def bell(seed, size=200_000):
    random = np.random.default_rng(seed)
    values = random.standard_t(5, size)
    low, high = float(values.min()), float(values.max())
    return values, np.histogram(values, 512, (low, high))[0].astype(np.float32), low, high


@pytest.mark.parametrize("schema", oracle.SCHEMAS)
def test_mse_leaves_the_least_error_of_all_methods(schema):
    values, counts, low, high = bell(0)

    def error(method):
        scale, offset = _core.quant_range(*ours(counts, low, high, method, schema), schema, "Int8")
        back = oracle.dequantize(oracle.quantize(values.astype(np.float32), scale, offset), scale, offset)
        return np.mean((back - values) ** 2)

    errors = {method: error(method) for method in METHODS}
    # A scale that is raised to a power of two is not the scale that was examined.
    slack = 1.01 if schema != "symmetric_with_power2_scale" else 5
    assert errors["MSE"] <= slack * min(errors.values())
    assert errors["MSE"] <= errors["None"]


def test_entropy_of_onnxruntime_cuts_about_as_much():
    """onnxruntime's windows have one more bin and integer counts, so the results are close, not equal."""
    for seed in range(4):
        values, counts, low, high = bell(seed, 20_000)
        extent = max(-low, high)
        collector = ort_calibrate.HistogramCollector("entropy", True, 512, 128, 99.9, "same")
        hist, edges = np.histogram(values, 512, (-extent, extent))
        theirs = collector.get_entropy_threshold(
            (hist, edges, np.float64(low), np.float64(high), extent), 128
        )
        found = ours(counts, low, high, "KLMinimizationV2", "symmetric")
        inside = [np.mean((values >= a) & (values <= b)) for a, b in (found, theirs)]
        assert inside[0] == pytest.approx(inside[1], abs=0.02)


def test_what_cannot_be_calibrated_is_refused_by_name():
    counts = np.ones(8, np.float32)
    with pytest.raises(OptionError, match='method is "KL"; one of None, KLMinimization'):
        ours(counts, -1, 1, "KL", "symmetric")
    with pytest.raises(InputError, match="holds -1; a count is expected"):
        ours(-counts, -1, 1, "MSE", "symmetric")
    with pytest.raises(InputError, match="the percentile is 20; a number above 50"):
        ours(counts, -1, 1, "Percentile", "symmetric", 20.0)
    with pytest.raises(InputError, match="two finite numbers in order"):
        ours(counts, 1, -1, "MSE", "symmetric")
    with pytest.raises(InputError, match="a C-contiguous float32 array is expected"):
        ours(counts.astype(np.float64), -1, 1, "MSE", "symmetric")
