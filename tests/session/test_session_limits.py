"""Limits and Ctrl-C hold whichever thread runs an inference, and for reads and writes of state."""

import json

import numpy as np
import pytest

import emulated_cards
import qaic
import session_models
from child_process import run_script

#: turns of a loop that does not end before its time limit or the signal
FOREVER = 2**62


@pytest.fixture
def two_lengths(tmp_path):
    """A program of two shapes; its inferences take as long as a test wants."""
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
