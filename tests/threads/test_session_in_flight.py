"""Threads, Ctrl-C, forks and the end of the interpreter while inferences are in flight."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qaic
import session_models
from child_process import WATCHDOG_S, run_script
from qaic.errors import StateError

SOON = WATCHDOG_S


@pytest.fixture
def slow_path(tmp_path):
    return session_models.save(tmp_path, session_models.endless(), "slow.onnx")


@pytest.fixture(scope="module")
def affine_path(tmp_path_factory):
    return session_models.save(tmp_path_factory.mktemp("flight"), session_models.affine(width=16, rows=4))


def batch(number):
    return {"x": np.full((4, 16), number % 7, np.float32)}


@pytest.mark.parametrize("set_size", [1, 10])
def test_fifty_threads_run_on_one_activation(affine_path, set_size):
    with qaic.Session(affine_path, num_activations=1, set_size=set_size) as session:
        expected = [session.run(batch(number))["y"] for number in range(7)]
        barrier = threading.Barrier(50)

        def hammer(index):
            barrier.wait()
            for turn in range(40):
                found = session.run(batch(index + turn))["y"]
                np.testing.assert_array_equal(found, expected[(index + turn) % 7])
            return index

        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(hammer, range(50))) == list(range(50))


def test_threads_mix_all_ways_to_run(affine_path):
    with qaic.Session(affine_path, num_activations=2, set_size=3) as session:
        expected = [session.run(batch(number))["y"] for number in range(7)]
        barrier = threading.Barrier(12)

        def check(number, found):
            np.testing.assert_array_equal(found["y"], expected[number % 7])

        def hammer(index):
            barrier.wait()
            for turn in range(10):
                if index % 3 == 0:
                    check(index + turn, session.run(batch(index + turn), timeout=SOON))
                elif index % 3 == 1:
                    for number, found in enumerate(session.map(batch(number) for number in range(10))):
                        check(number, found)
                else:
                    futures = [session.submit(batch(number)) for number in range(10)]
                    futures[3].cancel()
                    for number, future in enumerate(futures):
                        if not future.cancelled():
                            check(number, future.result(SOON))
            return index

        with ThreadPoolExecutor(12) as pool:
            assert list(pool.map(hammer, range(12))) == list(range(12))


def test_a_map_and_futures_survive_resets_by_another_thread(affine_path):
    session = qaic.Session(affine_path, set_size=2)
    expected = [session.run(batch(number))["y"] for number in range(7)]
    stop = threading.Event()

    def reset():
        while not stop.is_set():
            session.reset()

    resetter = threading.Thread(target=reset)
    resetter.start()
    try:
        # Each load takes a core, and old activations end with their last inference.
        for number, found in enumerate(session.map(batch(number) for number in range(60))):
            np.testing.assert_array_equal(found["y"], expected[number % 7])
        futures = [session.submit(batch(number)) for number in range(60)]
        for number, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(SOON)["y"], expected[number % 7])
    finally:
        stop.set()
        resetter.join()
    session.reset()


# --- Ctrl-C ---------------------------------------------------------------------------------------

CTRL_C = """
import json, sys
import numpy as np
import emulated_cards, qaic
from child_process import interrupted

path, scene = sys.argv[1:]
session = qaic.Session(path, set_size=1)
one = np.zeros(1, np.float32)
forever, once = {"n": np.int64(2**62), "x": one}, {"n": np.int64(1), "x": one}
session.setup()
if scene == "surprise":
    list(session.map([once] * 40))
busy = session.submit(forever, timeout=60) if scene in ("room", "result", "map_room") else None
call = {
    "room": lambda: session.submit(once),
    "result": lambda: busy.result(),
}.get(scene, lambda: list(session.map([forever, once])))
outcome = interrupted(call)
if busy is not None:
    busy.abandon()
emulated_cards.end_stuck_inference(session)
after = session.run({"n": np.int64(5), "x": one}, timeout=60)["y"].tolist()
print(json.dumps({"result": outcome, "after": after}))
"""


@pytest.mark.parametrize("scene", ["map", "surprise", "map_room", "room", "result"])
def test_ctrl_c_ends_a_wait_at_once(slow_path, scene):
    outcome = json.loads(run_script(CTRL_C, slow_path, scene).stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"] == [5]


# --- the end of the interpreter -------------------------------------------------------------------

EXIT = """
import sys, threading
import numpy as np
import qaic

path, scene = sys.argv[1:]
session = qaic.Session(path, set_size=2)
one = np.zeros(1, np.float32)
count = 3 if scene == "thread" else 2**62
future = session.submit({"n": np.int64(count), "x": one})
queued = session.submit({"n": np.int64(count), "x": one})
def tell(future):
    try:
        outcome = future.result()["y"].tolist()
    except BaseException as error:
        outcome = type(error).__name__
    print(outcome, flush=True)
future.add_done_callback(tell)
if scene == "map":
    results = session.map([{"n": np.int64(2**62), "x": one}] * 2, in_flight=1)
    threading.Thread(target=lambda: next(results, None), daemon=True).start()
if scene == "thread":
    def later():
        threading.main_thread().join()
        print("late", session.submit({"n": np.int64(4), "x": one}).result()["y"].tolist(), flush=True)
    threading.Thread(target=later).start()
if scene == "error":
    raise LookupError("the program failed")
"""


def test_the_interpreter_ends_with_inferences_in_flight(slow_path):
    done = run_script(EXIT, slow_path, "plain")
    assert done.stdout.split() == ["StateError"]


def test_threads_that_go_on_after_the_main_thread_keep_their_futures(slow_path):
    done = run_script(EXIT, slow_path, "thread")
    assert sorted(done.stdout.splitlines()) == ["[3.0]", "late [4.0]"]


def test_a_failing_program_ends_with_inferences_in_flight(slow_path):
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(slow_path), "error"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "LookupError: the program failed" in done.stderr


# --- forks ----------------------------------------------------------------------------------------


def in_child(work):
    """Run ``work`` in a forked child; return its output."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = str(work())
        except BaseException as error:  # noqa: BLE001 (the parent judges it)
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_clear_errors_and_goes_on(noop):
    session = qaic.Session(session_models.FIXTURES / "s01_simple_f32_file.qpc", set_size=2)
    inputs = {name: np.zeros(shape, dtype) for name, (shape, dtype) in session.model_input_shape_dict.items()}
    session.run(inputs)
    results = session.map([inputs] * 3, in_flight=2)
    next(results)
    called = []
    noop.hold()
    future = session.submit(inputs)
    future.add_done_callback(called.append)
    assert noop.wait_executing(1)

    def future_of_the_parent():
        assert future.done()
        assert isinstance(future.exception(0), StateError)
        return future.result(0)

    assert in_child(future_of_the_parent).startswith("StateError: this process was forked")
    assert in_child(lambda: next(results)).startswith("StateError: ")
    assert in_child(lambda: len(called)) == "0"
    # A child has its own devices; the held devices belong to the parent.
    assert in_child(lambda: sorted(session.submit(inputs).result(SOON))) == str(
        sorted(session.model_output_shape_dict)
    )
    assert in_child(lambda: len(list(session.map([inputs] * 5)))) == "5"
    assert not future.done()
    noop.release()
    assert future.result(SOON)
    assert called == [future]
    assert next(results)
    session.reset()


KEPT = """
import logging
import sys
import numpy as np
import qaic

# That a card would not take the loop is not what this is about.
logging.getLogger("qaic.compiler").setLevel(logging.ERROR)

path, _ = sys.argv[1:]
one = np.zeros(1, np.float32)
inputs = [{"n": np.int64(turns), "x": one} for turns in (1, 2**62, 2**62)]
# One activation of a card computes one after the other, and not always the first one first.
results = qaic.Session(path, num_activations=2, set_size=1).map(inputs, in_flight=2)
print(next(results)["y"].tolist())
"""


def test_a_map_kept_to_the_end_of_the_interpreter_is_silent(slow_path):
    done = run_script(KEPT, slow_path, "kept")
    assert done.stdout.split() == ["[1.0]"]
    assert not done.stderr
