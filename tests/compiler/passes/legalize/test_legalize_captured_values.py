"""Bodies of control flow that capture results of a DequantizeLinear and of an operator that moves values.

Without the pass, the engine ends the process (onnxruntime 1.22 to 1.32), so a failure of this test is a lost
worker.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.passes.legalize.legalize_exports import legalize_captured_values

WEIGHTS = [
    ("s", np.float32(0.5)),
    ("z", np.uint8(128)),
    ("axis", np.int64([0])),
    ("flat", np.int64([8])),
    ("one", np.int64([1])),
    ("two", np.int64([2])),
    ("true", np.array(True)),
]
MOVES = {
    "Unsqueeze": (["axis"], {}, lambda x: x[None]),
    "Squeeze": (["one"], {}, lambda x: x[:, 0]),
    "Transpose": ([], {"perm": [2, 1, 0]}, lambda x: x.T),
    "Reshape": (["flat"], {}, lambda x: x.reshape(8)),
    "Slice": (["one", "two"], {}, lambda x: x[1:2]),
    "Flatten": ([], {}, lambda x: x.reshape(2, 4)),
    "Identity": ([], {}, lambda x: x),
}


def body(name, operator, read):
    return helper.make_graph([node(operator, [read], [name])], name, [], [info(name, None)])


def branches(read):
    return {"then_branch": body("negative", "Neg", read), "else_branch": body("absolute", "Abs", read)}


def quantized(*nodes, weights=WEIGHTS, domain=""):
    head = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], domain=domain),
    ]
    inputs = [info("x", [2, 1, 4]), info("go", [], TensorProto.BOOL)]
    return model_of([*head, *nodes], inputs, [info("y", None)], weights)


@settings(max_examples=30, deadline=None)
@given(
    move=st.sampled_from(sorted(MOVES)),
    is_nested=st.booleans(),
    domain=st.sampled_from(["", "com.microsoft"]),
    go=st.booleans(),
    values=st.lists(st.integers(-100, 100), min_size=8, max_size=8),
)
def test_a_moved_value_reaches_the_bodies(move, is_nested, domain, go, values):
    inputs, attributes, oracle = MOVES[move]
    moving = helper.make_node(move, ["d", *inputs], ["m"], **attributes)
    choice = helper.make_node("If", ["go"], ["y"], **branches("m"))
    if is_nested:
        # The engine inlines the body of an If with a constant condition.
        inner = helper.make_graph([moving], "moved", [], [info("m", None)])
        other = helper.make_graph([node("Identity", ["d"], ["same"])], "other", [], [info("same", None)])
        moving = helper.make_node("If", ["true"], ["taken"], then_branch=inner, else_branch=other)
        choice = helper.make_node("If", ["go"], ["y"], **branches("taken"))
    x = np.float32(values).reshape(2, 1, 4) / 2
    moved = oracle(x)
    result = run(whole(lowered(quantized(moving, choice, domain=domain))), {"x": x, "go": np.array(go)})
    np.testing.assert_array_equal(result["y"], -moved if go else np.abs(moved))


def test_a_body_of_a_body_captures_too():
    inner = helper.make_graph(
        [helper.make_node("If", ["go"], ["deep"], **branches("m"))], "inner", [], [info("deep", None)]
    )
    same = helper.make_graph([node("Identity", ["m"], ["same"])], "same", [], [info("same", None)])
    model = quantized(
        helper.make_node("Transpose", ["d"], ["m"], perm=[2, 1, 0]),
        helper.make_node("If", ["go"], ["y"], then_branch=inner, else_branch=same),
    )
    x = np.float32([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])
    result = run(whole(lowered(model)), {"x": x, "go": np.array(True)})
    np.testing.assert_array_equal(result["y"], -x.T)


@pytest.mark.parametrize("is_quantized", [True, False])
def test_only_moved_floats_of_quantized_graphs_change_and_only_once(is_quantized):
    nodes = [
        node("Identity", ["x"], ["d"]),
        node("Neg", ["d"], ["computed"]),
        node("Transpose", ["d"], ["moved"], perm=[2, 1, 0]),
        helper.make_node(
            "If",
            ["go"],
            ["y"],
            then_branch=body("a", "Abs", "moved"),
            else_branch=body("b", "Abs", "computed"),
        ),
    ]
    model = (
        quantized(*nodes[1:])
        if is_quantized
        else model_of(nodes, [info("x", [2, 1, 4]), info("go", [], TensorProto.BOOL)], [info("y", None)])
    )
    types = dict.fromkeys(("x", "d", "computed", "moved"), TensorProto.FLOAT)
    before = model.SerializeToString()
    added = legalize_captured_values(model, types)
    assert list(added.values()) == (["moved"] if is_quantized else [])
    assert (model.SerializeToString() == before) == (not is_quantized)
    types |= dict.fromkeys(added, TensorProto.FLOAT)
    assert legalize_captured_values(model, types) == {}
