"""Models that select a branch by the size of an input."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole


def branch(name, length):
    """Run an LSTM over rows of `length` values; other sizes give a rank that an LSTM does not accept."""
    wanted = helper.make_tensor("v", TensorProto.INT64, [], [length])
    fits = helper.make_graph(
        [node("Unsqueeze", ["x", "front"], [f"{name}_3d"])], "fits", [], [info(f"{name}_3d", None)]
    )
    other = helper.make_graph(
        [node("Identity", ["x"], [f"{name}_2d"])], "other", [], [info(f"{name}_2d", None)]
    )
    return helper.make_graph(
        [
            node("Shape", ["x"], [f"{name}_sizes"]),
            node("Gather", [f"{name}_sizes", "one"], [f"{name}_length"]),
            node("Constant", [], [f"{name}_wanted"], value=wanted),
            node("Equal", [f"{name}_length", f"{name}_wanted"], [f"{name}_is"]),
            node("If", [f"{name}_is"], [f"{name}_rows"], then_branch=fits, else_branch=other),
            node("LSTM", [f"{name}_rows", f"w{length}", "r"], [f"{name}_all", f"{name}_last"], hidden_size=2),
        ],
        name,
        [],
        [info(f"{name}_last", None)],
    )  # fmt: skip


def two_rates():
    draw = np.random.default_rng(3)
    nodes = [
        node("Constant", [], ["fast"], value=helper.make_tensor("v", TensorProto.INT64, [], [16])),
        node("Equal", ["rate", "fast"], ["is_fast"]),
        node("If", ["is_fast"], ["y"], then_branch=branch("a", 6), else_branch=branch("b", 3)),
    ]
    constants = {
        "front": np.array([0]), "one": np.array(1), "r": draw.standard_normal((1, 8, 2)).astype(np.float32),
        **{f"w{length}": draw.standard_normal((1, 8, length)).astype(np.float32) for length in (3, 6)},
    }  # fmt: skip
    inputs = [info("x", ["batch", "length"]), info("rate", [], TensorProto.INT64)]
    return model_of(nodes, inputs, [info("y", [1, "batch", 2])], constants.items())


@pytest.mark.parametrize(("length", "rate"), [(6, 16), (3, 8)])
def test_a_branch_for_another_size_keeps_no_model_from_running(length, rate):
    model = two_rates()
    feeds = {"x": np.ones((1, length), np.float32), "rate": np.array(rate)}
    expected = run(model, feeds)["y"]
    program = whole(lowered(model, onnx_define_symbol={"batch": 1, "length": length}))
    np.testing.assert_array_equal(run(program, feeds)["y"], expected)
    # The engine refuses the user's own model if the sizes are fixed.
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, length), strict=True):
        dim.dim_value = size
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="LSTM"):
        run(model, feeds)


def test_sizes_stay_where_the_engine_takes_them():
    choice = helper.make_graph([node("Neg", ["x"], ["a"])], "a", [], [info("a", None)])
    other = helper.make_graph([node("Abs", ["x"], ["b"])], "b", [], [info("b", None)])
    nodes = [node("If", ["c"], ["y"], then_branch=choice, else_branch=other)]
    model = model_of(nodes, [info("x", [2, 3]), info("c", [], TensorProto.BOOL)], [info("y", [2, 3])])
    sizes = lowered(model).model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in sizes] == [2, 3]
