"""The operator Where for element types without a kernel in a supported engine."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import PLACES, info, lowered, model_of, node, run, whole

TYPES = [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("is_nested", [False, True])
def test_where_selects_on_every_type(dtype, is_nested, place):
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    # Inputs of a program have fewer types than inner values.
    border = elem_type if dtype is not np.uint16 else TensorProto.INT32
    nodes = [
        node("Cast", ["a"], ["a_cast"], to=elem_type),
        node("Cast", ["b"], ["b_cast"], to=elem_type),
    ]
    choice = node("Where", ["c", "a_cast", "b_cast"], ["chosen"])
    if is_nested:
        branches = {
            "then_branch": helper.make_graph([choice], "then", [], [info("chosen", [2, 3], elem_type)]),
            "else_branch": helper.make_graph(
                [node("Identity", ["b_cast"], ["other"])], "else", [], [info("other", [2, 3], elem_type)]
            ),
        }
        nodes.append(helper.make_node("If", ["go"], ["result"], **branches))
    else:
        nodes += [choice, node("Identity", ["chosen"], ["result"])]
    nodes.append(node("Cast", ["result"], ["y"], to=border))
    inputs = [info("c", [2, 1], TensorProto.BOOL), info("a", [3], border), info("b", [2, 3], border)]
    inputs += [info("go", [], TensorProto.BOOL)] if is_nested else []
    model = PLACES[place](model_of(nodes, inputs, [info("y", [2, 3], border)]))
    program = whole(lowered(model))
    rng = np.random.default_rng(0)
    limits = (0, 2) if dtype is bool else (0, 127)
    given = helper.tensor_dtype_to_np_dtype(border)
    a, b = (rng.integers(*limits, size).astype(given) for size in (3, (2, 3)))
    condition = np.array([[True], [False]])
    feeds = {"c": condition, "a": a, "b": b} | ({"go": np.array(True)} if is_nested else {})
    np.testing.assert_array_equal(run(program, feeds)["y"], np.where(condition, a, b))


def test_shapes_of_operators_without_a_schema_are_known_behind_such_a_where():
    """The engine infers their shapes, and refuses a graph with an operator that has no kernel."""
    nodes = [
        node("Where", ["c", "p", "q"], ["flags"]),
        node("Cast", ["flags"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("FusedMatMul", ["floats", "w"], ["y"], domain="com.microsoft", alpha=2.0),
    ]
    flags = [info(name, [2, 3], TensorProto.BOOL) for name in "cpq"]
    program = lowered(model_of(nodes, flags, [info("y", None)], [("w", np.ones((3, 4), np.float32))]))
    assert program.outputs[0].dims == (2, 4)
    c, p, q = np.random.default_rng(1).integers(0, 2, (3, 2, 3)).astype(bool)
    expected = 2 * np.where(c, p, q).astype(np.float32) @ np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(run(whole(program), {"c": c, "p": p, "q": q})["y"], expected)


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_shapes_and_types_of_half_models_are_known_without_kernels_for_them(elem_type):
    nodes = [
        node("Cast", ["x"], ["half"], to=elem_type),
        node("Pow", ["half", "half"], ["power"]),
        helper.make_node("FusedMatMul", ["power", "power"], ["product"], domain="com.microsoft", transB=1),
        node("Cast", ["product"], ["y"], to=TensorProto.FLOAT),
    ]
    program = lowered(model_of(nodes, [info("x", [2, 3])], [info("y", None)]), aic_hw_version="ai200")
    assert program.outputs[0].dims == (2, 2)
    x = np.float32([[1, 2, 1], [2, 1, 0.5]])
    power = x**x
    found = run(whole(program), {"x": x})["y"]
    np.testing.assert_allclose(found, power @ power.T, rtol=1e-2)
    # The product is rounded to the type of its operands, for which onnx has no schema.
    import ml_dtypes

    grid = ml_dtypes.bfloat16 if elem_type == TensorProto.BFLOAT16 else np.float16
    np.testing.assert_array_equal(found, found.astype(grid).astype(np.float32))
