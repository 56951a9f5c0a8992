"""Time limits and Ctrl-C apply on any thread that runs an inference, and to reads and writes of state."""

import asyncio
import json
import threading

import numpy as np
import pytest

import emulated_cards
import qaic
import session_models
from child_process import WATCHDOG_S, run_script
from qaic.runtime.load_lock import LoadLock

#: Turns of a loop that does not end before its time limit or the signal.
FOREVER = 2**62


@pytest.fixture
def two_lengths(tmp_path):
    """A program with two shapes; the test sets the duration of its inferences."""
    return session_models.save(tmp_path, session_models.endless(length="length"))


SETS = [{"name": str(length), "symbols": {"length": str(length)}} for length in (1, 2)]


def test_limit_holds_for_shapes_that_take_longer_than_those_before(two_lengths):
    with qaic.Session(two_lengths, network_specialization_config=SETS) as session:
        for _ in range(200):
            session.run({"n": np.int64(1), "x": np.ones(1, np.float32)})
        with pytest.raises(qaic.errors.DeviceTimeoutError):
            session.run({"n": np.int64(FOREVER), "x": np.ones(2, np.float32)}, timeout=0.02)
        emulated_cards.end_stuck_inference(session)
        assert session.run({"n": np.int64(3), "x": np.ones(2, np.float32)})["y"].tolist() == [4, 4]


INTERRUPT_LONG = """
import json, sys
import numpy as np
import emulated_cards
import qaic
from child_process import interrupted

with qaic.Session(sys.argv[1], network_specialization_config=json.loads(sys.argv[2])) as session:
    for _ in range(200):
        session.run({"n": np.int64(1), "x": np.ones(1, np.float32)})
    print(interrupted(lambda: session.run({"n": np.int64(2**62), "x": np.ones(2, np.float32)})))
    emulated_cards.end_stuck_inference(session)
"""


def test_interrupt_ends_shapes_that_take_longer_than_those_before(two_lengths):
    assert run_script(INTERRUPT_LONG, two_lengths, json.dumps(SETS)).stdout == "interrupted\n"


INTERRUPT_STATE = """
import json, sys
import numpy as np
import emulated_cards
import qaic
from child_process import interrupted

seven = np.full(1, 7, np.float32)
outcomes = []
with qaic.Session(sys.argv[1], retained_state=True, split_retained_state_io=True) as session:
    for call in (lambda: session.read_state("past"), lambda: session.write_state("past", seven)):
        running = session.submit({"n": np.int64(2**62)})
        outcomes.append(interrupted(call))
        assert not running.done()
        running.abandon()
        emulated_cards.end_stuck_inference(session)
    session.write_state("past", seven)
    outcomes.append(session.read_state("past").tolist())
print(json.dumps(outcomes))
"""


def test_interrupt_ends_reads_and_writes_of_state(tmp_path):
    net = session_models.endless(start="past", end="past_RetainedState")
    done = run_script(INTERRUPT_STATE, session_models.save(tmp_path, net))
    assert json.loads(done.stdout) == ["interrupted", "interrupted", [7]]


@pytest.fixture
def long_after_short(tmp_path):
    """A session whose inferences were all short so far; the next one with the same shapes may not end."""
    with qaic.Session(session_models.save(tmp_path, session_models.endless())) as session:
        for _ in range(200):
            session.run(turns(1))
        yield session


def turns(count):
    return {"n": np.int64(count), "x": np.ones(1, np.float32)}


def limited(session, entry, limit):
    """Run an inference that does not end, with a limit in seconds."""
    match entry:
        case "run":
            session.run(turns(FOREVER), timeout=limit)
        case "submit":
            session.submit(turns(FOREVER), timeout=limit).result()
        case "map":
            list(session.map([turns(FOREVER)], timeout=limit))
        case "run_async":
            asyncio.run(session.run_async(turns(FOREVER), timeout=limit))


ENTRIES = ["run", "submit", "map", "run_async"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_limit_holds_where_all_inferences_with_these_shapes_were_short(long_after_short, entry):
    with pytest.raises(qaic.errors.DeviceTimeoutError):
        limited(long_after_short, entry, 0.2)
    emulated_cards.end_stuck_inference(long_after_short)
    assert long_after_short.run(turns(3))["y"].tolist() == [4]


def test_submission_of_an_inference_that_became_long_returns_and_is_cancelled(long_after_short):
    future = long_after_short.submit(turns(FOREVER))
    assert not future.done()
    future.abandon()
    emulated_cards.end_stuck_inference(long_after_short)
    assert long_after_short.run(turns(3))["y"].tolist() == [4]


INTERRUPT_LONG_AFTER_SHORT = """
import asyncio, sys
import numpy as np
import emulated_cards
import qaic
from child_process import interrupted

turns = lambda count: {"n": np.int64(count), "x": np.ones(1, np.float32)}
endless = turns(2**62)
with qaic.Session(sys.argv[1]) as session:
    for call in (
        lambda: session.run(endless),
        lambda: session.submit(endless).result(),
        lambda: next(session.map([endless])),
        lambda: asyncio.run(session.run_async(endless)),
    ):
        for _ in range(200):
            session.run(turns(1))
        print(interrupted(call))
        session.reset()
"""


def test_interrupt_ends_calls_whose_inference_became_long(tmp_path):
    program = session_models.save(tmp_path, session_models.endless())
    assert run_script(INTERRUPT_LONG_AFTER_SHORT, program).stdout == "interrupted\n" * 4


def test_a_caller_waits_within_its_limit_for_the_load_of_another():
    lock, outcomes = LoadLock(), []

    def wait():
        try:
            with lock.held(0.01):
                outcomes.append("held")
        except qaic.errors.DeviceTimeoutError as error:
            outcomes.append(str(error))

    caller = threading.Thread(target=wait)
    with lock.held(None) as rest:
        assert rest is None
        caller.start()
        # A caller that ignores its limit waits until this block ends.
        caller.join(WATCHDOG_S)
    caller.join()
    assert outcomes == ["timed out after 10 ms waiting for the load of a program"]


HUNG_LOAD = """
import os, sys, threading
os.environ.update(QAIC_DEVICE="kmd", QAIC_KMD="emu")
import numpy as np
import qaic
from qaic import _core

inputs, outcomes = {"n": np.int64(1), "x": np.ones(1, np.float32)}, []
session = qaic.Session(sys.argv[1])
session.run(inputs)
session.reset()
_core.EmuControl(0).set_faults("command(activate)@1=hang*all")

def run():
    try:
        session.run(inputs, timeout=1)
    except qaic.errors.DeviceTimeoutError as error:
        outcomes.append("waiting for the load of a program" in str(error))

threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
session.reset(timeout=600)
print(*outcomes)
"""


def test_load_on_a_card_that_hangs_ends_at_the_limit_of_each_caller(tmp_path):
    """Without the limits of the callers, the driver ends the calls one minute apart."""
    program = session_models.save(tmp_path, session_models.endless())
    assert run_script(HUNG_LOAD, program).stdout == "True True True\n"
