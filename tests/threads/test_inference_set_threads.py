"""``InferenceSet`` with many threads, the interpreter lock and Ctrl-C."""

import json
import threading

import numpy as np
import pytest

import inference_sets
import qaicrt
from child_process import run_script
from inference_sets import Client, S, affine_of, take

SMALL_STACK = 256 << 10


@pytest.fixture
def small_stacks():
    before = threading.stack_size(SMALL_STACK)
    yield
    threading.stack_size(before)


def all_done(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_thousand_threads_get_their_own_results(small_stacks):
    # As in sample code, every thread gets a handle, submits with its own id, and waits for this id.
    client = Client(inference_sets.affine())
    handles = client.inference_set(4, 3)
    inputs = np.random.default_rng(5).random((1000, 2, 4), np.float32)
    problems = []

    def infer(number):
        for turn in range(3):
            handle = take(handles.getAvailable())
            y = np.zeros((2, 4), np.float32)
            given = [qaicrt.QBuffer(inputs[number]), qaicrt.QBuffer(y)]
            answers = [handle.setBuffers(given), handles.submit(handle, number)]
            status, done = handles.getCompletedId(number)
            right = np.allclose(y, affine_of(inputs[number]), rtol=1e-5)
            answers += [status, handles.putCompleted(done)]
            if answers != [S.QS_SUCCESS] * 4 or done is not handle or not right:
                problems.append((number, turn, answers, right))

    all_done([threading.Thread(target=infer, args=(number,)) for number in range(1000)])
    assert problems == []
    assert handles.waitForCompletion() == S.QS_SUCCESS
    assert len({take(handles.getAvailable()).getId() for _ in range(12)}) == 12


def test_two_thousand_threads_wake_with_their_own_id(noop, small_stacks):
    client = Client(inference_sets.PLAIN)
    handles = client.inference_set(2000)
    mine = {}
    found = {}
    waiting = threading.Semaphore(0)
    noop.hold()
    image = client.buffers()[0]
    for number in range(2000):
        handle = take(handles.getAvailable())
        mine[number] = handle
        assert handle.setInputBuffers([image]) == S.QS_SUCCESS
        assert handles.submit(handle, number) == S.QS_SUCCESS

    def wait(number):
        waiting.release()
        found[number] = handles.getCompletedId(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in reversed(range(2000))]
    for thread in threads:
        thread.start()
    for _ in threads:
        waiting.acquire()
    noop.release()
    for thread in threads:
        thread.join()
    assert found == {number: (S.QS_SUCCESS, mine[number]) for number in range(2000)}


def test_many_submitters_and_collectors(small_stacks):
    # Vectors take free handles, and the collecting thread returns them. None is lost or duplicated.
    client = Client(inference_sets.affine())
    handles = client.inference_set(3, 2)
    vector = client.vector()
    counted = []
    left = threading.Semaphore(0)

    def submit(first):
        for number in range(first, first + 100):
            assert handles.submit(vector, number) == S.QS_SUCCESS
            left.release()

    def collect():
        for _ in range(100):
            left.acquire()
            status, handle = handles.getCompleted()
            counted.append((status, handles.putCompleted(handle)))

    submitters = [threading.Thread(target=submit, args=(1000 * index,)) for index in range(20)]
    collectors = [threading.Thread(target=collect) for _ in range(20)]
    all_done(submitters + collectors)
    assert counted == [(S.QS_SUCCESS, S.QS_SUCCESS)] * 2000


# --- the interpreter lock --------------------------------------------------------------------------


def occupied(client, noop, call, *, submitted=True):
    """Return True if another thread runs while ``call(handles)`` waits, and the result of the call."""
    handles = client.inference_set(1)
    started, finished = threading.Event(), threading.Event()
    answers = []

    def blocked():
        started.set()
        # No thread preempts another one, so the other thread continues only when this call releases the GIL.
        answers.append(call(handles))
        finished.set()

    noop.hold()
    if submitted:
        assert handles.submit(client.vector(), 5) == S.QS_SUCCESS
        assert noop.wait_executing(1)
    worker = threading.Thread(target=blocked)
    worker.start()
    started.wait()
    was_waiting = not finished.is_set()
    noop.release()
    if submitted:
        # Some threads wait for a free handle instead of the inference.
        status, handle = handles.getCompletedId(5) if call in (available, submit) else (None, None)
        if handle is not None:
            assert status == S.QS_SUCCESS
            assert handles.putCompleted(handle) == S.QS_SUCCESS
    worker.join()
    return was_waiting, answers[0]


def available(handles):
    return handles.getAvailable()[0]


def submit(handles):
    return handles.submit(VECTOR[0], 6)


VECTOR = []


@pytest.mark.parametrize(
    "name", ["getAvailable", "submit", "getCompleted", "getCompletedId", "waitForCompletion"]
)
def test_waiting_releases_the_gil(noop, never_preempted, name):
    client = Client(inference_sets.PLAIN)
    VECTOR[:] = [client.vector()]
    call = {
        "getAvailable": available,
        "submit": submit,
        "getCompleted": lambda handles: handles.getCompleted()[0],
        "getCompletedId": lambda handles: handles.getCompletedId(5)[0],
        "waitForCompletion": lambda handles: handles.waitForCompletion(),
    }[name]
    assert occupied(client, noop, call) == (True, S.QS_SUCCESS)


def test_a_benchmark_releases_the_gil(noop, never_preempted):
    client = Client(inference_sets.PLAIN)
    benchmark = qaicrt.InferenceBenchmarkSet(
        client.context, client.qpc, 0, setSize=1, numActivations=1, inferenceDataVector=client.buffers()
    )
    assert benchmark.enable() == S.QS_SUCCESS
    started, answers = threading.Event(), []

    def run():
        started.set()
        answers.append(benchmark.run(1))

    noop.hold()
    worker = threading.Thread(target=run)
    worker.start()
    started.wait()
    assert answers == []
    assert noop.wait_executing(1)
    noop.release()
    worker.join()
    assert answers == [S.QS_SUCCESS]
    assert benchmark.getInfCompleted() == [1]


# --- processes -------------------------------------------------------------------------------------

#: A process that forks while a thread waits for a held inference, and ends with one in the device.
FORK = """
import os, threading
import inference_sets, qaicrt
from inference_sets import S, take
from qaic import _core

client = inference_sets.Client(inference_sets.PLAIN)
control = _core.NoopControl()
handles = client.inference_set(2)
vector = client.vector()
mine = take(handles.getAvailable())
control.hold()
assert handles.submit(vector, 1) == S.QS_SUCCESS
assert control.wait_executing(1)
answers = []
waiter = threading.Thread(target=lambda: answers.append(handles.getCompletedId(1)))
waiter.start()
child = os.fork()
if child == 0:
    print(
        *(handles.submit(vector, 2), handles.submit(mine, 2), handles.getAvailable(), handles.getCompleted()),
        *(handles.getCompletedId(1), handles.putCompleted(mine), handles.waitForCompletion()),
    )
    del handles, mine
    handles = inference_sets.Client(inference_sets.PLAIN).inference_set(1)
    assert handles.submit(vector, 1) == S.QS_SUCCESS
    take(handles.getCompletedId(1))
    print("done", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
control.release()
waiter.join()
assert handles.putCompleted(take(answers[0])) == S.QS_SUCCESS
control.hold()
assert handles.submit(vector, 2) == S.QS_SUCCESS
assert control.wait_executing(1)
print("end")
"""


def test_forked_child_gets_an_error_and_the_end_of_a_process_does_not_hang():
    done = run_script(FORK, device="noop")
    error = S.QS_ERROR
    expected = (error, error, (error, None), (error, None), (error, None), error, error)
    assert done.stdout.splitlines() == [" ".join(map(str, expected)), "done", "end"]
    assert done.stderr.count("before the process was forked") == len(expected)


# --- Ctrl-C ----------------------------------------------------------------------------------------

CTRL_C = """
import json, sys
import inference_sets, qaicrt
from child_process import interrupted
from inference_sets import S, take
from qaic import _core

scene = sys.argv[1]
client = inference_sets.Client(inference_sets.PLAIN)
control = _core.NoopControl()
handles = client.inference_set(1)
vector = client.vector()
benchmark = None
if scene in ("run", "duration"):
    del handles
    benchmark = qaicrt.InferenceBenchmarkSet(
        client.context, client.qpc, 0, setSize=2, numActivations=1, inferenceDataVector=client.buffers()
    )
    assert benchmark.enable() == S.QS_SUCCESS
else:
    control.hold()
    assert handles.submit(vector, 1) == S.QS_SUCCESS
    assert control.wait_executing(1)
if scene == "run":
    control.hold()
call = {
    "available": lambda: handles.getAvailable(),
    "submit": lambda: handles.submit(vector, 2),
    "completed": lambda: handles.getCompleted(),
    "completed_id": lambda: handles.getCompletedId(1),
    "wait": lambda: handles.waitForCompletion(),
    "run": lambda: benchmark.run(1000),
    # Inferences that are over at once: it never waits for long.
    "duration": lambda: benchmark.runForDuration(100_000),
}[scene]
outcome = interrupted(call)
control.release()
# The inferences continue, and everything can be used again.
if benchmark:
    after = benchmark.run(10) == S.QS_SUCCESS and benchmark.disable() == S.QS_SUCCESS
else:
    after = handles.putCompleted(take(handles.getCompletedId(1))) == S.QS_SUCCESS
    after = after and handles.submit(vector, 3) == S.QS_SUCCESS
    after = after and handles.putCompleted(take(handles.getCompletedId(3))) == S.QS_SUCCESS
print(json.dumps({"result": outcome, "after": after}))
"""


@pytest.mark.parametrize(
    "call", ["available", "submit", "completed", "completed_id", "wait", "run", "duration"]
)
def test_ctrl_c_ends_a_blocking_call_at_once(call):
    outcome = json.loads(run_script(CTRL_C, call, device="noop").stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"]
