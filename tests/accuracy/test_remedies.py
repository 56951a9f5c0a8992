"""The remedies of reports: the error of the program falls if a user follows them."""

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import accuracy_models as models
import qaic
from qaic import accuracy


def error_power(model, samples, **options):
    """Return the power of the errors of a compiled program, compared with onnxruntime on the model."""
    engine = models.engine(model)
    power = 0.0
    with qaic.Session(model, **options) as session:
        for sample in samples:
            expected = engine.run(None, sample)
            for name, values in zip([value.name for value in model.graph.output], expected, strict=True):
                found = session.run(sample)[name].astype(np.float64)
                power += float(np.square(np.nan_to_num(found, posinf=1e30, neginf=-1e30) - values).sum())
    return power


def offender_of(model, samples, to, **options):
    return accuracy.compare(model, to=to, samples=samples, **options).first_offender


def residual(scale=30.0):
    """Convolutions with their own Relu, and an Add before a Relu; one channel of the second is larger."""
    rng = np.random.default_rng(1)

    def weights(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = {f"k{at}": weights(16, 3 if at == 1 else 16, 3, 3) for at in (1, 2, 3)}
    constants |= {"w": weights(16, 10)}
    constants["k2"][0] *= scale
    nodes = [
        models.node("Conv", "x k1", "c1", pads=[1] * 4),
        models.node("Relu", "c1", "r1"),
        models.node("Conv", "r1 k2", "c2", pads=[1] * 4),
        models.node("Relu", "c2", "r2"),
        models.node("Conv", "r2 k3", "c3", pads=[1] * 4),
        models.node("Add", "c3 r1", "sum"),
        models.node("Relu", "sum", "r3"),
        models.node("GlobalAveragePool", "r3", "pooled"),
        models.node("Flatten", "pooled", "flat"),
        models.node("Gemm", "flat w", "y"),
    ]
    inputs = {"x": [1, 3, 16, 16]}
    return models.model_of(nodes, inputs, {"y": [1, 10]}, constants), models.samples(inputs)


def faulty_half(kind):
    model, samples, _ = models.mixed_faults([kind])
    return model, samples, "fp16", {"convert_to_fp16": True}


def faulty_integers(model, samples):
    return model, samples, "int8", {"convert_to_quantize": True, "calibration_data": samples}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: faulty_half("overflow"), "overflow"),
        (lambda: faulty_half("cancellation"), "cancellation"),
        (lambda: faulty_half("underflow"), "underflow"),
        (lambda: faulty_integers(*residual()), "outlier channel"),
        (lambda: faulty_integers(*models.convolutional(outlier=1000.0)), "outlier channel"),
        (lambda: faulty_integers(*residual(scale=1.0)), "none"),
        (lambda: faulty_integers(*models.attention()), "none"),
    ],
)
def test_the_error_falls_with_the_nodes_of_the_remedy(made, reason):
    """Regression: the remedy named one node of a fused unit, and not its readers, which rounded again."""
    model, samples, to, options = made()
    offender = offender_of(model, samples, to)
    assert offender.reason == reason
    lists = {"FP32NodeInstanceNames": [*offender.keep]}
    before = error_power(model, samples, **options)
    after = error_power(model, samples, **options, node_precision_info_file=lists)
    assert after < 0.9 * before
    # The remedy contains the line of the file.
    line = offender.remedy.partition("FP32NodeInstanceNames: ")[2].rstrip(")")
    assert tuple(yaml.safe_load(line)) == offender.keep


def test_the_remedy_names_a_whole_unit_and_its_readers():
    offender = offender_of(*residual(), "int8")
    assert (offender.name, offender.keep) == ("r2", ("c2", "r2", "c3"))


@settings(max_examples=4)
@example(["outlier channel", "calm"])
@given(st.lists(st.sampled_from(["calm", "outlier channel"]), min_size=1, max_size=3))
def test_remedies_end_the_loss_of_transformers(faults):
    """Each remedy is followed, together with those before it; the error falls every time."""
    model, samples, _, _ = models.planted_transformer(faults)
    options = {"enable_channelwise": True, "enable_rowwise": True}
    kept, before = [], np.inf
    for _ in faults:
        lists = {"FP32NodeInstanceNames": kept}
        offender = offender_of(model, samples, "int8", node_precision_info_file=lists, **options)
        if offender is None or offender.reason != "outlier channel":
            break
        kept = [*kept, *offender.keep]
        after = error_power(
            model,
            samples,
            convert_to_quantize=True,
            calibration_data=samples,
            node_precision_info_file={"FP32NodeInstanceNames": kept},
            **options,
        )
        assert after < before
        before = after


@pytest.mark.parametrize("limiter", ["Relu", "Clip"])
@pytest.mark.parametrize("to", ["int8", "int16"])
def test_values_that_a_limiter_cuts_are_no_loss(limiter, to):
    """Regression: half of the results of a convolution were clipped, according to the report."""
    rng = np.random.default_rng(2)
    bounds = {"low": np.float32(0.0), "high": np.float32(1.0)} if limiter == "Clip" else {}
    constants = {"k": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5, **bounds}
    nodes = [
        models.node("Conv", "x k", "c"),
        models.node(limiter, " ".join(["c", *bounds]), "y"),
    ]
    inputs = {"x": [1, 3, 12, 12]}
    model, samples = models.model_of(nodes, inputs, {"y": [1, 4, 10, 10]}, constants), models.samples(inputs)
    lists = {"FP32NodeInstanceNames": ["y"]}
    report = accuracy.compare(model, to=to, samples=samples, node_precision_info_file=lists)
    (row,) = report.nodes[report.nodes["name"] == "c"]
    assert row["precision"] == to
    assert (row["saturation"], row["reason"]) == (0, "none")
    assert row["inherited_sqnr_db"] == pytest.approx(report[to].outputs[0].sqnr_db, abs=0.01)


def test_results_that_a_relu_cuts_do_not_overflow():
    constants = {"large": np.float32(300), "w": np.eye(8, dtype=np.float32)}
    nodes = [
        models.node("Mul", "x large", "wide"),
        models.node("Mul", "wide large", "wider"),
        models.node("Relu", "wider", "y"),
    ]
    model = models.model_of(nodes, {"x": [1, 8]}, {"y": [1, 8]}, constants)
    for sign, reasons in ((-1, {"none"}), (1, {"none", "overflow"})):
        samples = [{"x": np.full((1, 8), sign, np.float32)}]
        lists = {"FP32NodeInstanceNames": ["y"]}
        report = accuracy.compare(model, to="fp16", samples=samples, node_precision_info_file=lists)
        assert "wider" in report.nodes["name"]
        assert set(report.nodes["reason"]) == reasons


def test_remedies_of_saturation_change_the_program():
    """Regression: the remedy of saturation was the default of the option."""
    model, samples = (
        models.model_of(
            [models.node("Mul", "x two", "y")], {"x": [4, 64]}, {"y": [4, 64]}, {"two": np.float32(2)}
        ),
        [{"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64) ** 9}],
    )
    small = [{"x": sample["x"] / 8} for sample in samples]
    smaller = {"quantization_calibration": "Percentile", "percentile_calibration_value": 90.0}
    whole, again = "quantization_calibration=None", "calibrate with the compared samples"
    for options, expected in (
        (smaller, {whole}),
        ({"calibration_data": small}, {again}),
        ({"calibration_data": small, **smaller}, {whole, again}),
    ):
        offender = offender_of(model, samples, "int8", **options)
        assert offender.reason == "saturation"
        assert {text for text in (whole, again) if text in offender.remedy} == expected
        quantized = {"convert_to_quantize": True, "calibration_data": samples}
        before = error_power(model, samples, **{**quantized, **options})
        assert error_power(model, samples, **quantized) < before / 2


@pytest.mark.parametrize(
    ("operator", "option", "other"),
    [("Conv", "enable_channelwise", "enable_rowwise"), ("MatMul", "enable_rowwise", "enable_channelwise")],
)
@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_remedies_of_weights_name_the_option_of_the_operator(operator, option, other, activation):
    """A fused Relu does not hide the operator, and an option that is already set is no remedy."""
    rng = np.random.default_rng(4)
    # The large weights cancel, because the inputs of each pair are equal; they still take the range.
    weights = rng.standard_normal((8, 4, 1, 1)).astype(np.float32)
    weights[0] = [[[500]], [[-500]], [[500]], [[-500]]]
    x = np.repeat(rng.standard_normal((1, 2, 8, 8)), 2, axis=1).astype(np.float32)
    if operator == "MatMul":
        weights, x = weights[:, :, 0, 0].T.copy(), np.moveaxis(x, 1, 3).reshape(64, 4)
    y = [64, 8] if operator == "MatMul" else [1, 8, 8, 8]
    nodes = [models.node(operator, "x w", "made"), models.node(activation, "made", "y")]
    model, samples = models.model_of(nodes, {"x": x.shape}, {"y": y}, {"w": weights}), [{"x": x}]
    remedies = [
        offender.remedy if (offender := offender_of(model, samples, "int8", **options)) else ""
        for options in ({}, {option: True}, {other: True})
    ]
    assert [option in text for text in remedies] == [True, False, True]
    assert not any(other in text for text in remedies)
    quantized = {"convert_to_quantize": True, "calibration_data": samples}
    before = error_power(model, samples, **quantized)
    assert error_power(model, samples, **quantized, **{option: True}) < before / 2
