"""Forks of a process that uses the runtime: the child works or gets a clear error, and never hangs.

Every child has a time limit; a child that exceeds it is reported as hung.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONTAINER = Path(__file__).parents[1] / "data" / "qpc" / "s01_simple_f32_file.qpc"

#: First part of every script.
PRELUDE = """
import os, select, signal, sys, threading, traceback
import numpy as np
import qaic
from qaic import _core
from qaic.errors import QaicError, StateError

PATH = sys.argv[1]
IMAGE = np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8)

def in_child(work, leave=os._exit, limit=600):
    "What `work` returned in a forked process, its exception, or that it did not end."
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = repr(work())
        except QaicError as error:
            answer = f"{type(error).__name__} {error.code}"
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, answer.encode())
        leave(0)
    os.close(writing)
    parts = []
    # The pipe ends with the process.
    while select.select([reading], [], [], limit)[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        parts.append(part)
    else:
        os.kill(child, signal.SIGKILL)
        parts.append(b" and hung")
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return b"".join(parts).decode() + ("" if code == 0 else f" and exit code {code}")

def run(session):
    return session.run({"image": IMAGE})["logits"].reshape(-1)[:3].tolist()
"""

RESULT = "[0.0, 1.0, 2.0]"


@pytest.fixture
def scene(tmp_path):
    """Run a script on the noop device and return the lines that it prints."""
    path = tmp_path / "programqpc.bin"
    shutil.copy(CONTAINER, path)

    def play(code, **environment):
        finished = subprocess.run(
            [sys.executable, "-u", "-c", PRELUDE + code, str(path)],
            env=os.environ | {"QAIC_DEVICE": "noop"} | environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.splitlines()

    return play


def test_child_of_a_process_inside_an_inference(scene):
    code = """
control = _core.NoopControl()
session = qaic.Session(PATH, set_size=1)
expected = run(session)
control.hold()
inside = threading.Thread(target=run, args=(session,))
inside.start()
assert control.wait_executing(1)
print(in_child(lambda: run(session)))
print(in_child(lambda: _core.Context().resources(0)["nsp_free"]))
print(in_child(lambda: control.executing()))
control.release()
inside.join()
print(run(session))
"""
    assert scene(code) == [RESULT, "16", "StateError call.forked", RESULT]


def test_child_of_a_process_inside_a_load(scene):
    code = """
control = _core.NoopControl()
control.plan("load@1=stuck")
session = qaic.Session(PATH)
ended = []

def load():
    try:
        session.setup()
    except QaicError as error:
        ended.append(error.code)

inside = threading.Thread(target=load)
inside.start()
while not control.calls()["load"]:
    pass
print(in_child(lambda: run(session)))
control.lose()
inside.join()
control.recover()
print(ended[0], run(session))
"""
    assert scene(code) == [RESULT, f"device.lost {RESULT}"]


def test_objects_of_the_parent_say_that_they_are_the_parents(scene):
    code = """
control = _core.NoopControl()
context = _core.Context()
session = qaic.Session(PATH)
array = session.run({"image": IMAGE})["logits"]
loaded = session._loaded
made = _core.Qpc(PATH)
coerce = lambda *_: None

print(in_child(lambda: loaded.run({"image": IMAGE})))
print(in_child(lambda: _core.InferenceSet(context, made, [0], 1, 1, coerce)))
print(in_child(lambda: control.plan("")))
print(in_child(lambda: control.wait_executing(1, 10)))
# Code that does not need the parent's devices works.
print(in_child(lambda: (context.resources(0)["nsp_free"], array.reshape(-1)[:3].tolist())))
print(in_child(lambda: bool(_core.InferenceSet(_core.Context(), made, [0], 1, 1, coerce))))
"""
    forked = "StateError call.forked"
    assert scene(code) == [forked] * 4 + [f"(16, {RESULT})", "True"]


def test_children_of_a_busy_process(scene):
    # The fork happens at arbitrary points of the data path in other threads, with arbitrary locks held.
    code = """
session = qaic.Session(PATH, num_activations=2, set_size=2)
expected = run(session)
stop = threading.Event()

def hammer():
    while not stop.is_set():
        assert run(session) == expected

threads = [threading.Thread(target=hammer) for _ in range(4)]
for thread in threads:
    thread.start()
kept = [session.run({"image": IMAGE}) for _ in range(20)]

def child():
    kept.clear()
    free = _core.Context().resources(0)["nsp_free"]
    found = run(session)
    session.reset()
    return free, found == expected

print({in_child(child) for _ in range(25)})
stop.set()
for thread in threads:
    thread.join()
print(run(session) == expected)
"""
    assert scene(code) == ["{'(16, True)'}", "True"]


def test_child_that_leaves_like_any_program(scene):
    # The interpreter of the child tears everything down.
    code = """
session = qaic.Session(PATH, num_activations=2)
run(session)
inside = threading.Thread(target=run, args=(session,))
control = _core.NoopControl()
control.hold()
inside.start()
assert control.wait_executing(1)
print(in_child(lambda: run(session), leave=sys.exit))
print(in_child(lambda: None, leave=sys.exit))
control.release()
inside.join()
"""
    # A child that left without `os._exit` would continue the script, so it stops at the end of `in_child`.
    assert scene(code) == [RESULT, "None"]


def test_children_of_children(scene):
    code = """
session = qaic.Session(PATH)
run(session)

def generations(left):
    found = run(session)
    return [found] + (eval(in_child(lambda: generations(left - 1))) if left else [])

print(len(generations(4)), generations(1)[1])
"""
    assert scene(code) == [f"5 {RESULT}"]


def test_pool_of_workers(scene):
    code = """
import multiprocessing

session = qaic.Session(PATH)
expected = run(session)

def work(_):
    return run(session)

with multiprocessing.get_context("fork").Pool(2) as pool:
    print(all(found == expected for found in pool.map(work, range(8))))
"""
    assert scene(code) == ["True"]


def test_ctrl_c_reaches_a_child_made_by_another_thread(scene):
    # The thread that forks becomes the main thread of the child, which it was not in the parent.
    code = """
def child():
    control = _core.NoopControl()
    control.hold()
    session = qaic.Session(PATH)
    session.setup()

    def interrupt():
        assert control.wait_executing(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        run(session)
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"

def fork():
    session = qaic.Session(PATH)
    run(session)
    answers.append(in_child(child))

answers = []
forking = threading.Thread(target=fork)
forking.start()
forking.join()
print(answers[0])
"""
    assert scene(code) == ["'interrupted'"]


# --- the low-level interface ----------------------------------------------------------------------------

LOW_LEVEL = """
import gc
import qaicrt

LOGITS = np.zeros((1, 10), np.float32)

def make(callback=None):
    context = qaicrt.Context()
    qpc = qaicrt.Qpc(PATH)
    program = qaicrt.Program(context, 0, qpc)
    execs = [qaicrt.ExecObj(context, program) for _ in range(2)]
    for exec_obj in execs:
        assert exec_obj.setData([(0, IMAGE), (1, LOGITS)]) == qaicrt.QStatus.QS_SUCCESS
    return context, qpc, program, execs, qaicrt.Queue(context, 0)

def again():
    context, qpc, program, execs, queue = make()
    LOGITS[:] = -1
    statuses = [execs[0].run(), queue.enqueue(execs[1]), execs[1].waitForCompletion()]
    return [status.name for status in statuses], LOGITS[0, :3].tolist()

control = _core.NoopControl()
context, qpc, program, execs, queue = make()
assert execs[0].run() == qaicrt.QStatus.QS_SUCCESS
"""

WORKED = "(['QS_SUCCESS', 'QS_SUCCESS', 'QS_SUCCESS'], [0.0, 1.0, 2.0])"


def test_low_level_objects_of_the_parent_refuse_and_new_ones_work(scene):
    code = """
control.hold()
queue.enqueue(execs[0])
assert control.wait_executing(1)

def refusals():
    statuses = [
        execs[0].waitForCompletion(),
        execs[1].setData([(0, IMAGE), (1, LOGITS)]),
        execs[1].run(),
        queue.enqueue(execs[1]),
        program.load(),
        program.activate(),
        program.deactivate(),
        program.unload(),
    ]
    return {status.name for status in statuses}

def construction():
    refused = []
    for make_one in (lambda: qaicrt.ExecObj(context, program), lambda: qaicrt.Program(context, 0, qpc)):
        try:
            make_one()
        except qaicrt.ExceptionInit as error:
            refused.append(error.code)
    return refused

def drop():
    global context, qpc, program, execs, queue
    del context, qpc, program, execs, queue
    gc.collect()
    return _core.Context().resources(0)["nsp_free"]

for work in (refusals, construction, drop, again):
    print(in_child(work))
print(in_child(again, leave=sys.exit))
control.release()
print(execs[0].waitForCompletion().name, LOGITS[0, :3].tolist())
"""
    assert scene(LOW_LEVEL + code) == [
        "{'QS_ERROR'}",
        "['call.forked', 'call.forked']",
        "16",
        WORKED,
        WORKED,
        "QS_SUCCESS [0.0, 1.0, 2.0]",
    ]


def test_children_of_a_process_busy_at_the_low_level(scene):
    code = """
stop = threading.Event()

def enqueue(exec_obj):
    while not stop.is_set():
        queue.enqueue(exec_obj)
        exec_obj.waitForCompletion()

def reload():
    while not stop.is_set():
        make()

threads = [threading.Thread(target=enqueue, args=(exec_obj,)) for exec_obj in execs]
threads.append(threading.Thread(target=reload))
for thread in threads:
    thread.start()

def child():
    global context, qpc, program, execs, queue
    del context, qpc, program, execs, queue
    gc.collect()
    return again()

print({in_child(child) for _ in range(25)})
stop.set()
for thread in threads:
    thread.join()
"""
    assert scene(LOW_LEVEL + code) == ["{" + repr(WORKED) + "}"]


SET = """
def make_set():
    inferences = qaicrt.InferenceSet(qaicrt.Context(), qaicrt.Qpc(PATH), 0, 2, 2)
    handle = inferences.getAvailable()[1]
    assert handle.setBuffers([qaicrt.QBuffer(IMAGE), qaicrt.QBuffer(LOGITS)]) == qaicrt.QStatus.QS_SUCCESS
    return inferences, handle

def round_trip(inferences, handle, number):
    LOGITS[:] = -1
    statuses = [inferences.submit(handle, number), inferences.getCompletedId(number)[0]]
    statuses.append(inferences.putCompleted(handle))
    return [status.name for status in statuses], LOGITS[0, :3].tolist()
"""


def test_inference_sets_of_the_parent_refuse_and_new_ones_work(scene):
    code = """
inferences, handle = make_set()
waiting = [threading.Thread(target=inferences.getCompletedId, args=(7,)) for _ in range(2)]
control.hold()
assert inferences.submit(handle, 7) == qaicrt.QStatus.QS_SUCCESS
assert control.wait_executing(1)
for thread in waiting:
    thread.start()

def refusals():
    statuses = [
        inferences.getAvailable()[0],
        inferences.submit(handle, 8),
        inferences.getCompleted()[0],
        inferences.getCompletedId(7)[0],
        inferences.putCompleted(handle),
        inferences.waitForCompletion(),
    ]
    return {status.name for status in statuses} & {"QS_SUCCESS"}

def drop():
    global inferences, handle
    del inferences, handle
    gc.collect()
    return _core.Context().resources(0)["nsp_free"]

def again():
    return round_trip(*make_set(), 3)

for work in (refusals, drop, again):
    print(in_child(work))
print(in_child(again, leave=sys.exit))
control.release()
for thread in waiting:
    thread.join()
print(LOGITS[0, :3].tolist())
"""
    assert scene(LOW_LEVEL + SET + code) == ["set()", "16", WORKED, WORKED, "[0.0, 1.0, 2.0]"]


def test_children_of_a_process_busy_with_an_inference_set(scene):
    code = """
inferences, _ = made = make_set()
stop = threading.Event()

def hammer(number):
    handle = inferences.getAvailable()[1]
    handle.setBuffers([qaicrt.QBuffer(IMAGE), qaicrt.QBuffer(np.zeros((1, 10), np.float32))])
    while not stop.is_set():
        inferences.submit(handle, number)
        inferences.getCompletedId(number)
        inferences.putCompleted(handle)

threads = [threading.Thread(target=hammer, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()

def child():
    global inferences, made
    del inferences, made
    gc.collect()
    return round_trip(*make_set(), 3)

print({in_child(child) for _ in range(20)})
stop.set()
for thread in threads:
    thread.join()
"""
    assert scene(LOW_LEVEL + SET + code) == ["{" + repr(WORKED) + "}"]


def test_profiles_of_the_parent_end_there_and_the_child_makes_its_own(scene):
    code = """
import gc
import qaicrt
control = _core.NoopControl()

def program():
    context = qaicrt.Context()
    made = qaicrt.Program(context, 0, qaicrt.Qpc(PATH))
    exec_obj = qaicrt.ExecObj(context, made)
    assert exec_obj.setData([qaicrt.QBuffer(IMAGE), qaicrt.QBuffer(bytes(40))]).name == "QS_SUCCESS"
    return made, exec_obj

def profile(made, exec_obj):
    lines = []
    handle = qaicrt.ProfilingHandle(made, 2, lambda text, kind: lines.append(len(text.splitlines()) - 5))
    statuses = [handle.start().name, exec_obj.run().name, exec_obj.run().name, handle.stop().name]
    return lines, set(statuses)

made, exec_obj = program()
handle = qaicrt.ProfilingHandle(made, 5, print)
stream = qaicrt.StreamProfilingHandle("full", 4000, lambda *_: None)
assert stream.addProgram(made).name == handle.start().name == stream.start().name == "QS_SUCCESS"
control.hold()
inside = threading.Thread(target=exec_obj.run)
inside.start()
assert control.wait_executing(1)

def child():
    global handle, stream, made, exec_obj
    statuses = [handle.stop().name, stream.stop().name, handle.start().name, stream.start().name]
    handle = stream = made = exec_obj = None
    gc.collect()
    return statuses, profile(*program())

print(in_child(child))
control.release()
inside.join()
assert stream.stop().name == stream.flushReports().name == "QS_SUCCESS"
print(profile(*program()))
"""
    fine = "([2], {'QS_SUCCESS'})"
    assert scene(code) == [f"(['QS_ERROR', 'QS_ERROR', 'QS_ERROR', 'QS_ERROR'], {fine})", fine]
