import logging

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from compiler_oracle import FLOAT, HALF, half, info, kinds, lowered, model_of, node, run, run_fp16, whole
from qaic.compiler.ir.precision import parameter_inputs

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.fixture(params=[True, False], ids=["optimized", "plain"])
def optimize(request):
    return request.param


def test_square_of_300_overflows_before_it_is_scaled(optimize):
    model = model_of(
        [node("Mul", ["x", "x"], ["s"]), node("Mul", ["s", "c"], ["y"])],
        [info("x", [1])],
        [info("y", [1])],
        [("c", np.float32([1 / 300]))],
    )
    assert run_fp16(model, {"x": np.float32([300])}, optimize)["y"] == np.inf
    assert run(model, {"x": np.float32([300])}, optimize)["y"] < 301


def test_odd_2049_is_lost_to_the_even_grid(optimize):
    model = model_of(
        [node("Add", ["x", "one"], ["s"]), node("Sub", ["s", "x"], ["y"])],
        [info("x", [1])],
        [info("y", [1])],
        [("one", np.float32([1]))],
    )
    assert run_fp16(model, {"x": np.float32([2048])}, optimize)["y"] == 0


def test_chain_of_matmuls_equals_rounding_after_each(optimize):
    weights = [normal(96, 96) for _ in range(4)]
    nodes = [node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(4)]
    model = model_of(
        nodes, [info("h0", [8, 96])], [info("h4", [8, 96])], [(f"w{i}", w) for i, w in enumerate(weights)]
    )
    x = normal(8, 96)
    expected = half(x)
    for weight in weights:
        step = model_of(
            [node("MatMul", ["a", "b"], ["c"])],
            [info("a", [8, 96]), info("b", [96, 96])],
            [info("c", [8, 96])],
        )
        # The engine's float32 product is the reference, because the engine selects the order of summation.
        # The test checks the rounding.
        expected = half(run(step, {"a": expected, "b": half(weight)})["c"])
    np.testing.assert_array_equal(run_fp16(model, {"h0": x}, optimize)["h4"], expected)


def test_matmul_with_bias_and_relu_is_rounded_once():
    w, b, x = normal(64, 32), normal(32), normal(4, 64)
    model = model_of(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("Relu", ["a"], ["y"]),
        ],
        [info("x", [4, 64])],
        [info("y", [4, 32])],
        [("w", w), ("b", b)],
    )
    program = lowered(model, convert_to_fp16=True)
    computing = [kind for kind in kinds(program) if kind != "Cast"]
    assert computing == ["MatMul", "Add", "Relu"]
    # x, the result, and one cast back for each constant
    assert kinds(program).count("Cast") == 2 + 2 + 2
    expected = half(np.maximum(half(x) @ half(w) + half(b), 0))
    actual = run(whole(program), {"x": x})["y"]
    np.testing.assert_allclose(actual, expected, atol=8e-3)
    assert np.mean(actual == expected) > 0.99
    np.testing.assert_array_equal(actual, half(actual))


def test_result_read_twice_is_rounded_before_the_bias():
    model = model_of(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"]), node("Neg", ["m"], ["z"])],
        [info("x", [1, 1])],
        [info("y", [1, 1]), info("z", [1, 1])],
        [("w", np.float32([[3]])), ("b", np.float32([1.0]))],
    )
    out = run_fp16(model, {"x": np.float32([[683]])})
    assert out["z"] == -2048
    assert out["y"] == 2048  # 2049 without rounding would give 2050


def test_batch_normalization_is_folded_into_the_convolution():
    w, x = normal(4, 3, 3, 3), normal(1, 3, 8, 8)
    scale, shift, mean = normal(4), normal(4), normal(4)
    variance = np.abs(normal(4)) + 0.5
    model = model_of(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], epsilon=1e-3),
            node("Relu", ["n"], ["y"]),
        ],
        [info("x", [1, 3, 8, 8])],
        [info("y", [1, 4, 8, 8])],
        [("w", w), ("scale", scale), ("shift", shift), ("mean", mean), ("variance", variance)],
    )
    program = lowered(model, convert_to_fp16=True)
    assert [kind for kind in kinds(program) if kind != "Cast"] == ["Conv", "Relu"]
    factor = scale / np.sqrt(variance + np.float32(1e-3))
    folded = model_of(
        [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])],
        [info("x", [1, 3, 8, 8])],
        [info("y", [1, 4, 8, 8])],
        [("w", half(w * factor[:, None, None, None])), ("b", half(shift - mean * factor))],
    )
    expected = half(run(folded, {"x": half(x)})["y"])
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], expected)


def test_selecting_operators_get_no_rounding_of_their_own():
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[1, 0]),
        node("Reshape", ["a", "shape"], ["b"]),
        node("Slice", ["b", "starts", "ends"], ["c"]),
        node("Concat", ["c", "c"], ["d"], axis=0),
        node("Max", ["d", "bound"], ["e"]),
        node("Clip", ["e", "low", "high"], ["f"]),
        node("Abs", ["f"], ["y"]),
    ]
    model = model_of(
        nodes,
        [info("x", [3, 4])],
        [info("y", [20])],
        [
            ("shape", np.int64([12])),
            ("starts", np.int64([0])),
            ("ends", np.int64([10])),
            ("bound", np.float32([0.1])),
            ("low", np.float32(-0.3)),
            ("high", np.float32(0.7)),
        ],
    )
    program = lowered(model, convert_to_fp16=True)
    assert kinds(program).count("Cast") == 2 + 3  # the input, and the three float constants
    x = normal(3, 4)
    expected = run(
        model_of(
            nodes,
            list(model.graph.input),
            list(model.graph.output),
            [
                *list(model.graph.initializer)[:3],
                ("bound", half([0.1])),
                ("low", half(-0.3)),
                ("high", half(0.7)),
            ],
        ),
        {"x": half(x)},
    )["y"]
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], expected)


def test_constant_subexpression_is_folded_before_rounding(optimize):
    model = model_of(
        [
            node("Mul", ["p", "q"], ["pq"]),
            node("Transpose", ["pq"], ["t"]),
            node("Sub", ["t", "r"], ["c"]),
            node("Add", ["x", "c"], ["y"]),
        ],
        [info("x", [1, 1])],
        [info("y", [1, 1])],
        [("p", np.float32([[300]])), ("q", np.float32([[300]])), ("r", np.float32([[89999]]))],
    )
    # Rounding in each step would give infinity.
    assert run_fp16(model, {"x": np.float32([[1]])}, optimize)["y"] == 2


def test_whole_part_of_a_constant_is_taken_before_rounding():
    model = model_of(
        [node("Floor", ["c"], ["f"]), node("Add", ["x", "f"], ["y"])],
        [info("x", [1])],
        [info("y", [1])],
        [("c", np.float32([1025.5]))],
    )
    assert run_fp16(model, {"x": np.float32([0])})["y"] == 1025


def test_constant_used_plain_and_rounded_keeps_both_forms():
    c = np.float32([1 + 2**-12])
    model = model_of(
        [
            node("Sub", ["c", "one"], ["d"]),
            node("Mul", ["d", "big"], ["e"]),
            node("Mul", ["x", "c"], ["y"]),
            node("Mul", ["x", "e"], ["z"]),
        ],
        [info("x", [1])],
        [info("y", [1]), info("z", [1])],
        [("c", c), ("one", np.float32([1])), ("big", np.float32([4096]))],
    )
    out = run_fp16(model, {"x": np.float32([1])})
    assert out["y"] == 1
    assert out["z"] == 1


def test_index_arithmetic_on_shapes_is_not_rounded():
    model = model_of(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=FLOAT),
            node("Mul", ["f", "half"], ["g"]),
            node("Cast", ["g"], ["i"], to=onnx.TensorProto.INT64),
            node("Expand", ["one", "i"], ["y"]),
        ],
        [info("x", [8198])],
        [info("y", [4099])],
        [("half", np.float32([0.5])), ("one", np.float32([1]))],
    )
    assert run_fp16(model, {"x": np.zeros(8198, np.float32)})["y"].shape == (4099,)


def test_resize_scales_stay_exact():
    model = model_of(
        [node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        [info("x", [1, 1, 3, 3])],
        [info("y", None)],
        [("scales", np.float32([1, 1, 4 / 3 + 1e-6, 4 / 3 + 1e-6]))],
    )
    program = lowered(model, convert_to_fp16=True)
    assert program.outputs[0].dims == (1, 1, 4, 4)
    assert run(whole(program), {"x": normal(1, 1, 3, 3)})["y"].shape == (1, 1, 4, 4)


def test_a_depth_stays_exact():
    model = model_of(
        [node("OneHot", ["x", "depth", "values"], ["y"])],
        [info("x", [2])],
        [info("y", None)],
        [("depth", np.float32(4099)), ("values", np.float32([0, 1]))],
    )
    assert run_fp16(model, {"x": np.float32([1, 2])})["y"].shape == (2, 4099)


def test_small_scales_of_integers_stay_exact():
    numbers = RNG.integers(0, 256, (8, 4)).astype(np.uint8)
    held = {"s": np.float32(1 / 64), "z": np.uint8(128), "w": numbers, "t": np.float32(1e-6)}
    model = model_of(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("QGemm", ["q", "s", "z", "w", "t", "z"], ["y"], domain="com.microsoft"),
        ],
        [info("x", [3, 8])],
        [info("y", [3, 4])],
        list(held.items()),
    )
    x = (RNG.integers(-64, 65, (3, 8)) / 64).astype(np.float32)
    expected = half(x @ (numbers.astype(np.float32) - 128) * np.float32(1e-6))
    np.testing.assert_allclose(run_fp16(model, {"x": x})["y"], expected, rtol=1e-3, atol=1e-7)


def test_no_kernel_reads_rounded_scales_of_integers():
    """The engine's names of operands state which are scales; operators with zero points read integers."""
    kernels = {
        (kernel.domain, kernel.op_name)
        for kernel in engine.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
    }
    checked = 0
    for schema in engine.get_all_operator_schema():
        names = [value.name.lower() for value in schema.inputs]
        if (schema.domain, schema.name) in kernels and any("zero_point" in name for name in names):
            scales = {position for position, name in enumerate(names) if "scale" in name}
            assert scales <= {*parameter_inputs(node(schema.name, names, ["y"]))}, schema.name
            checked += bool(scales)
    assert checked > 20


def test_overflowing_constants_become_infinite_where_clipping_is_off():
    values = np.float32([1e5, -1e6, 65519, 65520, np.inf, 1])
    model = model_of(
        [node("Mul", ["x", "table"], ["y"])], [info("x", [6])], [info("y", [6])], [("table", values)]
    )
    program = lowered(model, convert_to_fp16=True, clip_fp16_constants=False)
    out = run(whole(program), {"x": np.ones(6, np.float32)})["y"]
    np.testing.assert_array_equal(out, [np.inf, -np.inf, 65504, np.inf, np.inf, 1])
    assert program.overflows.counts == {"table": 3}


def test_constants_are_clipped_by_default_and_infinities_stay():
    values = np.tile(np.float32([1e5, -1e6, np.inf, -np.inf, np.nan, 2]), 100)
    model = model_of(
        [node("Mul", ["x", "table"], ["y"])], [info("x", [600])], [info("y", [600])], [("table", values)]
    )
    program = lowered(model, convert_to_fp16=True)
    out = run(whole(program), {"x": np.ones(600, np.float32)})["y"]
    np.testing.assert_array_equal(out, np.tile([65504, -65504, np.inf, -np.inf, np.nan, 2], 100))
    assert program.overflows.counts == {"table": 200}


def test_conversion_is_idempotent():
    model = model_of(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("Flatten", ["r"], ["f"]),
            node("MatMul", ["f", "m"], ["g"]),
            node("Add", ["g", "b"], ["h"]),
            node("Mul", ["p", "p"], ["q"]),
            node("Softmax", ["h"], ["k"]),
            node("Add", ["k", "q"], ["y"]),
        ],
        [info("x", [1, 2, 4, 4])],
        [info("y", [1, 8])],
        [
            ("w", normal(3, 2, 3, 3)),
            ("s", np.abs(normal(3))),
            ("m", normal(12, 8)),
            ("b", normal(8)),
            ("p", normal(8)),
        ],
    )
    once = whole(lowered(model, convert_to_fp16=True))
    twice = whole(lowered(once, convert_to_fp16=True))
    assert list(once.graph.node) == list(twice.graph.node)
    by_name = {t.name: numpy_helper.to_array(t) for t in once.graph.initializer}
    assert by_name.keys() == {t.name for t in twice.graph.initializer}
    for tensor in twice.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), by_name[tensor.name])


def test_model_without_floats_is_unchanged():
    model = model_of(
        [node("Add", ["x", "c"], ["a"]), node("Cast", ["a"], ["y"], to=onnx.TensorProto.INT32)],
        [info("x", [4], onnx.TensorProto.INT64)],
        [info("y", [4], onnx.TensorProto.INT32)],
        [("c", np.int64([1, 2, 3, 4]))],
    )
    plain, converted = lowered(model), lowered(model, convert_to_fp16=True)
    assert plain.model == converted.model
    assert plain.weights == converted.weights


def test_integers_become_floats_on_the_grid(optimize):
    model = model_of(
        [node("Cast", ["x"], ["f"], to=FLOAT), node("Identity", ["f"], ["y"])],
        [info("x", [2], onnx.TensorProto.INT32)],
        [info("y", [2])],
    )
    out = run_fp16(model, {"x": np.int32([2049, 70000])}, optimize)["y"]
    np.testing.assert_array_equal(out, [2048, np.inf])


def branch(name, op):
    return helper.make_graph([node(op, ["x", "c"], [name])], f"{name}_graph", [], [info(name, [1])])


def test_branches_of_if_are_rounded_inside():
    model = model_of(
        [
            node("If", ["p"], ["r"], then_branch=branch("t", "Mul"), else_branch=branch("e", "Add")),
            node("Sub", ["r", "x"], ["y"]),
        ],
        [info("p", [], onnx.TensorProto.BOOL), info("x", [1])],
        [info("y", [1])],
        [("c", np.float32([1.0]))],
    )
    assert run_fp16(model, {"p": np.array(False), "x": np.float32([2048])})["y"] == 0
    assert run_fp16(model, {"p": np.array(True), "x": np.float32([2049])})["y"] == 0


def test_branches_may_use_one_name_for_different_values():
    def inner(first, second):
        return helper.make_graph(
            [node("Mul", first, ["t"]), node("Sub", ["t", second], ["out"])], "inner", [], [info("out", [1])]
        )

    model = model_of(
        [
            # t is constant in one branch and must be folded there; in the other branch, it overflows.
            node("If", ["p"], ["r"], then_branch=inner(["c", "c"], "d"), else_branch=inner(["x", "x"], "d")),
            node("Add", ["r", "x"], ["y"]),
        ],
        [info("p", [], onnx.TensorProto.BOOL), info("x", [1])],
        [info("y", [1])],
        [("c", np.float32([300])), ("d", np.float32([89999]))],
    )
    x = np.float32([300])
    assert run_fp16(model, {"p": np.array(True), "x": x}, clip_fp16_constants=False)["y"] == 301
    assert np.isnan(run_fp16(model, {"p": np.array(False), "x": x}, clip_fp16_constants=False)["y"])
    # Values that enter the rest of the graph are clipped; folding computes in float32.
    assert run_fp16(model, {"p": np.array(True), "x": x})["y"] == 301
    assert np.isposinf(run_fp16(model, {"p": np.array(False), "x": x})["y"])


def test_loop_carries_values_on_the_grid():
    body = helper.make_graph(
        [node("Identity", ["going"], ["go"]), node("Add", ["acc", "step"], ["next"])],
        "body",
        [info("i", [], onnx.TensorProto.INT64), info("going", [], onnx.TensorProto.BOOL), info("acc", [1])],
        [info("go", [], onnx.TensorProto.BOOL), info("next", [1])],
    )
    model = model_of(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", [1])],
        [info("y", [1])],
        [("n", np.array(8, np.int64)), ("step", np.float32([1]))],
    )
    assert run_fp16(model, {"x": np.float32([2044])})["y"] == 2048


def test_functions_are_rounded_inside():
    function = helper.make_function(
        "local",
        "Square",
        ["a"],
        ["b"],
        [node("Mul", ["a", "a"], ["sq"]), node("Sqrt", ["sq"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    model = model_of(
        [node("Square", ["x"], ["y"], domain="local")],
        [info("x", [1])],
        [info("y", [1])],
        functions=[function],
    )
    assert run_fp16(model, {"x": np.float32([300])})["y"] == np.inf
    kept = lowered(model)
    assert len(kept.model.functions) == 1
    assert run(whole(kept), {"x": np.float32([300])})["y"] == 300


def test_operators_only_the_engine_knows_are_rounded():
    model = model_of(
        [node("Gelu", ["x"], ["g"], domain="com.microsoft"), node("Mul", ["g", "g"], ["y"])],
        [info("x", [2])],
        [info("y", None)],
    )
    program = lowered(model, convert_to_fp16=True)
    assert program.outputs[0].dims == (2,)
    assert run(whole(program), {"x": np.float32([300, 1])})["y"][0] == np.inf


def test_float64_is_rounded_with_a_warning(caplog):
    model = model_of(
        [
            node("Cast", ["x"], ["d"], to=onnx.TensorProto.DOUBLE),
            node("Mul", ["d", "d"], ["e"]),
            node("Cast", ["e"], ["y"], to=FLOAT),
        ],
        [info("x", [1])],
        [info("y", [1])],
    )
    with caplog.at_level(logging.WARNING):
        assert run_fp16(model, {"x": np.float32([300])})["y"] == np.inf
    assert "float64" in caplog.text


def half_model():
    return model_of(
        [node("Mul", ["x", "x"], ["s"]), node("Mul", ["s", "c"], ["y"])],
        [info("x", [1], HALF)],
        [info("y", [1], HALF)],
        [("c", np.float16([1 / 300]))],
    )


@pytest.mark.parametrize("convert", [False, True])
def test_float16_model_is_rounded_like_a_converted_one(convert):
    program = lowered(half_model(), convert_to_fp16=convert)
    assert [spec.dtype for spec in (*program.inputs, *program.outputs)] == ["float16", "float16"]
    out = run(whole(program), {"x": np.float16([300])})["y"]
    assert out.dtype == np.float16
    assert out == np.inf


def test_mixed_model_rounds_only_its_float16_part():
    model = model_of(
        [
            node("Mul", ["x", "x"], ["wide"]),
            node("Cast", ["wide"], ["h"], to=HALF),
            node("Add", ["h", "one"], ["narrow"]),
            node("Cast", ["narrow"], ["y"], to=FLOAT),
        ],
        [info("x", [1])],
        [info("y", [1]), info("wide", [1])],
        [("one", np.float16([1]))],
    )
    out = run(whole(lowered(model)), {"x": np.float32([45.2548339])})
    assert out["y"] == 2048
    assert out["wide"] != half(out["wide"])
