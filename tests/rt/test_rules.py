"""The rules on which real clients depend, one test for each rule."""

import os
import subprocess
import sys
import textwrap
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import QAicApi_pb2 as aic
import qaicrt
import rt_programs
import session_models
from child_process import WATCHDOG_S
from qaic import _core
from rt_programs import Client, S

DATA = Path(__file__).parents[1] / "data" / "qpc"


def run(program, **environment):
    """Run a program in a separate process; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- 1: importable modules -------------------------------------------------------------------------


def test_1_clients_find_the_modules_where_they_look_first():
    # The client adds the vendor's directories only if a module cannot be imported.
    output = run("""
        import sys
        before = list(sys.path)
        try:
            import qaicrt
        except ImportError:
            sys.path.append("/opt/qti-aic/dev/lib/x86_64")
            import qaicrt
        try:
            import QAicApi_pb2 as aicapi
        except ImportError:
            sys.path.append("/opt/qti-aic/dev/python")
            import QAicApi_pb2 as aicapi
        sys.path.append("/opt/qti-aic/dev/python")
        import QAicApi_pb2
        import qaic
        from qaicrt import Util, QIDList, QDevInfo, QStatus, QDevStatus
        try:
            from QAicApi_pb2 import aicapi as package
        except ImportError:
            package = None
        print(sys.path[:len(before)] == before, QAicApi_pb2 is aicapi, package, qaic.Session.__name__)
        """)
    assert output == "True True None Session\n"


# --- 2: statuses, not exceptions -------------------------------------------------------------------


@pytest.fixture(scope="module")
def program_path(tmp_path_factory):
    return rt_programs.compiled(tmp_path_factory.mktemp("affine"), rt_programs.affine())


@pytest.fixture
def client(program_path):
    return Client(program_path)


def test_2_methods_answer_with_a_status_and_constructors_raise(client):
    exec_obj = client.exec_obj()
    statuses = [
        client.context.setLogLevel(17),
        client.program.load(),
        client.program.activate(),
        client.program.unload(),  # an exec object exists
        exec_obj.setData([]),
        exec_obj.waitForCompletion(),
        client.queue.enqueue(exec_obj),
        qaicrt.Util().lockDevice(0, True, False),
    ]
    pairs = [
        client.context.getLogLevel(),
        client.program.getIoDescriptor(),
        client.program.createSlicingSpecHandle("no JSON"),
        exec_obj.getData(),
        qaicrt.Util().getDeviceIds(),
        qaicrt.Util().getDeviceInfo(99),
        qaicrt.Util().getAicVersion(),
    ]
    assert all(type(status) is qaicrt.QStatus for status in statuses)
    assert all(type(pair) is tuple and type(pair[0]) is qaicrt.QStatus for pair in pairs)
    assert [status.value == 0 for status in statuses] == [False, True, True, False, False, True, False, False]
    for construct in [
        lambda: qaicrt.Context([99]),
        lambda: qaicrt.Qpc("/nowhere"),
        lambda: qaicrt.Program(client.context, 99, qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc")),
        lambda: qaicrt.Queue(client.context, 99),
    ]:
        with pytest.raises(RuntimeError):
            construct()


# --- 3: enumerations -------------------------------------------------------------------------------


def test_3_enumerations_behave_like_pybind11s():
    member = qaicrt.QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT
    assert repr(member) == "<QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT: 1>"
    assert str(S.QS_SUCCESS) == "QStatus.QS_SUCCESS"
    assert (member.value, member.name, int(member)) == (1, "QAIC_DEVICE_TYPE_DEFAULT", 1)
    assert {S.QS_SUCCESS: "fine"}[qaicrt.QStatus(0)] == "fine"
    assert not hasattr(qaicrt, "QS_SUCCESS")


# --- 4: the interpreter lock -----------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch):
    """A program on a card whose executions wait until another thread releases them."""
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "4")
    control = _core.NoopControl(3)
    control.plan("")
    control.hold()
    yield control, Client(str(DATA / "s01_simple_f32_file.qpc"), dev=3)
    control.release()


def buffers_of(client):
    status, data = client.program.getIoDescriptor()
    assert status == S.QS_SUCCESS
    bindings = aic.IoDesc.FromString(data).selected_set.bindings
    return [qaicrt.QBuffer(bytes(binding.size)) for binding in bindings]


def enqueue_and_wait(client, exec_obj):
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    return exec_obj.waitForCompletion()


@pytest.mark.parametrize(
    "call", [enqueue_and_wait, lambda _, exec_obj: exec_obj.run()], ids=["waitForCompletion", "run"]
)
def test_4_a_call_that_blocks_lets_other_threads_run(held, call):
    control, client = held
    exec_obj = client.exec_obj()
    assert exec_obj.setData(buffers_of(client)) == S.QS_SUCCESS
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call(client, exec_obj)))
    thread.start()
    # Only another thread, here the main thread, ends the call.
    assert control.wait_executing(1, WATCHDOG_S)
    assert answers == []
    control.release()
    thread.join(WATCHDOG_S)
    assert answers == [S.QS_SUCCESS]


@pytest.mark.parametrize(
    "method", ["getCompletedId", "getCompleted", "getAvailable", "submit", "waitForCompletion"]
)
def test_4_an_inference_set_that_blocks_lets_other_threads_run(held, method):
    control, client = held
    inferences = qaicrt.InferenceSet(client.context, qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc"), 3, 1, 1)
    vector = qaicrt.InferenceVector(client.program.getBufferMappings())
    vector.setBuffers(buffers_of(client))
    assert inferences.submit(vector, 7) == S.QS_SUCCESS
    calls = {
        "getCompletedId": lambda: inferences.getCompletedId(7)[0],
        "getCompleted": lambda: inferences.getCompleted()[0],
        "waitForCompletion": inferences.waitForCompletion,
        # Both calls wait until the only handle is returned.
        "getAvailable": lambda: inferences.getAvailable()[0],
        "submit": lambda: inferences.submit(vector, 8),
    }
    answers, started = [], threading.Event()

    def work():
        started.set()
        answers.append(calls[method]())

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(WATCHDOG_S)
    assert control.wait_executing(1, WATCHDOG_S)
    assert answers == []
    control.release()
    if method in {"getAvailable", "submit"}:
        status, handle = inferences.getCompletedId(7)
        assert status == S.QS_SUCCESS
        assert inferences.putCompleted(handle) == S.QS_SUCCESS
    thread.join(WATCHDOG_S)
    assert answers == [S.QS_SUCCESS]


# --- 5: bytes, not types ---------------------------------------------------------------------------


def test_5_only_the_size_of_elements_matters(tmp_path):
    nodes = [helper.make_node("Identity", ["num_logits_to_keep"], ["kept"])]
    built = session_models.model(
        nodes, [("num_logits_to_keep", "int64", [1, 1])], [("kept", "int64", [1, 1])]
    )
    client = Client(rt_programs.compiled(tmp_path, built))
    given = np.zeros((1, 1))  # float64, which QEFF passes
    kept = np.full((1, 1), 7, np.int64)
    exec_obj = client.exec_obj()
    client.infer(exec_obj, [(0, given), (1, kept)])
    assert kept[0, 0] == 0
    buffers = [qaicrt.QBuffer(given.tobytes()), qaicrt.QBuffer(bytes(8))]
    dims = qaicrt.BufferDimensionsVecRef([(given.itemsize, given.shape), (8, [1, 1])])
    client.infer(exec_obj, buffers, dims)


# --- 6: zero-size buffers --------------------------------------------------------------------------


def test_6_a_buffer_without_bytes_skips_its_binding(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True))
    exec_obj = client.exec_obj()
    skipped = np.array([])
    arrays = [np.ones(1, np.float32), skipped, np.zeros((3, 4), np.float32), skipped]
    for turn in range(3):
        buffers = [qaicrt.QBuffer(array.tobytes()) for array in arrays]
        dims = qaicrt.BufferDimensionsVecRef([(array.itemsize, array.shape) for array in arrays])
        client.infer(exec_obj, buffers, dims)
        status, found = exec_obj.getData()
        assert status == S.QS_SUCCESS
        assert [buffer.size for buffer in found] == [4, 0, 48, 0]
        # The state stays on the device; each inference adds one to it.
        assert set(np.frombuffer(bytes(found[rt_programs.Y]), np.float32)) == {float(turn)}


# --- 7: outputs in place ---------------------------------------------------------------------------


def test_7_arrays_handed_over_are_where_the_outputs_are_written(client):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    rows = np.full((3, 2, 4), -1, np.float32)
    exec_obj = client.exec_obj()
    client.infer(exec_obj, [(1, rows[1]), (0, x)])
    np.testing.assert_allclose(rows[1], rt_programs.affine_of(x), rtol=1e-6)
    assert np.all(rows[[0, 2]] == -1)


# --- 8: no card ------------------------------------------------------------------------------------


def test_8_probing_for_hardware_succeeds_without_a_card():
    output = run(
        """
        import os
        for name in [name for name in os.environ if name.startswith("QAIC_")]:
            del os.environ[name]
        import qaicrt
        qaicrt.Context()
        status, ids = qaicrt.Util().getDeviceIds()
        print(status, len(ids), "cpu" in qaicrt.Util().getDeviceInfo(ids[0])[1].pciInfo.devicename)
        """
    )
    assert output == "QStatus.QS_SUCCESS 1 True\n"


# --- 9: versions of dependencies ---------------------------------------------------------------------


def test_9_no_version_of_protobuf_numpy_or_python_is_wired_in():
    needed = metadata.metadata("openqaic")
    assert needed["Requires-Python"] == ">=3.11"
    # Only the extra `ray` has the requirement of Triton's client, so that pip can resolve it.
    always = [line for line in needed.get_all("Requires-Dist") if "extra ==" not in line]
    assert "numpy>=1.26" in always
    assert not any(line.startswith("protobuf") for line in always)
    # One library works with every later version of Python.
    assert _core.__file__.endswith(".abi3.so")
    # The messages do not depend on the implementation of protobuf, either.
    output = run(
        """
        import QAicApi_pb2 as aic
        from google.protobuf.internal import api_implementation
        message = aic.IoDesc()
        message.selected_set.bindings.add(name="x", dims=[1, 2])
        print(api_implementation.Type(), message.SerializeToString().hex())
        """,
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
    )
    kind, data = output.split()
    assert kind == "python"
    assert list(aic.IoDesc.FromString(bytes.fromhex(data)).selected_set.bindings[0].dims) == [1, 2]
