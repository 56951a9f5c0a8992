"""Quantized containers, from the model to the results: size, bytes, classes, shapes, and all calibrations."""

import numpy as np
import onnx
import pytest
from onnx import helper

import qaic
import session_models
from compiler_oracle import lowered, whole
from qaic.options import resolve
from quantize_oracle import run

RNG = np.random.default_rng(11)
FLOAT = onnx.TensorProto.FLOAT


def draw(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def mlp(elem_type=FLOAT, batch=4):
    """Two wide products with 132 kB of weights; the batch can be symbolic."""
    constants = {
        "w1": draw(64, 256, scale=0.1),
        "b1": draw(256),
        "w2": draw(256, 64, scale=0.1),
        "b2": draw(64),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "b1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r1"]),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"]),
        helper.make_node("Add", ["m2", "b2"], ["y"]),
    ]
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    return session_models.model(
        nodes,
        [("x", elem_type, [batch, 64])],
        [("y", elem_type, [batch, 64])],
        {name: values.astype(dtype) for name, values in constants.items()},
    )


def samples(count=6, batch=4, dtype=np.float32):
    return [{"x": draw(batch, 64).astype(dtype)} for _ in range(count)]


def quantizing(data, **more):
    return {"convert_to_quantize": True, "calibration_data": data, **more}


@pytest.fixture
def saved(tmp_path):
    def save(model):
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return path

    return save


def test_a_quantized_container_is_a_quarter_of_the_size_and_the_same_each_time(saved, tmp_path):
    path, data = saved(mlp()), samples()
    sizes = {}
    for name, options in (
        ("float", {}),
        ("first", quantizing(data, enable_rowwise=True)),
        ("second", quantizing(data, enable_rowwise=True)),
    ):
        session = qaic.Session(path, output_dir=tmp_path / name, **options)
        del session
        sizes[name] = (tmp_path / name / "programqpc.bin").read_bytes()
    assert sizes["first"] == sizes["second"]
    assert len(sizes["first"]) < 0.35 * len(sizes["float"])


@pytest.mark.parametrize("precision", ["Int8", "Int16"])
def test_a_session_gives_what_the_engine_gives_for_the_same_graph(saved, precision):
    model, data = mlp(), samples()
    options = quantizing(data, quantization_precision=precision)
    with qaic.Session(saved(model), **options) as session:
        found = session.run(data[0])["y"]
    program = lowered(model, **options)
    assert np.array_equal(found, run(whole(program), data[0])["y"])
    wanted = run(model, data[0])["y"]
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < (0.03 if precision == "Int8" else 2e-4)
    assert error > 0


@pytest.mark.parametrize(
    "method", ["None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"]
)
@pytest.mark.parametrize(
    "schema", ["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"]
)
def test_every_schema_with_every_calibration_keeps_most_of_the_signal(method, schema):
    model, data = mlp(), samples(count=20)
    options = quantizing(
        data,
        quantization_schema=schema,
        quantization_schema_activations=schema,
        quantization_schema_constants=schema,
        quantization_calibration=method,
        percentile_calibration_value=99.99,
        num_histogram_bins=512,
    )
    if method != "Percentile":
        del options["percentile_calibration_value"]
    found = run(whole(lowered(model, **options)), data[0])["y"]
    wanted = run(model, data[0])["y"]
    noise = 10 * np.log10((wanted**2).mean() / ((found - wanted) ** 2).mean())
    assert noise > (20 if "KL" not in method else 8)


def test_nodes_that_are_kept_are_not_quantized():
    model, data = mlp(), samples()
    program = lowered(model, **quantizing(data, keep_original_precision_for_nodes=("MatMul",)))
    kinds = [(node.op_type, node.input[1]) for node in program.model.graph.node if node.op_type == "MatMul"]
    assert kinds == [("MatMul", "w1"), ("MatMul", "w2")]


def test_quantized_nodes_and_float16_nodes_live_in_one_graph():
    model, data = mlp(), samples()
    program = lowered(model, **quantizing(data, convert_to_fp16=True, execute_nodes_in_fp16=("Relu",)))
    found = run(whole(program), data[0])["y"]
    wanted = run(model, data[0])["y"]
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    kinds = {node.op_type for node in program.model.graph.node}
    assert {"QuantizeLinear", "Cast"} <= kinds


def test_models_of_float16_are_quantized_too(saved):
    model, data = mlp(onnx.TensorProto.FLOAT16), samples(dtype=np.float16)
    program = lowered(model, **quantizing(data))
    assert sum(w.source.nbytes for w in program.weights.values() if w.elem_type == 3) == 2 * 64 * 256
    with qaic.Session(saved(model), **quantizing(data)) as session:
        found = session.run(data[0])["y"]
    wanted = run(model, data[0])["y"].astype(np.float32)
    assert found.dtype == np.float16
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_specializations_share_one_quantized_graph(saved):
    model, data = mlp(batch="batch"), samples()
    entries = {"specializations": [{"batch": "4"}, {"batch": "2"}]}
    with qaic.Session(saved(model), network_specialization_config=entries, **quantizing(data)) as session:
        whole_batch = session.run(data[0])["y"]
        half_batch = session.run({"x": data[0]["x"][:2]})["y"]
    assert np.array_equal(whole_batch[:2], half_batch)


def test_a_saved_profile_quantizes_like_the_samples(saved, tmp_path):
    model, data = mlp(), samples()
    profile = tmp_path / "profile.yaml"
    qaic.Session(saved(model), dump_profile=str(profile), calibration_data=data)
    loaded = resolve({"load_profile": str(profile)}, options_path=None, model_is_container=False)
    options = {"quantization_calibration": "MSE"}
    first = lowered(model, **quantizing(data), **options)
    second = lowered(model, load_profile=loaded.compile.load_profile, **options)
    assert whole(first).SerializeToString() == whole(second).SerializeToString()
