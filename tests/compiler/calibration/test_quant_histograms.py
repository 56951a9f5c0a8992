"""One-pass histograms: equal in any order and on any threads, and exact to a fine bin."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic import _core
from qaic.errors import InputError

values = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-45, 3.4028234663852886e38, -1e30, 1.0, -1.0]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    *[st.floats(-4, 4, width=32)] * 4,
)
arrays = st.lists(st.lists(values, max_size=60), min_size=1, max_size=6).map(
    lambda lists: [np.array(each, np.float32) for each in lists]
)


def seen(histogram, bins=512):
    return histogram.minimum, histogram.maximum, histogram.count, histogram.counts(bins).tobytes()


def histogram_of(*arrays):
    histogram = _core.TensorHistogram()
    for array in arrays:
        histogram.add(array)
    return histogram


@given(arrays, st.randoms())
def test_neither_order_nor_cuts_nor_merging_matter(arrays, random):
    expected = seen(histogram_of(*arrays))
    shuffled = list(np.concatenate(arrays))
    random.shuffle(shuffled)
    assert seen(histogram_of(np.array(shuffled, np.float32).reshape(-1, 1))) == expected
    parts = [histogram_of(array) for array in random.sample(arrays, len(arrays))]
    for part in parts[1:]:
        parts[0].merge(part)
    assert seen(parts[0]) == expected


@given(arrays, st.integers(1, 700))
def test_counts_are_right_to_within_a_fine_bin(arrays, bins):
    data = np.sort(np.concatenate(arrays)).astype(np.float64)
    histogram = histogram_of(*arrays)
    assert histogram.count == data.size
    if not data.size:
        assert (histogram.minimum, histogram.maximum) == (0, 0)
        return
    assert (histogram.minimum, histogram.maximum) == (data[0], data[-1])
    counts = histogram.counts(bins)
    assert counts.dtype == np.float32
    assert counts.sum(dtype=np.float64) == pytest.approx(data.size, rel=1e-5)
    if data[0] == data[-1]:
        assert counts[0] == data.size
        return
    edges = np.linspace(data[0], data[-1], bins + 1)[1:-1]
    # 8192 bins below the smallest power of two above every magnitude, which is at least 2^-100.
    fine = np.exp2(max(np.frexp(np.abs(data).max())[1], -100) - 13) * (1 + 1e-6)
    up_to = np.cumsum(counts, dtype=np.float64)[:-1]
    assert (up_to >= np.searchsorted(data, edges - fine) - 1e-3).all()
    assert (up_to <= np.searchsorted(data, edges + fine, "right") + 1e-3).all()


def test_a_large_tensor_against_numpy():
    data = np.random.default_rng(0).normal(0.3, 1, (257, 1031)).astype(np.float32)
    histogram = histogram_of(data)
    expected, _ = np.histogram(data, 512, (float(data.min()), float(data.max())))
    # Each bin can exchange the counts of the fine bins at its edges with its neighbors.
    assert np.abs(histogram.counts(512) - expected).sum() < 0.02 * data.size


def test_threads_that_share_and_merge_histograms_count_the_same():
    random = np.random.default_rng(1)
    samples = [(random.normal(0, 10.0 ** random.integers(-3, 3), 5000)).astype(np.float32) for _ in range(64)]
    expected = seen(histogram_of(*samples))
    shared, other = _core.TensorHistogram(), _core.TensorHistogram()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shared.add, samples[:40]))
        list(pool.map(other.add, samples[40:]))
    # Merging two histograms into each other at the same time must not cause a deadlock.
    a, b = histogram_of(samples[0]), histogram_of(samples[1])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda pair: [pair[0].merge(pair[1]) for _ in range(20)], [(a, b), (b, a)]))
    shared.merge(other)
    assert seen(shared) == expected


def test_values_that_are_not_finite_are_refused_and_change_nothing():
    histogram = histogram_of(np.array([1, 2], np.float32))
    before = seen(histogram)
    array = np.full(5000, 7, np.float32)
    array[[10, 4000, 4001]] = np.nan, np.nan, -np.inf
    with pytest.raises(InputError, match="2 NaN and 1 infinite values among 5000") as caught:
        histogram.add(array)
    assert caught.value.code == "quant.not_finite"
    assert {key: caught.value.context[key] for key in ("nan", "infinite", "count")} == {
        "nan": 2,
        "infinite": 1,
        "count": 5000,
    }
    assert seen(histogram) == before


def test_what_cannot_be_counted_is_refused_by_name():
    with pytest.raises(InputError, match="a C-contiguous float32 array is expected"):
        _core.TensorHistogram().add(np.zeros(3))
    for bins in (0, 65537):
        with pytest.raises(InputError, match=f"found {bins} bins, expected 1 to 65536"):
            _core.TensorHistogram().counts(bins)
