"""Teardown of objects that hold a card: other Python threads run during it, and Ctrl-C and limits end the
wait.

The firmware of an emulated card does not answer the message that releases a resource. A second Python thread,
which runs only if the GIL is released, detects the blocked call and then resets the card.
"""

from __future__ import annotations

import gc
import json
import threading

import numpy as np
import pytest

import emulated_cards
import qaic
import qaicrt
import rt_programs
import session_models
from child_process import WATCHDOG_S, run_script
from kmd_sessions import EMULATED, device
from qaic import _core
from qaic.errors import DeviceTimeoutError, OptionError
from rt_programs import Client, S

X = {"x": np.ones((2, 4), np.float32)}

#: Messages that release an activation, and a program that has none.
DEACTIVATE = "command(deactivate)@1=hang"
UNLOAD = "command(unload_elf)@1=hang"


@pytest.fixture(autouse=True)
def _emulated():
    with device(**EMULATED):
        yield


@pytest.fixture
def control():
    return _core.EmuControl(0)


@pytest.fixture
def model(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


@pytest.fixture
def path(tmp_path):
    return rt_programs.compiled(tmp_path, rt_programs.affine())


def seen_during(control, faults, tear_down):
    """Return True if a second thread detected a blocked system call during ``tear_down``; it ends these
    calls.

    In addition to the call that releases an object, a thread can wait for an abandoned inference.
    """
    seen = []

    def watch():
        seen.append(control.wait_waiters(1, timeout=WATCHDOG_S))
        control.set_faults("")
        control.reset()
        control.hurry()

    control.set_faults(faults)
    watcher = threading.Thread(target=watch)
    watcher.start()
    tear_down()
    watcher.join()
    # A card that is reset loses its objects, so only objects of this process remain.
    assert emulated_cards.left_for_good() == []
    return seen == [True]


def loaded(model, **options):
    session = qaic.Session(model, **options)
    session.run(X)
    return session


def session_reset(model):
    session = loaded(model)
    return session.reset


def session_with(model):
    session = loaded(model)
    return lambda: session.__exit__(None, None, None)


def session_update(model):
    session = loaded(model)
    return lambda: session.update_backend_options(set_size=3)


def session_dropped(model):
    kept = [loaded(model)]
    return kept.clear


def session_in_a_cycle(model):
    session = loaded(model)
    session.itself = session
    del session
    return gc.collect


def session_future_dropped(model):
    session = loaded(model)
    future = session.submit(X)
    future.result()
    kept = [session, future]
    del session, future
    return kept.clear


def session_map_left(model):
    session = loaded(model)
    results = session.map([X] * 3)
    next(results)
    kept = [results, session]
    del results, session
    return kept.clear


def session_inference_outlives_set(model):
    session = loaded(model)
    inference = session._ensure_loaded().prepare(X, None)
    session.reset()
    kept = [inference]
    del inference
    return kept.clear


def session_profiler(model):
    session = loaded(model)
    profiler = _core.Profiler([session._ensure_loaded()])
    profiler.start()
    kept = [session, profiler]
    del session, profiler
    return kept.clear


SESSION = [
    session_reset,
    session_with,
    session_update,
    session_dropped,
    session_in_a_cycle,
    session_future_dropped,
    session_map_left,
    session_inference_outlives_set,
    session_profiler,
]


@pytest.mark.parametrize("scene", SESSION)
def test_session_torn_down_lets_other_threads_run(control, model, never_preempted, scene):
    tear_down = scene(model)
    assert seen_during(control, DEACTIVATE, tear_down)


def program_dropped(path):
    client = Client(path)
    assert client.program.load() == S.QS_SUCCESS
    kept = [client]
    del client
    return UNLOAD, kept.clear


def program_unloaded(path):
    client = Client(path)
    assert client.program.load() == S.QS_SUCCESS
    return UNLOAD, client.program.unload


def program_deactivated(path):
    client = Client(path)
    assert client.program.activate() == S.QS_SUCCESS
    return DEACTIVATE, client.program.deactivate


def exec_obj_dropped(path):
    client = Client(path)
    kept = [client.exec_obj()]
    return DEACTIVATE, kept.clear


def exec_obj_outlives_its_program(path):
    kept = [Client(path).exec_obj()]
    return DEACTIVATE, kept.clear


def exec_obj_with_inference_under_way(path):
    client = Client(path)
    exec_obj = client.exec_obj()
    arrays = [(0, np.ones((2, 4), np.float32)), (1, np.zeros((2, 4), np.float32))]
    assert exec_obj.setData(arrays) == S.QS_SUCCESS
    _core.EmuControl(0).set_faults("inference@1=hang")
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    kept = [exec_obj, client]
    del exec_obj, client
    return DEACTIVATE, kept.clear


def inference_set(path):
    return qaicrt.InferenceSet(qaicrt.Context(), qaicrt.Qpc(path), 0, 2, 1, None)


def inference_set_dropped(path):
    kept = [inference_set(path)]
    return DEACTIVATE, kept.clear


def exec_obj_of_a_handle_outlives_its_set(path):
    made = inference_set(path)
    status, handle = made.getAvailable()
    assert status == S.QS_SUCCESS
    kept = [handle.execObj(), handle]
    del made, handle
    return DEACTIVATE, kept.clear


def benchmark_outlives_its_set(path):
    made = inference_set(path)
    vector = qaicrt.InferenceVector(qaicrt.Qpc(path).getBufferMappings())
    kept = [_core.RtBenchmark(made, vector.getVector())]
    del made
    return DEACTIVATE, kept.clear


def objects_together_in_a_cycle(path):
    client = Client(path)
    client.kept = [client, client.exec_obj(), client.queue, client.context]
    del client
    return DEACTIVATE, gc.collect


QAICRT = [
    program_dropped,
    program_unloaded,
    program_deactivated,
    exec_obj_dropped,
    exec_obj_outlives_its_program,
    exec_obj_with_inference_under_way,
    inference_set_dropped,
    exec_obj_of_a_handle_outlives_its_set,
    benchmark_outlives_its_set,
    objects_together_in_a_cycle,
]


@pytest.mark.parametrize("scene", QAICRT)
def test_qaicrt_object_torn_down_lets_other_threads_run(control, path, never_preempted, scene):
    faults, tear_down = scene(path)
    assert seen_during(control, faults, tear_down)


# --- calls that wait for a teardown, and calls that do not ------------------------------------------------


def blocked_while(control, faults, tear_down):
    """Return True if the teardown is blocked after ``tear_down`` has returned. Ends the teardown."""
    control.set_faults(faults)
    tear_down()
    is_blocked = control.wait_waiters(1, timeout=WATCHDOG_S)
    control.set_faults("")
    control.reset()
    control.hurry()
    assert _core.await_teardown(WATCHDOG_S)
    assert emulated_cards.left_for_good() == []
    return is_blocked


@pytest.mark.parametrize("scene", [session_dropped, session_in_a_cycle])
def test_garbage_collection_of_a_session_leaves_a_slow_card_to_the_reaper(control, model, scene):
    assert blocked_while(control, DEACTIVATE, scene(model))


@pytest.mark.parametrize("scene", [program_dropped, exec_obj_dropped, inference_set_dropped])
def test_drop_of_a_qaicrt_object_leaves_a_slow_card_to_the_reaper(control, path, scene):
    assert blocked_while(control, *scene(path))


def test_reset_with_a_limit_raises_and_the_teardown_goes_on(control, model):
    session = loaded(model)

    def reset():
        with pytest.raises(DeviceTimeoutError, match="after 10 ms waiting for a teardown") as caught:
            session.reset(timeout=0.01)
        assert caught.value.code == "device.timeout"

    assert blocked_while(control, DEACTIVATE, reset)
    session.reset(timeout=0)
    assert session.run(X)["y"].shape == (2, 4)
    session.reset()


@pytest.mark.parametrize("timeout", [-1, "a"])
def test_reset_with_an_invalid_limit_says_so(model, timeout):
    session = loaded(model)
    with pytest.raises(OptionError, match=f"timeout is {timeout!r}; a number"):
        session.reset(timeout=timeout)
    session.reset()


def test_with_block_that_failed_raises_its_own_error_when_the_teardown_is_late(model, monkeypatch, caplog):
    session = loaded(model)

    def reset(_):
        raise DeviceTimeoutError("late", code="device.timeout")

    monkeypatch.setattr(qaic.Session, "reset", reset)
    with pytest.raises(KeyError, match="of the block"), session:
        raise KeyError("of the block")
    assert "late" in caplog.text
    with pytest.raises(DeviceTimeoutError, match="late"), session:
        pass
    monkeypatch.undo()
    session.reset()


def test_load_waits_for_cores_that_are_being_given_back(control, tmp_path):
    model = session_models.save(tmp_path, session_models.affine())
    # The firmware refuses the request once because cores restart, and accepts it a second later.
    faults = "command(deactivate)@1=nack(-36)"
    first, second = (qaic.Session(model, aic_num_cores=16) for _ in range(2))
    first.run(X)
    control.set_faults(faults)
    del first
    assert second.run(X)["y"].shape == (2, 4)
    second.reset()
    path = rt_programs.compiled(tmp_path, rt_programs.affine(), aic_num_cores=16)
    one, other = Client(path), Client(path)
    makers = (other.program.activate, other.exec_obj, lambda: inference_set(path))
    for make in makers:
        assert one.program.activate() == S.QS_SUCCESS
        control.set_faults(faults)
        one = None
        assert make() not in (None, S.QS_ERROR, S.QS_DEV_ERROR)
        other.program.deactivate()
        one = Client(path)


def test_load_waits_for_cores_that_inferences_of_a_reset_session_still_use(tmp_path):
    model = session_models.save(tmp_path, session_models.affine())
    first, second = (qaic.Session(model, aic_num_cores=16) for _ in range(2))
    first.run(X)
    # A call of another thread has this reference, and ends while the load waits.
    used_by_a_call = [first._loaded]
    first.reset()
    ends = threading.Timer(0.3, used_by_a_call.clear)
    ends.start()
    assert second.run(X)["y"].shape == (2, 4)
    ends.join()
    second.reset()


SCRIPT = """
import json, sys
import numpy as np
import qaic
from qaic import _core
from child_process import WATCHDOG_S, interrupted
from rt_programs import Client, S

scene, model, path = sys.argv[1:]
control = _core.EmuControl(0)
if scene in ("reset", "with"):
    session = qaic.Session(model)
    session.run({"x": np.ones((2, 4), np.float32)})
    call = {"reset": session.reset, "with": lambda: session.__exit__(None, None, None)}[scene]
else:
    client = Client(path)
    assert client.program.activate() == S.QS_SUCCESS
    call = {"unload": client.program.unload, "deactivate": client.program.deactivate}[scene]
control.set_faults("command(deactivate)@1=hang")
outcome = interrupted(call, when=lambda: control.waiters() > 0)
blocked = control.waiters()
control.set_faults("")
control.reset()
control.hurry()
assert _core.await_teardown(WATCHDOG_S)
print(json.dumps({"result": outcome, "blocked": blocked}))
"""


@pytest.mark.parametrize("scene", ["reset", "with", "unload", "deactivate"])
def test_ctrl_c_ends_the_wait_for_an_explicit_teardown(model, path, scene):
    outcome = json.loads(run_script(SCRIPT, scene, model, path).stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["blocked"] == 1


END = """
import atexit, sys, time
import numpy as np
import qaic
from qaic import _core

scene, model = sys.argv[1:]
session = qaic.Session(model)
session.run({"x": np.ones((2, 4), np.float32)})
control = _core.EmuControl(0)
# Registered late, so called before the emulated cards are reset.
atexit.register(lambda: print(control.calls("manage") > before))
before = control.calls("manage")
control.set_faults("command(deactivate)@1=" + ("hang" if scene == "hang" else "nack(-36)"))
if scene != "kept":
    del session
    while not (control.waiters() if scene == "hang" else control.calls("manage") > before):
        time.sleep(0.001)
"""


@pytest.mark.parametrize(("scene", "found"), [("hang", "True"), ("slow", "True"), ("kept", "False")])
def test_interpreter_ends_while_a_card_is_torn_down(model, scene, found):
    ended = run_script(END, scene, model)
    assert (ended.stdout, ended.stderr) == (f"{found}\n", "")


FORK = """
import os, sys
import numpy as np
import qaic
from qaic import _core

model, = sys.argv[1:]
feed = {"x": np.ones((2, 4), np.float32)}
session, other = qaic.Session(model), qaic.Session(model)
expected = session.run(feed)["y"].tolist()
other.run(feed)
control = _core.EmuControl(0)
control.set_faults("command(deactivate)@1=hang")
del session
assert control.wait_waiters(1, 600)
child = os.fork()
if child == 0:
    # Neither the thread nor what it tears down is the child's; nor is what the parent lets go of here.
    assert _core.await_teardown(0)
    other.reset()
    assert other.run(feed)["y"].tolist() == expected
    other.reset()
    # The engine does not survive the end of a forked interpreter.
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert control.waiters() == 1
"""


def test_child_of_a_process_inside_a_teardown_has_reapers_of_its_own(model):
    run_script(FORK, model)
