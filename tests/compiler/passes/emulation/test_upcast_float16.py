"""Models of the type float16 that compute in float32."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import HALF, PLACES, as_branches, half, info, lowered, model_of, node, run, whole
from operator_cases import NEWEST_SET
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


def sequence(name):
    return helper.make_tensor_sequence_value_info(name, HALF, None)


def graph(nodes, inputs, outputs):
    return helper.make_graph(nodes, "inner", inputs, outputs)


#: form of a sequence or optional value -> nodes from "x" to "m", which contains the rows of "x" in some order
HELD = {
    "elements": [
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("ConcatFromSequence", ["s"], ["m"], axis=0),
    ],
    "state of a loop": [
        node("SequenceEmpty", [], ["e"], dtype=HALF),
        node(
            "Loop",
            ["rows", "", "e"],
            ["s"],
            body=graph(
                [
                    node("Gather", ["x", "i"], ["row"], axis=0),
                    node("SequenceInsert", ["before", "row"], ["after"]),
                    node("Identity", ["c"], ["d"]),
                ],
                [
                    info("i", [], TensorProto.INT64),
                    info("c", [], TensorProto.BOOL),
                    sequence("before"),
                ],
                [info("d", [], TensorProto.BOOL), sequence("after")],
            ),
        ),
        node("ConcatFromSequence", ["s"], ["m"], axis=0, new_axis=1),
    ],
    "result of a branch": [
        node(
            "If",
            ["true"],
            ["s"],
            then_branch=graph([node("SplitToSequence", ["x"], ["a"], axis=0)], [], [sequence("a")]),
            else_branch=graph([node("SequenceConstruct", ["x"], ["b"])], [], [sequence("b")]),
        ),
        node("ConcatFromSequence", ["s"], ["m"], axis=0),
    ],
    "absent": [
        node("Optional", [], ["s"], type=helper.make_tensor_type_proto(HALF, [3, 4])),
        node("OptionalHasElement", ["s"], ["h"]),
        node(
            "If",
            ["h"],
            ["m"],
            then_branch=graph([node("OptionalGetElement", ["s"], ["a"])], [], [info("a", None, HALF)]),
            else_branch=graph([node("Identity", ["x"], ["b"])], [], [info("b", None, HALF)]),
        ),
    ],
}


@pytest.mark.parametrize("form", HELD)
def test_tensors_in_other_values_compute_in_float32(form):
    nodes = [*HELD[form], node("Mul", ["m", "w"], ["y"])]
    held = {"w": np.float16([0.1, 2, -3, 4]), "rows": np.array(3), "true": np.array(True)}
    read = {name for made in nodes for name in made.input}
    constants = [(name, value) for name, value in held.items() if name in read]
    proto = model_of(nodes, [info("x", [3, 4], HALF)], [info("y", None, HALF)], constants, opset=18)
    x = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float16)
    found = run(whole(lowered(proto, output_shapes={"y": (3, 4)})), {"x": x})["y"]
    np.testing.assert_array_equal(found, half(x * held["w"].astype(np.float32)))


@pytest.mark.skipif(NEWEST_SET < 26, reason="BitCast is in operator set 26")
@pytest.mark.parametrize("place", [*PLACES.values(), as_branches])
@pytest.mark.parametrize(
    ("elem_type", "dtype", "options"),
    [
        (HALF, np.float16, {}),
        (HALF, np.float16, {"convert_to_fp16": True}),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16, {"aic_hw_version": "ai200"}),
    ],
)
@pytest.mark.parametrize("computes", [True, False])
def test_bits_are_those_of_the_narrow_type(computes, elem_type, dtype, options, place):
    nodes = [
        node("BitCast", ["x"], ["h"], to=elem_type),
        node("Mul" if computes else "Max", ["h", "h"] if computes else ["h"], ["m"]),
        node("BitCast", ["m"], ["i"], to=TensorProto.INT16),
        node("BitCast", ["i"], ["n"], to=elem_type),
        node("BitCast", ["n"], ["y"], to=TensorProto.INT16),
    ]
    ends = info("x", [4], TensorProto.INT16), info("y", [4], TensorProto.INT16)
    model = place(model_of(nodes, [ends[0]], [ends[1]], opset=26))
    h = np.array([1, -2.5, 0.3, 200], dtype)
    found = run(whole(lowered(model, **options)), {"x": h.view(np.int16)})["y"]
    np.testing.assert_array_equal(found, (h * h if computes else h).view(np.int16))


@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
@pytest.mark.parametrize("window", ["BlackmanWindow", "HammingWindow", "HannWindow"])
def test_windows_take_the_type_of_their_readers(window, options):
    nodes = [node(window, ["n"], ["w"], output_datatype=HALF), node("Mul", ["x", "w"], ["y"])]
    ends = info("x", [8], HALF), info("y", [8], HALF)
    model = model_of(nodes, [ends[0]], [ends[1]], [("n", np.array(8))])
    x = np.linspace(-1, 1, 8).astype(np.float16)
    expected = run(model, {"x": x}, optimize=False)["y"]
    found = run(whole(lowered(model, **options)), {"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)
