"""Casts to float8 without saturation; tests/property/test_model_forms.py compares the numbers."""

import logging

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


@pytest.mark.parametrize(("options", "right"), [({}, 57344), ({"convert_to_fp16": True}, np.inf)])
def test_numbers_are_compared_after_they_are_rounded_to_float16(options, right):
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("Cast", ["a"], ["n"], to=TensorProto.FLOAT8E5M2, saturate=0),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, [info("x", [1])], [info("y", [1])], opset=19)
    # The nearest float16 of the sum, 61430, is 61440, the midpoint.
    assert run(whole(lowered(model, **options)), {"x": np.float32([30715])})["y"] == right


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


@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}, {"convert_to_quantize": True}])
@pytest.mark.parametrize("cast", ["Cast", "QuantizeLinear"])
def test_warnings_concern_values_of_the_model_only(cast, options, caplog):
    x = np.float32([[1, 2], [-3, 4]])
    zero = TensorProto(name="z", data_type=TensorProto.FLOAT8E5M2, raw_data=bytes(1))
    how = {"to": zero.data_type} if cast == "Cast" else {}
    read = ["p"] if cast == "Cast" else ["p", "s", "z"]
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node(cast, read, ["n"], saturate=0, **how),
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    constants = [("w", x), ("s", np.float32(0.5)), zero]
    model = model_of(nodes, [info("x", [2, 2])], [info("y", [2, 2])], constants, opset=19)
    if "convert_to_quantize" in options:
        options = options | {"calibration_data": [{"x": x}]}
    with caplog.at_level(logging.WARNING, "qaic"):
        lowered(model, **options)
    assert "type float8e5m2 at 'n'" in caplog.text
    assert "float64" not in caplog.text
    assert "'n/" not in caplog.text
