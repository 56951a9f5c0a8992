"""Text for people: durations with three digits, names without their middle."""

import math
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import from_dtype

from qaic.support.text import bytes_text, duration, shortened, three_digits

FACTORS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


@given(us=st.floats(1e-3, 1e9))
def test_durations_have_three_digits_and_the_value(us):
    number, unit = duration(us).replace(",", "").split()
    assert float(number) * FACTORS[unit] == pytest.approx(us, rel=0.00501)
    if unit != "s":
        assert len(number.replace(".", "")) - (number.startswith("0.")) == 3
        assert float(number) < 1000


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (11_000, "11.0 ms"),
        (999.6, "1.00 ms"),
        (999.4, "999 us"),
        (0, "0 us"),
        (0.5, "500 ns"),
        (1e6, "1.00 s"),
    ],
)
def test_durations(us, text):
    assert duration(us) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (735123.4, "735,123"), (42.648, "42.6"), (99.96, "100"), (0.01234, "0.0123"), (1.2e-5, "0.0000120"),
        (7, "7"), (0.0, "0"), (-3.14159, "-3.14"), (math.nan, "nan"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert three_digits(value) == text


NUMPY = [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint64]


@given(
    value=st.floats()
    | st.integers(-(10**300), 10**300)
    | st.sampled_from(NUMPY).flatmap(lambda kind: from_dtype(np.dtype(kind)))
)
@example(np.float32(1e-30))
@example(np.int64(5))
@example(np.int64(-(2**63)))
@example(-0.0)
def test_numbers_of_any_library_are_short_and_close(value):
    text = three_digits(value)
    assert len(text) <= len("-999,999,999,999,999")
    whole = isinstance(value, int | np.integer)
    exact = Decimal(int(value) if whole else float(value))
    if not exact.is_finite():
        assert text == str(float(value))
        return
    shown = Decimal(text.replace(",", ""))
    assert abs(shown - exact) <= abs(exact) * Decimal("0.00501")
    if whole and abs(exact) < 10**15:
        assert text == f"{exact:,}"


@given(size=st.integers(0, 1 << 60))
def test_sizes_have_three_digits_and_the_value(size):
    number, unit = bytes_text(size).replace(",", "").split()
    factor = 1024 ** (" KMGT".index(unit[0]) if unit.endswith("iB") else 0)
    assert float(number) * factor == pytest.approx(size, rel=0.00501)


@given(text=st.text(max_size=80), size=st.integers(8, 60))
def test_shortened_names_keep_both_ends(text, size):
    short = shortened(text, size)
    assert len(short) <= size
    assert short == text or (len(short) == size and re.fullmatch(".*\\.\\..*", short, re.DOTALL))
    assert text.startswith(short.partition("..")[0]) or ".." in text
    assert short == text or text[-3:] == short[-3:]
