"""Models of the type float16 that compute in float32."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import HALF, info, model_of, node
from single_pass import applied, before, content, ops, outputs

NAME = "upcast-float16"


def scaled(elem_type=HALF):
    dtype = np.float16 if elem_type == HALF else np.float32
    nodes = [node("Mul", ["x", "w"], ["m"]), node("Add", ["m", "x"], ["y"])]
    ends = [info("x", [3], elem_type)], [info("y", [3], elem_type)]
    return model_of(nodes, *ends, [("w", np.array([0.1, 2, -3], dtype))])


def test_nodes_compute_in_float32_and_the_interface_keeps_its_type():
    model, context = before(NAME, scaled())
    assert applied(NAME, model, context)
    assert ops(model) == ["Cast", "Cast", "Mul", "Add", "Cast"]
    assert [v.type.tensor_type.elem_type for v in (*model.proto.graph.input, *model.proto.graph.output)] == [
        HALF
    ] * 2
    computed = {
        name for one in model.proto.graph.node if one.op_type != "Cast" for name in (*one.input, *one.output)
    }
    assert {model.facts.types[name] for name in computed} == {TensorProto.FLOAT}
    # The rounding pass needs the values that were float16, and their original names.
    assert {model.facts.narrow[name] for name in computed} == {HALF}
    assert set(model.facts.original.values()) == {"x", "y"}
    x = np.float16([1, 2, 3])
    result = outputs(model, {"x": x})["y"]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, x * np.float16([0.1, 2, -3]) + x, rtol=1e-3)


def test_model_of_float32_is_left_alone():
    model, context = before(NAME, scaled(TensorProto.FLOAT))
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_what_merely_carries_data_keeps_its_type():
    nodes = [node("Cast", ["x"], ["h"], to=HALF), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)]
    model, context = before(NAME, model_of(nodes, [info("x", [2])], [info("y", [2])]))
    found = content(model)
    applied(NAME, model, context)
    assert content(model) == found


@pytest.mark.parametrize("hardware", ["ai100", "ai200"])
def test_bfloat16_is_said_where_the_hardware_lacks_it(caplog, hardware):
    nodes = [
        node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        node("Mul", ["b", "b"], ["m"]),
        node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model_of(nodes, [info("x", [2])], [info("y", [2])])
    model, context = before(NAME, proto, aic_hw_version=hardware)
    applied(NAME, model, context)
    assert ("bfloat16" in caplog.text) == (hardware == "ai100")


@pytest.mark.parametrize("count", [3, 600])
def test_constants_that_are_outputs_too_keep_their_numbers(count):
    w = np.random.default_rng(2).standard_normal(count).astype(np.float16)
    x = np.random.default_rng(3).standard_normal(count).astype(np.float16)
    nodes = [node("Add", ["x", "w"], ["y"]), node("Identity", ["w"], ["z"])]
    ends = [info(name, [count], HALF) for name in ("y", "w", "z")]
    model, context = before(NAME, model_of(nodes, [info("x", [count], HALF)], ends, [("w", w)]))
    assert applied(NAME, model, context)
    found = outputs(model, {"x": x})
    np.testing.assert_array_equal(found["w"], w)
    np.testing.assert_array_equal(found["z"], w)
    np.testing.assert_allclose(found["y"], x + w, rtol=1e-3)
