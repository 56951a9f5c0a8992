"""``Queue`` starts inferences in order, one at a time for each exec object."""

import gc
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import qaicrt
import rt_programs
from rt_programs import NEXT, STATE, Client, S, Y
from rt_programs import X as IN

FIXTURE = str(Path(__file__).parents[1] / "data" / "qpc" / "s01_simple_f32_file.qpc")
X = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def affine(tmp_path_factory):
    return rt_programs.shared(rt_programs.compiled(tmp_path_factory.mktemp("affine"), rt_programs.affine()))


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counter")
    return rt_programs.compiled(folder, rt_programs.counter(), retained_state=True)


@pytest.fixture
def held(noop):
    """A program on a device that holds executions until the test releases them."""
    noop.hold()
    return noop, Client(FIXTURE)


def wired(client):
    exec_obj = client.exec_obj()
    buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in client.program.getBufferMappings()]
    assert exec_obj.setData(buffers) == S.QS_SUCCESS
    return exec_obj


def test_enqueue_returns_at_once(held):
    control, client = held
    exec_obj = wired(client)
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert control.wait_executing(1)
    control.release()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    assert client.program.getInferenceCompleteCount() == 1


def test_an_exec_obj_is_in_flight_once(held, capfd):
    control, client = held
    exec_obj = wired(client)
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert client.queue.enqueue(exec_obj) == S.QS_BUSY
    assert "in flight" in capfd.readouterr().err
    assert exec_obj.run() == S.QS_INVAL
    # The bindings of an inference in flight cannot be changed.
    for data in ([(0, np.zeros(4, np.uint8))], [qaicrt.QBuffer(b"")] * len(exec_obj.getData()[1])):
        assert exec_obj.setData(data) in (S.QS_BUSY, S.QS_INVAL)
    assert "in flight" in capfd.readouterr().err
    assert [buffer.size > 0 for buffer in exec_obj.getData()[1]] == [True] * len(exec_obj.getData()[1])
    control.release()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    client.infer(exec_obj)
    assert client.program.getInferenceCompleteCount() == 2


def test_several_are_in_flight(held):
    control, client = held
    exec_objs = [wired(client) for _ in range(6)]
    for exec_obj in exec_objs:
        assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert control.wait_executing(4)
    control.release()
    for exec_obj in reversed(exec_objs):
        assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    assert client.program.getInferenceCompleteCount() == 6


def test_an_exec_obj_may_go_while_it_is_in_flight(held):
    control, client = held
    exec_obj = client.exec_obj()
    mappings = client.program.getBufferMappings()
    arrays = [np.zeros(mapping.size, np.uint8).view(Kept) for mapping in mappings]
    alive = [weakref.ref(array) for array in arrays]
    assert exec_obj.setData([qaicrt.QBuffer(array) for array in arrays]) == S.QS_SUCCESS
    del arrays
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert control.wait_executing(1)
    del exec_obj
    control.release()
    gc.collect()
    assert client.program.deactivate() == S.QS_SUCCESS
    # The next call releases the arrays, on any thread that dropped them last.
    qaicrt.QBuffer(b"")
    assert [reference() for reference in alive] == [None] * len(alive)


class Kept(np.ndarray):
    """An array that supports weak references."""


def test_everything_may_go_while_an_inference_is_in_flight(held):
    control, client = held
    exec_obj, queue = wired(client), client.queue
    assert queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert control.wait_executing(1)
    del client.program, client.context, queue, client.queue
    gc.collect()
    control.release()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def test_inferences_with_state_run_in_the_order_they_were_enqueued(counter):
    client = Client(counter)
    count = 40
    exec_objs = [client.exec_obj() for _ in range(count)]
    outputs = np.zeros((count, 3, 4), np.float32)
    for index, exec_obj in enumerate(exec_objs):
        # Each inference adds another number, so every order has its own sums.
        x = np.full(1, 2.0**index if index < 20 else 1, np.float32)
        assert exec_obj.setData([(IN, x), (Y, outputs[index])]) == S.QS_SUCCESS
    for exec_obj in exec_objs:
        assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    for exec_obj in exec_objs:
        assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    expected = [min(2.0**index - 1, 2.0**20 - 1) + max(0, index - 20) for index in range(count)]
    assert outputs[:, 0, 0].tolist() == expected


def test_a_queue_of_another_device_is_refused(affine, monkeypatch, capfd):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")
    context = qaicrt.Context()
    program = qaicrt.Program(context, 1, qaicrt.Qpc(affine.path))
    exec_obj = qaicrt.ExecObj(context, program)
    assert exec_obj.setData([(0, X)]) == S.QS_SUCCESS
    assert qaicrt.Queue(context, 0).enqueue(exec_obj) == S.QS_INVAL
    error = capfd.readouterr().err
    assert "on device 1" in error
    assert "belongs to device 0" in error
    assert qaicrt.Queue(context, 1).enqueue(exec_obj) == S.QS_SUCCESS
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def test_constructor(affine, capfd):
    properties = qaicrt.QAicQueueProperties()
    properties.numThreadsPerQueue = 1
    for queue in (
        qaicrt.Queue(affine.context, 0),
        qaicrt.Queue(affine.context, 0, properties),
        qaicrt.Queue(context=affine.context, dev=0, properties=None),
        qaicrt.Queue(affine.context),
    ):
        exec_obj = affine.exec_obj()
        assert exec_obj.setData([(0, X)]) == S.QS_SUCCESS
        assert queue.enqueue(exec_obj) == S.QS_SUCCESS
        assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    with pytest.raises(qaicrt.ExceptionNullPtr, match="in object: Queue"):
        qaicrt.Queue(None, 0)
    with pytest.raises(qaicrt.ExceptionInit, match="device 9 does not exist"):
        qaicrt.Queue(affine.context, 9)
    for name, value in (("numThreadsPerQueue", 0), ("properties", 2)):
        wrong = qaicrt.QAicQueueProperties()
        setattr(wrong, name, value)
        with pytest.raises(qaicrt.ExceptionInit, match=f"{name}"):
            qaicrt.Queue(affine.context, 0, wrong)


def test_threads_of_a_queue(held):
    control, client = held
    queues = []
    for threads, mode in ((1, 1), (3, 1), (8, 0)):
        properties = qaicrt.QAicQueueProperties()
        properties.numThreadsPerQueue, properties.properties = threads, mode
        queues.append(qaicrt.Queue(client.context, 0, properties))
    one, three, single = queues
    exec_objs = [wired(client) for _ in range(4)]
    for queue, running in ((one, 1), (three, 3), (single, 1), (client.queue, 1)):
        control.hold()
        for exec_obj in exec_objs:
            assert queue.enqueue(exec_obj) == S.QS_SUCCESS
        assert control.wait_executing(running)
        assert not control.wait_executing(running + 1, timeout=0.05)
        control.release()
        for exec_obj in exec_objs:
            assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def test_nothing_to_enqueue(affine, capfd):
    assert affine.queue.enqueue(None) == S.QS_INVAL
    assert "None" in capfd.readouterr().err
    for other in (5, affine.program, qaicrt.ExecObj):
        with pytest.raises(TypeError):
            affine.queue.enqueue(other)


def test_init_properties_never_fails(affine):
    given = qaicrt.QAicQueueProperties()
    given.numThreadsPerQueue = 1
    assert affine.queue.initProperties(given) is None
    assert (given.properties, given.numThreadsPerQueue) == (1, 4)
    for other in (None, 5, object()):
        assert qaicrt.Queue.initProperties(other) is None


def test_state_lasts_as_long_as_the_activation(counter):
    client = Client(counter)
    assert client.program.activate() == S.QS_SUCCESS
    one, y = np.ones(1, np.float32), np.zeros((3, 4), np.float32)
    for expected in (0, 1):
        exec_obj = client.exec_obj()
        client.infer(exec_obj, [(IN, one), (Y, y)])
        assert y.ravel().tolist() == [expected] * 12
        del exec_obj
    assert client.program.deactivate() == S.QS_SUCCESS
    assert client.program.activate() == S.QS_SUCCESS
    client.infer(client.exec_obj(), [(IN, one), (Y, y)])
    assert y.ravel().tolist() == [0] * 12


def test_state_is_skipped_replaced_and_read(counter):
    client = Client(counter)
    exec_obj = client.exec_obj()
    one, y = np.ones(1, np.float32), np.zeros((3, 4), np.float32)
    empty = np.array([])
    client.infer(exec_obj, [(IN, one), (STATE, empty), (Y, y), (NEXT, empty)])
    client.infer(exec_obj)
    assert y.ravel().tolist() == [1] * 12
    assert [buffer.size for buffer in exec_obj.getData()[1]] == [4, 0, 48, 0]
    # Data for the input replaces the state.
    given, left = np.full((3, 4), 50, np.float32), np.zeros((3, 4), np.float32)
    client.infer(exec_obj, [(STATE, given), (NEXT, left)])
    assert (y[0, 0], left[0, 0], given[0, 0]) == (50, 51, 50)
    client.infer(exec_obj, [(STATE, empty), (NEXT, empty)])
    assert (y[0, 0], left[0, 0]) == (51, 51)
    # The form in which a decoder's client passes the buffers.
    buffers = [
        qaicrt.QBuffer(one.tobytes()),
        qaicrt.QBuffer(b""),
        qaicrt.QBuffer(bytes(48)),
        qaicrt.QBuffer(b""),
    ]
    dims = qaicrt.BufferDimensionsVecRef([(4, [1]), (8, [0]), (4, [3, 4]), (8, [0])])
    client.infer(exec_obj, buffers, dims)
    assert np.frombuffer(exec_obj.getData()[1][Y], np.float32).tolist() == [52] * 12


def test_a_failed_inference_leaves_the_state(counter, capfd):
    client = Client(counter)
    exec_obj = client.exec_obj()
    y = np.zeros((3, 4), np.float32)
    client.infer(exec_obj, [(IN, np.ones(1, np.float32)), (Y, y)])
    assert exec_obj.setData([(IN, np.ones((1, 1), np.float32))]) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_INVAL
    client.infer(exec_obj, [(IN, np.ones(1, np.float32))])
    assert y.ravel().tolist() == [1] * 12


def test_waiting_costs_no_cpu(held):
    control, client = held
    exec_obj = wired(client)
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert control.wait_executing(1)
    control.plan("")
    properties = rt_programs.properties(SubmitRetryTimeoutMs=300, SubmitNumRetries=0)
    impatient = qaicrt.Program(client.context, 0, qaicrt.Qpc(FIXTURE), properties)
    stuck = qaicrt.ExecObj(client.context, impatient)
    buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in impatient.getBufferMappings()]
    began, used = time.monotonic(), time.process_time()
    assert stuck.run(buffers) == S.QS_TIMEDOUT
    assert time.process_time() - used < (time.monotonic() - began) / 2
    control.release()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
