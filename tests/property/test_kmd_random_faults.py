"""Random faults during the whole life of a program on an emulated card.

Every step has the right result or one of the errors that are listed here. Nothing remains on the card, and
without faults the same program runs again. Time is virtual, so a limit of a minute takes no time.
"""

from __future__ import annotations

import gc
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import qaic
import qaicrt
from card_programs import DDR, IN, INC, MULTICAST, OUT, PRE, Binding, CardProgram, P, Request, Semaphore
from qaic import _core
from qaic.errors import QaicError
from qaicrt import QStatus

S = QStatus
BYTES = 24

#: Errors that a valid program can cause on a faulty card. The other codes of the reference are not allowed.
LISTED = {
    "device.lost",
    "device.channel_lost",
    "device.unavailable",
    "device.permission",
    "device.firmware",
    "device.firmware_protocol",
    "device.firmware_version",
    "device.driver",
    "device.ring_full",
    "device.memory",
    "device.timeout",
}

#: The statuses of these errors.
STATUSES = {
    S.QS_DEV_ERROR,
    S.QS_PERM,
    S.QS_NOMEM,
    S.QS_BUSY,
    S.QS_NODEV,
    S.QS_INVAL,
    S.QS_NOSPC,
    S.QS_BADFD,
    S.QS_TIMEDOUT,
    S.QS_PROTOCOL,
    S.QS_UNSUPPORTED,
    S.QS_DATA_CRC_ERROR,
    S.QS_AGAIN,
    S.QS_ERROR,
}

#: Transfers in both directions through both memories, in two pieces, with semaphores and a last element
#: without data.
PROGRAM = CardProgram(
    buffers=((BYTES, IN), (BYTES, OUT)),
    requests=(
        Request(0, IN, 16, 0, 64, DDR),
        Request(0, IN, 8, 16, 8, MULTICAST, 2, semaphores=(Semaphore(3, INC),)),
        Request(1, OUT, 16, 0, 64, DDR, semaphores=(Semaphore(3, P, when=PRE),)),
        Request(1, OUT, 8, 16, 8, MULTICAST, 2, semaphores=(Semaphore(4, INC),)),
        Request(65535, IN, 0, semaphores=(Semaphore(4, P, when=PRE),), doorbells=((64, 7, 2, 0),)),
    ),
    bindings=(Binding("x", IN, 0, 0, BYTES), Binding("y", OUT, 1, 0, BYTES)),
    constants=bytes(range(256)),
)


def test_the_listed_errors_are_errors_of_the_reference():
    page = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
    known = set(re.findall(r"^\| `([a-z_.]+)` \|", page.read_text(), re.MULTILINE))
    assert known >= LISTED


# --- plans ---------------------------------------------------------------------------------------------

ERRNOS = [
    *("EPERM", "ENOENT", "EIO", "ENXIO", "EBADF", "EAGAIN", "ENOMEM", "EACCES", "EFAULT", "EBUSY"),
    *("ENODEV", "EINVAL", "ENOSPC", "EPIPE", "ETIMEDOUT", "ECANCELED", "ENOTTY"),
]
CALLS = [
    *("manage", "create_bo", "mmap_bo", "mmap", "attach", "execute", "wait", "perf_stats", "detach"),
    "version",
]
COMMANDS = [
    *("load_elf", "unload_elf", "unload_constants", "activate", "deactivate", "status"),
    *("load_constants_ex", "load_constants_payload"),
]
NACKS = (-1, -4, -5, -6, -9, -11, -12, -13, -14, -15, -17, -36, -102, 5)
CONTROL = [
    *(f"{form}({status})" for form in ("nack", "nack_both") for status in NACKS),
    *("crc", "wrong_type", "truncated", "count(0)", "count(5)"),
    *("channel(16)", "channel(1)", "dbc(16)", "hang"),
]
LOSSES = ["reset", "dead", "ssr(0)", "ssr_without_power_up(0)"]
INFERENCE = [
    *("lost_completion", "short_completion", "dma_status(7)", "hang", "ssr", "ssr_without_power_up"),
    *LOSSES,
]

errors = st.sampled_from(ERRNOS)
rules = st.one_of(
    st.builds("{}@{}={}".format, st.sampled_from(CALLS), st.integers(1, 12), errors),
    st.builds("{}@{}=EINTR".format, st.sampled_from(CALLS), st.integers(1, 12)),
    st.builds("open@{}={}".format, st.integers(1, 2), errors),
    st.builds("{}@{}={}".format, st.sampled_from(CALLS), st.integers(1, 12), st.sampled_from(LOSSES)),
    st.builds(
        "command({})@{}={}".format,
        st.sampled_from(COMMANDS),
        st.integers(1, 4),
        st.one_of(st.sampled_from(CONTROL), st.sampled_from(LOSSES), errors),
    ),
    st.builds("features@{}={}".format, st.integers(1, 3), st.one_of(st.sampled_from(CONTROL), errors)),
    st.builds("inference@{}={}".format, st.integers(1, 6), st.sampled_from(INFERENCE)),
)
counted = st.builds(
    lambda rule, count: rule if rule.endswith("EINTR") else rule + count,
    rules,
    st.sampled_from(["", "", "*2", "*6", "*all"]),
)
timed = st.builds("time@{}ms={}".format, st.sampled_from([0, 1, 900, 6000]), st.sampled_from(LOSSES))
plans = st.lists(st.one_of(counted, counted, counted, timed), min_size=1, max_size=3).map("; ".join)
profiles = st.sampled_from(["old", "new", "ssr"])


# --- lives of programs ------------------------------------------------------------------------------------


@contextmanager
def emulated(profile):
    """A card of this kind, with no programs and no faults."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QAIC_EMU_FAULTS", "QAIC_CPU_FAMILY", "QAIC_KMD_TRANSCRIPT"):
            patch.delenv(name, raising=False)
        patch.setenv("QAIC_DEVICE", "kmd")
        patch.setenv("QAIC_KMD", "emu")
        patch.setenv("QAIC_EMU_WORKLOAD", "loopback")
        patch.setenv("QAIC_EMU_TIME", "virtual")
        patch.setenv("QAIC_EMU_PROFILE", profile)
        patch.setenv("QAIC_CPU_DEVICES", "1")
        control = _core.EmuControl(0)
        control.set_faults("")
        yield control


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("net") / "programqpc.bin"
    made.write_bytes(PROGRAM.container())
    return made


def recover(control):
    """End all faults and their consequences."""
    control.set_faults("")
    control.reset()
    control.hurry()


def assert_clean(control):
    """Assert that only the file remains open that the devices of the process share."""
    gc.collect()
    end = time.monotonic() + 30
    while True:
        left = [line for line in control.invariants() if line != "accel0: open files: 1"]
        # A worker releases an inference after its completion; no call waits for this release.
        if not left or time.monotonic() > end:
            break
        threading.Event().wait(0.005)
    assert left == []


def x_of(seed):
    return (np.arange(BYTES) * 5 + seed).astype(np.int8)


def attempt(step):
    """Return the result of a step, or ``None`` if it failed with a listed error."""
    failure = None
    try:
        return step()
    except QaicError as error:
        # The exception without its frames, which would keep exec objects alive.
        failure = error.with_traceback(None)
    assert failure.code in LISTED, repr(failure)
    return None


def session_life(session, seed):
    """Load, run, run many inferences at a time, unload; every returned result is right."""
    attempt(session.setup)
    for turn in range(3):
        found = attempt(lambda turn=turn: session.run({"x": x_of(seed + turn)}))
        if found is not None:
            np.testing.assert_array_equal(found["y"], x_of(seed + turn))
    futures = []
    for turn in range(4):
        future = attempt(lambda turn=turn: session.submit({"x": x_of(seed + 10 + turn)}))
        if future is not None:
            futures.append((turn, future))
    for turn, future in futures:
        found = attempt(future.result)
        if found is not None:
            np.testing.assert_array_equal(found["y"], x_of(seed + 10 + turn))
    session.reset()


lives = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@lives
@given(plans, profiles)
@example("command(deactivate)@1=nack_both(-9)*all", "ssr")
@example("inference@1=lost_completion*all", "new")
@example("detach@1=EBUSY*all", "ssr")
@example("inference@2=ssr_without_power_up", "ssr")
@example("execute@1=EAGAIN*all", "ssr")
def test_a_session_gives_right_results_or_listed_errors(path, plan, profile):
    with emulated(profile) as control:
        session = qaic.Session(path, dev_id=0, set_size=2, num_activations=1)
        control.set_faults(plan)
        for life in range(2):
            session_life(session, seed=40 * life)
        recover(control)
        for turn in range(2):
            np.testing.assert_array_equal(session.run({"x": x_of(turn)})["y"], x_of(turn))
        session.reset()
        del session
        assert_clean(control)


def taken(status):
    assert status in STATUSES | {S.QS_SUCCESS}, status
    return status == S.QS_SUCCESS


def check_run(exec_obj, seed):
    """Run a synchronous inference; return true if it succeeded."""
    x, y = x_of(seed), np.zeros(BYTES, np.int8)
    if not taken(exec_obj.run([qaicrt.QBuffer(x), qaicrt.QBuffer(y)])):
        return False
    np.testing.assert_array_equal(y, x)
    return True


def inference_set_life(context, qpc, seed):
    handles = attempt(lambda: qaicrt.InferenceSet(context, qpc, 0, 2, 1))
    if handles is None:
        return
    kept = {}
    for turn in range(4):
        status, handle = handles.getAvailable()
        if not taken(status):
            break
        x, y = x_of(seed + turn), np.zeros(BYTES, np.int8)
        assert handle.setBuffers([qaicrt.QBuffer(x), qaicrt.QBuffer(y)]) == S.QS_SUCCESS
        if taken(handles.submit(handle, turn)):
            kept[turn] = x, y
            status, done = handles.getCompletedId(turn)
            if taken(status):
                np.testing.assert_array_equal(y, x)
            handle = done if done is not None else handle
        taken(handles.putCompleted(handle))


def program_life(path, seed):
    """Explicit load and activation, exec objects, then an inference set of the same container."""
    context, qpc = qaicrt.Context(), qaicrt.Qpc(str(path.parent))
    program = attempt(lambda: qaicrt.Program(context, 0, qpc))
    if program is not None:
        if taken(program.load()) and taken(program.activate()):
            exec_objs = [attempt(lambda: qaicrt.ExecObj(context, program)) for _ in range(2)]
            for turn in range(2):
                for number, exec_obj in enumerate(exec_objs):
                    if exec_obj is not None:
                        check_run(exec_obj, seed + 2 * turn + number)
            exec_obj = None
            del exec_objs
            gc.collect()
            taken(program.deactivate())
        taken(program.unload())
    inference_set_life(context, qpc, seed + 20)


@lives
@given(plans, profiles)
def test_programs_and_sets_give_right_results_or_listed_statuses(path, plan, profile):
    with emulated(profile) as control:
        control.set_faults(plan)
        program_life(path, 3)
        recover(control)
        context, qpc = qaicrt.Context(), qaicrt.Qpc(str(path.parent))
        exec_obj = qaicrt.ExecObj(context, qaicrt.Program(context, 0, qpc))
        assert check_run(exec_obj, 50)
        assert check_run(exec_obj, 60)
        del exec_obj
        assert_clean(control)
