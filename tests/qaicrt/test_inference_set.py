"""``InferenceSet``: the life of a handle, both forms of submit, and refusals."""

import gc
import threading
import weakref

import numpy as np
import pytest

import inference_sets
import qaicrt
from inference_sets import Client, S, affine_of, refused, take


@pytest.fixture(scope="module")
def affine():
    return Client(inference_sets.affine())


def x_of(seed):
    return np.random.default_rng(seed).random((2, 4), np.float32)


def buffers(seed):
    x, y = x_of(seed), np.zeros((2, 4), np.float32)
    return x, y, [qaicrt.QBuffer(x), qaicrt.QBuffer(y)]


# --- the way of a handle ---------------------------------------------------------------------------


def test_handles_one_after_the_other(affine):
    handles = affine.inference_set()
    for turn in range(5):
        handle = take(handles.getAvailable())
        x, y, given = buffers(turn)
        assert handle.setBuffers(given) == S.QS_SUCCESS
        assert handles.submit(handle, turn) == S.QS_SUCCESS
        status, done = handles.getCompletedId(turn)
        assert (status, done) == (S.QS_SUCCESS, handle)
        np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
        status, found = done.execObj().getData()
        assert status == S.QS_SUCCESS
        np.testing.assert_array_equal(np.frombuffer(found[1], np.float32), y.ravel())
        assert handles.putCompleted(done) == S.QS_SUCCESS


def test_outputs_in_bytes_that_the_buffer_owns(affine):
    handles = affine.inference_set()
    handle = take(handles.getAvailable())
    x = x_of(3)
    assert handle.setBuffers([qaicrt.QBuffer(x.tobytes()), qaicrt.QBuffer(bytes(32))]) == S.QS_SUCCESS
    assert handles.submit(handle, 0) == S.QS_SUCCESS
    found = take(take(handles.getCompleted()).execObj().getData())
    np.testing.assert_allclose(np.frombuffer(found[1], np.float32).reshape(2, 4), affine_of(x), rtol=1e-6)


@pytest.mark.parametrize(("set_size", "activations"), [(1, 1), (4, 2), (3, 5)])
def test_every_handle_is_given_once(affine, set_size, activations):
    handles = affine.inference_set(set_size, activations)
    given = [take(handles.getAvailable()) for _ in range(set_size * activations)]
    assert sorted(handle.getId() for handle in given) == list(range(set_size * activations))
    for handle in given:
        assert handles.putCompleted(handle) == S.QS_SUCCESS


def test_a_vector_is_submitted_many_times(affine):
    # As in sample code: many more inferences of one vector than handles.
    handles = affine.inference_set(4)
    x, y = x_of(1), np.zeros((2, 4), np.float32)
    vector = affine.vector(x, y)
    statuses = []
    submitted = threading.Semaphore(0)

    def collect():
        for number in range(1000):
            submitted.acquire()
            status, handle = handles.getCompletedId(number)
            statuses.append(status)
            handles.putCompleted(handle)

    collector = threading.Thread(target=collect)
    collector.start()
    for number in range(1000):
        assert handles.submit(vector, number) == S.QS_SUCCESS
        submitted.release()
    collector.join()
    assert statuses == [S.QS_SUCCESS] * 1000
    assert handles.waitForCompletion() == S.QS_SUCCESS
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)


def test_a_changed_vector_takes_effect(affine):
    handles = affine.inference_set(1)
    vector = affine.vector(*buffers(0)[:2])
    for seed in range(4):
        x, y, given = buffers(seed)
        if seed % 2:
            vector.getVector()[:] = given
        else:
            vector.getVector()[0] = given[0]
            assert vector.setOutputBuffers([given[1]]) == S.QS_SUCCESS
        assert handles.submit(vector, seed) == S.QS_SUCCESS
        assert handles.putCompleted(take(handles.getCompletedId(seed))) == S.QS_SUCCESS
        np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)


def test_vectors_and_handles_take_turns_on_one_exec_object(affine):
    handles = affine.inference_set(1)
    x, y, _ = buffers(1)
    vector = affine.vector(x, y)
    for turn in range(3):
        assert handles.submit(vector, turn) == S.QS_SUCCESS
        handle = take(handles.getCompletedId(turn))
        np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
        y[:] = 0
        other_x, other_y, _ = buffers(turn + 10)
        # The client bypasses the handle. Later, the set must not mistake these buffers for the vector.
        assert handle.execObj().setData([(0, other_x), (1, other_y)]) == S.QS_SUCCESS
        assert handles.submit(handle, turn) == S.QS_SUCCESS
        assert handles.putCompleted(take(handles.getCompletedId(turn))) == S.QS_SUCCESS
        np.testing.assert_allclose(other_y, affine_of(other_x), rtol=1e-6)
        assert (y == 0).all()


def test_a_handle_put_back_may_be_submitted_again(affine):
    # A C++ client gets one handle, and then only submits, collects and returns it, always with id 0.
    handles = affine.inference_set(2)
    handle = take(handles.getAvailable())
    x, y, given = buffers(4)
    assert handle.setBuffers(given) == S.QS_SUCCESS
    for _ in range(20):
        y[:] = 0
        assert handles.submit(handle, 0) == S.QS_SUCCESS
        assert take(handles.getCompletedId(0)) is handle
        assert handles.putCompleted(handle) == S.QS_SUCCESS
        np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
    # The handle is not returned twice.
    assert handles.submit(handle, 0) == S.QS_SUCCESS
    assert take(handles.getAvailable()) is not handle


def test_completed_ones_come_in_any_order_and_each_once(affine):
    handles = affine.inference_set(3, 2)
    vector = affine.vector()
    for number in range(6):
        assert handles.submit(vector, number) == S.QS_SUCCESS
    assert handles.waitForCompletion() == S.QS_SUCCESS
    first = [take(handles.getCompletedId(number)) for number in (4, 1)]
    rest = [take(handles.getCompleted()) for _ in range(4)]
    assert sorted(handle.getId() for handle in first + rest) == list(range(6))
    assert handles.getCompleted() == (S.QS_INVAL, None)


def test_one_id_for_several(affine):
    handles = affine.inference_set(3)
    given = [take(handles.getAvailable()) for _ in range(3)]
    for handle in given:
        assert handle.setBuffers(affine.buffers()) == S.QS_SUCCESS
        assert handles.submit(handle, 7) == S.QS_SUCCESS
    assert [take(handles.getCompletedId(7)) for _ in range(3)] == given
    assert handles.getCompletedId(7) == (S.QS_INVAL, None)


@pytest.mark.parametrize("number", [0, 2**32, 2**64 - 1, np.int64(5), np.uint64(2**63)])
def test_any_id(affine, number):
    handles = affine.inference_set()
    assert handles.submit(affine.vector(), number) == S.QS_SUCCESS
    assert handles.putCompleted(take(handles.getCompletedId(int(number)))) == S.QS_SUCCESS


# --- refusals --------------------------------------------------------------------------------------


def test_what_is_no_id(affine, capfd):
    handles = affine.inference_set()
    for number in (-1, 2**64):
        refused(capfd, handles.submit(affine.vector(), number), str(number))
        refused(capfd, handles.getCompletedId(number), str(number))
    for value in ("1", 1.0, None):
        with pytest.raises(TypeError):
            handles.submit(affine.vector(), value)
        with pytest.raises(TypeError):
            handles.getCompletedId(value)


def test_nothing_to_get(affine, capfd):
    handles = affine.inference_set()
    refused(capfd, handles.getCompleted(), "no inference is in flight")
    refused(capfd, handles.getCompletedId(3), "no inference with id 3")
    assert handles.submit(affine.vector(), 1) == S.QS_SUCCESS
    refused(capfd, handles.getCompletedId(2), "no inference with id 2")
    take(handles.getCompletedId(1))
    refused(capfd, handles.getCompletedId(1), "no inference with id 1")
    assert handles.waitForCompletion() == S.QS_SUCCESS


def test_put_back_twice(affine, capfd):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    assert handles.putCompleted(handle) == S.QS_SUCCESS
    refused(capfd, handles.putCompleted(handle), "handle 0 was already returned")
    # The handle becomes free only once.
    assert take(handles.getAvailable()) is handle
    refused(capfd, handles.putCompleted(None), "no handle")
    with pytest.raises(TypeError, match="InferenceHandle"):
        handles.putCompleted(0)


def test_submit_twice(noop, capfd):
    client = Client(inference_sets.PLAIN)
    handles = client.inference_set(1)
    handle = take(handles.getAvailable())
    given = client.buffers()
    assert handle.setBuffers(given) == S.QS_SUCCESS
    noop.hold()
    assert handles.submit(handle, 1) == S.QS_SUCCESS
    assert noop.wait_executing(1)
    refused(capfd, handles.submit(handle, 2), "in flight")
    refused(capfd, handles.putCompleted(handle), "in flight")
    refused(capfd, handle.setBuffers(given), "in flight")
    refused(capfd, handle.setInputBuffers(given[:1]), "in flight")
    refused(capfd, handle.setBufferDimensions([(4, [1, 3, 8, 8]), (4, [1, 10])]), "in flight")
    refused(capfd, handles.getCompletedId(2), "no inference with id 2")
    noop.release()
    assert take(handles.getCompletedId(1)) is handle


def test_a_handle_of_another_set(affine, capfd):
    one, other = affine.inference_set(1), affine.inference_set(1)
    handle = take(one.getAvailable())
    refused(capfd, other.submit(handle, 1), "another inference set")
    refused(capfd, other.putCompleted(handle), "another inference set")
    assert one.putCompleted(handle) == S.QS_SUCCESS


def test_a_handle_outlives_its_set(affine, capfd):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    kept = handle.execObj()
    x, y, given = buffers(2)
    assert handle.setBuffers(given) == S.QS_SUCCESS
    del handles
    refused(capfd, handle.setBuffers(given), "set of this handle was deleted")
    refused(capfd, handle.setInputBuffers(given[:1]), "set of this handle was deleted")
    refused(capfd, handle.setOutputBuffers(given[1:]), "set of this handle was deleted")
    refused(capfd, handle.setBufferDimensions([]), "set of this handle was deleted")
    refused(capfd, handle.getBuffers(), "set of this handle was deleted")
    with pytest.raises(
        qaicrt.ExceptionRuntime, match=r"^Runtime Exception: .*set of this handle was deleted"
    ):
        handle.execObj()
    assert handle.getId() == 0
    other = affine.inference_set(1)
    refused(capfd, other.submit(handle, 1), "another inference set")
    # An exec object is independent, and keeps the objects that it needs.
    assert kept.run() == S.QS_SUCCESS
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)


def test_submit_without_buffers(affine, capfd):
    handles = affine.inference_set(1)
    handle = take(handles.getAvailable())
    refused(capfd, handles.submit(handle, 1), "input `x` is missing")
    refused(capfd, handles.getCompletedId(1), "no inference with id 1")
    with pytest.raises(TypeError, match="InferenceHandle or an InferenceVector, not list"):
        handles.submit([], 1)
    with pytest.raises(TypeError):
        handles.submit(None, 1)


def test_bad_vectors_leave_every_handle_free(affine, capfd):
    handles = affine.inference_set(1)
    vector = affine.vector()
    vector.getVector()[0] = qaicrt.QBuffer(bytes(31))
    refused(capfd, handles.submit(vector, 1), "`x`", "31", "32")
    vector.getVector().append(qaicrt.QBuffer(bytes(32)))
    refused(capfd, handles.submit(vector, 1), "found 3 buffers")
    vector.getVector()[:] = affine.buffers()
    vector.getVector()[1].type = qaicrt.QBufferType.QBUFFER_TYPE_DMABUF
    refused(capfd, handles.submit(vector, 1), "QBUFFER_TYPE_HEAP", status=S.QS_UNSUPPORTED)
    vector.getVector()[1] = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="buffer 1 has type ndarray"):
        handles.submit(vector, 1)
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    vector.getVector()[1] = qaicrt.QBuffer(read_only)
    refused(capfd, handles.submit(vector, 1), "read-only")
    assert handles.submit(affine.vector(), 1) == S.QS_SUCCESS
    take(handles.getCompletedId(1))


# --- failures of the device ------------------------------------------------------------------------


def test_a_failed_inference_is_collected_like_any_other(noop, capfd):
    client = Client(inference_sets.PLAIN)
    handles = client.inference_set(1)
    noop.plan("execute@1=fail")
    vector = client.vector()
    assert handles.submit(vector, 1) == S.QS_SUCCESS
    assert handles.waitForCompletion() == S.QS_ERROR
    status, handle = handles.getCompletedId(1)
    assert status == S.QS_ERROR
    assert "[ERROR]" in capfd.readouterr().err
    # A collected inference is no longer awaited.
    assert handles.waitForCompletion() == S.QS_SUCCESS
    assert handles.putCompleted(handle) == S.QS_SUCCESS
    assert handles.submit(vector, 1) == S.QS_SUCCESS
    assert take(handles.getCompleted()) is handle


def test_a_lost_device_fails_what_is_in_flight_and_can_be_used_anew(noop):
    client = Client(inference_sets.PLAIN)
    handles = client.inference_set(2)
    noop.hold()
    vector = client.vector()
    for number in range(2):
        assert handles.submit(vector, number) == S.QS_SUCCESS
    assert noop.wait_executing(1)
    noop.lose()
    for number in range(2):
        status, handle = handles.getCompletedId(number)
        assert status == S.QS_DEV_ERROR
        assert handles.putCompleted(handle) == S.QS_SUCCESS
    assert handles.submit(vector, 0) == S.QS_SUCCESS
    assert handles.getCompletedId(0)[0] == S.QS_DEV_ERROR
    noop.release()
    noop.recover()
    del handles, handle
    handles = client.inference_set(2)
    assert handles.submit(vector, 0) == S.QS_SUCCESS
    take(handles.getCompletedId(0))


def test_a_stuck_inference_times_out(noop):
    client = Client(inference_sets.PLAIN)
    properties = qaicrt.InferenceSetProperties()
    properties.programProperties.SubmitRetryTimeoutMs = 20
    properties.programProperties.SubmitNumRetries = 1
    handles = client.inference_set(1, properties=properties)
    noop.plan("execute@*=stuck")
    assert handles.submit(client.vector(), 3) == S.QS_SUCCESS
    status, handle = handles.getCompletedId(3)
    assert status == S.QS_TIMEDOUT
    noop.plan("")
    # On a busy machine, the next inference may also exceed its limit.
    tries = iter(range(1_000))
    while status == S.QS_TIMEDOUT and next(tries, None) is not None:
        assert handles.putCompleted(handle) == S.QS_SUCCESS
        assert handles.submit(client.vector(), 3) == S.QS_SUCCESS
        status, handle = handles.getCompletedId(3)
    assert status == S.QS_SUCCESS


# --- life ------------------------------------------------------------------------------------------


def test_cores_are_held_as_long_as_the_set(affine):
    before = affine.cores()
    handles = affine.inference_set(2, 3)
    assert affine.cores() == before - 3
    del handles
    gc.collect()
    assert affine.cores() == before


def test_a_set_dropped_in_flight(noop):
    client = Client(inference_sets.PLAIN)
    before = client.cores()
    handles = client.inference_set(3, 2)
    noop.hold()
    image, logits = np.zeros(192, np.float32), np.zeros(10, np.float32)
    gone = weakref.ref(image)
    vector = client.vector(image, logits)
    for number in range(6):
        assert handles.submit(vector, number) == S.QS_SUCCESS
    assert noop.wait_executing(1)
    del handles, vector, image
    assert client.cores() == before
    # The last inference that could use the memory has returned it; the next call releases it.
    qaicrt.QBuffer()
    gc.collect()
    assert gone() is None


def test_the_container_may_be_dropped(affine):
    qpc = qaicrt.Qpc(inference_sets.affine())
    handles = qaicrt.InferenceSet(affine.context, qpc, 0, 1, 1)
    del qpc
    assert handles.submit(affine.vector(), 1) == S.QS_SUCCESS
    take(handles.getCompletedId(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 1), "set_size 0"),
        ((0, 1, 0), "num_activations 0"),
        ((0, -3, 1), "must be at least 1"),
        ((0, 2**40, 1), "at most"),
        ((0, 2**64, 1), "at most"),
        ((0, -(2**64), 1), "must be at least 1"),
        ((0, 1, 17), "cores"),
        ((9, 1, 1), "device 9"),
        ((2**64, 1, 1), "device 18446744073709551616"),
        ((-1, 1, 1), "device -1"),
    ],
)
def test_what_cannot_be_made(affine, capfd, arguments, message):
    before = affine.cores()
    with pytest.raises(
        qaicrt.ExceptionInit, match=r"^Initialization Exception: in object: InferenceSet"
    ) as error:
        qaicrt.InferenceSet(affine.context, affine.qpc, *arguments)
    assert message in str(error.value)
    assert message in capfd.readouterr().err
    assert affine.cores() == before


def test_what_is_missing(affine):
    for arguments in ((None, affine.qpc), (affine.context, None)):
        with pytest.raises(qaicrt.ExceptionNullPtr, match="in object: InferenceSet"):
            qaicrt.InferenceSet(*arguments, 0, 1, 1)
    with pytest.raises(TypeError):
        qaicrt.InferenceHandle()


def test_properties(affine, capfd):
    properties = qaicrt.InferenceSetProperties()
    properties.queueProperties.numThreadsPerQueue = 1
    handles = affine.inference_set(2, dev=None, properties=properties)
    assert handles.submit(affine.vector(), 1) == S.QS_SUCCESS
    take(handles.getCompletedId(1))
    properties.queueProperties.numThreadsPerQueue = 0
    with pytest.raises(qaicrt.ExceptionInit, match="numThreadsPerQueue is 0"):
        affine.inference_set(2, properties=properties)
    assert "numThreadsPerQueue" in capfd.readouterr().err
    properties = qaicrt.InferenceSetProperties()
    properties.programProperties.devMapping = "7"
    with pytest.raises(qaicrt.ExceptionInit, match="device 7"):
        affine.inference_set(2, dev=None, properties=properties)


@pytest.mark.virtual_card("cards run only programs for one device")
def test_several_cards_as_one(monkeypatch, affine):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "3")
    client = Client(inference_sets.affine())
    properties = qaicrt.InferenceSetProperties()
    properties.programProperties.devMapping = "2:0"
    before = client.cores()
    handles = client.inference_set(2, dev=None, properties=properties)
    assert client.cores() == before - 1
    x, y = x_of(8), np.zeros((2, 4), np.float32)
    assert handles.submit(client.vector(x, y), 1) == S.QS_SUCCESS
    take(handles.getCompletedId(1))
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
