"""Memory of a session: runs do not increase it, and activations share the weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import session_models

STATM = Path("/proc/self/statm")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not STATM.exists(), reason="reads Linux's /proc")]

#: Code for child processes: resident bytes, after Python has released unused memory.
RESIDENT = """
import gc, json, os, sys
import numpy as np
import qaic

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

RUNS = (
    RESIDENT
    + """
x = np.ones((16, 64), np.float32)
other = np.ones((16, 64))
out = np.empty((16, 64), np.float32)
session = qaic.Session(sys.argv[1], num_activations=2)
kept = None

def run(count):
    global kept
    for turn in range(count):
        kept = session.run({"x": x if turn % 4 else other}, out={"y": out} if turn % 3 == 0 else None)
        if turn % 10 == 0:
            try:
                session.run({})
            except qaic.errors.MissingInputError:
                pass

run(2000)
before = resident()
run(10000)
print(json.dumps(resident() - before))
"""
)

ACTIVATIONS = (
    RESIDENT
    + """
activations = int(sys.argv[2])
x = np.ones((1, 2048), np.float32)
before = resident()
session = qaic.Session(sys.argv[1], num_activations=activations, set_size=2)
session.setup()
kept = [session.run({"x": x}) for _ in range(4 * activations)]
session.run_benchmark(64, input_dict={"x": x})
print(json.dumps(resident() - before))
"""
)

RELOADS = (
    RESIDENT
    + """
x = np.ones((16, 64), np.float32)
session = qaic.Session(sys.argv[1])

def reload(count):
    for _ in range(count):
        session.run({"x": x})
        session.reset()

reload(50)
before = resident()
reload(300)
print(json.dumps(resident() - before))
"""
)


def measure(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine(width=64, rows=16))


def test_ten_thousand_runs_add_less_than_a_megabyte(path):
    assert measure(RUNS, path) < 1 << 20


def test_loading_again_and_again_adds_little(path):
    # Each of the 300 loads would add hundreds of kilobytes if it were not released.
    assert measure(RELOADS, path) < 8 << 20


def test_eight_activations_need_less_than_1_3_times_one(tmp_path):
    generator = np.random.default_rng(3)
    names = [f"w{index}" for index in range(4)]
    nodes = [
        helper.make_node("MatMul", [f"x{index}" if index else "x", name], [f"x{index + 1}"])
        for index, name in enumerate(names)
    ]
    built = session_models.model(
        nodes,
        [("x", "float32", [1, 2048])],
        [("x4", "float32", [1, 2048])],
        {name: generator.standard_normal((2048, 2048), np.float32) for name in names},
    )
    path = session_models.save(tmp_path, built)
    measure(ACTIVATIONS, path, 1)  # compiles, so the others only load
    one, eight = (measure(ACTIVATIONS, path, count) for count in (1, 8))
    weights = 4 * 2048 * 2048 * 4
    assert one > weights / 2  # otherwise, the test measures something else
    assert eight < 1.3 * one
