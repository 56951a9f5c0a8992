"""Quantization of single operators and small graphs: exactness, kernels, storage, scopes."""

import logging

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qaic.compiler.ir.quantization import INTEGER_KERNELS, QUANTIZABLE, VALUE_PRESERVING
from qaic.errors import CompileError
from quantize_oracle import (
    Reference,
    Tensor,
    constants_of,
    evaluate,
    params_of,
    profile_of,
    run,
    through,
    with_outputs,
)
from quantize_support import quantized

FLOAT = onnx.TensorProto.FLOAT
RNG = np.random.default_rng(7)


def draw(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def model_of(nodes, constants, shape, opset=17, outputs=("y",), inputs=("x",)):
    tensors = [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        tensors,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def samples_of(shape, count=4):
    return [{"x": draw(*shape)} for _ in range(count)]


def kernels(model, feeds, tmp_path):
    """Operators that the engine runs after optimization."""
    path = tmp_path / "optimized.onnx"
    run(model, feeds, path=path)
    return [made.op_type for made in onnx.load(path).graph.node]


def integers(*values):
    return np.int64(values)


# Operator -> shape of x, other inputs, attributes.
SINGLE = {
    "Add": ([2, 6], [draw(6)], {}),
    "AveragePool": ([1, 3, 8, 8], [], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    "Clip": ([2, 6], [np.float32(-0.5), np.float32(0.7)], {}),
    "Concat": ([2, 6], [draw(2, 3, scale=3)], {"axis": 1}),
    "Conv": ([1, 4, 7, 7], [draw(6, 4, 3, 3), draw(6)], {"strides": [2, 2]}),
    "ConvTranspose": ([1, 4, 5, 5], [draw(4, 3, 3, 3), draw(6)], {"group": 2}),
    "DepthToSpace": ([1, 8, 3, 3], [], {"blocksize": 2}),
    "Div": ([2, 6], [np.abs(draw(6)) + 1], {}),
    "Erf": ([2, 6], [], {}),
    "Expand": ([1, 6], [integers(4, 6)], {}),
    "Flatten": ([2, 3, 4], [], {}),
    "Gather": ([5, 6], [integers(3, 0, 3)], {}),
    "Gelu": ([2, 6], [], {}),
    "Gemm": ([3, 6], [draw(4, 6), draw(1, 4)], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "GlobalAveragePool": ([1, 3, 8, 8], [], {}),
    "HardSigmoid": ([2, 6], [], {}),
    "HardSwish": ([2, 6], [], {}),
    "LRN": ([1, 5, 3, 3], [], {"size": 3}),
    "LeakyRelu": ([2, 6], [], {"alpha": 0.2}),
    "MatMul": ([3, 2, 6], [draw(6, 5)], {}),
    "Max": ([2, 6], [draw(6), draw(2, 6)], {}),
    "MaxPool": ([1, 3, 8, 8], [], {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "Min": ([2, 6], [draw(6)], {}),
    "Mul": ([2, 6], [draw(6)], {}),
    "PRelu": ([2, 6], [draw(6)], {}),
    "Pad": ([2, 6], [integers(0, 1, 1, 0), np.float32(0.3)], {}),
    "ReduceMean": ([2, 3, 6], [], {"axes": [1], "keepdims": 0}),
    "Relu": ([2, 6], [], {}),
    "Reshape": ([2, 6], [integers(3, 4)], {}),
    "Resize": ([1, 2, 3, 3], [None, np.float32([1, 1, 2, 2])], {"mode": "linear"}),
    "Sigmoid": ([2, 6], [], {}),
    "Slice": ([2, 6], [integers(1), integers(5), integers(1)], {}),
    "Softmax": ([2, 6], [], {"axis": -1}),
    "SpaceToDepth": ([1, 2, 4, 4], [], {"blocksize": 2}),
    "Split": ([2, 6], [], {"axis": 1}),
    "Squeeze": ([1, 6], [integers(0)], {}),
    "Sub": ([2, 6], [draw(6)], {}),
    "Tanh": ([2, 6], [], {}),
    "Tile": ([2, 3], [integers(2, 2)], {}),
    "TopK": ([3, 6], [integers(2)], {}),
    "Transpose": ([2, 3, 4], [], {"perm": [2, 0, 1]}),
    "Unsqueeze": ([2, 6], [integers(1)], {}),
}


def single(op, opset):
    shape, others, attributes = SINGLE[op]
    names = ["x", *("" if value is None else f"c{i}" for i, value in enumerate(others))]
    constants = {f"c{i}": value for i, value in enumerate(others) if value is not None}
    results = {"Split": ["y", "z"], "TopK": ["y", "i"]}.get(op, ["y"])
    domain = "com.microsoft" if op == "Gelu" and opset < 20 else ""
    made = node(op, names, results, domain=domain, **attributes)
    outputs = ("y", "z") if op == "Split" else ("y",)
    return model_of([made], constants, shape, opset, outputs), shape, made


def test_every_kind_is_in_the_table_of_operators():
    assert SINGLE.keys() == QUANTIZABLE


@pytest.mark.parametrize("schema", ["asymmetric", "symmetric", "symmetric_with_uint8"])
@pytest.mark.parametrize("precision", ["Int8", "Int16"])
@pytest.mark.parametrize("op", sorted(SINGLE))
def test_one_operator_is_within_a_step_of_the_reference(op, precision, schema):
    chosen = {
        "quantization_precision": precision,
        "quantization_schema_activations": schema,
        "quantization_schema_constants": schema,
    }
    model, shape, _ = single(op, 14 if op != "Gelu" else 20)
    feeds = samples_of(shape)
    profile = profile_of(model, feeds)
    result = quantized(model, profile, **chosen)
    assert any(found.op_type == "QuantizeLinear" for found in result.graph.node)
    actual = {**run(result, feeds[0]), **feeds[0]}
    reference = Reference(model, profile, actual, VALUE_PRESERVING, **chosen)
    for name in ("y", "z") if op == "Split" else ("y",):
        step = reference.params(name)[0]
        assert np.abs(actual[name] - reference.result(name)).max() <= 1.001 * step
        # The value is a multiple of the step of its parameters.
        assert np.array_equal(actual[name], through(actual[name], *reference.params(name), precision))


@pytest.mark.parametrize("op", sorted(INTEGER_KERNELS.keys() - {"Gather"}))
def test_operators_that_move_values_run_on_integers_without_help(op):
    model, shape, _ = single(op, 14)
    profile = profile_of(model, samples_of(shape))
    # Concat, Pad and Resize only move values if all parameters are equal.
    same = Tensor(-3.0, 3.0)
    profile.tensors = dict.fromkeys(profile.tensors, same)
    if op == "Concat":
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([[-3, 0, 3]] * 2), "c0"))
    if op == "Resize":
        model.graph.node[0].attribute[0].s = b"nearest"
    result = quantized(model, profile)
    kinds = [made.op_type for made in result.graph.node]
    assert kinds == ["QuantizeLinear", op, *["DequantizeLinear"] * (2 if op == "Split" else 1)]


def cnn(opset=17):
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], pads=[1] * 4),
        node("BatchNormalization", ["c2", "gain", "shift", "mean", "variance"], ["n2"]),
        node("Relu", ["n2"], ["r2"]),
        node("Add", ["r2", "p1"], ["a2"]),
        node("GlobalAveragePool", ["a2"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w3"], ["m3"]),
        node("Add", ["m3", "b3"], ["y"]),
    ]
    constants = {
        "w1": draw(8, 3, 3, 3, scale=0.2),
        "b1": draw(8),
        "w2": draw(8, 8, 3, 3, scale=0.1),
        "gain": np.abs(draw(8)) + 0.5,
        "shift": draw(8),
        "mean": draw(8),
        "variance": np.abs(draw(8)) + 0.5,
        "w3": draw(8, 10),
        "b3": draw(10),
    }
    return model_of(nodes, constants, [1, 3, 16, 16], opset)


ALL_INTEGER = {
    "Clip",
    "DequantizeLinear",
    "Flatten",
    "MaxPool",
    "NhwcMaxPool",
    "QGemm",
    "QLinearAdd",
    "QLinearConv",
    "QLinearGlobalAveragePool",
    "QuantizeLinear",
    "Transpose",
}


@pytest.mark.parametrize("schema", ["asymmetric", "symmetric", "symmetric_with_power2_scale"])
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 17, 21])
def test_a_network_runs_on_integers_from_end_to_end(opset, schema, tmp_path):
    model = cnn(opset)
    feeds = samples_of([1, 3, 16, 16])
    result = quantized(
        model,
        profile_of(model, feeds),
        quantization_schema_activations=schema,
        enable_channelwise=True,
        enable_rowwise=True,
    )
    found = kernels(result, feeds[0], tmp_path)
    assert set(found) <= ALL_INTEGER
    assert found.count("QLinearConv") == 2
    assert found.count("QGemm") == found.count("QuantizeLinear") == found.count("DequantizeLinear") == 1
    wanted = run(model, feeds[0])["y"]
    assert np.abs(run(result, feeds[0])["y"] - wanted).max() < 0.1 * np.abs(wanted).max()


def test_matrix_products_with_bias_fuse_whatever_their_rank(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["b", "m"], ["a"]),
        node("Gelu", ["a"], ["g"], domain="com.microsoft"),
        node("MatMul", ["g", "v"], ["y"]),
    ]
    constants = {"w": draw(16, 32), "b": draw(32), "v": draw(32, 16)}
    for shape in ([5, 16], [2, 5, 16], [2, 3, 5, 16]):
        model = model_of(nodes, constants, shape)
        feeds = samples_of(shape)
        result = quantized(model, profile_of(model, feeds))
        found = kernels(result, feeds[0], tmp_path)
        assert [k for k in found if k != "Reshape"] == [
            "QuantizeLinear",
            "QGemm",
            "DequantizeLinear",
            "Gelu",
            "QuantizeLinear",
            "QLinearMatMul",
            "DequantizeLinear",
        ]


def test_softmax_saturates_where_the_engines_integer_kernel_would_wrap_around(tmp_path):
    model = model_of([node("Softmax", ["x"], ["y"], axis=-1)], {}, [1, 4])
    profile = profile_of(model, [{"x": np.zeros((1, 4), np.float32)}])
    profile.tensors["x"] = Tensor(-4.0, 4.0)
    result = quantized(model, profile)
    feeds = {"x": np.float32([[4, -4, -4, -4]])}
    assert "QLinearSoftmax" not in kernels(result, feeds, tmp_path)
    assert run(result, feeds)["y"][0, 0] == pytest.approx(0.25, abs=1e-3)


def test_two_uses_of_one_weight_and_bias_both_fuse(tmp_path):
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "w", "b"], ["y"], pads=[1] * 4),
    ]
    model = model_of(nodes, {"w": draw(4, 4, 3, 3), "b": draw(4)}, [1, 4, 8, 8])
    feeds = samples_of([1, 4, 8, 8])
    result = quantized(model, profile_of(model, feeds), enable_channelwise=True)
    assert kernels(result, feeds[0], tmp_path).count("QLinearConv") == 2
    # If signed weights would overflow, the engine makes them unsigned, and fails on weights that occur twice.
    plain, changed = (run(result, feeds[0], unsigned_weights=unsigned)["y"] for unsigned in (False, True))
    assert np.array_equal(plain, changed)


def test_weights_take_one_byte_each_and_no_float_copy_is_left():
    model = cnn()
    parts = {}
    result = quantized(model, profile_of(model, samples_of([1, 3, 16, 16])), parts=parts)
    for name in ("w1", "w2", "w3"):
        assert all(t.name != name for t in result.graph.initializer if t.dims) or name not in {
            i for n in result.graph.node for i in n.input
        }
    sizes = {w.name: w.source.nbytes for w in parts["weights"].values() if w.elem_type == 3}
    assert sum(sizes.values()) == 8 * 3 * 9 + 8 * 8 * 9 + 8 * 10


def test_the_same_model_gives_the_same_bytes():
    model = cnn()
    profile = profile_of(model, samples_of([1, 3, 16, 16]))
    first, second = (quantized(model, profile).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_nodes_of_other_classes_and_nested_graphs_stay_in_float():
    then = helper.make_graph(
        [node("Mul", ["r", "two"], ["t"])], "then", [], [helper.make_tensor_value_info("t", FLOAT, [2, 4])]
    )
    other = helper.make_graph(
        [node("Identity", ["r"], ["e"])], "else", [], [helper.make_tensor_value_info("e", FLOAT, [2, 4])]
    )
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("If", ["yes"], ["i"], then_branch=then, else_branch=other),
        node("Sigmoid", ["i"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    constants = {"w": draw(4, 4), "yes": np.array(True), "two": np.float32(2)}
    model = model_of(nodes, constants, [2, 4], outputs=("y", "r"))
    feeds = samples_of([2, 4])
    result = quantized(model, profile_of(model, feeds), in_float=("s",))
    inner = next(made for made in result.graph.node if made.op_type == "If")
    before = next(made for made in model.graph.node if made.op_type == "If")
    assert inner.SerializeToString() == before.SerializeToString()
    assert any(made.op_type == "Sigmoid" and made.input[0] == "i" for made in result.graph.node)
    values = run(with_outputs(result, ["r", "i", "s"]), feeds[0])
    assert np.array_equal(values["i"], values["r"] * 2)
    assert np.allclose(values["s"], evaluate(nodes[3], {"i": values["i"]}, 17)["s"], atol=1e-6)


def test_shapes_that_are_computed_in_floats_are_not_quantized():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Mul", ["f", "factors"], ["g"]),
        node("Cast", ["g"], ["sizes"], to=onnx.TensorProto.INT64),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    model = model_of(nodes, {"factors": np.float32([1, 1, 3, 3])}, [1, 2, 5, 7])
    feeds = samples_of([1, 2, 5, 7])
    result = quantized(model, profile_of(model, feeds))
    assert run(result, feeds[0])["y"].shape == (1, 2, 15, 21)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_a_table_have_their_own_steps(axis):
    table = draw(12, 5) * np.float32(10.0) ** np.arange(-6, 6)[:, None].astype(np.float32)
    nodes = [node("Gather", ["table", "places"], ["g"], axis=axis), node("Add", ["g", "x"], ["y"])]
    places = np.int64([[0, 11], [5, 5]]) if axis == 0 else np.int64([[0, 1], [2, 2]])
    shape = [2, 2, 5] if axis == 0 else [12, 2, 2]
    model = model_of(nodes, {"table": table}, shape, outputs=("g", "y"))
    model.graph.input.append(helper.make_tensor_value_info("places", onnx.TensorProto.INT64, places.shape))
    feeds = [{**sample, "places": places} for sample in samples_of(shape)]
    parts = {}
    result = quantized(model, profile_of(model, feeds), parts=parts, enable_rowwise=True)
    values = run(result, feeds[0], optimize=False)
    if axis == 0:
        probe = with_outputs(result, ["g/float"])
        rows = run(probe, feeds[0])["g/float"]
        wanted = table[places]
        reach = wanted.max(axis=-1, keepdims=True) - wanted.min(axis=-1, keepdims=True)
        assert (np.abs(rows - wanted) <= reach / 255 * 0.51).all()
    assert sorted(w.source.nbytes for w in parts["weights"].values()) == [table.size]
    step = params_of(values["g"].min(), values["g"].max(), "symmetric_with_uint8")[0]
    assert np.abs(values["g"] - np.take(table, places, axis)).max() <= 1.5 * step


def test_computed_weights_are_stored_as_integers(tmp_path):
    nodes = [
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("Mul", ["wt", "half"], ["wh"]),
        node("MatMul", ["x", "wh"], ["y"]),
    ]
    model = model_of(nodes, {"w": draw(6, 4), "half": np.float32(0.5)}, [3, 4])
    feeds = samples_of([3, 4])
    result = quantized(model, profile_of(model, feeds))
    assert kernels(result, feeds[0], tmp_path) == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    wanted = run(model, feeds[0])["y"]
    assert np.abs(run(result, feeds[0])["y"] - wanted).max() < 0.05 * np.abs(wanted).max()


def test_16_bits_use_a_domain_that_has_them():
    for opset, domain in ((13, "com.microsoft"), (21, "")):
        model = model_of([node("MatMul", ["x", "w"], ["y"])], {"w": draw(4, 4)}, [2, 4], opset)
        result = quantized(model, profile_of(model, samples_of([2, 4])), quantization_precision="Int16")
        found = {n.domain for n in result.graph.node if n.op_type == "QuantizeLinear"}
        assert found == {domain}
        types = {t.data_type for t in result.graph.initializer if t.name.endswith("quantized")}
        assert types == {onnx.TensorProto.INT16}


def test_channels_of_different_offsets_share_offset_zero_and_say_so(caplog):
    weight = draw(4, 3, 1, 1)
    weight[1] = np.abs(weight[1])
    model = model_of([node("Conv", ["x", "w"], ["y"])], {"w": weight}, [1, 3, 4, 4])
    feeds = samples_of([1, 3, 4, 4])
    with caplog.at_level(logging.INFO, "qaic.compiler"):
        result = quantized(model, profile_of(model, feeds), enable_channelwise=True)
    assert "offset 0, as with schema symmetric, for 1 weight with a scale per channel" in caplog.text
    zeros = [t for t in constants_of(result).values() if t.dtype == np.int8 and t.shape == (4,)]
    assert len(zeros) == 1
    assert not zeros[0].any()


def test_a_bias_that_no_int32_holds_raises_the_step_of_the_weight():
    weight, bias = draw(4, 3, 1, 1, scale=1e-9), np.float32([1e3, -2e3, 0, 5e2])
    model = model_of([node("Conv", ["x", "w", "b"], ["y"])], {"w": weight, "b": bias}, [1, 3, 4, 4])
    feeds = samples_of([1, 3, 4, 4])
    for channelwise in (False, True):
        for precision in ("Int32", "Int8"):
            result = quantized(
                model,
                profile_of(model, feeds),
                enable_channelwise=channelwise,
                quantization_precision_bias=precision,
            )
            actual = run(result, feeds[0])["y"]
            step = params_of(-2e3, 1e3, "symmetric_with_uint8")[0]
            room = 1.01 * step if precision == "Int32" else 2.01 * step
            assert np.abs(actual - bias[None, :, None, None]).max() <= room


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("precision", ["Int32", "Int8"])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize(
    ("data", "weight", "bias"),
    [(1e-25, 1e-20, 1e-3), (1e-40, 1, 1), (1, 1e-44, 1), (1, 1, 1e38)],
)
def test_scales_whose_product_float32_cannot_hold_do_not_swallow_the_bias(
    data, weight, bias, channelwise, precision
):
    constants = {"w": draw(4, 3, 1, 1, scale=weight), "b": np.float32([1, -2, 0, 0.5]) * np.float32(bias)}
    model = model_of([node("Conv", ["x", "w", "b"], ["y"])], constants, [1, 3, 4, 4])
    feeds = [{"x": draw(1, 3, 4, 4, scale=data)}]
    result = quantized(
        model,
        profile_of(model, feeds),
        enable_channelwise=channelwise,
        quantization_precision_bias=precision,
    )
    step = 4 * bias / 255
    expected = run(model, feeds[0])["y"].astype(np.float64)
    assert np.abs(run(result, feeds[0])["y"] - expected).max() <= 2.01 * step


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["w", "b"])
def test_a_weight_that_is_not_finite_is_refused_by_name(value, where):
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("Add", ["c", "t"], ["y"])]
    constants = {"w": draw(4, 3, 1, 1), "b": draw(4), "t": draw(1, 4, 4, 4)}
    constants[where].reshape(-1)[1] = value
    model = model_of(nodes, constants, [1, 3, 4, 4])
    profile = profile_of(
        model_of(nodes, {**constants, where: np.ones_like(constants[where])}, [1, 3, 4, 4]),
        samples_of([1, 3, 4, 4]),
    )
    with pytest.raises(
        CompileError, match=f"constant '{where}': found infinite values or NaN \\(1\\)"
    ) as caught:
        quantized(model, profile)
    assert caught.value.code == "compile.not_finite"


def test_tensors_without_a_profile_keep_their_nodes_in_float():
    nodes = [node("Relu", ["x"], ["r"]), node("Sigmoid", ["r"], ["y"])]
    model = model_of(nodes, {}, [2, 4])
    profile = profile_of(model, samples_of([2, 4]))
    del profile.tensors["y"]
    result = quantized(model, profile)
    kept = [made.op_type for made in result.graph.node]
    assert kept == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Relu",
        "QuantizeLinear",
        "DequantizeLinear",
        "Sigmoid",
    ]


def test_fixed_parameters_of_a_file_are_used_as_they_are():
    model = model_of([node("Sigmoid", ["x"], ["y"])], {}, [2, 4])
    profile = profile_of(model, samples_of([2, 4]))
    profile.tensors["x"] = Tensor(-1.28, 1.27, scale=0.01, offset=0)
    profile.tensors["y"] = Tensor(0.0, 1.275, scale=0.005, offset=-128)
    result = quantized(model, profile)
    feeds = {"x": np.float32([[0.123, -5, 5, 0.5]] * 2)}
    wanted = through(1 / (1 + np.exp(-through(feeds["x"], 0.01, 0))), 0.005, -128)
    assert np.abs(run(result, feeds)["y"] - wanted).max() <= 0.00501


def test_ranges_without_histograms_warn_once_where_a_method_would_shrink_them(caplog):
    model = model_of([node("Sigmoid", ["x"], ["y"])], {}, [2, 4])
    profile = profile_of(model, samples_of([2, 4]))
    quantized(model, profile)
    assert not caplog.records
    quantized(model, profile, quantization_calibration="MSE")
    (record,) = caplog.records
    assert "quantization_calibration=MSE has no effect on 2 tensors" in record.getMessage()


def test_scalars_are_not_calibrated(monkeypatch):
    asked = []

    def shrink(histogram, low, high, *rest):
        asked.append(len(histogram))
        return low / 2, high / 2

    monkeypatch.setattr("qaic._core.calibrate_range", shrink, raising=False)
    nodes = [node("ReduceMean", ["x"], ["m"], keepdims=0), node("Mul", ["x", "m"], ["y"])]
    model = model_of(nodes, {}, [2, 4])
    feeds = samples_of([2, 4])
    profile = profile_of(model, feeds)
    for number, name in enumerate(sorted(profile.tensors)):
        profile.tensors[name].histogram = np.ones(300 + number, np.float32)
    quantized(model, profile, quantization_calibration="MSE")
    assert sorted(asked) == [301, 302]


def test_fixed_parameters_of_weights_are_used_per_tensor_and_per_channel():
    weight, feeds = draw(4, 3, 1, 1), samples_of([1, 3, 4, 4])
    model = model_of([node("Conv", ["x", "w"], ["y"])], {"w": weight}, [1, 3, 4, 4])
    profile = profile_of(model, feeds)
    scales = np.float32([0.1, 0.2, 0.05, 0.3])
    for entry, steps in (
        (Tensor(-1, 1, scale=0.25, offset=0), np.float32([0.25] * 4)),
        (Tensor(-1, 1, channel_scales=scales, channel_offsets=np.zeros(4, np.int32)), scales),
    ):
        profile.tensors["w"] = entry
        result = quantized(model, profile)
        (stored,) = [
            v for v in constants_of(result).values() if v.shape == (4, 3, 1, 1) and v.dtype == np.int8
        ]
        wanted = np.clip(np.rint(weight / steps[:, None, None, None]), -128, 127)
        assert np.array_equal(stored, wanted)


def test_parameters_fixed_for_another_precision_are_taken_as_a_range():
    model = model_of([node("Sigmoid", ["x"], ["y"])], {}, [2, 4])
    profile = profile_of(model, samples_of([2, 4]))
    profile.tensors["x"] = Tensor(-2.0, 2.0, scale=4 / 65535, offset=0, bits=16)
    result = quantized(model, profile, quantization_schema_activations="asymmetric")
    scale = constants_of(result)[result.graph.node[0].input[1]]
    assert scale == np.float32(params_of(-2, 2, "asymmetric")[0])


def test_operators_that_compare_with_infinity_stay_in_float(caplog):
    nodes = [node("Max", ["x", "least"], ["m"]), node("ReduceMean", ["m"], ["y"], axes=[1])]
    model = model_of(nodes, {"least": np.float32(-np.inf)}, [2, 4])
    feeds = samples_of([2, 4])
    result = quantized(model, profile_of(model, feeds))
    kinds = [made.op_type for made in result.graph.node]
    assert kinds == [
        "Max",
        "QuantizeLinear",
        "DequantizeLinear",
        "ReduceMean",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert (
        "found infinite values or NaN in 1 constant ('least'); the operators that read them stay in "
        "floating point" in caplog.text
    )
