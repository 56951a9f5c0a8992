"""Matrix products with weights in MXFP6, compared with the format in numpy and ml_dtypes."""

import itertools
import logging

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import qaic
from qaic import Qpc
from qaic.compiler.driver import compile_model
from qaic.errors import CompileError, QpcFormatError
from qaic.options import resolve
from qaic.qpc.initializers import Initializers

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def oracle(values, axis):
    """Return an array that is rounded in blocks of 32 along an axis."""
    rows = np.moveaxis(np.asarray(values, np.float64), axis, -1)
    size = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], -(-size // 32) * 32))
    padded[..., :size] = rows
    blocks = padded.reshape(*rows.shape[:-1], -1, 32)
    magnitude = np.abs(blocks).max(-1, keepdims=True)
    shared = np.where(magnitude == 0, -127, np.clip(np.frexp(magnitude)[1] - 1 - 2, -127, 127))
    elements = np.ldexp(blocks, -shared).astype(np.float32).astype(ml_dtypes.float6_e2m3fn)
    decoded = np.ldexp(elements.astype(np.float64), shared).astype(np.float32)
    return np.moveaxis(decoded.reshape(padded.shape)[..., :size], -1, axis)


def info(name, shape, elem_type=FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


def model_of(nodes, inputs, outputs, constants):
    graph = helper.make_graph(
        nodes, "net", inputs, outputs, [numpy_helper.from_array(v, n) for n, v in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def engine(model, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def compiled(model, tmp_path, **options):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    resolved = resolve({"mxfp6_matmul": True, **options}, options_path=None, model_is_container=False)
    return compile_model(path, resolved.compile, resolved.set_compile)


def outputs_of(container, feeds):
    with qaic.Session(container) as session:
        return session.run(feeds)


def half(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


kinds = st.sampled_from(["MatMul", "Gemm", "GemmTransposed", "Transposed", "Batched"])
sizes = st.integers(32, 70)


def product(kind, weight):
    """A model of one product, and the axis of its operand `weight` over which it sums."""
    nodes, shape = [], [2, weight.shape[-2]]
    axis = weight.ndim - 2
    if kind == "Transposed":
        nodes = [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ]
        shape, axis = [2, weight.shape[1]], 1
    elif kind == "GemmTransposed":
        nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
        shape, axis = [2, weight.shape[1]], 1
    elif kind == "Batched":
        nodes, shape = [helper.make_node("MatMul", ["x", "w"], ["y"])], [weight.shape[0], 2, weight.shape[1]]
    else:
        nodes = [helper.make_node(kind, ["x", "w"], ["y"])]
    return model_of(nodes, [info("x", shape)], [info("y", None)], {"w": weight}), shape, axis


@settings(max_examples=25, deadline=None)
@given(kinds, sizes, sizes, st.integers(-30, 30), st.booleans(), st.integers(0, 2**32 - 1))
def test_product_has_what_is_left_of_its_weights(tmp_path_factory, kind, rows, columns, scale, fp16, seed):
    random = np.random.default_rng(seed)
    shape = (2, rows, columns) if kind == "Batched" else (rows, columns)
    exponent = 0 if fp16 else scale
    weight = np.ldexp(random.standard_normal(shape), exponent).astype(np.float32)
    weight[random.random(shape) < 0.2] = 0
    model, x_shape, axis = product(kind, weight)
    x = random.standard_normal(x_shape).astype(np.float32)
    container = compiled(model, tmp_path_factory.mktemp("mx"), convert_to_fp16=fp16)
    actual = outputs_of(container, {"x": x})["y"]
    left = oracle(weight, axis)
    reference, *_ = product(kind, half(left) if fp16 else left)
    expected = engine(reference, {"x": half(x) if fp16 else x})[0]
    np.testing.assert_array_equal(actual, half(expected) if fp16 else expected)


def dense(size=64, count=1):
    random = np.random.default_rng(5)
    weights = {f"w{i}": random.standard_normal((size, size)).astype(np.float32) for i in range(count)}
    nodes = [
        helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"], name=f"node{i}") for i in range(count)
    ]
    model = model_of(nodes, [info("h0", [1, size])], [info(f"h{count}", [1, size])], weights)
    return model, weights


def test_weights_take_a_quarter_of_a_byte_more_than_six_bits(tmp_path):
    model, weights = dense(256)
    qpc = Qpc(compiled(model, tmp_path))
    (record,) = qpc.plan["initializers"]
    assert record["size"] * 8 / weights["w0"].size == 6.25
    assert (record["encoding"], record["axis"], record["dims"]) == ("mxfp6_e2m3", 0, [256, 256])
    assert qpc.plan["version"] == 2
    shown = qpc.initializers[record["name"]]
    np.testing.assert_array_equal(shown, oracle(weights["w0"], 0))
    assert not shown.flags.writeable


def test_smallest_matrix_stays_outside_the_graph(tmp_path):
    model, weights = dense(32)
    container = compiled(model, tmp_path)
    x = np.ones((1, 32), np.float32)
    reference = model_of(
        list(model.graph.node),
        list(model.graph.input),
        list(model.graph.output),
        {"w0": oracle(weights["w0"], 0)},
    )
    np.testing.assert_array_equal(outputs_of(container, {"h0": x})["h1"], engine(reference, {"h0": x})[0])


def test_fp16_weights_are_decoded_to_fp16(tmp_path):
    model, _ = dense(64)
    (record,) = Qpc(compiled(model, tmp_path, convert_to_fp16=True)).plan["initializers"]
    assert record["dtype"] == "float16"
    assert record["size"] == 64 * 2 * 25


def test_float16_model_is_encoded_from_its_own_type(tmp_path):
    weight = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float16)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", [1, 40], HALF)],
        [info("y", [1, 64], HALF)],
        {"w": weight},
    )
    qpc = Qpc(compiled(model, tmp_path))
    (record,) = qpc.plan["initializers"]
    np.testing.assert_array_equal(qpc.initializers[record["name"]], oracle(weight, 0))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [0, 1, 2]),
        ({"exclude_mxfp6_matmul": "node1"}, [0, 2]),
        ({"exclude_mxfp6_matmul": ["h1", "node1"]}, [2]),
        ({"node_precision_info_file": {"FP32NodeInstanceNames": ["h3"]}}, [0, 1]),
        ({"node_precision_info_file": {"FP16NodeInstanceNames": ["h3"]}}, [0, 1, 2]),
    ],
)
def test_named_products_keep_their_weights(tmp_path, options, left):
    model, _ = dense(count=3)
    plan = Qpc(compiled(model, tmp_path, **options)).plan
    encoded = {r["name"][1] for r in plan["initializers"] if "encoding" in r}
    assert encoded == {str(i) for i in left}


def test_unknown_excluded_names_are_a_warning(tmp_path, caplog):
    model, _ = dense()
    with caplog.at_level(logging.WARNING):
        compiled(model, tmp_path, exclude_mxfp6_matmul="absent")
    assert "exclude_mxfp6_matmul: 1 of 1 names" in caplog.text


def test_nothing_to_compress_is_a_warning(tmp_path, caplog):
    model, _ = dense(31)
    with caplog.at_level(logging.WARNING):
        compiled(model, tmp_path)
    assert "at least 32 x 32" in caplog.text


def test_table_that_is_also_a_weight_keeps_its_other_reader(tmp_path):
    table = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    model = model_of(
        [
            helper.make_node("Gather", ["table", "i"], ["g"]),
            helper.make_node("Gemm", ["g", "table"], ["y"], transB=1),
        ],
        [info("i", [3], onnx.TensorProto.INT64)],
        [info("y", [3, 64]), info("g", [3, 48])],
        {"table": table},
    )
    indices = np.int64([0, 5, 63])
    out = outputs_of(compiled(model, tmp_path), {"i": indices})
    np.testing.assert_array_equal(out["g"], table[indices])
    np.testing.assert_allclose(out["y"], table[indices] @ oracle(table, 1).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(tmp_path, bad):
    model, weights = dense()
    weights["w0"][3, 4] = bad
    broken = model_of(list(model.graph.node), list(model.graph.input), list(model.graph.output), weights)
    with pytest.raises(CompileError, match=r"weight 'w0'.*finite") as caught:
        compiled(broken, tmp_path)
    assert caught.value.code == "compile.weight_not_finite"


def test_vector_of_the_specification():
    x = np.zeros((32, 1), np.float32)
    x[:8, 0] = [1, -0.3, 0.07, 3.9, -2.2, 0.001, 0.5, -3.3]
    expected = [1, -0.3125, 0.0625, 3.75, -2.25, 0, 0.5, -3.25]
    np.testing.assert_array_equal(oracle(x, 0)[:8, 0], expected)


def test_damaged_records_are_refused():
    record = {"name": "w", "dtype": "float32", "dims": [32, 32], "offset": 0, "size": 800}
    data = np.zeros(800, np.uint8)
    good = {**record, "encoding": "mxfp6_e2m3", "axis": 0}
    assert Initializers({"w": good}, data)["w"].shape == (32, 32)
    for change in itertools.chain(
        ({"encoding": value} for value in ("", "zip", 3)),
        ({"axis": value} for value in (2, -1, None, "0")),
        ({"dims": value} for value in ([64, 64], [32], [], [1 << 62, 1 << 62])),
        ({"size": value} for value in (799, 801)),
    ):
        with pytest.raises(QpcFormatError):
            Initializers({"w": good | change}, data)["w"]


@pytest.mark.parametrize("dims", [[0, 1 << 62], [1 << 62, 0], [1] * 65])
@pytest.mark.parametrize("form", [{}, {"layout": "tiles"}, {"encoding": "mxfp6_e2m3", "axis": 0}])
def test_records_that_no_array_can_show_are_refused(dims, form):
    size = 0 if 0 in dims else 4
    record = {"name": "w", "dtype": "float32", "dims": dims, "offset": 0, "size": size, **form}
    with pytest.raises(QpcFormatError, match="'w'"):
        Initializers({"w": record}, np.zeros(4, np.uint8))["w"]
