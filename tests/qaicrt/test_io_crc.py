"""``io_crc``: bytes that change while an inference uses them."""

import zlib

import numpy as np
import pytest

import qaic
import qaicrt
import rt_programs
from qaic import _core
from rt_programs import Client, S


def folder_of(tmp_path_factory, name, **options):
    return rt_programs.compiled(tmp_path_factory.mktemp(name), rt_programs.affine(), **options)


@pytest.fixture(scope="module")
def sectioned(tmp_path_factory):
    """Bindings x and y of 32 bytes, in sections of 12."""
    return folder_of(tmp_path_factory, "sectioned", io_crc=True, io_crc_stride=12)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return folder_of(tmp_path_factory, "whole", io_crc=True)


@pytest.fixture
def held(noop):
    """The control of a device that holds executions."""
    noop.hold()
    return noop


def sums(array, stride):
    data = array.tobytes()
    return [zlib.crc32(data[at : at + stride]) for at in range(0, len(data), stride)]


def wired(client):
    exec_obj = client.exec_obj()
    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)
    assert exec_obj.setData([(0, x), (1, y)]) == S.QS_SUCCESS
    return exec_obj, x, y


def test_sums_are_those_of_the_bytes(sectioned, whole):
    for path, stride in ((sectioned, 12), (whole, 32)):
        client = Client(path)
        exec_obj, x, y = wired(client)
        client.infer(exec_obj)
        np.testing.assert_allclose(y, rt_programs.affine_of(x), rtol=1e-6)
        assert _core.io_crcs(exec_obj) == ([sums(x, stride)], [sums(y, stride)])
        x += 1
        assert exec_obj.run() == S.QS_SUCCESS
        assert _core.io_crcs(exec_obj) == ([sums(x, stride)], [sums(y, stride)])


def test_without_the_option_nothing_is_summed(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    exec_obj, _, _ = wired(client)
    client.infer(exec_obj)
    assert _core.io_crcs(exec_obj) is None


def test_input_that_changes_before_it_is_used(sectioned, held, capfd):
    """With one thread, the inferences after the one on the device wait outside the device."""
    client = Client(sectioned)
    one_thread = qaicrt.QAicQueueProperties(numThreadsPerQueue=1)
    client.queue = qaicrt.Queue(client.context, 0, one_thread)
    first, _, _ = wired(client)
    others = [wired(client) for _ in range(4)]
    assert client.queue.enqueue(first) == S.QS_SUCCESS
    assert held.wait_executing(1)
    for exec_obj, _, _ in others:
        assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    for _, x, _ in others:
        x[1, 3] += 1
    held.release()
    assert first.waitForCompletion() == S.QS_SUCCESS
    statuses = [exec_obj.waitForCompletion() for exec_obj, _, _ in others]
    assert statuses == [S.QS_ERROR] * 4
    log = capfd.readouterr().err
    changed = "buffer `x` changed between submission and start of the inference"
    assert f"{changed}: bytes 24 to 31 (section 2) have CRC" in log
    # The next inference is checked again.
    exec_obj, x, _ = others[-1]
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    assert _core.io_crcs(exec_obj)[0] == [sums(x, 12)]


def test_output_that_changes_before_it_is_collected(whole, capfd):
    client = Client(whole)
    exec_obj, _, y = wired(client)
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    while _core.io_crcs(exec_obj) is None:
        pass
    assert np.any(y)
    y[0, 0] += 1
    assert exec_obj.waitForCompletion() == S.QS_ERROR
    changed = "buffer `y` changed between end and collection of the inference"
    assert f"{changed}: bytes 0 to 31 (section 0)" in capfd.readouterr().err
    # Only the first wait compares; afterwards, the caller can write to the array.
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def test_sessions_run_with_it(sectioned):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with qaic.Session(sectioned) as session:
        expected = session.run({"x": x})["y"]
        out = np.empty((2, 4), np.float32)
        assert session.run({"x": x}, out={"y": out})["y"] is out
        futures = [session.submit({"x": x}) for _ in range(20)]
        for found in (out, *(future.result()["y"] for future in futures)):
            np.testing.assert_array_equal(found, expected)


def test_state_on_the_device_is_no_buffer(tmp_path):
    path = rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True, io_crc=True)
    with qaic.Session(path) as session:
        for turn in range(3):
            assert (session.run({"x": np.ones(1, np.float32)})["y"] == turn).all()
