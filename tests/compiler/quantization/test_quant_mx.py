"""MX blocks compared with numpy and the element types of ml_dtypes, and the vector of the specification."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quant_oracle as oracle
from qaic import _core
from qaic.errors import InputError, OptionError

FORMATS = list(oracle.MX)
formats = st.sampled_from(FORMATS)
SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4028234663852886e38, 7.9, 1.0, -2.0, 2.0**-127, 2.0**127]


@st.composite
def tensors(draw, values=None):
    last = draw(st.sampled_from([1, 2, 31, 32, 33, 64, 70]))
    shape = [*draw(st.lists(st.integers(0, 3), max_size=2)), last]
    shape = draw(st.sampled_from([shape, []]))
    count = int(np.prod(shape, dtype=int))
    values = (
        values
        if values is not None
        else st.one_of(
            st.sampled_from([*SPECIAL, np.nan, np.inf, -np.inf]),
            st.floats(width=32),
            *[st.floats(-8, 8, width=32)] * 6,
        )
    )
    power = draw(st.integers(-130, 120))
    array = np.array(draw(st.lists(values, min_size=count, max_size=count)), np.float32).reshape(shape)
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(array, power).astype(np.float32)
    largest = np.finfo(np.float32).max
    scaled = np.where(np.isfinite(array), np.clip(scaled, -largest, largest), array)
    return draw(st.sampled_from([array, scaled]))


finite_tensors = tensors(st.one_of(st.sampled_from(SPECIAL), st.floats(-8, 8, width=32)))


def rounded_to_blocks(values, name):
    return _core.mx_decode(_core.mx_encode(values, name), values.shape, name)


@given(tensors(), formats)
def test_stored_blocks_hold_the_values_that_the_specification_rounds_to(values, name):
    stored = _core.mx_encode(values, name)
    blocks_per_row = -(-(values.shape[-1] if values.ndim else 1) // 32)
    rows = int(np.prod(values.shape[:-1], dtype=int))
    assert isinstance(stored, bytes)
    assert len(stored) == rows * blocks_per_row * oracle.BLOCK_BYTES[name]
    back = _core.mx_decode(stored, values.shape, name)
    assert (back.dtype, back.shape) == (np.float32, values.shape)
    np.testing.assert_array_equal(back, oracle.mx_round(values, name))


@given(finite_tensors, st.sampled_from(["mxfp6_e2m3", "mxint8"]))
def test_rounding_again_changes_nothing(values, name):
    once = rounded_to_blocks(values, name)
    np.testing.assert_array_equal(rounded_to_blocks(once, name), once)


@given(finite_tensors, st.sampled_from(["mxfp6_e2m3", "mxfp6_e3m2"]))
def test_elements_are_those_of_ml_dtypes(values, name):
    """The scale byte as float8_e8m0fnu, and the six bits as float6 of the same name."""
    element = np.dtype(getattr(ml_dtypes, f"float6_{name[-4:]}fn"))
    stored = np.frombuffer(_core.mx_encode(values, name), np.uint8).reshape(-1, 25)
    exponents = stored[:, 0].copy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    bits = np.unpackbits(stored[:, 1:], axis=1, bitorder="little").reshape(-1, 32, 6)
    codes = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    blocks = oracle.mx_blocks(values).reshape(-1, 32)
    with np.errstate(over="ignore"):
        expected = (blocks / exponents[:, None]).astype(element)
    np.testing.assert_array_equal(codes, expected.view(np.uint8))


@given(st.binary(min_size=33 * 6, max_size=33 * 6))
def test_any_bytes_of_integers_decode(data):
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 33)
    scale = np.exp2(blocks[:, :1].astype(np.float64) - 127)
    expected = blocks[:, 1:].view(np.int8) / 64 * np.where(blocks[:, :1] == 255, np.nan, scale)
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32)
    np.testing.assert_array_equal(_core.mx_decode(data, [6, 32], "mxint8"), expected)


@given(st.binary(min_size=25 * 6, max_size=25 * 6), st.sampled_from(["mxfp6_e2m3", "mxfp6_e3m2"]))
def test_any_bytes_of_floats_decode(data, name):
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 25)
    bits = np.unpackbits(blocks[:, 1:], axis=1, bitorder="little").reshape(-1, 32, 6)
    codes = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    elements = codes.view(getattr(ml_dtypes, f"float6_{name[-4:]}fn")).astype(np.float64)
    scale = blocks[:, :1].copy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = (elements * scale).astype(np.float32)
    np.testing.assert_array_equal(_core.mx_decode(data, [2, 3, 32], name), expected.reshape(2, 3, 32))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mxfp6_e2m3", [1, -0.3125, 0.0625, 3.75, -2.25, 0, 0.5, -3.25]),
        ("mxfp6_e3m2", [1, -0.3125, 0.0625, 3.5, -2, 0, 0.5, -3.5]),
        ("mxint8", [1, -0.3125, 0.0625, 3.90625, -2.1875, 0, 0.5, -3.3125]),
    ],
)
def test_the_vector_of_the_specification(name, expected):
    values = np.array([1, -0.3, 0.07, 3.9, -2.2, 0.001, 0.5, -3.3] + [0] * 24, np.float32)
    assert rounded_to_blocks(values, name)[:8].tolist() == expected


@pytest.mark.parametrize(("name", "decibels"), [("mxfp6_e2m3", 31.0), ("mxfp6_e3m2", 25.4), ("mxint8", 42.4)])
def test_noise_of_weights(name, decibels):
    values = np.random.default_rng(0).normal(0, 0.02, (512, 1024)).astype(np.float32)
    noise = values - rounded_to_blocks(values, name)
    assert 10 * np.log10(np.sum(values**2) / np.sum(noise**2)) == pytest.approx(decibels, abs=0.1)


@given(finite_tensors)
def test_decoded_weights_are_exact_in_half_precision_inside_its_normal_range(values):
    rounded = rounded_to_blocks(values, "mxfp6_e2m3")
    inside = (np.abs(rounded) <= 65504) & (np.abs(rounded) >= 2.0**-14)
    np.testing.assert_array_equal(rounded[inside].astype(np.float16).astype(np.float32), rounded[inside])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(5000,), (3, 4097), (700, 33), (4096, 1), (2, 2048), (5, 7, 96)])
def test_tensors_larger_than_any_piece_of_the_work(name, shape):
    values = np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)
    expected = oracle.mx_round(values, name)
    np.testing.assert_array_equal(rounded_to_blocks(values, name), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_values_that_are_not_finite_poison_their_block_or_are_refused(name):
    values = np.ones((2, 40), np.float32)
    values[0, 3], values[1, 35], values[1, 36] = np.nan, np.inf, -np.inf
    rounded = rounded_to_blocks(values, name)
    assert np.isnan(rounded[0, :32]).all()
    assert np.isnan(rounded[1, 32:]).all()
    assert (rounded[0, 32:] == 1).all()
    with pytest.raises(InputError, match="1 NaN and 2 infinite values among 80") as caught:
        _core.mx_encode(values, name, refuse_not_finite=True)
    assert (caught.value.code, caught.value.context["infinite"]) == ("quant.not_finite", 2)


def test_what_cannot_be_converted_is_refused_by_name():
    with pytest.raises(OptionError, match='encoding is "mxfp6"; one of mxfp6_e2m3, mxfp6_e3m2, mxint8'):
        _core.mx_encode(np.ones(3, np.float32), "mxfp6")
    with pytest.raises(InputError, match=r"mxfp6_e2m3 of shape \[32\]: found 24 bytes, expected 25"):
        _core.mx_decode(bytes(24), (32,), "mxfp6_e2m3")
    with pytest.raises(InputError, match="do not fit this host's memory"):
        _core.mx_decode(b"", (2**40, 2**40), "mxint8")
    with pytest.raises(InputError, match="a C-contiguous float32 array is expected"):
        _core.mx_encode(np.ones((4, 4), np.float32).T[:2], "mxint8")
