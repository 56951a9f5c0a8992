"""Limits and Ctrl-C hold whichever thread runs an inference, and for reads and writes of state."""

import json
import time

import numpy as np
import pytest
from onnx import helper

import qaic
import session_models
from child_process import assert_prompt, run_script

# Rows of the short and of the long inferences, and products that each row goes through.
SHORT, LONG, WIDTH, DEPTH = 1, 8192, 512, 40


@pytest.fixture(scope="module")
def tall(tmp_path_factory):
    """A program whose inferences take microseconds with one row and seconds with many."""
    names = ["x", *(f"h{turn}" for turn in range(DEPTH - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[turn], "w"], [names[turn + 1]]) for turn in range(DEPTH)]
    net = session_models.model(
        nodes,
        [("x", "float32", ["n", WIDTH])],
        [("y", "float32", ["n", WIDTH])],
        initializers={"w": np.eye(WIDTH, dtype=np.float32) * np.float32(0.999)},
    )
    return session_models.save(tmp_path_factory.mktemp("tall"), net)


def test_limit_holds_for_shapes_that_take_longer_than_those_before(tall):
    sets = [{"name": str(rows), "symbols": {"n": str(rows)}} for rows in (SHORT, LONG)]
    with qaic.Session(tall, network_specialization_config=sets) as session:
        for _ in range(200):
            session.run({"x": np.ones((SHORT, WIDTH), np.float32)})
        many = np.ones((LONG, WIDTH), np.float32)
        begin = time.perf_counter()
        with pytest.raises(qaic.errors.DeviceTimeoutError):
            session.run({"x": many}, timeout=0.02)
        limited = time.perf_counter() - begin
        begin = time.perf_counter()
        session.run({"x": many})
        assert limited < time.perf_counter() - begin


INTERRUPT_LONG = """
import json, sys
import numpy as np
import qaic
from child_process import interrupted

path, short, long, width = sys.argv[1], *map(int, sys.argv[2:])
sets = [{"name": str(rows), "symbols": {"n": str(rows)}} for rows in (short, long)]
with qaic.Session(path, network_specialization_config=sets) as session:
    few, many = (np.ones((rows, width), np.float32) for rows in (short, long))
    for _ in range(200):
        session.run({"x": few})
    print(json.dumps(interrupted(lambda: session.run({"x": many}))))
"""


def test_interrupt_ends_shapes_that_take_longer_than_those_before(tall):
    done = run_script(INTERRUPT_LONG, tall, SHORT, LONG, WIDTH)
    assert_prompt(json.loads(done.stdout))


INTERRUPT_STATE = """
import json, sys
import numpy as np
import qaic
from child_process import interrupted

path, rows, width = sys.argv[1], *map(int, sys.argv[2:])
few = np.full((rows, width), 7, np.float32)
with qaic.Session(path, retained_state=True, split_retained_state_io=True) as session:
    x = {"x": np.ones((rows, width), np.float32)}
    outcomes = []
    for call in (lambda: session.read_state("past"), lambda: session.write_state("past", few)):
        running = session.submit(x)
        outcomes.append(interrupted(call))
        assert not running.done(), "it ended before the signal came"
        running.result()
    session.write_state("past", few)
    outcomes.append(float(session.read_state("past").max()))
print(json.dumps(outcomes))
"""


def test_interrupt_ends_reads_and_writes_of_state(tmp_path):
    names = ["sum", *(f"h{turn}" for turn in range(DEPTH - 1)), "past_RetainedState"]
    products = [helper.make_node("MatMul", [names[turn], "w"], [names[turn + 1]]) for turn in range(DEPTH)]
    shape = [LONG, WIDTH]
    net = session_models.model(
        [helper.make_node("Add", ["past", "x"], ["sum"]), *products],
        [("x", "float32", shape), ("past", "float32", shape)],
        [("past_RetainedState", "float32", shape)],
        initializers={"w": np.eye(WIDTH, dtype=np.float32) * np.float32(0.999)},
    )
    done = run_script(INTERRUPT_STATE, session_models.save(tmp_path, net), LONG, WIDTH)
    *ended, value = json.loads(done.stdout)
    for outcome in ended:
        assert_prompt(outcome)
    assert value == 7
