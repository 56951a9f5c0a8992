"""Outputs with an unknown number of dims in bodies of Loop and If, and shapes that the user specifies."""

import ast
import re

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError, OptionError
from qaic.options.files.specializations import SpecializationEntry

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 24

#: Nodes of a body from "s" to "t" -> True if the state keeps its shape.
STEPS = {
    "product": ([node("Mul", ["s", "half"], ["t"])], True),
    "captured": ([node("Add", ["s", "x"], ["t"])], True),
    "turned twice": (
        [node("Transpose", ["s"], ["r"], perm=[2, 1, 0]), node("Transpose", ["r"], ["t"], perm=[2, 1, 0])],
        True,
    ),
    "shaped": ([node("Shape", ["s"], ["r"]), node("Reshape", ["s", "r"], ["t"])], True),
    "grows": ([node("Concat", ["s", "s"], ["t"], axis=0)], False),
    "flattened": ([node("Flatten", ["s"], ["t"])], False),
    "turned": ([node("Transpose", ["s"], ["t"], perm=[2, 1, 0])], False),
}


def looping(step, trips, has_scan, stops, depth=1):
    """A Loop over a step, inside `depth` other loops."""
    nodes, body = list(STEPS[step][0]), None
    constants = {"half": np.float32(0.5), "trips": np.array(trips), "limit": np.float32(-1)}
    for level in range(depth):
        state, result = ("s", "t") if level == 0 else (f"s{level}", f"t{level}")
        if level:
            nodes = [node("Loop", ["trips", "", state], [result], body=body)]
        go_on = [node("Identity", [f"c{level}"], [f"d{level}"])]
        if stops:
            go_on = [
                node("ReduceMax", [result], [f"m{level}"], keepdims=0),
                node("Less", [f"m{level}", "limit"], [f"d{level}"]),
            ]
        inputs = [info(f"i{level}", [], INT64), info(f"c{level}", [], BOOL), info(state, None)]
        outputs = [info(f"d{level}", [], BOOL), info(result, None)]
        if has_scan and level == depth - 1:
            nodes = [*nodes, node("ReduceMean", [result], ["mean"], axes=[-1], keepdims=0)]
            outputs.append(info("mean", None))
        body = helper.make_graph([*nodes, *go_on], f"body{level}", inputs, outputs)
    results = ["y", "z"] if has_scan else ["y"]
    loop = node("Loop", ["trips", "", "x"], results, body=body)
    return model_of(
        [loop], [info("x", X.shape)], [info(name, None) for name in results], list(constants.items())
    )


@given(st.sampled_from(sorted(STEPS)), st.integers(0, 4), st.booleans(), st.booleans(), st.integers(1, 2))
def test_a_loop_has_the_shapes_of_a_run_or_is_refused(step, trips, has_scan, stops, depth):
    model = looping(step, trips, has_scan, stops, depth)
    is_known = STEPS[step][1] and not (has_scan and stops)
    if not is_known:
        with pytest.raises(CompileError) as caught:
            lowered(model)
        assert caught.value.code == "compile.dynamic_shape"
        assert "output_shapes={'" in caught.value.hints[0]
        return
    found = [spec.dims for spec in lowered(model).outputs]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    # If the engine has not run the scan once, it does not know the other sizes of the result.
    expected = [value.shape for value in session.run(None, {"x": X})]
    assert found[0] == expected[0]
    assert len(found) == 1 or not trips or found[1] == expected[1]


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_without_iterations_has_rows_of_the_inferred_shape(trips):
    """The engine takes this shape from the body, which may not declare it."""
    program = lowered(looping("product", trips, has_scan=True, stops=False))
    found = run(whole(program), {"x": X})
    assert [found[spec.name].shape for spec in program.outputs] == [X.shape, (trips, *X.shape[:-1])]
    assert [spec.dims for spec in program.outputs] == [X.shape, (trips, *X.shape[:-1])]


@given(st.lists(st.sampled_from([0, 1, 2, "branch"]), min_size=1, max_size=4))
def test_rows_of_nested_loops_without_iterations_have_the_inferred_shape(levels):
    """Each level is the number of iterations of a loop, or a condition around the levels before it."""
    nodes = [node("ReduceMean", ["x"], ["v0"], axes=[-1], keepdims=0)]
    constants = {f"trips{count}": np.array(count) for count in (0, 1, 2)}
    for at, level in enumerate(levels):
        given_value, made = f"v{at}", f"v{at + 1}"
        if level == "branch":
            branch = helper.make_graph(nodes, f"branch{at}", [], [info(given_value, None)])
            nodes = [
                node("ReduceMax", ["x"], [f"most{at}"], keepdims=0),
                node("Cast", [f"most{at}"], [f"go{at}"], to=BOOL),
                node("If", [f"go{at}"], [made], then_branch=branch, else_branch=branch),
            ]
            continue
        body = helper.make_graph(
            [*nodes, node("Identity", [f"c{at}"], [f"d{at}"])],
            f"body{at}",
            [info(f"i{at}", [], INT64), info(f"c{at}", [], BOOL)],
            [info(f"d{at}", [], BOOL), info(given_value, None)],
        )
        nodes = [node("Loop", [f"trips{level}", ""], [made], body=body)]
    nodes.append(node("Identity", [f"v{len(levels)}"], ["y"]))
    model = model_of(nodes, [info("x", X.shape)], [info("y", None)], constants.items())
    program = lowered(model)
    trips = [level for level in reversed(levels) if level != "branch"]
    expected = np.broadcast_to(X.mean(-1), (*trips, *X.shape[:-1]))
    assert [spec.dims for spec in program.outputs] == [expected.shape]
    found = run(whole(program), {"x": X})["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(
    firsts=st.integers(0, 2),
    trips=st.integers(0, 3),
    added=st.integers(1, 2),
    is_stacked=st.booleans(),
    axis=st.integers(-3, 2),
    is_nested=st.booleans(),
    is_sliced=st.booleans(),
)
def test_a_list_to_which_a_loop_appends_has_the_shape_of_a_run(
    firsts, trips, added, is_stacked, axis, is_nested, is_sliced
):
    """Exporters write a list and its stack or concatenation as a sequence."""
    assume(firsts or trips)
    nodes = [node("Gather", ["x", "i"], ["row"], axis=0), node("Mul", ["row", "half"], ["t0"])]
    if is_sliced:
        # The shape of the slice follows from values that the body computes from constants of the main graph.
        nodes[0].input[0] = "whole"
        nodes.insert(0, node("Unsqueeze", ["zero", "zeros"], ["axes"]))
        nodes.insert(1, node("Slice", ["x", "zeros", "ends", "axes"], ["whole"]))
    nodes += [node("SequenceInsert", [f"s{at}", f"t{at}"], [f"s{at + 1}"]) for at in range(added)]
    nodes += [node("Neg", [f"t{at}"], [f"t{at + 1}"]) for at in range(added - 1)]
    nodes = sorted(nodes, key=lambda made: made.op_type == "SequenceInsert")
    ends = [helper.make_tensor_sequence_value_info(name, 1, None) for name in ("s0", f"s{added}")]
    body = helper.make_graph(
        [*nodes, node("Identity", ["c"], ["d"])],
        "body",
        [info("i", [], INT64), info("c", [], BOOL), ends[0]],
        [info("d", [], BOOL), ends[1]],
    )
    start = (
        node("SequenceConstruct", ["first"] * firsts, ["e"]) if firsts else node("SequenceEmpty", [], ["e"])
    )
    nodes = [
        start,
        node("Loop", ["trips", "", "e"], ["l"], body=body),
        node("ConcatFromSequence", ["l"], ["joined"], axis=axis, new_axis=int(is_stacked)),
        node("Exp", ["joined"], ["y"]),
    ]
    if is_nested:
        outer = helper.make_graph(
            [*nodes, node("Identity", ["c2"], ["d2"])],
            "outer",
            [info("i2", [], INT64), info("c2", [], BOOL)],
            [info("d2", [], BOOL), info("y", None)],
        )
        nodes = [node("Loop", ["twice", ""], ["z"], body=outer), node("Identity", ["z"], ["y"])]
    constants = {"half": np.float32(0.5), "trips": np.array(trips), "twice": np.array(2)}
    constants |= {"first": X[1, :1], "zero": np.array(0), "zeros": np.array([0]), "ends": np.array([2**62])}
    model = model_of(nodes, [info("x", (3, 1, 4))], [info("y", None)], constants.items())
    feeds = {"x": X.reshape(6, 1, 4)[:3]}
    try:
        expected = run(model, feeds)["y"]
    except Exception:  # noqa: BLE001 - the engine has no exception type of its own
        with pytest.raises(CompileError):
            lowered(model)
        return
    program = lowered(model)
    assert [spec.dims for spec in program.outputs] == [expected.shape]
    np.testing.assert_array_equal(run(whole(program), feeds)["y"], expected)


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_a_loop_has_the_shapes_that_earlier_loops_give(count, is_captured):
    """Each loop starts with the result of the loop before it, or captures this result."""
    nodes, last = [], "x"
    for at in range(count):
        other = last if is_captured else "half"
        steps = [node("Mul", [f"s{at}", other], [f"t{at}"]), node("Identity", [f"c{at}"], [f"d{at}"])]
        body = helper.make_graph(
            steps,
            f"body{at}",
            [info(f"i{at}", [], INT64), info(f"c{at}", [], BOOL), info(f"s{at}", None)],
            [info(f"d{at}", [], BOOL), info(f"t{at}", None)],
        )
        start = "x" if is_captured else last
        nodes += [
            node("Loop", ["trips", "", start], [f"r{at}"], body=body),
            node("Neg", [f"r{at}"], [f"n{at}"]),
        ]
        last = f"n{at}"
    constants = [("trips", np.array(2)), ("half", np.float32(0.5))]
    model = model_of(nodes, [info("x", X.shape)], [info(last, None)], constants)
    assert [spec.dims for spec in lowered(model).outputs] == [X.shape]


def branching(rows):
    then = helper.make_graph([node("Neg", ["x"], ["a"])], "then", [], [info("a", None)])
    other = helper.make_graph(
        [node("Exp", ["x"], ["e"]), node("Flatten", ["e"], ["b"])], "else", [], [info("b", None)]
    )
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "limit"], ["go"]),
        node("If", ["go"], ["r"], then_branch=then, else_branch=other),
        node("Sigmoid", ["r"], ["y"]),
    ]
    constants = [("limit", np.float32(100))]
    return model_of(nodes, [info("x", [rows, 3, 4])], [info("y", None)], constants)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("order", [1, -1])
def test_a_condition_on_sizes_selects_the_branch(rank, order):
    """Exporters write such conditions where ranks are known only to the exported program."""
    shape = (2, 3, 4)[:rank]
    branches = {
        "then_branch": helper.make_graph([node("Neg", ["x"], ["a"])], "then", [], [info("a", None)]),
        "else_branch": helper.make_graph([node("Flatten", ["x"], ["b"])], "else", [], [info("b", None)]),
    }
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Size", ["sizes"], ["rank"]),
        node("Equal", ["rank", "one"], ["is_vector"]),
        node("If", ["is_vector"], ["r"], **dict([*branches.items()][::order])),
        node("Sigmoid", ["r"], ["y"]),
    ]
    model = model_of(nodes, [info("x", shape)], [info("y", None)], [("one", np.array(1))])
    expected = run(model, {"x": np.ones(shape, np.float32)})["y"]
    assert [spec.dims for spec in lowered(model).outputs] == [expected.shape]


def test_branches_of_two_ranks_are_refused():
    with pytest.raises(CompileError, match="output 'y': found a shape that is only known when") as caught:
        lowered(branching(2))
    assert caught.value.code == "compile.dynamic_shape"


def test_a_shape_that_does_not_follow_can_be_given():
    program = lowered(branching(2), output_shapes={"y": (2, 12)})
    assert [spec.dims for spec in program.outputs] == [(2, 12)]


def test_a_given_shape_has_the_sizes_of_each_specialization():
    entries = (SpecializationEntry("a", {"n": 2}), SpecializationEntry("b", {"n": 5}))
    program = lowered(
        branching("n"), output_shapes={"y": ("n", "3*4")}, network_specialization_config=entries
    )
    assert [entry.outputs for entry in program.specializations] == [((2, 12),), ((5, 12),)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (2, 12)}, "output 'q' does not exist; the model has 'y'"),
        ({"y": (2, "k")}, "has the symbol 'k', which has no size"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_an_error(shapes, message):
    with pytest.raises(OptionError, match=message) as caught:
        lowered(branching(2), output_shapes=shapes)
    assert caught.value.code == "option.output_shapes"


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([None, ["rows", "found"], [None] * 2]),
    st.sampled_from([None, (9, 2), (2,), (4, 4, 4)]),
)
def test_the_example_of_a_shape_is_accepted(dims, declared, wrong):
    """Regression: the example was [1, 2], also if a known size or number of dims contradicted it."""
    model = model_of([node("NonZero", ["x"], ["z"])], [info("x", dims)], [info("z", declared, INT64)])
    with pytest.raises((CompileError, OptionError)) as caught:
        lowered(model, output_shapes={} if wrong is None else {"z": wrong})
    text = " ".join([caught.value.message, *caught.value.hints])
    example = ast.literal_eval(re.search(r"output_shapes=({.*?})", text)[1])
    assert lowered(model, output_shapes=example).outputs[0].dims == tuple(example["z"])


def test_a_given_shape_must_be_that_which_follows():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [2, 3])], [info("y", None)])
    assert lowered(model, output_shapes={"y": (2, 3)}).outputs[0].dims == (2, 3)
    with pytest.raises(OptionError, match=r"output 'y' has the shape \[2, 3\], not \[2, 4\]"):
        lowered(model, output_shapes={"y": (2, 4)})


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"num_scan_inputs": 1, "scan_input_axes": [0, 0, 1]}, "Number of scan input axes specified"),
        ({"num_scan_inputs": 5}, "found 5 in 'num_scan_inputs', expected 1 to 2"),
        ({"num_scan_inputs": 5, "scan_input_axes": [0] * 5}, "found 5 in 'num_scan_inputs'"),
        ({"num_scan_inputs": 1 << 40}, "found 1099511627776 in 'num_scan_inputs'"),
        ({"num_scan_inputs": -1}, "found -1 in 'num_scan_inputs'"),
        ({"num_scan_inputs": b"1"}, "num_scan_inputs"),
        ({"num_scan_inputs": 1, "scan_input_axes": 0}, "scan_input_axes"),
        ({"num_scan_inputs": 1, "scan_input_axes": [7]}, "axis value 7"),
        ({}, "num_scan_inputs"),
    ],
)
def test_scans_without_valid_counts_and_axes_are_refused(attributes, reason):
    inner = [node("Add", ["s", "r"], ["t"]), node("Identity", ["t"], ["o"])]
    ends = [[info(name, None) for name in names] for names in ("sr", "to")]
    scan = node(
        "Scan", ["first", "rows"], ["y", "z"], body=helper.make_graph(inner, "body", *ends), **attributes
    )
    inputs, outputs = [info("first", [3]), info("rows", [4, 3])], [info("y", None), info("z", None)]
    with pytest.raises(CompileError, match=reason):
        lowered(model_of([scan], inputs, outputs))


@given(
    trips=st.integers(1, 5),
    step=st.integers(1, 2),
    width=st.integers(1, 3),
    is_reversed=st.booleans(),
)
def test_slices_whose_starts_a_loop_computes_have_the_shapes_of_a_run(trips, step, width, is_reversed):
    """Exporters write chunks of a sequence as slices; the last one may be shorter."""
    nodes = [
        node("Mul", ["i", "step"], ["at"]),
        node("Sub", ["last", "at"], ["from_end"]),
        node("Unsqueeze", ["from_end" if is_reversed else "at", "zeros"], ["starts"]),
        node("Add", ["starts", "width"], ["ends"]),
        node("Slice", ["x", "starts", "ends", "axes"], ["t"]),
        node("SequenceInsert", ["s", "t"], ["s1"]),
        node("Identity", ["c"], ["d"]),
    ]
    lists = [helper.make_tensor_sequence_value_info(name, 1, None) for name in ("s", "s1")]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("c", [], BOOL), lists[0]],
        [info("d", [], BOOL), lists[1]],
    )
    graph = [
        node("SequenceEmpty", [], ["e"]),
        node("Loop", ["trips", "", "e"], ["l"], body=body),
        node("ConcatFromSequence", ["l"], ["y"], axis=1),
    ]
    constants = [
        *(("trips", np.array(trips)), ("step", np.array(step)), ("last", np.array(5))),
        *(("zeros", np.array([0])), ("axes", np.array([1])), ("width", np.array([width]))),
    ]
    model = model_of(graph, [info("x", [2, 6, 3])], [info("y", None)], constants)
    x = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
    expected = run(model, {"x": x})["y"]
    program = lowered(model)
    assert [spec.dims for spec in program.outputs] == [expected.shape]
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], expected)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2])
def test_branches_that_ask_for_the_rank_of_a_part_of_a_list(count, rank):
    """The exporter of torch writes hstack in this way."""
    nodes = [
        node("SequenceConstruct", ["x"] * count, ["list"]),
        node("SequenceAt", ["list", "zero"], ["first"]),
        node("Shape", ["first"], ["sizes"]),
        node("Size", ["sizes"], ["rank"]),
        node("Equal", ["rank", "one"], ["is_vector"]),
    ]
    branches = {
        name: helper.make_graph(
            [node("ConcatFromSequence", ["list"], [name], axis=axis)], name, [], [info(name, None)]
        )
        for name, axis in (("then_branch", 0), ("else_branch", 1))
    }
    nodes.append(node("If", ["is_vector"], ["y"], **branches))
    constants = [("zero", np.array(0)), ("one", np.array(1))]
    dims = [3, 4][:rank]
    model = model_of(nodes, [info("x", dims)], [info("y", None)], constants)
    (spec,) = lowered(model).outputs
    assert tuple(spec.dims) == run(model, {"x": np.ones(dims, np.float32)})["y"].shape
