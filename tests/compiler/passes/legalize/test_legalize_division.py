"""Integer divisions by 0 and -1; without the pass, they end the test process."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from onnxruntime import __version__ as engine_version

from compiler_oracle import info, kinds, lowered, model_of, node, run, whole

TYPES = [np.int8, np.int16, np.int32, np.int64]
#: Position of the division, and kind of its operands.
PLACES = ["main", "nested", "function", "constants", "constant dividend", "constant divisor"]


def _elem_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _expected(op, dividend, divisor, fmod):
    """Compute with Python's integers; a result outside the range of the type wraps."""
    results = []
    for left, right in zip(dividend.tolist(), divisor.tolist(), strict=True):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        remainder = left - quotient * right if fmod else left % right
        results.append(quotient if op == "Div" else remainder)
    return np.array([value & (2**64 - 1) for value in results], np.uint64).astype(dividend.dtype)


def _program(op, dividend, divisor, place, fmod=0, opset=17):
    elem_type, size = _elem_type(dividend.dtype), list(dividend.shape)
    division = node(op, ["a", "b"], ["quotient"], **({"fmod": 1} if fmod else {}))
    nodes, functions = [division], []
    if place == "nested":
        branches = {
            "then_branch": helper.make_graph([division], "then", [], [info("quotient", size, elem_type)]),
            "else_branch": helper.make_graph(
                [node("Identity", ["a"], ["other"])], "else", [], [info("other", size, elem_type)]
            ),
        }
        nodes = [helper.make_node("If", ["go"], ["quotient"], **branches)]
    if place == "function":
        opsets = [helper.make_opsetid("", opset)]
        functions = [helper.make_function("f", "Divide", ["a", "b"], ["quotient"], [division], opsets)]
        nodes = [helper.make_node("Divide", ["a", "b"], ["quotient"], domain="f")]
    constants = {
        "constants": {"a": dividend, "b": divisor},
        "constant dividend": {"a": dividend},
        "constant divisor": {"b": divisor},
    }.get(place, {})
    feeds = {"a": dividend, "b": divisor, "x": np.zeros(size, dividend.dtype)}
    feeds = {name: value for name, value in feeds.items() if name not in constants}
    inputs = [info(name, size, elem_type) for name in feeds]
    if place == "nested":
        feeds["go"] = np.array(True)
        inputs.append(info("go", [], TensorProto.BOOL))
    # Without the input x, the output would be a constant.
    nodes.append(node("Concat", ["quotient", "x"], ["y"], axis=0))
    model = model_of(
        nodes,
        inputs,
        [info("y", [2 * size[0]], elem_type)],
        list(constants.items()),
        opset,
        functions=functions,
    )
    if functions:
        model.opset_import.append(helper.make_opsetid("f", 1))
    return lowered(model), feeds


@st.composite
def _operands(draw):
    dtype = draw(st.sampled_from(TYPES))
    limits = np.iinfo(dtype)
    special = st.sampled_from([limits.min, limits.min + 1, -2, -1, 1, 2, limits.max])
    numbers = special | st.integers(limits.min, limits.max)
    count = draw(st.integers(1, 5))
    dividend = draw(hnp.arrays(dtype, count, elements=numbers))
    return dividend, draw(hnp.arrays(dtype, count, elements=numbers.filter(bool)))


#: Computes remainders with the sign of the dividend in double.
OLD_ENGINE = int(engine_version.split(".")[1]) < 32


@given(_operands(), st.sampled_from(PLACES), st.sampled_from([("Div", 0), ("Mod", 0), ("Mod", 1)]))
def test_divisions_give_the_numbers_of_onnx(operands, place, kind):
    op, fmod = kind
    dividend, divisor = operands
    if fmod and OLD_ENGINE:
        assume(max(abs(int(value)) for value in (*dividend, *divisor)) < 2**53)
    program, feeds = _program(op, dividend, divisor, place, fmod)
    got = run(whole(program), feeds)["y"][: len(dividend)]
    np.testing.assert_array_equal(got, _expected(op, dividend, divisor, fmod))


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 21])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("place", ["main", "constant dividend", "constant divisor"])
def test_every_operator_set_is_guarded(opset, dtype, place):
    dividend = np.array([np.iinfo(dtype).min, 9], dtype)
    divisor = np.array([-1, -1], dtype)
    program, feeds = _program("Div", dividend, divisor, place, opset=opset)
    got = run(whole(program), feeds)["y"][:2]
    np.testing.assert_array_equal(got, _expected("Div", dividend, divisor, 0))


@pytest.mark.parametrize("place", ["main", "nested", "function"])
@pytest.mark.parametrize(
    ("op", "opset", "dtype"),
    [
        *itertools.product(["Div"], [7, 12, 13, 21], [np.int32, np.int64]),
        *itertools.product(["Div"], [14, 21], [np.int8, np.uint8]),
        *itertools.product(["Mod"], [12, 13, 21], [*TYPES, np.uint8]),
    ],
)
def test_a_divisor_that_contains_a_zero_is_an_error_of_the_inference(op, opset, dtype, place):
    # Engines before 1.25 end the process.
    dividend, divisor = np.array([7, 8, 9], dtype), np.array([2, 0, 3], dtype)
    program, feeds = _program(op, dividend, divisor, place, opset=opset)
    with pytest.raises(Exception, match=r"quotient.* .integer division by zero"):
        run(whole(program), feeds)
    feeds["b"] = np.array([2, 4, 3], dtype)
    got = run(whole(program), feeds)["y"][:3]
    np.testing.assert_array_equal(got, _expected(op, dividend, feeds["b"], 0))


def test_the_error_names_the_node_and_a_node_without_a_name_by_its_result():
    nodes = [node("Div", ["a", "b"], ["q"], name="/layer/Div"), node("Div", ["a", "c"], ["r"])]
    inputs = [info(name, [1], TensorProto.INT32) for name in "abc"]
    outputs = [info(name, [1], TensorProto.INT32) for name in "qr"]
    program = whole(lowered(model_of(nodes, inputs, outputs, opset=14)))
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    with pytest.raises(Exception, match=r"/layer/Div .integer division by zero"):
        run(program, {"a": one, "b": zero, "c": one})
    with pytest.raises(Exception, match=r"\br .integer division by zero"):
        run(program, {"a": one, "b": one, "c": zero})


def test_a_size_of_zero_is_a_zero_and_no_divisor_is_none():
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Size", ["places"], ["count"]),
        node("Div", ["total", "count"], ["mean"]),
        node("Slice", ["ids", "none", "none"], ["empty"]),
        node("Mod", ["empty", "empty"], ["y"]),
    ]
    inputs = [info("x", [4]), info("total", [], TensorProto.INT64), info("ids", [3], TensorProto.INT64)]
    outputs = [info("mean", [], TensorProto.INT64), info("y", [0], TensorProto.INT64)]
    program = whole(lowered(model_of(nodes, inputs, outputs, [("none", np.array([0]))])))
    feeds = {"x": np.ones(4, np.float32), "total": np.array(9), "ids": np.array([1, 0, 2])}
    got = run(program, feeds)
    assert got["mean"] == 2
    assert got["y"].shape == (0,)
    with pytest.raises(Exception, match=r"mean.* .integer division by zero"):
        run(program, feeds | {"x": np.zeros(4, np.float32)})


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16])
def test_a_size_that_a_cast_makes_zero_is_an_error_of_the_inference(kind):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        node("Shape", ["x"], ["size"]),
        node("Cast", ["size"], ["narrow"], to=kind),
        node("Div", ["a", "narrow"], ["y"]),
    ]
    model = model_of(nodes, [info("x", [2**16]), info("a", [1], kind)], [info("y", [1], kind)], opset=14)
    # Older engines compute the guard when they load the program.
    with pytest.raises(Exception, match=r"division by zero|out of data bounds"):
        run(whole(lowered(model)), {"x": np.zeros(2**16, np.float32), "a": np.array([7], dtype)})


_WIDE = [-(2**32), -(2**31), -256, -129, -128, -1, 1, 127, 128, 255, 256, 2**31, 2**32 - 1, 2**32, 2**40]


@given(
    st.lists(st.sampled_from(_WIDE), min_size=1, max_size=3),
    st.sampled_from([np.int8, np.int16, np.int32]),
    st.sampled_from(["Div", "Mod"]),
)
def test_a_cast_of_a_constant_may_make_a_divisor_that_traps(values, dtype, op):
    divisor = np.array(values, np.int64).astype(dtype)
    limits = np.iinfo(dtype)
    dividend = np.resize(np.array([limits.min, limits.max, 7], dtype), len(values))
    elem_type = _elem_type(dtype)
    model = model_of(
        [node("Cast", ["wide"], ["b"], to=elem_type), node(op, ["a", "b"], ["y"])],
        [info("a", [len(values)], elem_type)],
        [info("y", [len(values)], elem_type)],
        [("wide", np.array(values, np.int64))],
    )
    if divisor.all():
        got = run(whole(lowered(model)), {"a": dividend})["y"]
        np.testing.assert_array_equal(got, _expected(op, dividend, divisor, 0))
    else:
        # The compiler finds the zero, or the engine finds it when it loads or runs the program.
        with pytest.raises(Exception, match=r"division by zero|out of data bounds"):
            run(whole(lowered(model)), {"a": dividend})


def test_division_of_sizes_or_by_constants_stays_one_operation():
    """Divisions that exporters write to compute shapes cannot trap."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "at"], ["size"]),
        node("Div", ["size", "by"], ["half"]),
        node("Div", ["ids", "by"], ["y"]),
        node("Div", ["ids", "size"], ["z"]),
    ]
    constants = [("at", np.array([1])), ("by", np.array([2]))]
    inputs = [info("x", [1, 6]), info("ids", [1], TensorProto.INT64)]
    outputs = [info(name, [1], TensorProto.INT64) for name in ("half", "y", "z")]
    program = lowered(model_of(nodes, inputs, outputs, constants))
    assert sorted(kinds(program)) == sorted(n.op_type for n in nodes)
