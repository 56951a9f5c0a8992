"""Errors of outputs, compared with the formulas on whole arrays."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qaic.accuracy.metrics import OutputAccuracy, OutputSums, decibels
from qaic.accuracy.reports.tables import outputs_table

FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 1e30])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def result_of(*pairs):
    sums = OutputSums("y")
    for reference, found in pairs:
        sums.add(np.asarray(reference), np.asarray(found))
    return sums.result()


@st.composite
def pairs_of_floats(draw):
    shape = draw(SHAPES)
    count = draw(st.integers(1, 3))
    return [
        tuple(draw(arrays.arrays(np.float32, shape, elements=FLOATS)) for _ in range(2)) for _ in range(count)
    ]


@given(pairs_of_floats())
def test_floats(pairs):
    result = result_of(*pairs)
    a = np.concatenate([pair[0].ravel() for pair in pairs]).astype(float).tolist()
    b = np.concatenate([pair[1].ravel() for pair in pairs]).astype(float).tolist()
    errors, relative = [], []
    signal = 0.0
    for x, y in zip(a, b, strict=True):
        equal = x == y or (math.isnan(x) and math.isnan(y))
        error = 0.0 if equal else abs(x - y)
        errors.append(math.inf if math.isnan(error) else error)
        if math.isfinite(x):
            signal += x * x
            if x:
                relative.append(errors[-1] / abs(x))
    noise = sum(error * error for error in errors)
    assert result.elements == len(a)
    assert result.not_finite == sum(not math.isfinite(value) for value in a)
    if not a:
        assert math.isnan(result.sqnr_db)
        assert math.isnan(result.mean_error)
    elif noise == 0:
        assert result.is_equal
    elif math.isinf(noise) or signal == 0:
        assert result.sqnr_db == -math.inf
    else:
        assert result.sqnr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-9, abs=1e-6)
    assert result.largest_error == pytest.approx(max(errors, default=0.0))
    if relative:
        assert result.largest_relative_error == pytest.approx(max(relative))
        assert result.mean_relative_error == pytest.approx(sum(relative) / len(relative))
    else:
        assert math.isnan(result.largest_relative_error)


@given(pairs_of_floats())
def test_the_first_value_that_is_not_finite(pairs):
    expected = None
    for number, (reference, found) in enumerate(pairs):
        lost = [
            at
            for at, (x, y) in enumerate(zip(reference.ravel(), found.ravel(), strict=True))
            if np.isfinite(x) and not np.isfinite(y)
        ]
        if lost and expected is None:
            expected = number, lost[0]
    assert result_of(*pairs).first_not_finite == expected


@given(
    arrays.arrays(np.float32, (4, 6), elements=st.floats(-100, 100, width=32)),
    arrays.arrays(np.float32, (4, 6), elements=st.floats(-100, 100, width=32)),
)
def test_cosine_and_decisions(a, b):
    result = result_of((a, b))
    lengths = np.linalg.norm(a.astype(float)) * np.linalg.norm(b.astype(float))
    if lengths > 1e-30:
        assert result.cosine == pytest.approx(float((a.astype(float) * b).sum()) / lengths, abs=1e-9)
    elif lengths == 0:
        assert math.isnan(result.cosine)
    same = [
        max(range(6), key=lambda k: x[k]) == max(range(6), key=lambda k: y[k])
        for x, y in zip(a, b, strict=True)
    ]
    assert result.same == pytest.approx(sum(same) / 4)


def test_a_decision_among_nan_is_none():
    assert result_of(([[0.0, 1.0]], [[0.0, math.nan]])).same == 0
    assert result_of(([[math.nan, 1.0]], [[math.nan, 1.0]])).same == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.bool_])
def test_integers_and_booleans(dtype):
    a, b = np.array([0, 1, 1, 0], dtype), np.array([0, 1, 0, 0], dtype)
    result = result_of((a, b))
    assert result.same == 0.75
    assert result.largest_error == 1
    assert result.sqnr_db == pytest.approx(10 * math.log10(2))
    assert result_of((a, a)).is_equal


def test_scalars_have_no_decision():
    assert math.isnan(result_of((np.float32(1), np.float32(2))).same)
    assert math.isnan(result_of((np.ones((3, 1), np.float32), np.ones((3, 1), np.float32))).same)


def test_shapes_must_be_equal():
    with pytest.raises(ValueError, match="shapes"):
        result_of((np.zeros(3), np.zeros(4)))


def test_decibels():
    assert decibels(1, 0) == decibels(0, 0) == math.inf
    assert decibels(0, 1) == decibels(1, math.inf) == decibels(1, math.nan) == -math.inf
    assert math.isnan(decibels(math.inf, 1))
    assert decibels(1000, 1) == pytest.approx(30)


@given(pairs_of_floats())
def test_merged_sums_are_those_of_all_samples(pairs):
    merged = OutputSums("y")
    for pair in pairs:
        part = OutputSums("y")
        part.add(*pair)
        merged.merge(part)
    one, other = merged.result(), result_of(*pairs)
    for name in OutputAccuracy.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        assert a == pytest.approx(b, rel=1e-12, nan_ok=True) if isinstance(a, float) else a == b


def test_an_output_that_lost_everything_is_dead():
    reference = np.linspace(0, 1, 24, dtype=np.float32).reshape(1, 4, 6)
    assert result_of((reference, np.zeros_like(reference))).is_dead
    assert result_of((reference, np.full_like(reference, 0.5))).is_dead
    assert not result_of((reference, reference)).is_dead
    # A constant reference loses nothing; two different constants are not one constant.
    assert not result_of((np.zeros_like(reference), np.ones_like(reference))).is_dead
    assert not result_of((reference, np.zeros_like(reference)), (reference, np.ones_like(reference))).is_dead


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_boxes_that_are_lost_are_the_worst_channel(axis):
    rng = np.random.default_rng(4)
    reference = np.concatenate([rng.random((1, 4, 64)) * 640, rng.random((1, 3, 64))], axis=1)
    found = np.concatenate([reference[:, :4], np.zeros((1, 3, 64))], axis=1)
    if axis == 2:
        reference, found = reference.swapaxes(1, 2), found.swapaxes(1, 2)
    result = result_of((reference, found))
    assert result.sqnr_db > 40
    assert not result.is_dead
    assert result.worst_channel is not None
    assert (result.worst_channel.axis, result.worst_channel.is_dead) == (axis, True)
    assert result.worst_channel.index >= 4
    (row,) = outputs_table([SimpleNamespace(to="int8", outputs=[result])]).rows
    assert f"{result.worst_channel.index} of dimension {axis}, constant" in row


def test_channels_of_no_weight_or_of_single_elements_are_not_judged():
    reference = np.ones((1, 2, 64)) * np.linspace(0, 1, 64)
    reference[:, 1] *= 1e-6
    found = reference.copy()
    found[:, 1] = 0
    worst = result_of((reference, found)).worst_channel
    assert worst is None or not worst.is_dead
    assert result_of((np.eye(8)[:1], np.zeros((1, 8)))).worst_channel is None


@pytest.mark.parametrize("shape", [(1, 7), (7,), (1, 1, 7), (1, 7, 1)])
def test_columns_of_one_element_are_judged_over_the_samples(shape):
    # The head of a detector or regressor: boxes in pixels and scores, in one row for each sample.
    rng = np.random.default_rng(5)
    rows = rng.random((6, 7)) * np.float64([1280, 1280, 1280, 1280, 0.3, 0.3, 0.3])
    lost = rows * np.float64([1, 1, 1, 1, 1, 0, 1])
    pairs = [(row.reshape(shape), other.reshape(shape)) for row, other in zip(rows, lost, strict=True)]
    worst = result_of(*pairs).worst_channel
    assert (worst.index, worst.is_dead) == (5, True)
    assert result_of(*pairs[:3]).worst_channel is None


def test_small_probabilities_and_channels_that_hardly_vary_are_not_dead():
    rng = np.random.default_rng(5)
    scores = rng.random((8, 1, 10)) * 0.01
    scores[..., 0] = 1 - scores[..., 1:].sum(axis=-1)
    found = np.where(scores < 0.02, 0, scores)
    assert result_of(*zip(scores, found, strict=True)).worst_channel is None
    values = rng.random((8, 1, 2)) * np.float64([1000, 0.4]) + np.float64([0, 600])
    worst = result_of(*zip(values, values.round(), strict=True)).worst_channel
    assert not worst.is_dead


@pytest.mark.parametrize(("active", "is_dead"), [(1, False), (3, False), (4, True), (20, True)])
def test_a_rarely_active_channel_is_counted_and_not_judged(active, is_dead):
    """Regression: an output was wrong because one value of a channel behind a Relu was below the step."""
    rng = np.random.default_rng(6)
    reference = rng.random((20, 1, 16)) + 1
    reference[..., 5] = 0
    # This channel is also constant in float32, so it is no loss.
    reference[..., 6] = 0
    reference[:active, 0, 5] = rng.random(active) * 0.003 + 0.0001
    found = (reference * 128).round() / 128
    result = result_of(*zip(reference, found, strict=True))
    assert result.sqnr_db > 40
    assert result.constant_channels == 1
    assert result.worst_channel.is_dead == is_dead
    assert (result.worst_channel.index == 5) == is_dead


def test_constant_channels_are_counted_along_one_dimension():
    reference = np.random.default_rng(7).random((1, 4, 8, 8))
    found = reference.copy()
    found[:, 1:3] = 0.5
    assert result_of((reference, found)).constant_channels == 2
    assert result_of((reference, reference)).constant_channels == 0
