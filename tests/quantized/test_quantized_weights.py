"""4-bit weights as exporters for the card write them: operator set 17, with features of set 21."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qaic
from compiler_oracle import FLOAT, HALF, half, info, lowered, model_of, node, run, whole
from qaic.errors import CompileError
from qaic.options.files.node_precision import NodePrecision

DOMAIN = "com.qti.aisw.onnx"


def unpacking_function(opset=17):
    """Build the function that unpacks two numbers from each byte, low bits first, along the last axis."""

    def ints(name, values):
        return node("Constant", [], [name], value_ints=values)

    nodes = [
        ints("sixteen_wide", [16]),
        node("CastLike", ["sixteen_wide", "packed"], ["sixteen"]),
        node("Mod", ["packed", "sixteen"], ["low"]),
        ints("four_wide", [4]),
        node("CastLike", ["four_wide", "packed"], ["four"]),
        node("BitShift", ["packed", "four"], ["shifted"], direction="RIGHT"),
        node("Mod", ["shifted", "sixteen"], ["high"]),
        ints("last", [-1]),
        node("Unsqueeze", ["low", "last"], ["low_column"]),
        node("Unsqueeze", ["high", "last"], ["high_column"]),
        node("Concat", ["low_column", "high_column"], ["pairs"], axis=-1),
        node("Shape", ["packed"], ["shape"]),
        ints("zero", [0]),
        ints("to_end", [2147483647]),
        node("Slice", ["shape", "zero", "last", "zero"], ["leading"]),
        node("Slice", ["shape", "last", "to_end", "zero"], ["width"]),
        ints("two", [2]),
        node("Mul", ["width", "two"], ["doubled"]),
        node("Concat", ["leading", "doubled"], ["unpacked_shape"], axis=0),
        node("Reshape", ["pairs", "unpacked_shape"], ["unpacked"]),
        node("Cast", ["unpacked"], ["numbers"], to=TensorProto.UINT4),
    ]
    return helper.make_function(
        DOMAIN, "CastToUInt4", ["packed"], ["numbers"], nodes, [helper.make_opsetid("", opset)]
    )


def unpack(source, result):
    return node("CastToUInt4", [source], [result], name=f"/unpack/{result}", domain=DOMAIN)


def packed(numbers):
    return (numbers[..., 0::2] | numbers[..., 1::2] << 4).astype(np.uint8)


def draw_weights(rng, shape, block, grid=np.float32):
    """Draw numbers, and zero points and scales for blocks along the last axis; return all and the floats."""
    blocks = -(-shape[-1] // block)
    numbers = rng.integers(0, 16, shape).astype(np.uint8)
    zeros = rng.integers(0, 16, (*shape[:-1], blocks + blocks % 2)).astype(np.uint8)
    scales = (rng.random((*shape[:-1], zeros.shape[-1])) * 0.1 + 0.01).astype(grid).astype(np.float32)
    repeated = np.repeat(np.arange(zeros.shape[-1]), block)[: shape[-1]]
    floats = (numbers.astype(np.float32) - zeros[..., repeated]) * scales[..., repeated]
    return numbers, zeros, scales, floats


def experts(block, shape=(2, 6, 32), opset=17, *, chosen=False, seed=0, grid=np.float32):
    """Build products with experts' weights: all experts, or those that indices select at run time."""
    rng = np.random.default_rng(seed)
    numbers, zeros, scales, floats = draw_weights(rng, shape, block, grid)
    constants = [("qweight", packed(numbers)), ("qzeros", packed(zeros)), ("scales", scales)]
    held = ["qweight", "qzeros", "scales"]
    nodes, inputs = [], [info("x", [2, 3, shape[-1]])]
    if chosen:
        nodes = [node("Gather", [name, "chosen"], [f"{name}_chosen"], axis=0) for name in held]
        inputs.append(info("chosen", [2], TensorProto.INT64))
        held = [f"{name}_chosen" for name in held]
    nodes += [
        unpack(held[0], "weight"),
        unpack(held[1], "zeros"),
        node(
            "DequantizeLinear", ["weight", held[2], "zeros"], ["floats"], name="/dq", axis=2, block_size=block
        ),
        node("Transpose", ["floats"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["x", "turned"], ["y"], name="/product"),
    ]
    outputs = [info("y", [2, 3, shape[1]])]
    model = model_of(nodes, inputs, outputs, constants, opset=opset, functions=[unpacking_function(opset)])
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model, floats


@settings(max_examples=40)
@given(
    block=st.sampled_from([4, 8, 16, 32]),
    opset=st.sampled_from([15, 17, 18, 20]),
    chosen=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_experts_of_an_export_are_what_their_numbers_mean(block, opset, chosen, seed):
    model, floats = experts(block, opset=opset, chosen=chosen, seed=seed)
    feeds = {"x": np.random.default_rng(seed).standard_normal((2, 3, 32)).astype(np.float32)}
    if chosen:
        feeds["chosen"] = np.int64([1, 0])
        floats = floats[[1, 0]]
    found = run(whole(lowered(model)), feeds)["y"]
    np.testing.assert_allclose(found, feeds["x"] @ floats.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("more", [{}, {"mxfp6_matmul": True}, {"node_precision": True}])
def test_in_fp16_a_weight_is_rounded_once(chosen, more):
    """The program keeps the numbers, zero points and scales of the file; the product reads rounded floats."""
    # The node that selects scales at run time is a separate node in float16.
    model, floats = experts(8, chosen=chosen, grid=np.float16 if chosen else np.float32)
    options = {"convert_to_fp16": True}
    if "node_precision" in more:
        options["node_precision_info_file"] = NodePrecision(("floats",), ("turned",))
    elif more:
        options |= more
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 32)).astype(np.float32)}
    if chosen:
        feeds["chosen"] = np.int64([0, 1])
    found = run(whole(lowered(model, **options)), feeds)["y"]
    expected = half(half(feeds["x"]) @ half(floats).transpose(0, 2, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    # A second rounding, that of the scales, would change most of the results.
    assert (found == expected).mean() > 0.9


def test_a_compiled_session_runs_them_and_says_nothing(caplog, tmp_path):
    model, floats = experts(16)
    path = tmp_path / "experts.onnx"
    onnx.save(model, path)
    with caplog.at_level(logging.WARNING, logger="qaic"), qaic.Session(path) as session:
        x = np.random.default_rng(2).standard_normal((2, 3, 32)).astype(np.float32)
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ floats.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)
    assert [record.getMessage() for record in caplog.records] == []


def reference(nodes, feeds, constants, elem_type):
    """Return the result of operator set 21, computed by the evaluator of the onnx package."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        inputs,
        [helper.make_tensor_value_info("y", elem_type, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ReferenceEvaluator(model).run(None, feeds)[0]


@st.composite
def blockwise(draw):
    """A DequantizeLinear with scales for blocks: rank, axis, sizes, types, with and without a zero point."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    axis = draw(st.integers(0, rank - 1))
    size = draw(st.integers(1, 4))
    shape[axis] = draw(st.integers(1, 3)) * size - draw(st.integers(0, size - 1))
    dtype = draw(st.sampled_from([np.uint8, np.int8, np.int16]))
    scale_type = draw(st.sampled_from([np.float32, np.float16]))
    has_zero = draw(st.booleans())
    return (
        tuple(shape),
        axis,
        size,
        dtype,
        scale_type,
        has_zero,
        draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


@settings(max_examples=80)
@given(blockwise(), st.sampled_from([13, 17, 19]))
def test_scales_of_blocks_mean_what_the_definition_says(case, opset):
    shape, axis, size, dtype, scale_type, has_zero, is_negative, seed = case
    if scale_type == np.float16 and opset < 15:
        scale_type = np.float32
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    data = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    blocks = (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])
    constants = {"scale": (rng.random(blocks) + 0.01).astype(scale_type)}
    names = ["x", "scale"]
    if has_zero:
        constants["zero"] = rng.integers(limits.min, limits.max, blocks, endpoint=True).astype(dtype)
        names.append("zero")
    given_axis = axis - len(shape) if is_negative else axis
    nodes = [node("DequantizeLinear", names, ["y"], axis=given_axis, block_size=size)]
    elem_type = FLOAT if scale_type == np.float32 else HALF
    # The evaluator requires a non-negative axis.
    plain = [node("DequantizeLinear", names, ["y"], axis=axis, block_size=size)]
    expected = reference(plain, {"x": data}, constants, elem_type)
    model = model_of(
        nodes,
        [info("x", shape, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))],
        [info("y", shape, elem_type)],
        list(constants.items()),
        opset=opset,
    )
    found = run(whole(lowered(model)), {"x": data})["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-3 if scale_type == np.float16 else 1e-6)


@pytest.mark.parametrize("kind", [TensorProto.UINT4, TensorProto.INT4])
def test_casts_to_four_bits_keep_the_lower_ones(kind):
    values = np.arange(-40, 40, dtype=np.int32)
    model = model_of(
        [node("Cast", ["x"], ["n"], to=kind), node("Cast", ["n"], ["y"], to=TensorProto.INT32)],
        [info("x", [80], TensorProto.INT32)],
        [info("y", [80], TensorProto.INT32)],
    )
    found = run(whole(lowered(model)), {"x": values})["y"]
    lower = values & 15
    np.testing.assert_array_equal(found, lower if kind == TensorProto.UINT4 else (lower ^ 8) - 8)


def test_scales_of_blocks_inside_of_a_function():
    """Each call has its own weights."""
    rng = np.random.default_rng(3)
    body = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=4),
        node("MatMul", ["a", "w"], ["b"]),
    ]
    layer = helper.make_function(
        "layers", "Dense", ["a", "q", "s"], ["b"], body, [helper.make_opsetid("", 17)]
    )
    weights = {f"q{i}": rng.integers(-128, 128, (8, 8)).astype(np.int8) for i in range(2)}
    scales = {f"s{i}": rng.random((8, 2)).astype(np.float32) for i in range(2)}
    nodes = [
        node("Dense", ["x", "q0", "s0"], ["h"], name="one", domain="layers"),
        node("Dense", ["h", "q1", "s1"], ["y"], name="two", domain="layers"),
    ]
    model = model_of(
        nodes,
        [info("x", [1, 8])],
        [info("y", [1, 8])],
        [*weights.items(), *scales.items()],
        functions=[layer],
    )
    model.opset_import.append(helper.make_opsetid("layers", 1))
    x = rng.standard_normal((1, 8)).astype(np.float32)
    first, second = (weights[f"q{i}"] * np.repeat(scales[f"s{i}"], 4, 1) for i in range(2))
    found = run(whole(lowered(model)), {"x": x})["y"]
    np.testing.assert_allclose(found, x @ first @ second, rtol=1e-5, atol=1e-3)
    found = run(whole(lowered(model, convert_to_fp16=True)), {"x": x / 1000})["y"]
    expected = half(half(half(x / 1000) @ half(first)) @ half(second))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_blocks_of_no_size_are_refused():
    model = model_of(
        [node("DequantizeLinear", ["x", "s"], ["y"], name="dq", block_size=-4, axis=0)],
        [info("x", [4], TensorProto.INT8)],
        [info("y", [4])],
        [("s", np.float32([1]))],
    )
    with pytest.raises(CompileError, match=r"node 'dq' \(DequantizeLinear\): found block_size -4"):
        lowered(model)


def test_a_set_that_has_blocks_is_left_alone():
    model = model_of(
        [node("DequantizeLinear", ["x", "s"], ["y"], block_size=2, axis=0)],
        [info("x", [4], TensorProto.INT8)],
        [info("y", [4])],
        [("s", np.float32([1, 10]))],
        opset=21,
    )
    program = lowered(model)
    assert [item.op_type for item in program.model.graph.node] == ["DequantizeLinear"]
    found = run(whole(program), {"x": np.int8([1, 2, 3, 4])})["y"]
    np.testing.assert_array_equal(found, np.float32([1, 2, 30, 40]))


#: form of a stored weight -> operator set, shape of its scales, and nodes that compute it
STORED = {
    "tensor": (13, (), [node("DequantizeLinear", ["q", "s"], ["w"])]),
    "channels": (17, (8, 1), [node("DequantizeLinear", ["q", "flat"], ["w"], axis=0)]),
    "blocks": (21, (8, 4), [node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=8)]),
    "blocks in an older set": (
        17,
        (8, 4),
        [node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=8)],
    ),
    "casts": (17, (8, 1), [node("Cast", ["q"], ["r"], to=FLOAT), node("Mul", ["r", "s"], ["w"])]),
}
DATA = np.random.default_rng(5).standard_normal((4, 32)).astype(np.float32)
#: operator -> its other operand, and nodes that read the weight
READERS = {
    "Conv": (
        DATA.reshape(4, 32, 1, 1),
        [node("Reshape", ["w", "kernel"], ["k"]), node("Conv", ["x", "k"], ["y"])],
    ),
    "Gather": (np.int64([7, 0, 3, 3]), [node("Gather", ["w", "x"], ["y"])]),
    "Gemm": (DATA, [node("Gemm", ["x", "w"], ["y"], transB=1)]),
    "MatMul": (DATA, [node("Transpose", ["w"], ["t"]), node("MatMul", ["x", "t"], ["y"])]),
}


@pytest.mark.parametrize("operator", READERS)
@pytest.mark.parametrize("form", STORED)
def test_programs_keep_integers_and_scales_of_the_model(form, operator):
    """A scale for the whole tensor would round the weights a second time."""
    opset, shape, nodes = STORED[form]
    x, readers = READERS[operator]
    rng = np.random.default_rng(4)
    scales = (10.0 ** -rng.uniform(0, 3, shape)).astype(np.float32)
    numbers = rng.integers(-128, 128, (8, 32)).astype(np.int8)
    floats = numbers * (np.repeat(scales, 8, axis=1) if shape == (8, 4) else scales)
    held = {"q": numbers, "s": scales, "flat": scales.reshape(-1), "kernel": np.int64([8, 32, 1, 1])}
    nodes = [*nodes, *readers]
    used = {name for made in nodes for name in made.input}
    model = model_of(
        nodes,
        [info("x", x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))],
        [info("y", None)],
        [(name, value) for name, value in held.items() if name in used],
        opset=opset,
    )
    expected = floats[x] if operator == "Gather" else DATA @ floats.T
    for options in ({}, {"convert_to_quantize": True, "calibration_data": [{"x": x}]}):
        with qaic.Session(model, **options) as session:
            found = session.run({"x": x})["y"].reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(
    k=st.sampled_from([32, 64, 96]),
    block=st.sampled_from([16, 32]),
    float_zeros=st.booleans(),
    ordered=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_products_with_packed_weights(k, block, float_zeros, ordered, bias, seed):
    """Exported forms of AWQ, of GPTQ with and without an order of groups, and of packed int4 weights."""
    rng = np.random.default_rng(seed)
    columns, blocks = 24, k // block
    numbers = rng.integers(0, 16, (columns, k)).astype(np.uint8)
    scales = (rng.random((columns, blocks)) * 0.1 + 0.01).astype(np.float32)
    zeros = rng.integers(0, 16, (columns, blocks)).astype(np.uint8)
    groups = np.arange(k) // block
    if ordered:
        groups = rng.permutation(groups)
    floats = (numbers.astype(np.float32) - zeros[:, groups]) * scales[:, groups]
    # A row of zero points fills complete bytes.
    padded = np.pad(zeros, ((0, 0), (0, blocks % 2)))
    held = {
        "qweight": packed(numbers).reshape(columns, blocks, block // 2),
        "scales": scales.reshape(-1),
        "zeros": zeros.astype(np.float32).reshape(-1) if float_zeros else packed(padded).reshape(-1),
    }
    if ordered:
        held["g_idx"] = groups.astype(np.int32)
    nodes = [
        node(
            "MatMulNBits",
            ["x", *held],
            ["p"],
            domain="com.microsoft",
            K=k,
            N=columns,
            bits=4,
            block_size=block,
        )
    ]
    constants = list(held.items())
    if bias:
        constants.append(("bias", rng.standard_normal(columns).astype(np.float32)))
        nodes.append(node("Add", ["p", "bias"], ["y"]))
    else:
        nodes.append(node("Identity", ["p"], ["y"]))
    model = model_of(nodes, [info("x", [3, k])], [info("y", [3, columns])], constants)
    x = rng.standard_normal((3, k)).astype(np.float32)
    added = constants[-1][1] if bias else np.float32(0)
    found = run(whole(lowered(model)), {"x": x})["y"]
    np.testing.assert_allclose(found, x @ floats.T + added, rtol=1e-4, atol=1e-4)
    found = run(whole(lowered(model, convert_to_fp16=True)), {"x": x})["y"]
    np.testing.assert_allclose(found, half(x) @ floats.T + added, rtol=2e-3, atol=2e-2)


def test_operators_of_packed_weights_are_those_of_a_card(caplog):
    held = [("q", np.zeros((4, 1, 8), np.uint8)), ("s", np.ones(4, np.float32))]
    model = model_of(
        [
            node(
                "MatMulNBits",
                ["x", "q", "s"],
                ["y"],
                domain="com.microsoft",
                K=16,
                N=4,
                bits=4,
                block_size=16,
            )
        ],
        [info("x", [1, 16])],
        [info("y", [1, 4])],
        held,
    )
    with caplog.at_level(logging.WARNING):
        lowered(model, strict_aic=True)
        lowered(experts(8)[0], strict_aic=True)
        lowered(experts(8, opset=21)[0], strict_aic=True)
    assert caplog.messages == []
