"""Measured values equal those of onnxruntime for any number of threads; invalid samples are refused."""

import gc
import os
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import qaic
from calibration_models import convolutional, lowered, samples_of, values
from qaic.compiler.diagnostics.messages import recorded
from qaic.errors import CompileError, OptionError
from session_models import model, save

TENSORS = ["x", "c", "r", "g", "f", "y"]
#: Tensor that only a Relu reads -> the result of the Relu.
LIMITED = {"c": "r"}


def profile(built, **options):
    return lowered(built, convert_to_quantize=True, **options).profile


def test_ranges_are_those_of_the_engine():
    built = convolutional()
    samples = samples_of(built, 7)
    found = profile(built, calibration_data=iter(samples)).tensors
    expected = values(built, samples, TENSORS)
    assert found.keys() == expected.keys()
    for name in TENSORS:
        array = expected[LIMITED.get(name, name)]
        np.testing.assert_allclose(
            [found[name].minimum, found[name].maximum], [array.min(), array.max()], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("calibration", ["None", "Percentile"])
def test_results_depend_neither_on_threads_nor_on_order(calibration):
    built = convolutional()
    samples = samples_of(built, 9)
    first = profile(
        built, calibration_data=samples, profiling_threads=1, quantization_calibration=calibration
    )
    for threads, ordered in ((2, samples), (5, samples), (3, samples[::-1])):
        again = profile(
            built, calibration_data=ordered, profiling_threads=threads, quantization_calibration=calibration
        )
        assert again.tensors == first.tensors


def test_histograms_hold_what_the_engine_computes():
    built = convolutional()
    samples = samples_of(built, 5)
    found = profile(built, calibration_data=samples, quantization_calibration="MSE", num_histogram_bins=64)
    for name, array in values(built, samples, list(set(TENSORS) - LIMITED.keys())).items():
        tensor = found.tensors[name]
        assert tensor.histogram.shape == (64,)
        assert tensor.histogram.dtype == np.float32
        np.testing.assert_allclose(tensor.histogram.sum(), array.size, rtol=1e-5)
        # Bins are combined from finer bins, so a value at an edge can count in the neighbor.
        edges = np.linspace(tensor.minimum, tensor.maximum, 65)
        exact = np.histogram(array.astype(np.float64), edges)[0]
        assert np.abs(np.cumsum(tensor.histogram) - np.cumsum(exact)).max() <= max(2, 0.02 * array.size)


def test_constants_are_not_profiled():
    assert profile(convolutional()).tensors.keys() == set(TENSORS)


def normalized():
    """Conv, BatchNormalization, Relu."""
    random = np.random.default_rng(3)
    vectors = {name: random.uniform(0.5, 2, 4).astype(np.float32) for name in ("s", "b", "mean", "var")}
    return model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
            helper.make_node("BatchNormalization", ["c", *vectors], ["n"]),
            helper.make_node("Relu", ["n"], ["y"]),
        ],
        [("x", "float32", [1, 3, 8, 8])],
        [("y", "float32", [1, 4, 8, 8])],
        {"w": random.standard_normal((4, 3, 3, 3)).astype(np.float32), **vectors},
    )


def test_normalizations_are_folded_before_they_are_measured():
    samples = samples_of(normalized(), 3)
    tensors = profile(normalized(), calibration_data=samples).tensors
    assert tensors.keys() == {"x", "n", "y"}
    expected = values(normalized(), samples, ["y"])["y"]
    assert tensors["n"] is tensors["y"]
    np.testing.assert_allclose(
        [tensors["y"].minimum, tensors["y"].maximum], [expected.min(), expected.max()], rtol=1e-5
    )


def test_a_limit_that_others_pass_by_is_measured_before_it_too():
    built = model(
        [
            helper.make_node("Neg", ["x"], ["n"]),
            helper.make_node("Clip", ["n", "low"], ["c"]),
            helper.make_node("Mul", ["n", "c"], ["y"]),
        ],
        [("x", "float32", [2])],
        [("y", "float32", [2])],
        {"low": np.float32(0)},
    )
    tensors = profile(built, calibration_data=[{"x": np.array([1, -2], np.float32)}]).tensors
    assert (tensors["n"].minimum, tensors["c"].minimum) == (-1, 0)


def test_dumping_a_profile_does_not_change_the_float_program(tmp_path, monkeypatch):
    path = save(tmp_path, normalized())
    contents = []
    for name, options in (("plain", {}), ("dumping", {"dump_profile": tmp_path / "p.yaml"})):
        monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / name))
        qaic.Session(path, output_dir=tmp_path / "out", **options)
        contents.append((tmp_path / "out" / "programqpc.bin").read_bytes())
    assert contents[0] == contents[1]


def test_tensors_with_the_same_values_are_measured_once():
    built = convolutional()
    tensors = profile(built, calibration_data=samples_of(built, 2)).tensors
    assert tensors["f"] is tensors["g"]


def test_without_samples_random_ones_are_used_with_a_warning(caplog):
    built = convolutional()
    first = profile(built)
    assert "random data" in caplog.text
    assert 0 <= first.tensors["x"].minimum < 0.01
    assert 0.99 < first.tensors["x"].maximum < 1
    assert first.tensors == profile(built).tensors


def test_gaussian_samples(caplog):
    tensors = profile(convolutional(), use_random_input_data="gaussian").tensors
    assert tensors["x"].minimum < -2
    assert tensors["x"].maximum > 2
    assert "random data" not in caplog.text


def test_random_indices_stay_in_the_table():
    built = model(
        [
            helper.make_node("Cast", ["ids"], ["wide"], to=7),
            helper.make_node("Gather", ["table", "wide"], ["e"]),
            helper.make_node("MatMul", ["e", "w"], ["y"]),
        ],
        [("ids", "int32", [2, 50])],
        [("y", "float32", [2, 50, 3])],
        {"table": np.arange(20, dtype=np.float32).reshape(5, 4), "w": np.ones((4, 3), np.float32)},
    )
    tensor = profile(built).tensors["e"]
    assert tensor.maximum == 19
    assert tensor.minimum == 0


def test_model_without_quantizable_tensors_warns(caplog):
    built = model([helper.make_node("Not", ["x"], ["y"])], [("x", "bool", [3])], [("y", "bool", [3])])
    assert not profile(built).tensors
    assert "no tensors that can be quantized" in caplog.text


def test_specializations_are_profiled_with_the_shapes_of_the_samples():
    built = model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        [("x", "float32", ["rows", 4])],
        [("y", "float32", ["rows", 4])],
        {"w": np.eye(4, dtype=np.float32)},
    )
    entries = [{"name": "small", "symbols": {"rows": 2}}, {"name": "large", "symbols": {"rows": 6}}]
    samples = [{"x": np.full((rows, 4), rows, np.float32)} for rows in (2, 6, 2)]
    tensors = profile(
        built, calibration_data=samples, network_specialization_config={"specializations": entries}
    ).tensors
    assert (tensors["m"].minimum, tensors["m"].maximum) == (2, 6)
    with pytest.raises(OptionError, match=r"sample 1.*\[3, 4\].*\[2, 4\] or \[6, 4\]"):
        profile(
            built,
            calibration_data=[{"x": np.zeros((3, 4), np.float32)}],
            network_specialization_config={"specializations": entries},
        )


def stateful():
    """``s`` grows by ``x`` in every inference."""
    return model(
        [
            helper.make_node("Add", ["s", "x"], ["s_RetainedState"]),
            helper.make_node("Relu", ["s_RetainedState"], ["y"]),
        ],
        [("x", "float32", [1, 2]), ("s", "float32", [1, 2])],
        [("y", "float32", [1, 2]), ("s_RetainedState", "float32", [1, 2])],
    )


def test_state_that_is_left_out_goes_from_sample_to_sample():
    samples = [{"x": np.full((1, 2), 1, np.float32)} for _ in range(4)]
    tensors = profile(stateful(), calibration_data=samples, retained_state=True, profiling_threads=4).tensors
    assert (tensors["s_RetainedState"].minimum, tensors["s_RetainedState"].maximum) == (1, 4)
    assert (tensors["s"].minimum, tensors["s"].maximum) == (0, 3)


def test_quantized_programs_keep_their_shapes_and_state(tmp_path):
    built = stateful()
    for value in (*built.graph.input, *built.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "n"
    samples = [{"x": np.full((1, size), 1, np.float32)} for size in (2, 3)]
    entries = [{"name": str(size), "symbols": {"n": size}} for size in (2, 3)]
    path = save(tmp_path, built)
    with qaic.Session(
        path,
        network_specialization_config={"specializations": entries},
        convert_to_quantize=True,
        calibration_data=[{**sample, "s": 2 * sample["x"]} for sample in samples],
    ) as session:
        for sample in samples:
            found = session.run({**sample, "s": 2 * sample["x"]})["y"]
            assert found.shape == sample["x"].shape
            assert np.abs(found - 3).max() < 0.05
    with qaic.Session(
        save(tmp_path, stateful(), "state.onnx"),
        retained_state=True,
        convert_to_quantize=True,
        calibration_data=[samples[0]] * 3,
    ) as session:
        found = [session.run(samples[0])["y"] for _ in range(3)]
    assert np.abs(np.array(found)[:, 0, 0] - [1, 2, 3]).max() < 0.05


def test_state_that_is_given_begins_anew():
    zero, one = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    samples = [{"x": one, "s": zero}, {"x": one}, {"x": one, "s": zero}, {"x": one}]
    tensors = profile(stateful(), calibration_data=samples, retained_state=True).tensors
    assert (tensors["s"].minimum, tensors["s"].maximum) == (0, 1)
    assert tensors["s_RetainedState"].maximum == 2


def test_half_precision_models_are_profiled_in_their_own_precision():
    built = model(
        [helper.make_node("Mul", ["x", "x"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        [("x", "float16", [4])],
        [("y", "float16", [4])],
    )
    data = np.array([1 / 3, 1, 2, 3], np.float16)
    tensors = profile(built, calibration_data=[{"x": data}]).tensors
    assert tensors["m"].minimum == float((data * data).min())
    assert tensors["m"].maximum == 9


@pytest.mark.parametrize("elem_type", ["float16", "float32"])
def test_a_given_shape_is_that_of_the_measured_value(elem_type):
    """An output of a float16 model is a cast of the measured value."""
    built = model(
        [
            helper.make_node("SplitToSequence", ["x"], ["s"], axis=0),
            helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        [("x", elem_type, [4, 1])],
        [("y", elem_type, ["n", "m"])],
    )
    data = np.array([[-2], [1], [3], [0.5]], elem_type)
    found = profile(built, calibration_data=[{"x": data}], output_shapes={"y": (4, 1)}).tensors
    assert {(tensor.minimum, tensor.maximum) for tensor in found.values()} == {(0, 3)}


def test_nan_is_refused_by_name():
    built = model(
        [helper.make_node("Log", ["x"], ["l"]), helper.make_node("Sigmoid", ["l"], ["y"])],
        [("x", "float32", [3])],
        [("y", "float32", [3])],
    )
    good, bad = np.ones(3, np.float32), np.array([1, -1, 1], np.float32)
    for threads in (1, 3):
        with pytest.raises(CompileError, match=r"tensor 'l' in sample 2: found 1 NaN of 3 values") as caught:
            profile(built, calibration_data=[{"x": good}, {"x": bad}, {"x": bad}], profiling_threads=threads)
        assert caught.value.code == "compile.calibration_not_finite"


@given(
    st.lists(st.sampled_from([0.0, -np.inf, np.inf, np.nan]), min_size=1, max_size=6), st.sampled_from([1, 3])
)
def test_tensors_with_infinite_values_have_no_range_whatever_the_order_of_samples(added, threads):
    built = model(
        [helper.make_node("Add", ["x", "mask"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])],
        [("x", "float32", [2]), ("mask", "float32", [2])],
        [("y", "float32", [2])],
    )
    samples = [{"x": np.ones(2, np.float32), "mask": np.array([0, value], np.float32)} for value in added]
    if np.isnan(added).any():
        with pytest.raises(CompileError, match=r"found 1 NaN of 2 values"):
            profile(built, calibration_data=samples, profiling_threads=threads)
        return
    tensors = profile(built, calibration_data=samples, profiling_threads=threads).tensors
    expected = {"x", "y"} if np.isinf(added).any() else {"x", "mask", "a", "y"}
    assert tensors.keys() == expected


def test_nan_in_samples_is_refused_if_no_output_shows_it():
    built = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("ArgMax", ["p"], ["y"], axis=1),
        ],
        [("x", "float32", [3, 4])],
        [("y", "int64", [3, 1])],
        {"w": np.eye(4, dtype=np.float32)},
    )
    with pytest.raises(CompileError, match="found 12 NaN of 12 values"):
        profile(built, calibration_data=[{"x": np.full((3, 4), np.nan, np.float32)}])


def test_nan_that_a_model_replaces_is_quantized_around():
    """Exporters of attention replace the NaN of a row whose keys are all masked."""
    rng = np.random.default_rng(3)
    built = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("Add", ["scores", "mask"], ["masked"]),
            helper.make_node("Softmax", ["masked"], ["shares"]),
            helper.make_node("IsNaN", ["shares"], ["empty"]),
            helper.make_node("Where", ["empty", "zero", "shares"], ["kept"]),
            helper.make_node("MatMul", ["kept", "w"], ["y"]),
        ],
        [("x", "float32", [4, 16]), ("mask", "float32", [4, 16])],
        [("y", "float32", [4, 16])],
        {"w": rng.normal(size=(16, 16)).astype(np.float32), "zero": np.float32(0)},
    )
    mask = np.zeros((4, 16), np.float32)
    mask[0], mask[1, 5:] = -np.inf, -np.inf
    feeds = {"x": rng.normal(size=(4, 16)).astype(np.float32), "mask": mask}
    session = onnxruntime.InferenceSession(built.SerializeToString())
    expected = session.run(None, feeds)[0]
    options = {"convert_to_quantize": True, "calibration_data": [feeds]}
    with recorded() as said, qaic.Session(built.SerializeToString(), **options) as compiled:
        found = compiled.run(feeds)["y"]
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    assert [item.code for item in said.items] == ["calibration.infinite_values"]


def test_attention_with_a_mask_of_minus_infinity_is_quantized_around_it(tmp_path):
    """The reference is onnxruntime with the float32 model."""
    rng = np.random.default_rng(3)
    w = rng.normal(size=(16, 16)).astype(np.float32)
    built = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("Add", ["scores", "mask"], ["masked"]),
            helper.make_node("Softmax", ["masked"], ["shares"]),
            helper.make_node("MatMul", ["shares", "w"], ["y"]),
        ],
        [("x", "float32", [4, 16]), ("mask", "float32", [4, 16])],
        [("y", "float32", [4, 16])],
        {"w": w},
    )
    mask = np.where(rng.random((4, 16)) < 0.5, -np.inf, 0).astype(np.float32)
    mask[:, 0] = 0
    inputs = {"x": rng.normal(size=(4, 16)).astype(np.float32), "mask": mask}
    path = save(tmp_path, built)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, inputs)
    with qaic.Session(path, convert_to_quantize=True, calibration_data=[inputs]) as session:
        found = session.run(inputs)["y"]
        assert any(
            "found infinite values or NaN in 2 of " in text and "('mask', 'masked')" in text
            for text in session.warnings
        )
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)


def test_samples_that_are_all_zero_are_named():
    built = model([helper.make_node("Tanh", ["x"], ["y"])], [("x", "float32", [3])], [("y", "float32", [3])])
    zeros, ones = ({"x": np.full(3, value, np.float32)} for value in (0, 1))
    for samples, codes in (([zeros, zeros], ["calibration.only_zeros"]), ([zeros, ones], [])):
        with recorded() as said:
            profile(built, calibration_data=samples)
        assert [item.code for item in said.items] == codes


def test_nodes_that_stay_in_float_are_not_measured():
    built = model(
        [
            helper.make_node("Log", ["x"], ["l"]),
            helper.make_node("Sigmoid", ["l"], ["s"]),
            helper.make_node("Tanh", ["s"], ["y"]),
        ],
        [("x", "float32", [3])],
        [("y", "float32", [3])],
    )
    samples = [{"x": np.array([0, 1, 2], np.float32)}]
    with recorded() as said:
        profile(built, calibration_data=samples)
    assert [item.code for item in said.items] == ["calibration.infinite_values"]
    with recorded() as said:
        kept = profile(built, calibration_data=samples, keep_original_precision_for_nodes=["Sigmoid"])
    assert kept.tensors.keys() == {"s", "y"}
    assert not said.items


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_on_which_the_model_fails_is_named(threads):
    built = model(
        [helper.make_node("Gather", ["x", "at"], ["g"]), helper.make_node("Tanh", ["g"], ["y"])],
        [("x", "float32", [3]), ("at", "int64", [1])],
        [("y", "float32", [1])],
    )
    samples = [{"x": np.zeros(3, np.float32), "at": np.array([at])} for at in (2, 7)]
    with pytest.raises(CompileError, match=r"calibration_data, sample 2: found inputs on which.*Gather"):
        profile(built, calibration_data=samples, profiling_threads=threads)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "calibration_data: found no samples"),
        ({"x": 1}, "calibration_data"),
        ([3], "sample 1: found type int"),
        ([{}], "sample 1: found no input 'x'"),
        ([{"x": np.zeros((1, 3, 16, 16), np.float32), "z": 1}], "sample 1: found the unknown input 'z'"),
        ([{"x": np.zeros((3, 16, 16), np.float32)}], r"sample 1.*shape \[3, 16, 16\].*\[1, 3, 16, 16\]"),
        ([{"x": np.zeros((1, 3, 16, 16), np.complex64)}], "sample 1.*type complex64.*float32"),
        ([{"x": "text"}], "sample 1"),
    ],
)
def test_wrong_samples_are_refused_by_number(data, message):
    with pytest.raises((OptionError, CompileError), match=message):
        profile(convolutional(), calibration_data=data)


def test_an_exception_of_the_stream_comes_out_as_it_is():
    def stream():
        yield samples_of(convolutional(), 1)[0]
        message = "the disk is gone"
        raise RuntimeError(message)

    for threads in (1, 2):
        with pytest.raises(RuntimeError, match="the disk is gone"):
            profile(convolutional(), calibration_data=stream(), profiling_threads=threads)


def test_the_memory_of_a_sample_may_be_used_again():
    built = convolutional()
    samples = samples_of(built, 6)
    buffer = np.empty_like(samples[0]["x"])

    def stream():
        for sample in samples:
            buffer[...] = sample["x"]
            yield {"x": buffer}

    reused = profile(built, calibration_data=stream(), profiling_threads=4)
    assert reused.tensors == profile(built, calibration_data=samples).tensors


def test_memory_does_not_grow_with_the_number_of_samples():
    built = convolutional(size=64)
    alive = most = 0

    class Watched(np.ndarray):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def stream(count):
        nonlocal alive, most
        for number in range(count):
            array = np.full((1, 3, 64, 64), number, np.float32).view(Watched)
            alive += 1
            most = max(most, alive)
            yield {"x": array}

    def peak(count):
        gc.collect()
        tracemalloc.start()
        try:
            profile(built, calibration_data=stream(count), profiling_threads=2)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(20), peak(400)
    # One sample is 48 KiB, so another 380 samples would be 18 MiB.
    assert many < few + (1 << 20)
    assert most <= 8


def test_calibrating_needs_no_cores_of_the_devices_and_not_their_kind(tmp_path, monkeypatch):
    path = save(tmp_path, convolutional())
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    qaic.Session(path, convert_to_quantize=True, calibration_data=samples_of(convolutional(), 3))


def test_results_inside_control_flow_stay_unmeasured():
    branch = helper.make_graph(
        [helper.make_node("Relu", ["m"], ["inner"])],
        "then",
        [],
        [helper.make_tensor_value_info("inner", 1, [2])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["m"], ["other"])],
        "else",
        [],
        [helper.make_tensor_value_info("other", 1, [2])],
    )
    built = model(
        [
            helper.make_node("Mul", ["x", "x"], ["m"]),
            helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
        ],
        [("x", "float32", [2]), ("flag", "bool", [])],
        [("y", "float32", [2])],
    )
    samples = [{"x": np.array([1, 2], np.float32), "flag": np.array(True)}]
    assert profile(built, calibration_data=samples).tensors.keys() == {"x", "m"}


INTERRUPTED = """
import os, signal, sys, numpy as np, qaic

def stream():
    for number in range(10**9):
        if number == 20:
            os.kill(os.getpid(), signal.SIGINT)
        yield {"x": np.zeros((1, 3, 16, 16), np.float32)}

try:
    qaic.Session(sys.argv[1], convert_to_quantize=True, calibration_data=stream(), output_dir=sys.argv[2],
                 profiling_threads=int(sys.argv[3]))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("threads", ["1", "3"])
def test_an_interrupted_calibration_leaves_nothing(tmp_path, threads):
    path = save(tmp_path, convolutional())
    cache, out = tmp_path / "cache", tmp_path / "out"
    environment = os.environ | {"QAIC_CACHE_DIR": str(cache)}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(path), str(out), threads],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "interrupted\n", ran.stderr
    assert ran.returncode == 0
    assert not out.exists()
    assert cache.exists()
    assert not [found for found in cache.rglob("*") if found.suffix in {".bin", ".tmp"}]


def test_measured_values_beyond_float16_are_said_once(tmp_path, caplog):
    """Squares of 300 exceed float16. A product of integers reads them, so they were measured."""
    weight = np.eye(4, dtype=np.float32)
    built = model(
        [
            helper.make_node("Mul", ["x", "x"], ["square"]),
            helper.make_node("MatMul", ["square", "w"], ["y"]),
        ],
        [("x", "float32", [2, 4])],
        [("y", "float32", [2, 4])],
        {"w": weight},
    )
    path = save(tmp_path, built)
    options = {"convert_to_quantize": True, "convert_to_fp16": True, "execute_nodes_in_fp16": ["Mul"]}
    for level, warned in ((200, False), (300, True)):
        caplog.clear()
        qaic.compile(path, calibration_data=[{"x": np.full((2, 4), level, np.float32)}], **options)
        texts = [record.getMessage() for record in caplog.records if "float16" in record.getMessage()]
        assert len(texts) == warned
        assert all("beyond the range of float16 (65504)" in text and "square" in text for text in texts)
