"""``qaicrt`` with threads and Ctrl-C: blocking calls let other threads run, and Ctrl-C ends them."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import emulated_cards
import qaicrt
import rt_programs
from child_process import WATCHDOG_S, run_script
from rt_programs import FOREVER, NEXT, Client, S, Y
from rt_programs import X as IN

FIXTURE = str(Path(__file__).parents[1] / "data" / "qpc" / "s01_simple_f32_file.qpc")


def wired(client):
    exec_obj = client.exec_obj()
    buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in client.program.getBufferMappings()]
    assert exec_obj.setData(buffers) == S.QS_SUCCESS
    return exec_obj


# --- the thread that runs an inference ----------------------------------------------------------------------


@pytest.mark.skipif(os.sched_getscheduler(0) != os.SCHED_OTHER, reason="another policy was chosen, and stays")
def test_workers_that_compute_do_not_take_the_cpu_from_submitters(tmp_path):
    def workers():
        named = {task: (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
        return {int(task.name) for task, name in named.items() if name.startswith("qaic-exec-")}

    before = workers()
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    exec_obj = client.exec_obj()
    assert exec_obj.setData([(0, np.ones((2, 4), np.float32))]) == S.QS_SUCCESS
    # The submitting thread sends an inference to a card: workers are rarely running, and compute nothing.
    on_cards = emulated_cards.are_meant()
    found = set()
    for _ in range(100 if on_cards else 100_000):
        # The first inferences can end before the worker has started.
        client.infer(exec_obj)
        found = {os.sched_getscheduler(thread) for thread in workers() - before}
        if found == {os.SCHED_BATCH}:
            break
    assert found <= {os.SCHED_OTHER} if on_cards else found == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


# --- the GIL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["run", "waitForCompletion"])
def test_calls_that_wait_for_the_device_let_others_run(noop, never_preempted, call):
    client = Client(FIXTURE)
    exec_obj = wired(client)
    noop.hold()
    results = []

    def wait():
        if call == "waitForCompletion":
            assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
        results.append(getattr(exec_obj, call)())

    thread = threading.Thread(target=wait)
    thread.start()
    # The call is in the device, and this thread runs.
    assert noop.wait_executing(1)
    assert not results
    noop.release()
    thread.join()
    assert results == [S.QS_SUCCESS]


@pytest.mark.parametrize("call", ["load", "activate", "ExecObj"])
def test_loading_lets_others_run(noop, never_preempted, call):
    client = Client(FIXTURE)
    noop.plan(f"load@1=slow:{WATCHDOG_S}s")
    outcomes = []

    def load():
        try:
            outcomes.append(client.exec_obj() if call == "ExecObj" else getattr(client.program, call)())
        except qaicrt.ExceptionInit:
            outcomes.append(S.QS_DEV_ERROR)

    thread = threading.Thread(target=load)
    thread.start()
    while noop.calls()["load"] == 0:
        time.sleep(0.001)
    # Only another thread, this one, ends the load; a call that keeps the GIL is never preempted.
    noop.lose()
    thread.join()
    assert outcomes == [S.QS_DEV_ERROR]


# --- many threads --------------------------------------------------------------------------------------


def test_many_threads_with_an_exec_obj_each(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    barrier = threading.Barrier(50)

    def work(index):
        exec_obj = client.exec_obj()
        x, y = np.full((2, 4), index, np.float32), np.zeros((2, 4), np.float32)
        assert exec_obj.setData([(0, x), (1, y)]) == S.QS_SUCCESS
        barrier.wait()
        for turn in range(40):
            x[:] = index + turn
            if turn % 2:
                assert exec_obj.run() == S.QS_SUCCESS
            else:
                client.infer(exec_obj)
            np.testing.assert_allclose(y, rt_programs.affine_of(x), rtol=1e-5)
        return index

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(work, range(50))) == list(range(50))
    assert client.program.getInferenceCompleteCount() == 2000


def test_threads_that_share_state_take_turns(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True))
    assert client.program.activate() == S.QS_SUCCESS
    one = np.ones(1, np.float32)

    def work(_):
        exec_obj = client.exec_obj()
        seen = []
        y = np.zeros((3, 4), np.float32)
        for _ in range(50):
            client.infer(exec_obj, [(IN, one), (Y, y)])
            assert (y == y[0, 0]).all()
            seen.append(y[0, 0].item())
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(8)))
    # Every inference read another state, and each thread always a larger one.
    assert sorted(value for mine in seen for value in mine) == list(range(400))
    assert all(mine == sorted(mine) for mine in seen)


def test_one_exec_obj_used_by_many_threads_never_mixes(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True))
    exec_obj = client.exec_obj()
    arrays = [np.zeros((3, 4), np.float32) for _ in range(8)]
    outcomes = []

    def work(index):
        for _ in range(100):
            outcomes.append(exec_obj.setData([(IN, np.ones(1, np.float32)), (Y, arrays[index])]))
            outcomes.append(client.queue.enqueue(exec_obj))
            outcomes.append(exec_obj.waitForCompletion())
            exec_obj.getData()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert set(outcomes) <= {S.QS_SUCCESS, S.QS_BUSY}
    whole = np.zeros((3, 4), np.float32)
    client.infer(exec_obj, [(NEXT, whole)])
    assert whole[0, 0] == client.program.getInferenceCompleteCount()


# --- Ctrl-C --------------------------------------------------------------------------------------------

CTRL_C = """
import json, sys
import qaicrt
from child_process import interrupted
from qaic import _core

path, scene = sys.argv[1:]
S = qaicrt.QStatus
control = _core.NoopControl()
context = qaicrt.Context()
program = qaicrt.Program(context, 0, qaicrt.Qpc(path))
queue = qaicrt.Queue(context, 0)
if scene in ("load", "activate", "ExecObj"):
    control.plan("load@1=stuck")
else:
    exec_obj = qaicrt.ExecObj(context, program)
    buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in program.getBufferMappings()]
    assert exec_obj.setData(buffers) == S.QS_SUCCESS
    control.plan("execute@1=stuck" if scene == "run" else "")
    control.hold()

def call():
    if scene == "load":
        program.load()
    elif scene == "activate":
        program.activate()
    elif scene == "ExecObj":
        qaicrt.ExecObj(context, program)
    elif scene == "run":
        control.release()
        exec_obj.run()
    else:
        queue.enqueue(exec_obj)
        exec_obj.waitForCompletion()

# A call that ends before the device counts it would leave the fault to the next one.
met = {"run": control.executing, "waitForCompletion": lambda: True}
outcome = interrupted(call, when=met.get(scene, lambda: control.calls()["load"]))
after = []
if scene in ("load", "activate", "ExecObj"):
    exec_obj = qaicrt.ExecObj(context, program)
    buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in program.getBufferMappings()]
    after.append(exec_obj.setData(buffers).name)
elif scene == "waitForCompletion":
    # The inference goes on.
    after.append(queue.enqueue(exec_obj).name)
    control.release()
    after.append(exec_obj.waitForCompletion().name)
control.release()
after.append(exec_obj.run().name)
print(json.dumps({"result": outcome, "after": after, "count": program.getInferenceCompleteCount()}))
"""


def after_ctrl_c(path, scene, device):
    outcome = json.loads(run_script(CTRL_C, path, scene, device=device).stdout)
    assert outcome["result"] == "interrupted"
    return outcome["after"], outcome["count"]


@pytest.mark.parametrize("scene", ["load", "activate", "ExecObj"])
def test_ctrl_c_ends_a_load(scene):
    assert after_ctrl_c(FIXTURE, scene, "noop") == (["QS_SUCCESS", "QS_SUCCESS"], 1)


def test_ctrl_c_cancels_a_run():
    assert after_ctrl_c(FIXTURE, "run", "noop") == (["QS_SUCCESS"], 1)


def test_ctrl_c_ends_a_wait_and_the_inference_goes_on():
    assert after_ctrl_c(FIXTURE, "waitForCompletion", "noop") == (["QS_BUSY", "QS_SUCCESS", "QS_SUCCESS"], 2)


#: Ctrl-C during a run that computes on the host.
HOST = """
import json, sys
import numpy as np
import emulated_cards
from child_process import interrupted
from rt_programs import FOREVER, Client, S

client = Client(sys.argv[1])
exec_obj = client.exec_obj()
x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
if sys.argv[2] == "known":
    # The usual duration does not determine that of the next run.
    for _ in range(40):
        assert exec_obj.run([(0, np.int64(1)), (1, x), (2, y)]) == S.QS_SUCCESS
assert exec_obj.setData([(0, FOREVER), (1, x), (2, y)]) == S.QS_SUCCESS
outcome = interrupted(exec_obj.run)
if emulated_cards.are_meant():
    # A card has no call that stops an inference; only a reset of its cores ends it.
    del exec_obj
    exec_obj = client.renewed()
assert exec_obj.run([(0, np.int64(5)), (1, x), (2, y)]) == S.QS_SUCCESS
print(json.dumps({"result": outcome, "after": y.tolist()}))
"""


@pytest.mark.parametrize("history", ["none", "known"])
def test_ctrl_c_cancels_a_run_on_the_host(tmp_path, history):
    path = rt_programs.compiled(tmp_path, rt_programs.endless())
    outcome = json.loads(run_script(HOST, path, history).stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"] == [5]


def test_dropping_a_running_exec_obj_ends_its_inference(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.endless()))
    exec_obj = client.exec_obj()
    assert exec_obj.setData([(0, FOREVER), (1, np.zeros(1, np.float32))]) == S.QS_SUCCESS
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    del exec_obj
    assert client.program.deactivate() == S.QS_SUCCESS
