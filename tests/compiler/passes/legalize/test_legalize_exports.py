"""Operators in the form of exporters, if the engine requires another form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxruntime import __version__ as engine_version

from compiler_oracle import in_function, info, lowered, model_of, node, run, run_fp16, whole
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

INT64 = TensorProto.INT64


def in_branch(nodes, result, shape):
    """Put nodes into both branches of an If."""
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [info(result, shape)])
        for name in ("then", "else")
    }
    return [node("If", ["go"], ["chosen"], **branches)]


# --- Range --------------------------------------------------------------------------------------------------


def counting(operand):
    """Write 0, 1, ... below the rows of x and add them to it; `operand` is the shape of Range's operands."""
    shape = [helper.make_node("Shape", ["x"], ["sizes"])]
    zero, one = (
        [node("Constant", [], [n], value=helper.make_tensor("v", INT64, operand, [v]))]
        for n, v in (("nil", 0), ("unit", 1))
    )
    first = [node("Constant", [], ["first"], value=helper.make_tensor("v", INT64, operand, [0]))]
    return [
        *shape, *zero, *one, *first,
        node("Gather", ["sizes", "first"], ["height"]),
        node("Range", ["nil", "height", "unit"], ["counted"]),
        node("Cast", ["counted"], ["floats"], to=TensorProto.FLOAT),
        node("Constant", [], ["column"], value_ints=[-1, 1]),
        node("Reshape", ["floats", "column"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]  # fmt: skip


@pytest.mark.parametrize("operand", [[], [1]])
@pytest.mark.parametrize("place", ["graph", "function", "branch"])
def test_operands_of_range_may_have_the_shape_of_one_element(operand, place):
    nodes, functions, inputs, result = counting(operand), [], [info("x", ["n", 2])], "y"
    if place == "function":
        nodes, functions = in_function(nodes, ["x"], "y", 17)
    elif place == "branch":
        nodes, result = in_branch(nodes, "y", ["n", 2]), "chosen"
        inputs.append(info("go", [], TensorProto.BOOL))
    model = model_of(nodes, inputs, [info(result, None)], functions=functions)
    program = lowered(
        model, network_specialization_config=[SpecializationEntry(f"of {n}", {"n": n}) for n in (3, 5)]
    )
    assert [specialization.outputs for specialization in program.specializations] == [((3, 2),), ((5, 2),)]
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    feeds = {"x": x} | ({"go": np.array(True)} if place == "branch" else {})
    np.testing.assert_array_equal(
        run(whole(program), feeds)[result], x + np.arange(5, dtype=np.float32)[:, None]
    )


def test_a_range_of_scalars_is_left_alone():
    model = model_of(counting([]), [info("x", [4, 2])], [info("y", [4, 2])])
    assert [n.op_type for n in lowered(model).model.graph.node] == [n.op_type for n in model.graph.node]


# --- sequences ----------------------------------------------------------------------------------------------


@st.composite
def pieces(draw):
    """Draw the length of an axis, its split, and the piece that is selected."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["lengths", "chunks", "ones"]))
    if kind == "lengths":
        at = draw(st.integers(-len(lengths), len(lengths) - 1))
        bounds = np.cumsum([0, *lengths])[[at % len(lengths), at % len(lengths) + 1]]
        return sum(lengths), np.array(lengths, np.int64), True, at, bounds
    size = sum(lengths)
    chunk = draw(st.integers(1, size)) if kind == "chunks" else 1
    at = draw(st.integers(0, (size - 1) // chunk))
    keeps = kind == "chunks" or draw(st.booleans())
    return (
        size,
        np.int64(chunk) if kind == "chunks" else None,
        keeps,
        at,
        (at * chunk, min((at + 1) * chunk, size)),
    )


@given(pieces(), st.sampled_from([0, 1, -1]), st.sampled_from([11, 17, 18]), st.booleans())
def test_pieces_of_a_split_tensor_are_slices(piece, axis, opset, is_function):
    size, split, keeps, at, (begin, end) = piece
    shape = [3, 4]
    shape[axis] = size
    operands = ["x"] if split is None else ["x", "split"]
    constants = [("at", np.int64(at))] + ([] if split is None else [("split", split)])
    if is_function:
        # The form of exporters: one function splits, another function selects a piece.
        imports = [helper.make_opsetid("", opset)]
        body = node("SplitToSequence", operands, ["all"], keepdims=int(keeps))
        reference = helper.make_attribute("axis", 0)
        reference.ref_attr_name = "dim"
        reference.ClearField("i")
        body.attribute.append(reference)
        functions = [
            helper.make_function("local", "Split", operands, ["all"], [body], imports, ["dim"]),
            helper.make_function(
                "local", "Item", ["s", "i"], ["one"], [node("SequenceAt", ["s", "i"], ["one"])], imports
            ),
        ]
        nodes = [
            helper.make_node("Split", operands, ["sequence"], domain="local", dim=axis),
            helper.make_node("Item", ["sequence", "at"], ["y"], domain="local"),
        ]
    else:
        functions = []
        nodes = [
            node("SplitToSequence", operands, ["sequence"], axis=axis, keepdims=int(keeps)),
            node("SequenceAt", ["sequence", "at"], ["y"]),
        ]
    model = model_of(nodes, [info("x", shape)], [info("y", None)], constants, opset, functions=functions)
    program = lowered(model, always_expand_onnx_functions=True)
    assert not {n.op_type for n in program.model.graph.node} & {"SplitToSequence", "SequenceAt"}
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = np.take(x, range(begin, end), axis)
    expected = expected if keeps or split is not None else expected.squeeze(axis)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], expected)
    assert program.outputs[0].dims == expected.shape


def test_what_is_computed_from_pieces_is_rounded(caplog):
    """The passes for precision do not know the element type of a sequence."""
    nodes = [
        node("SplitToSequence", ["x", "split"], ["sequence"], axis=1),
        node("SequenceAt", ["sequence", "at"], ["piece"]),
        node("Mul", ["piece", "piece"], ["y"]),
    ]
    constants = [("at", np.int64(1)), ("split", np.int64(2))]
    model = model_of(nodes, [info("x", [3, 4])], [info("y", None)], constants)
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    half = x[:, 2:].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run_fp16(model, {"x": x})["y"], (half * half).astype(np.float16))
    assert "unrounded" not in caplog.text


def test_a_sequence_that_is_also_read_whole_stays():
    nodes = [
        node("SplitToSequence", ["x", "split"], ["sequence"], axis=0),
        node("SequenceAt", ["sequence", "at"], ["piece"]),
        node("SequenceLength", ["sequence"], ["count"]),
        node("Cast", ["count"], ["number"], to=TensorProto.FLOAT),
        node("Add", ["piece", "number"], ["y"]),
    ]
    constants = [("at", np.int64(1)), ("split", np.int64(2))]
    model = model_of(nodes, [info("x", [4])], [info("y", None)], constants)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(whole(lowered(model)), {"x": x})["y"], x[2:] + 2)


def test_a_piece_whose_place_an_input_gives_stays():
    nodes = [
        node("SplitToSequence", ["x"], ["sequence"], axis=0, keepdims=0),
        node("SequenceAt", ["sequence", "at"], ["piece"]),
        node("Reshape", ["piece", "flat"], ["y"]),
    ]
    model = model_of(
        nodes, [info("x", [4, 2]), info("at", [], INT64)], [info("y", [2])], [("flat", np.array([2]))]
    )
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    for at in (0, 3):
        np.testing.assert_array_equal(run(whole(lowered(model)), {"x": x, "at": np.array(at)})["y"], x[at])


# --- Attention ----------------------------------------------------------------------------------------------

#: The oldest engine does not have the operator.
has_attention = pytest.mark.skipif(
    tuple(map(int, engine_version.split(".")[:2])) < (1, 23), reason="onnxruntime has Attention from 1.23 on"
)

MASKS = [
    [2, 1, 1, 5], [2, 1, 3, 5], [2, 2, 1, 5], [1, 1, 1, 5], [1, 1, 3, 5], [1, 5], [3, 5], [5], [2, 1, 3, 1],
    [2, 2, 1, 1],
]  # fmt: skip


@has_attention
@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("is_bool", [True, False])
@pytest.mark.parametrize("has_past", [True, False])
def test_masks_are_broadcast_over_queries_and_keys(shape, is_bool, has_past):
    past = 2 if has_past else 0
    sizes = {"q": [2, 2, 3, 4], "k": [2, 2, 5 - past, 4], "v": [2, 2, 5 - past, 4], "m": shape}
    names = ["q", "k", "v", "m"]
    if has_past:
        sizes |= {"past_k": [2, 2, past, 4], "past_v": [2, 2, past, 4]}
        names += ["past_k", "past_v"]
    types = {"m": TensorProto.BOOL if is_bool else TensorProto.FLOAT}
    inputs = [info(name, sizes[name], types.get(name, TensorProto.FLOAT)) for name in names]
    outputs = ["y", "present_k", "present_v"] if has_past else ["y"]
    nodes = [node("Attention", names, outputs)]
    model = model_of(nodes, inputs, [info(name, None) for name in outputs], opset=23)
    program = whole(lowered(model))

    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(sizes[name]).astype(np.float32) for name in names}
    if is_bool:
        feeds["m"] = rng.random(shape) < 0.7
        feeds["m"][..., 0] = True
    keys = np.concatenate([feeds["past_k"], feeds["k"]], 2) if has_past else feeds["k"]
    values = np.concatenate([feeds["past_v"], feeds["v"]], 2) if has_past else feeds["v"]
    scores = feeds["q"] @ keys.swapaxes(2, 3) / 2
    scores = np.where(feeds["m"], scores, -np.inf) if is_bool else scores + feeds["m"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ values
    np.testing.assert_allclose(run(program, feeds)["y"], expected, rtol=1e-5, atol=1e-6)


@has_attention
def test_a_mask_with_all_rows_and_columns_is_not_copied():
    sizes = {"q": [1, 2, 3, 4], "k": [1, 2, 5, 4], "v": [1, 2, 5, 4], "m": [1, 1, 3, 5]}
    inputs = [info(name, size) for name, size in sizes.items()]
    model = model_of([node("Attention", list(sizes), ["y"])], inputs, [info("y", None)], opset=23)
    assert [n.op_type for n in lowered(model).model.graph.node] == ["Attention"]


# --- declarations -------------------------------------------------------------------------------------------


def test_constants_that_are_declared_twice_keep_their_values_for_shape_inference():
    """Exporters list initializers among the inner values; then the slice had no shape and lost its axis."""
    constants = [
        (name, np.array([value]))
        for name, value in (("from", 0), ("to", 2**63 - 1), ("axis", 1), ("step", 2))
    ]
    nodes = [node("Slice", ["x", "from", "to", "axis", "step"], ["y"])]
    model = model_of(nodes, [info("x", [2, 6])], [info("y", [2, 3])], constants)
    model.graph.value_info.extend(info(name, [1], INT64) for name, _ in constants)
    program = lowered(model)
    assert program.outputs[0].dims == (2, 3)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], x[:, ::2])


def test_large_constants_may_be_declared_twice():
    rows = np.random.default_rng(4).standard_normal((64, 64)).astype(np.float32)
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], [info("x", [1, 64])], [info("y", None)], [("w", rows)]
    )
    model.graph.value_info.append(info("w", [64, 64]))
    program = lowered(model)
    assert program.weights.keys() == {"w"}
    assert program.outputs[0].dims == (1, 64)


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("onesided", [None, 0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_spectra_have_the_sizes_that_the_engine_gives_them(onesided, windowed, is_called):
    """The default of `onesided` is 1. A product with this number of rows follows, as in a mel spectrogram."""
    window = ["window"] if windowed else ["", "length"]
    attributes = {} if onesided is None else {"onesided": onesided}
    nodes = [
        node("STFT", ["signal", "step", *window], ["spectrum"], **attributes),
        node("ReduceSumSquare", ["spectrum"], ["power"], axes=[-1], keepdims=0),
        node("MatMul", ["power", "bank"], ["y"]),
    ]
    constants = {
        "step": np.array(2),
        "bank": np.ones((8 if onesided == 0 else 5, 3), np.float32),
        window[-1]: np.hanning(8).astype(np.float32) if windowed else np.array(8),
    }
    read = ["signal", *constants]
    edge = [info("signal", [1, 32])], [info("y", None)], constants.items()
    # The engine also infers the wrong size inside a function, so the reference has no function.
    signal = np.random.default_rng(1).standard_normal((1, 32)).astype(np.float32)
    expected = run(model_of(nodes, *edge), {"signal": signal}, optimize=False)["y"]
    nodes, functions = in_function(nodes, read, "y", 17) if is_called else (nodes, [])
    program = whole(lowered(model_of(nodes, *edge, functions=functions)))
    np.testing.assert_allclose(run(program, {"signal": signal})["y"], expected, rtol=1e-5)
    assert [dim.dim_value for dim in program.graph.output[0].type.tensor_type.shape.dim] == [1, 13, 3]


# --- Resize -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[-1, -2], [3, -2], [-2, 1]])
@pytest.mark.parametrize("place", ["graph", "function", "branch"])
def test_axes_of_resize_count_from_either_end(place, axes, policy):
    def model(chosen, place):
        attributes = {"mode": "nearest", "keep_aspect_ratio_policy": policy, "axes": chosen}
        nodes = [
            node("Constant", [], ["sizes"], value_ints=[9, 10]),
            node("Abs", ["x"], ["magnitude"]),
            node("Resize", ["magnitude", "", "", "sizes"], ["y"], **attributes),
        ]
        functions, inputs, result = [], [info("x", [1, 3, 4, 6])], "y"
        if place == "function":
            nodes, functions = in_function(nodes, ["x"], "y", 18)
        elif place == "branch":
            nodes, result = in_branch(nodes, "y", None), "chosen"
            inputs.append(info("go", [], TensorProto.BOOL))
        return model_of(nodes, inputs, [info(result, None)], opset=18, functions=functions)

    x = np.random.default_rng(1).standard_normal((1, 3, 4, 6)).astype(np.float32)
    (expected,) = run(whole(lowered(model([axis % 4 for axis in axes], "graph"))), {"x": x}).values()
    feeds = {"x": x} | ({"go": np.array(True)} if place == "branch" else {})
    (found,) = run(whole(lowered(model(axes, place))), feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
def test_axes_from_the_end_of_an_unknown_rank(policy):
    branches = [
        helper.make_graph([node("Unsqueeze", ["x", name], [result])], result, [], [info(result, None)])
        for name, result in (("one", "a"), ("two", "b"))
    ]
    attributes = {"mode": "nearest", "keep_aspect_ratio_policy": policy, "axes": [-1, -2]}
    nodes = [
        node("If", ["c"], ["either"], then_branch=branches[0], else_branch=branches[1]),
        node("Resize", ["either", "", "", "sizes"], ["resized"], **attributes),
        node("Reshape", ["resized", "flat"], ["y"]),
    ]
    constants = [("one", np.array([0])), ("two", np.array([0, 1])), ("sizes", np.array([9, 10]))]
    model = model_of(
        nodes,
        [info("x", [4, 6]), info("c", [], TensorProto.BOOL)],
        [info("y", [90])],
        [*constants, ("flat", np.array([90]))],
        opset=18,
    )
    # Engines before 1.23 write beyond the result.
    with pytest.raises(CompileError, match="negative axes of an operand of unknown or no rank"):
        lowered(model)


# --- Attention of the engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["graph", "function", "call", "branch"])
@pytest.mark.parametrize("left_out", ["", None])
@pytest.mark.parametrize("is_constant", [True, False])
def test_attention_without_a_bias_adds_zeros(place, left_out, is_constant):
    """The reference is the node with a bias of zeros; older engines end the process without a bias."""
    draw = np.random.default_rng(0)
    x, weights = (draw.standard_normal(shape).astype(np.float32) for shape in ([2, 3, 8], [8, 24]))
    if place == "call" and left_out is None:
        left_out = ""
    operands = ["x", "w", *([] if left_out is None else [left_out, "mask"])]
    more = {"num_heads": 2, "domain": "com.microsoft", "qkv_hidden_sizes": [8, 8, 8]}
    bare = [node("Attention", operands, ["y"], **more)]
    inputs, constants = [info("x", x.shape), info("mask", [2, 3], TensorProto.INT32)], [("w", weights)]
    feeds = {"x": x, "mask": np.int32([[1, 1, 0], [1, 1, 1]])}
    full = [node("Attention", ["x", "w", "b", *operands[3:]], ["y"], **more)]
    zeros = [*constants, ("b", np.zeros(24, np.float32))]
    expected = run(model_of(full, inputs, [info("y", x.shape)], zeros), feeds)["y"]
    nodes, functions, result = bare, [], "y"
    if place == "branch":
        nodes, result = in_branch(bare, "y", x.shape), "chosen"
        inputs.append(info("go", [], TensorProto.BOOL))
        feeds["go"] = np.array(True)
    elif place != "graph":
        given = [*dict.fromkeys(filter(None, operands))]
        if place == "call":
            given, bare[0].input[2] = ["x", "w", "bias", "mask"], "bias"
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        functions = [helper.make_function("local", "F", given, ["y"], bare, imports)]
        given = ["" if name == "bias" else name for name in given]
        nodes = [node("F", given, ["y"], domain="local")]
    if not is_constant:
        inputs.append(info("w", weights.shape))
        feeds, constants = feeds | {"w": weights}, []
    model = model_of(nodes, inputs, [info(result, x.shape)], constants, functions=functions)
    np.testing.assert_allclose(run(whole(lowered(model)), feeds)[result], expected, rtol=1e-6)
    half = run_fp16(model, feeds)[result]
    np.testing.assert_allclose(half, expected, atol=0.05)


def test_attention_without_a_bias_is_refused_before_its_sums_read_axes():
    made = node("Attention", ["x", "w"], ["y"], num_heads=2, domain="com.microsoft")
    model = model_of([made], [info("x", [1, 2, 8]), info("w", [8, 24])], [info("y", [1, 2, 8])], opset=12)
    with pytest.raises(CompileError, match=r"'y' \(Attention\): found no bias"):
        lowered(model)
