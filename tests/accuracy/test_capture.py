"""Results of the instrumented graph: the exact outputs of the program, and sums that numpy verifies."""

import numpy as np
import onnx
import pytest
from onnx import helper

import accuracy_models as models
import qaic
from qaic import accuracy
from qaic.accuracy.capture import Split, instrumented
from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.instrument import FIELDS, OBSERVED, REFERENCE
from qaic.accuracy.prepared import options_of, prepared
from qaic.accuracy.samples import Samples
from qaic.compiler.passes.shape_inference import infer_shapes
from qaic.qpc import Qpc

MODELS = {
    "chain": lambda: models.overflowing()[:2],
    "cancelling": lambda: models.cancelling()[:2],
    "convolutional": models.convolutional,
    "attention": models.attention,
    "branching": models.branching,
}
MIXED = {
    "convolutional": ["c1", "c2", "s2"],
    "attention": ["variance0", "normal1", "scores0", "mixed1"],
}


def run_both(model, to, given, **options):
    """Run the deployed program and the instrumented program."""
    wanted = compile_options_of(model, to, Samples(given), None, options)
    settings = options_of(to, options)
    if settings.get("convert_to_quantize"):
        settings = {**settings, "calibration_data": given}
    container = qaic.compile(model, **settings)
    with instrumented(model, wanted) as program, qaic.Session(container.path) as session:
        for sample in given:
            yield session.run(sample), program.run(sample), program.twin


@pytest.mark.parametrize("to", ["fp32", "fp16", "int8", "int16", "mxfp6", "mxfp6+fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_deployed_outputs_are_those_of_the_program(name, to):
    model, given = MODELS[name]()
    for deployed, found, _ in run_both(model, to, given[:2]):
        for output, array in deployed.items():
            assert found[output].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", MIXED)
def test_they_are_in_mixed_precision(name):
    model, given = MODELS[name]()
    lists = {"FP32NodeInstanceNames": MIXED[name]}
    for deployed, found, twin in run_both(model, "fp16", given[:2], node_precision_info_file=lists):
        assert {node.name for node in twin.nodes if node.precision.value == "fp32"} >= set(MIXED[name])
        for output, array in deployed.items():
            assert found[output].tobytes() == array.tobytes()


def test_the_reference_is_the_model_in_float32():
    model, given = models.convolutional()
    with qaic.Session(qaic.compile(model).path) as session:
        for (_, found, _), sample in zip(run_both(model, "int8", given), given, strict=True):
            for output, array in session.run(sample).items():
                np.testing.assert_allclose(found[REFERENCE + output], array, rtol=1e-6, atol=1e-7)


def half(values):
    return values.astype(np.float16).astype(np.float32)


def power(values):
    return np.sum(values.astype(np.float64) ** 2)


def test_sums_of_a_chain_are_those_of_numpy():
    """Products with a rounded matrix, a sum of two roundings, and a Relu, computed by hand."""
    rng = np.random.default_rng(11)
    w = rng.standard_normal((16, 16)).astype(np.float32)
    bias = rng.standard_normal(16).astype(np.float32)
    nodes = [
        models.node("MatMul", "x w", "product"),
        models.node("Add", "product bias", "sum"),
        models.node("Exp", "sum", "grown"),
        models.node("Transpose", "grown", "turned", perm=[1, 0]),
        models.node("Sub", "turned turned2", "y"),
    ]
    nodes.insert(4, models.node("Sqrt", "turned", "turned2"))
    inputs = {"x": [4, 16]}
    model = models.model_of(nodes, inputs, {"y": [16, 4]}, {"w": w, "bias": bias})
    given = models.samples(inputs, count=1, scale=0.3)
    ((_, found, twin),) = run_both(model, "fp16", given)
    rows = dict(
        zip([node.name for node in twin.nodes], Split(twin.elements)(found[OBSERVED])[0], strict=True)
    )

    x = given[0]["x"]
    real = {"sum": x @ w + bias}
    real["grown"] = np.exp(real["sum"])
    real["turned"] = real["grown"].T
    real["turned2"] = np.sqrt(real["turned"])
    real["y"] = real["turned"] - real["turned2"]
    weighted = half(x) @ half(w) + half(bias)
    deployed = {"sum": half(weighted)}
    deployed["grown"] = half(np.exp(deployed["sum"]))
    deployed["turned"] = deployed["grown"].T
    deployed["turned2"] = half(np.sqrt(deployed["turned"]))
    deployed["y"] = half(deployed["turned"] - deployed["turned2"])
    own = {
        "sum": half(weighted),
        "grown": half(real["grown"]),
        "turned2": half(real["turned2"]),
        "y": half(real["y"]),
    }
    assert list(rows) == ["sum", "grown", "turned", "turned2", "y"]
    for name, row in rows.items():
        made = dict(zip(FIELDS, row, strict=True))
        assert made["signal"] == pytest.approx(power(real[name]), rel=1e-5)
        assert made["inherited"] == pytest.approx(power(deployed[name] - real[name]), rel=0.02)
        if name in own:
            assert made["own"] == pytest.approx(power(own[name] - real[name]), rel=0.02)
        else:
            assert made["own"] == 0
        assert made["minimum"] == pytest.approx(real[name].min(), rel=1e-5)
        assert made["maximum"] == pytest.approx(real[name].max(), rel=1e-5)
        assert made["quantile"] == pytest.approx(np.abs(real[name]).max(), rel=1e-5)
    made = dict(zip(FIELDS, rows["sum"], strict=True))
    assert made["weights"] == pytest.approx(power(weighted - real["sum"]), rel=0.02)
    by_channel = np.abs(real["sum"]).max(axis=0)
    assert made["channel_maximum"] == pytest.approx(by_channel.max(), rel=1e-5)
    assert made["channel_median"] == pytest.approx(np.sort(by_channel)[7], rel=1e-5)
    assert next(node.fused for node in twin.nodes if node.name == "sum") == ("product",)


def integers_of(params, values):
    """Quantize and dequantize with the parameters."""
    low, high = params.limits
    steps = np.round(values.astype(np.float64) / params.scale) + params.zero_point
    return (np.clip(steps, low, high) - params.zero_point) * params.scale


def test_own_errors_of_integers_are_those_of_numpy():
    """A convolution with Relu, whose weights are rounded, and a Sigmoid, on inputs of the reference."""
    model, given = models.convolutional()
    report = accuracy.compare(model, to="int8", samples=given, enable_channelwise=True)["int8"]
    rows = {str(row["name"]): row for row in report.nodes}
    params = {node.name: node.params for node in report._capture.nodes}
    values = dict.fromkeys(("r1", "c2", "s2"), ())
    exposed = onnx.ModelProto.FromString(model.SerializeToString())
    for name in values:
        exposed.graph.output.append(onnx.ValueInfoProto(name=name))
        exposed.graph.output[-1].type.tensor_type.elem_type = 1
    engine = models.engine(exposed)
    found = [dict(zip(values, engine.run(list(values), sample), strict=True)) for sample in given]
    real = {name: np.stack([item[name] for item in found]) for name in values}
    own = integers_of(params["s2"], real["s2"])
    expected = 10 * np.log10(power(real["s2"]) / power(own - real["s2"]))
    assert rows["s2"]["own_sqnr_db"] == pytest.approx(expected, abs=0.05)
    # The weights, with one scale per channel, are also rounded, so the loss exceeds that of rounding the
    # result.
    rounded = integers_of(params["c2"], real["c2"])
    alone = 10 * np.log10(power(real["c2"]) / power(rounded - real["c2"]))
    assert alone - 6 < rows["c2"]["own_sqnr_db"] < alone
    assert 0.05 < rows["c2"]["weights_share"] < 0.6
    # Neither node is exact; nodes that only move integers are exact.
    assert rows["r1"]["own_sqnr_db"] == pytest.approx(rows["r1"]["inherited_sqnr_db"], abs=0.1)
    assert rows["flat"]["own_sqnr_db"] == np.inf


def test_counts_are_those_of_numpy():
    x = np.array([[1e-6, -1e-5, 0.0, 1.0, 250.0, -300.0, np.float32(6.2e-5), 5.0]], np.float32)
    model = models.model_of([models.node("Mul", "x x", "y")], {"x": [1, 8]}, {"y": [1, 8]})
    (row,) = accuracy.compare(model, to="fp16", samples=[{"x": x}]).nodes
    # 300 x 300 exceeds 65504; the squares of three numbers are small, and the square of 0 is exact.
    assert row["overflow"] * 8 == 1
    assert row["underflow"] * 8 == 3
    assert row["reason"] == "overflow"
    assert row["own_sqnr_db"] == row["inherited_sqnr_db"] == -np.inf


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 17])
@pytest.mark.parametrize("side", [8, 100])
def test_quantiles_and_channels_are_those_of_numpy_in_every_operator_set(opset, side):
    x = np.random.default_rng(opset).standard_normal((1, 4, side, side)).astype(np.float32)
    x[:, 2] *= 50
    bias = np.zeros((1, 4, 1, 1), np.float32)
    shape = list(x.shape)
    nodes = [models.node("Add", "x b", "y")]
    model = models.model_of(nodes, {"x": shape}, {"y": shape}, {"b": bias}, opset=opset)
    report = accuracy.compare(model, to="fp16", samples=[{"x": x}])
    (row,), sizes = report.nodes, np.abs(x).reshape(-1)
    # Above 16,384 elements, every third element counts.
    chosen = np.sort(sizes[::3] if sizes.size > 1 << 14 else sizes)
    quantile = chosen[-max(1, -(-chosen.size // 1000))]
    assert row["quantile_999"] == pytest.approx(quantile, rel=1e-6)
    assert row["outlier_ratio"] == pytest.approx(sizes.max() / quantile, rel=1e-6)
    largest = np.sort(np.abs(x).max(axis=(0, 2, 3)))
    assert row["channel_ratio"] == pytest.approx(largest[-1] / largest[1], rel=1e-6)
    assert report.precisions[0]._capture.histograms.of(0) is not None


def test_clipped_integers_are_counted(tmp_path):
    model = models.model_of([models.node("Relu", "x", "y")], {"x": [1, 1000]}, {"y": [1, 1000]})
    narrow = [{"x": np.linspace(0, 1, 1000, dtype=np.float32)[None]}]
    wide = [{"x": np.linspace(0, 2, 1000, dtype=np.float32)[None]}]
    (row,) = accuracy.compare(
        model, to="int8", samples=wide, calibration_data=narrow, convert_to_quantize=True
    ).nodes
    assert row["saturation"] == pytest.approx(0.5, abs=0.005)


def test_state_of_the_reference_is_its_own():
    """A running sum whose state loses precision in float16; the reference keeps the exact state."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["past", "x"], ["past_RetainedState"]),
            helper.make_node("Mul", ["past_RetainedState", "two"], ["y"]),
        ],
        "running",
        [value("x", 1, [1, 4]), value("past", 1, [1, 4])],
        [value("y", 1, [1, 4]), value("past_RetainedState", 1, [1, 4])],
        [onnx.numpy_helper.from_array(np.array(2, np.float32), "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = [{"x": np.full((1, 4), step, np.float32)} for step in (1000.25, 1000.25, 1000.25)]
    report = accuracy.compare(model, to="fp16", samples=given, retained_state=True)
    (output,) = [item for item in report["fp16"].outputs if item.name == "y"]
    state = np.float32(0)
    errors = []
    for step in range(3):
        state = half(np.array(state + half(np.array(1000.25, np.float32))))
        errors.append(abs(float(half(state * 2)) - 2 * 1000.25 * (step + 1)))
    assert output.largest_error == pytest.approx(max(errors))


def test_each_node_adds_as_many_observers_and_asks_the_engine_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(infer_shapes, "_refusal", lambda *_: pytest.fail("the engine is asked"))

    def added(count):
        nodes = [helper.make_node("Sin", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)]
        ends = [helper.make_tensor_value_info(f"v{at}", 1, [1, 16]) for at in (0, count)]
        graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = compile_options_of(model, "fp16", Samples("random"), None, {})
        with prepared(model, options, "counting") as source:
            source.write_instrumented(tmp_path / f"{count}.bin")
        written = onnx.load_model_from_string(Qpc(tmp_path / f"{count}.bin").graph.tobytes()).graph.node
        assert not any(node.op_type == "If" for node in written)
        return len(written)

    few, more, most = map(added, (10, 20, 30))
    assert most - more == more - few <= 450
