"""Casts to float8 without saturation; the numbers are in tests/property/test_model_forms.py."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import PLACES, info, kinds, lowered, model_of, node, run, whole

NUMBERS = np.float32([1, 448, 464, 472, 484, 57344, 61440, 63488, np.inf, np.nan])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("FLOAT8E4M3FN", [1, 448, 448, *[np.nan] * 7]),
        ("FLOAT8E5M2", [1, 448, 448, 448, 512, 57344, np.inf, np.inf, np.inf, np.nan]),
    ],
)
def test_numbers_beyond_the_largest_one_round_as_onnx_defines(kind, right, sign, place):
    nodes = [
        node("Cast", ["x"], ["n"], to=getattr(TensorProto, kind), saturate=0),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    model = PLACES[place](model_of(nodes, [info("x", [10])], [info("y", [10])], opset=19))
    found = run(whole(lowered(model)), {"x": sign * NUMBERS})["y"]
    np.testing.assert_array_equal(found, sign * np.float32(right))


@pytest.mark.parametrize(
    ("kind", "more"),
    [("FLOAT8E4M3FN", {}), ("FLOAT8E5M2", {"saturate": 1}), ("FLOAT8E5M2FNUZ", {"saturate": 0})],
)
def test_other_casts_stay(kind, more):
    nodes = [
        node("Cast", ["x"], ["n"], to=getattr(TensorProto, kind), **more),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    assert kinds(lowered(model_of(nodes, [info("x", [10])], [info("y", [10])], opset=19))) == ["Cast"] * 2
