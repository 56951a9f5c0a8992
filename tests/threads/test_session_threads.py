"""``Session`` with many threads, Ctrl-C and time limits."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import emulated_cards
import qaic
import session_models
from child_process import run_script
from qaic.errors import DeviceTimeoutError

#: Turns of the loop model that take much longer than any limit in these tests.
FOREVER = np.int64(2**62)
ONE = np.zeros(1, np.float32)


@pytest.fixture
def slow_path(tmp_path):
    return session_models.save(tmp_path, session_models.endless(), "slow.onnx")


#: A second thread has the GIL from `started` to the call, because no thread preempts it. The main thread
#: therefore continues only when the call releases the GIL, and the call does not end.
RELEASE = """
import os, sys, threading
import numpy as np
import qaic

session = qaic.Session(sys.argv[1])
forever = {"n": np.int64(2**62), "x": np.zeros(1, np.float32)}
call = {
    "run": lambda: session.run(forever),
    "limited": lambda: session.run(forever, timeout=100_000),
    "benchmark": lambda: session.run_benchmark(4, input_dict=forever),
}[sys.argv[2]]
started = threading.Event()

def call_on_a_thread():
    started.set()
    call()

session.run({"n": np.int64(1), "x": np.zeros(1, np.float32)})
sys.setswitchinterval(1000)
threading.Thread(target=call_on_a_thread).start()
started.wait()
os._exit(0)
"""


@pytest.mark.parametrize("call", ["run", "limited", "benchmark"])
def test_inferences_of_a_thread_release_the_gil(slow_path, call):
    run_script(RELEASE, slow_path, call)


@pytest.mark.parametrize(("activations", "set_size"), [(1, 1), (1, 10), (4, 2), (14, 1)])
def test_many_threads_get_their_own_results(tmp_path, activations, set_size):
    path = session_models.save(tmp_path, session_models.affine(width=32, rows=8))
    generator = np.random.default_rng(7)
    arrays = generator.random((64, 8, 32), np.float32)
    with qaic.Session(path, num_activations=activations, set_size=set_size) as session:
        expected = [session.run({"x": array})["y"] for array in arrays]
        barrier = threading.Barrier(64)

        def hammer(index):
            barrier.wait()
            mine = np.empty((8, 32), np.float32)
            for turn in range(30):
                which = (index + turn) % 64
                out = {"y": mine} if turn % 3 == 0 else None
                found = session.run({"x": arrays[which]}, out=out, timeout=60 if turn % 5 == 0 else None)["y"]
                np.testing.assert_array_equal(found, expected[which])
            return index

        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(hammer, range(64))) == list(range(64))


def test_threads_load_once_and_survive_resets(tmp_path):
    path = session_models.save(tmp_path, session_models.affine())
    x = np.ones((2, 4), np.float32)
    session = qaic.Session(path, aic_num_cores=2, num_activations=2)
    expected = session.run({"x": x})["y"]
    session.reset()
    barrier = threading.Barrier(9)

    def run(_):
        barrier.wait()
        for _ in range(40):
            np.testing.assert_array_equal(session.run({"x": x})["y"], expected)

    def reset():
        barrier.wait()
        for _ in range(40):
            session.reset()

    with ThreadPoolExecutor(9) as pool:
        done = [pool.submit(run, index) for index in range(8)] + [pool.submit(reset)]
        failures = [future.exception() for future in done]
    # Activations end with their last inference, so cores can be missing for a moment; no other error is
    # allowed.
    assert all(error is None or isinstance(error, qaic.errors.DeviceBusyError) for error in failures)
    np.testing.assert_array_equal(session.run({"x": x})["y"], expected)
    session.reset()


def test_timeout_of_a_long_run(slow_path):
    with qaic.Session(slow_path) as session:
        with pytest.raises(DeviceTimeoutError) as caught:
            session.run({"n": FOREVER, "x": ONE}, timeout=0.1)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.context["timeout_ms"] == 100
        emulated_cards.end_stuck_inference(session)
        np.testing.assert_array_equal(session.run({"n": np.int64(3), "x": ONE})["y"], [3])


@pytest.mark.virtual_card("a card completes an inference that it has accepted, even if nothing waits for it")
def test_timeout_while_all_exec_objects_are_busy(slow_path):
    with qaic.Session(slow_path, set_size=2) as session:
        busy = [session.submit({"n": FOREVER, "x": ONE}) for _ in range(2)]
        with pytest.raises(DeviceTimeoutError, match="exec object"):
            session.run({"n": np.int64(1), "x": ONE}, timeout=0.05)
        for future in busy:
            future.abandon()
        np.testing.assert_array_equal(session.run({"n": np.int64(2), "x": ONE})["y"], [2])


def test_zero_timeout_never_hangs(slow_path):
    with qaic.Session(slow_path) as session:
        with pytest.raises(DeviceTimeoutError):
            session.run({"n": FOREVER, "x": ONE}, timeout=0)
        emulated_cards.end_stuck_inference(session)
        np.testing.assert_array_equal(session.run({"n": np.int64(2), "x": ONE})["y"], [2])


def test_session_dropped_while_a_run_is_under_way(slow_path):
    session = qaic.Session(slow_path)
    session.setup()
    started = threading.Event()
    results = []

    def long_run(held):
        started.set()
        results.append(held[0].run({"n": np.int64(100_000), "x": ONE}))

    held = [session]
    worker = threading.Thread(target=long_run, args=(held,))
    worker.start()
    started.wait()
    session.reset()
    del session
    worker.join()
    np.testing.assert_array_equal(results[0]["y"], [100_000])


# --- Ctrl-C ---------------------------------------------------------------------------------------

CTRL_C = """
import json, sys, threading
import numpy as np
import emulated_cards
import qaic
from child_process import interrupted
from qaic.errors import DeviceTimeoutError

path, scene = sys.argv[1:]
session = qaic.Session(path, set_size=1)
one = np.zeros(1, np.float32)
session.setup()
if scene == "next":
    session.run({"n": np.int64(200_000), "x": one})
if scene == "surprise":
    session.run({"n": np.int64(1), "x": one})
busy = None

def occupy():
    inside.set()
    try:
        session.run({"n": np.int64(2**62), "x": one}, timeout=1)
    except DeviceTimeoutError:
        pass

sys.setswitchinterval(1000)
if scene == "wait":
    inside = threading.Event()
    busy = threading.Thread(target=occupy)
    busy.start()
    inside.wait()
forever = {"n": np.int64(2**62), "x": one}
call = {
    "benchmark": lambda: session.run_benchmark(inf_time=100_000, input_dict=forever),
    "limit": lambda: session.run(forever, timeout=100_000),
}.get(scene, lambda: session.run(forever))
outcome = interrupted(call)
if busy:
    busy.join()
emulated_cards.end_stuck_inference(session)
after = session.run({"n": np.int64(5), "x": one})["y"].tolist()
session.reset()
free = qaic._core.Context().devices()[0]["nsp_free"]
print(json.dumps({"result": outcome, "after": after, "free": free}))
"""


@pytest.mark.parametrize("scene", ["first", "next", "surprise", "limit", "wait", "benchmark"])
def test_ctrl_c_ends_a_blocking_call_at_once(slow_path, scene):
    outcome = json.loads(run_script(CTRL_C, slow_path, scene).stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"] == [5]
    assert outcome["free"] == 16
