"""``qaic_backend``: the interface that ONNX defines (`test_onnx_suite.py` runs its test suite)."""

import gc
import unittest

import numpy as np
import onnx
import pytest
import qaic_backend
from onnx import helper
from onnx.backend.base import Backend, BackendRep
from qaic_backend import QaicBackend, UnsupportedModelError

import session_models
from child_process import WATCHDOG_S
from qaic import _core
from qaic.errors import CompileError, DeviceNotFoundError, InputError, OptionError, UnknownOptionError

A = np.array([[1, 2], [3, 4]], np.float32)
B = np.array([10, 20], np.float32)


@pytest.fixture
def add():
    return session_models.model(
        [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])],
        [("a", "float32", [2, 2]), ("b", "float32", [2])],
        [("sum", "float32", [2, 2]), ("difference", "float32", [2, 2])],
    )


def test_is_a_backend():
    assert issubclass(QaicBackend, Backend)
    assert qaic_backend.prepare.__func__ is QaicBackend.prepare.__func__


@pytest.mark.parametrize("inputs", [[A, B], (A, B), {"b": B, "a": A}])
def test_prepared_model_takes_arrays_in_order_or_by_name(add, inputs):
    prepared = qaic_backend.prepare(add)
    assert isinstance(prepared, BackendRep)
    found = prepared.run(inputs)
    assert isinstance(found, tuple)
    np.testing.assert_array_equal(found[0], A + B)
    np.testing.assert_array_equal(found["difference"], A - B)
    assert found.sum is found[0]


def test_single_array_is_the_only_input():
    built = session_models.model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", "float32", [2, 2])], [("y", "float32", [2, 2])]
    )
    np.testing.assert_array_equal(qaic_backend.run_model(built, A)[0], -A)


@pytest.mark.parametrize("inputs", [[A], [A, B, B], []])
def test_rejects_wrong_number_of_arrays(add, inputs):
    with pytest.raises(InputError, match="a, b") as caught:
        qaic_backend.run_model(add, inputs)
    assert caught.value.code == "input.count"


def test_initializers_that_are_also_inputs_are_not_asked_for(add):
    add.graph.initializer.append(onnx.numpy_helper.from_array(B, "b"))
    np.testing.assert_array_equal(qaic_backend.run_model(add, [A])[0], A + B)


def test_node_alone():
    node = helper.make_node("Split", ["x"], ["first", "second"], axis=1, num_outputs=2)
    first, second = qaic_backend.run_node(node, [A])
    np.testing.assert_array_equal(first, A[:, :1])
    np.testing.assert_array_equal(second, A[:, 1:])


def test_node_with_left_out_input_and_given_outputs():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    info = [(np.dtype(np.float32), (2, 2))]
    found = qaic_backend.run_node(node, {"x": A, "high": np.float32(2.5)}, outputs_info=info)
    np.testing.assert_array_equal(found[0], np.minimum(A, 2.5))


def test_node_of_an_older_operator_set():
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])  # an attribute until version 12
    found = qaic_backend.run_node(node, [A[None]], opset_version=11)
    np.testing.assert_array_equal(found[0], A)


def test_node_whose_output_size_depends_on_data_is_refused():
    with pytest.raises(UnsupportedModelError, match="'y'"):
        qaic_backend.run_node(helper.make_node("NonZero", ["x"], ["y"]), [A])


@pytest.mark.parametrize(
    ("device", "expected"), [("CPU", True), ("CPU:0", True), ("CUDA", False), ("CPU:x", False), ("", False)]
)
def test_devices(add, device, expected):
    assert qaic_backend.supports_device(device) is expected
    assert qaic_backend.is_compatible(add, device) is expected
    if not expected:
        with pytest.raises(OptionError, match="device"):
            qaic_backend.prepare(add, device)


def test_device_number_is_the_device_id(add):
    with pytest.raises(DeviceNotFoundError, match=r"^device 9 does not exist"):
        qaic_backend.prepare(add, "CPU:9")


def test_options_of_session_apply(add):
    gc.collect()
    assert _core.await_teardown(WATCHDOG_S)
    (card,) = _core.Context().devices()
    prepared = qaic_backend.prepare(add, aic_num_cores=5, num_activations=2)
    assert _core.Context().devices()[0]["nsp_free"] == card["nsp_free"] - 10
    del prepared
    assert _core.await_teardown(WATCHDOG_S)
    assert _core.Context().devices()[0]["nsp_free"] == card["nsp_free"]
    with pytest.raises(UnknownOptionError, match="nonsense"):
        qaic_backend.prepare(add, nonsense=1)


def test_symbols_are_refused_until_they_have_a_value(add):
    for value in (add.graph.input[0], *add.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    assert not qaic_backend.is_compatible(add)
    with pytest.raises(UnsupportedModelError, match="'n'") as caught:
        qaic_backend.prepare(add)
    assert isinstance(caught.value, CompileError)
    assert isinstance(caught.value, unittest.SkipTest)
    assert caught.value.code == "compile.unbound_symbol"
    np.testing.assert_array_equal(qaic_backend.run_model(add, [A, B], onnx_define_symbol={"n": 2})[0], A + B)


def test_broken_model_is_an_error_not_a_skip(add):
    add.graph.node[0].input[0] = "nowhere"
    with pytest.raises(CompileError, match="nowhere") as caught:
        qaic_backend.prepare(add)
    assert not isinstance(caught.value, unittest.SkipTest)


def test_nothing_is_left_in_cache_or_temporary_folder(add, tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    prepared = qaic_backend.prepare(add)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(prepared.run([A, B])[0], A + B)
    assert not (tmp_path / "cache").exists()
