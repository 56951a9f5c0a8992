"""Differences between emulated and virtual cards, and a check that tests leave nothing on emulated cards.

A process opens a card once and keeps it open. All other resources are released when the objects of a test are
deleted: memory, channels, resource tables of the firmware, threads. The check runs at the end of each module.
"""

from __future__ import annotations

import gc
import os
import time

from child_process import WATCHDOG_S
from qaic import _core, errors


def are_meant():
    """Return True if a test that selects no devices gets emulated cards."""
    return os.environ.get("QAIC_DEVICE") == "kmd"


def end_stuck_inference(session):
    """End an inference that does not end by itself.

    A virtual card ends an inference for which no thread waits. A card has no call for this: only a reset of
    its cores ends the inference, and the thread that waits for the card detects the end of its own wait only
    between two calls.
    """
    if not are_meant():
        return
    session.reset()
    while any("blocked" in line for line in left()):
        time.sleep(0.01)


def inference_error():
    """Return the error of an inference whose engine fails; on a card, the channel of the cores is lost."""
    return errors.DeviceLostError if are_meant() else errors.InferenceError


#: Number of checks of a blocked call before it is a fault, within one minute.
_LOOKS = 600

#: The open file of this process.
KEPT = "open files: 1"


def left():
    """Return a line for each object that remains on an emulated card of this process."""
    return [
        line
        for control in _core.EmuControl.every()
        for line in control.invariants()
        if not line.endswith(f": {KEPT}")
    ]


def left_for_good():
    """Return the same as :func:`left`, without objects that only reference cycles keep, such as caught
    exceptions.
    """
    for _ in range(_LOOKS):
        if left():
            gc.collect()
            # A card releases these resources slowly.
            _core.await_teardown(WATCHDOG_S)
        found = left()
        if not any("blocked" in line for line in found):
            break
        # A thread that waits for a card detects the end of its session only between two calls.
        time.sleep(0.1)
    return found


def nothing_left(session, release=lambda: None):
    """Check the state of the cards between two steps of this generator; ``release`` deletes the objects of
    the test.

    Objects that existed before belong to other code, and their resources can grow; only blocked calls are not
    theirs. The traceback of a failed test keeps objects, which prove nothing.
    """
    before, failed = left_for_good(), session.testsfailed
    yield
    release()
    if session.testsfailed != failed:
        return
    after = left_for_good()
    if before:
        after = [line for line in after if "blocked" in line]
    assert not after, "left on emulated cards:\n" + "\n".join(after)
