"""``InferenceHandle``: buffers, dims and exec object of one handle of a set."""

import numpy as np
import pytest

import inference_sets
import qaicrt
from inference_sets import Client, S, affine_of, refused, take
from qaic import _core


@pytest.fixture(scope="module")
def affine():
    return Client(inference_sets.affine())


@pytest.fixture
def dynamic(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    _core.NoopControl().plan("")
    return Client(inference_sets.DYNAMIC)


def tensors(tokens):
    """Arrays of one combination of shapes, and their element sizes and dims."""
    arrays = [
        np.arange(tokens, dtype=np.int64).reshape(1, tokens),
        np.ones((1, 1, tokens, 128), np.float32),
        np.zeros((1, tokens, 10), np.float32),
    ]
    return arrays, [(array.itemsize, array.shape) for array in arrays]


def wrapped(arrays):
    return [qaicrt.QBuffer(array) for array in arrays]


def ran(handles, handle):
    assert handles.submit(handle, 1) == S.QS_SUCCESS
    status, done = handles.getCompletedId(1)
    assert done is handle
    return status


def test_inputs_and_outputs_apart(affine):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    assert handle.setOutputBuffers([qaicrt.QBuffer(y)]) == S.QS_SUCCESS
    assert handle.setInputBuffers([qaicrt.QBuffer(x)]) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
    # The other part does not change.
    x2 = np.full((2, 4), 0.5, np.float32)
    assert handle.setInputBuffers((qaicrt.QBuffer(x2),)) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    np.testing.assert_allclose(y, affine_of(x2), rtol=1e-6)


def test_without_outputs(affine):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    assert handle.setInputBuffers([qaicrt.QBuffer(bytes(32))]) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    assert [buffer.size for buffer in take(handle.execObj().getData())] == [32, 0]


def test_what_is_set_is_what_is_got(affine, capfd):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    assert [buffer.size for buffer in take(handle.getBuffers())] == [0, 0]
    given = affine.buffers()
    assert handle.setBuffers(given) == S.QS_SUCCESS
    assert [buffer.buf for buffer in take(handle.getBuffers())] == [buffer.buf for buffer in given]
    refused(capfd, handle.setBuffers(given[:1]), "found 1 buffer, expected 2")
    refused(capfd, handle.setInputBuffers(given), "found 2 inputs, expected 1")
    refused(capfd, handle.setOutputBuffers([]), "found 0 outputs, expected 1")
    refused(capfd, handle.setBuffers([given[0], qaicrt.QBuffer(bytes(31))]), "`y`", "31", "32")
    refused(capfd, handle.setOutputBuffers([qaicrt.QBuffer(bytes(31))]), "`y`")
    given[0].type = qaicrt.QBufferType.QBUFFER_TYPE_PMEM
    refused(capfd, handle.setBuffers(given), "QBUFFER_TYPE_HEAP", status=S.QS_UNSUPPORTED)
    with pytest.raises(TypeError, match="buffer 0 has type bytes"):
        handle.setBuffers([bytes(32), bytes(32)])
    assert [buffer.buf for buffer in take(handle.getBuffers())] == [buffer.buf for buffer in given]


def test_one_exec_object_per_handle(affine):
    handles = affine.inference_set(2)
    one, two = take(handles.getAvailable()), take(handles.getAvailable())
    assert isinstance(one.execObj(), qaicrt.ExecObj)
    assert one.execObj() is one.execObj()
    assert one.execObj() is not two.execObj()
    assert one.execObj().getId() == one.getId()


@pytest.mark.parametrize("dims_first", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 32])
def test_dims_choose_the_shapes(dynamic, tokens, dims_first):
    handles = dynamic.inference_set(1)
    handle = take(handles.getAvailable())
    arrays, dims = tensors(tokens)
    steps = [lambda: handle.setBuffers(wrapped(arrays)), lambda: handle.setBufferDimensions(dims)]
    for step in reversed(steps) if dims_first else steps:
        assert step() == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    # The dims also apply to the next buffers of the same sizes.
    again, _ = tensors(tokens)
    assert handle.setInputBuffers(wrapped(again[:2])) == S.QS_SUCCESS
    assert handle.setOutputBuffers(wrapped(again[2:])) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS


def test_dims_of_one_inference_and_buffers_of_the_next(dynamic, capfd):
    handles = dynamic.inference_set(1)
    handle = take(handles.getAvailable())
    for tokens in (32, 1, 8):
        arrays, dims = tensors(tokens)
        # The current buffers are still those of the previous inference.
        assert handle.setBufferDimensions(dims) == S.QS_SUCCESS
        refused(capfd, handles.submit(handle, 1), "setBufferDimensions")
        assert handle.setBuffers(wrapped(arrays)) == S.QS_SUCCESS
        assert ran(handles, handle) == S.QS_SUCCESS
    # The two parts can be set in separate calls.
    arrays, dims = tensors(32)
    assert handle.setBufferDimensions(dims) == S.QS_SUCCESS
    assert handle.setOutputBuffers(wrapped(arrays[2:])) == S.QS_SUCCESS
    refused(capfd, handles.submit(handle, 1), "setBufferDimensions")
    assert handle.setInputBuffers(wrapped(arrays[:2])) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    # The sizes of other buffers determine their shapes.
    assert handle.setBuffers(wrapped(tensors(1)[0])) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS


def test_dims_that_match_nothing_fail_late(dynamic, capfd):
    handles = dynamic.inference_set(1)
    handle = take(handles.getAvailable())
    arrays, dims = tensors(8)
    ids, id_dims = tensors(1)
    assert handle.setBufferDimensions([id_dims[0], *dims[1:]]) == S.QS_SUCCESS
    assert handle.setBuffers(wrapped([ids[0], *arrays[1:]])) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_INVAL
    error = capfd.readouterr().err
    assert "No matching dimension found" in error
    assert "passed" in error
    assert "allowed" in error


def test_a_dim_of_zero_leaves_out(dynamic, capfd):
    handles = dynamic.inference_set(1)
    handle = take(handles.getAvailable())
    arrays, dims = tensors(8)
    assert handle.setBuffers(wrapped(arrays)) == S.QS_SUCCESS
    assert handle.setBufferDimensions([*dims[:2], (8, [0])]) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
    assert [buffer.size for buffer in take(handle.getBuffers())] == [arrays[0].nbytes, arrays[1].nbytes, 0]
    # The output has its dims again. The program has no state, so the client must set an input.
    assert handle.setBufferDimensions([(8, [0]), *dims[1:]]) == S.QS_SUCCESS
    assert [buffer.size for buffer in take(handle.getBuffers())] == [0, arrays[1].nbytes, arrays[2].nbytes]
    refused(capfd, handles.submit(handle, 1), "input `input_ids` is missing")
    assert handle.setBufferDimensions(dims) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS


def test_dims_that_are_no_dims(dynamic, capfd):
    handles = dynamic.inference_set(1)
    handle = take(handles.getAvailable())
    _, dims = tensors(8)
    refused(
        capfd, handle.setBufferDimensions(dims[:2]), "found element sizes and dims for 2 bindings, expected 3"
    )
    with pytest.raises(TypeError, match="pair of element size and dims"):
        handle.setBufferDimensions([1, 2, 3])
    assert handle.setBufferDimensions(qaicrt.BufferDimensionsVecRef(dims)) == S.QS_SUCCESS
    # A new owner of the handle starts without buffers.
    assert handles.putCompleted(handle) == S.QS_SUCCESS
    handle = take(handles.getAvailable())
    assert handle.setBuffers(wrapped(tensors(1)[0])) == S.QS_SUCCESS
    assert ran(handles, handle) == S.QS_SUCCESS
