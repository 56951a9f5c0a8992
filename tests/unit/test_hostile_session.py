"""``Session`` under misuse: shared memory, absurd limits, calls from handlers, forks, and files of other
kinds.
"""

import copy
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import emulated_cards
import qaic
import session_models
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.errors import DeviceError, InputError, OptionError, QpcFormatError
from qaic.options.table import CompileOptions
from qpc_support import container, program

TESTS = Path(__file__).parent.parent
X = np.ones((2, 4), np.float32)


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


def finishes(code, *arguments, limit=60):
    """Run code in a separate process, which can crash or hang; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- memory that is passed twice ------------------------------------------------------------------


@pytest.fixture
def square(tmp_path):
    """Both outputs read the input again after the first output was written."""
    built = session_models.model(
        [helper.make_node("MatMul", ["x", "x"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])],
        [("x", "float32", [32, 32])],
        [("y", "float32", [32, 32]), ("z", "float32", [32, 32])],
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        yield session


@pytest.fixture
def data():
    return np.random.default_rng(3).random((32, 32), np.float32)


@pytest.mark.parametrize("name", ["y", "z"])
def test_input_given_as_out_counts_as_read_before_it_is_written(square, data, name):
    expected = square.run({"x": data})
    shared = data.copy()
    found = square.run({"x": shared}, out={name: shared})
    assert found[name] is shared
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])


@pytest.mark.parametrize("shift", [1, 31])
def test_out_that_overlaps_an_input_in_part(square, data, shift):
    expected = square.run({"x": data})
    room = np.empty((32 + shift, 32), np.float32)
    room[:32] = data
    found = square.run({"x": room[:32]}, out={"y": room[shift:]})
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])


def test_outs_that_only_touch_are_used_in_place(square, data):
    expected = square.run({"x": data})
    room = np.empty((96, 32), np.float32)
    room[32:64] = data
    square.run({"x": room[32:64]}, out={"y": room[:32], "z": room[64:]})
    np.testing.assert_array_equal(room[:32], expected["y"])
    np.testing.assert_array_equal(room[64:], expected["z"])


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("is_input_too", [False, True])
def test_outs_that_overlap_each_other_are_refused(square, data, shift, is_input_too):
    room = np.zeros((32 + shift, 32), np.float32)
    inputs = {"x": room[:32] if is_input_too else data}
    with pytest.raises(InputError, match=r"out\[\"z\"\] shares memory") as caught:
        square.run(inputs, out={"y": room[:32], "z": room[shift:]})
    assert caught.value.code == "output.overlap"
    assert not room.any()


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "noop"])
def test_set_size_that_no_memory_holds_is_refused(path, kind, monkeypatch):
    code = """
import sys, qaic
try:
    qaic.Session(sys.argv[1], set_size=2**31 - 1).setup()
except qaic.errors.OptionError as error:
    print(error.code, qaic._core.Context().devices()[0]["nsp_free"])
"""
    monkeypatch.setenv("QAIC_DEVICE", kind)
    assert finishes(code, path) == ["call.argument", "16"]


@pytest.mark.parametrize("limits", [{"inf_time": float("inf")}, {"inf_time": float("nan")}])
def test_benchmark_without_an_end_is_refused(path, limits):
    with qaic.Session(path) as session, pytest.raises(OptionError, match="finite"):
        session.run_benchmark(**limits)


def test_benchmark_count_beyond_any_counter_is_refused(path):
    with qaic.Session(path) as session, pytest.raises(OptionError, match="num_inferences"):
        session.run_benchmark(2**64)


# --- handlers that call the session -------------------------------------------------------------------


def test_signal_handler_may_reset_during_a_load(path):
    code = """
import signal, sys
import numpy as np
import qaic
from qaic import _core

session = qaic.Session(sys.argv[1])
load = _core.InferenceSet

def interrupted(*arguments, **options):
    signal.raise_signal(signal.SIGUSR1)
    return load(*arguments, **options)

signal.signal(signal.SIGUSR1, lambda *_: session.reset())
_core.InferenceSet = interrupted
print(session.run({"x": np.ones((2, 4), np.float32)})["y"].shape)
"""
    assert finishes(code, path) == ["(2,", "4)"]


# --- forks --------------------------------------------------------------------------------------------

FORK = """
import os, sys, threading
import numpy as np
import qaic, session_models
from qaic import _core

session = qaic.Session(sys.argv[1], set_size=1)
one = np.zeros(1, np.float32)
session.run({"n": np.int64(1), "x": one})
holder = None
if sys.argv[2] == "busy":
    inside = threading.Event()
    def hold():
        inside.set()
        session.run({"n": np.int64(200_000), "x": one})
    sys.setswitchinterval(1000)  # only the run itself gives the lock of the interpreter up
    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
child = os.fork()
if child == 0:
    code = 1
    try:
        found = session.run({"n": np.int64(7), "x": one})["y"].tolist()
        taken = _core.Context().devices()[0]["nsp_free"]
        session.reset()
        free = _core.Context().devices()[0]["nsp_free"]
        code = 0 if (found, taken, free) == ([7.0], 15, 16) else 2
    finally:
        os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if holder:
    holder.join()
after = session.run({"n": np.int64(3), "x": one})["y"].tolist()
print(status, after[0])
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_session_in_a_forked_process_loads_anew(tmp_path, state):
    path = session_models.save(tmp_path, session_models.endless())
    assert finishes(FORK, path, state) == ["0", "3.0"]


def test_forked_process_may_drop_what_its_parent_loaded(tmp_path):
    # Two cores: the engine has a worker thread, which does not exist in the child.
    code = """
import gc, os, sys
import numpy as np
import qaic

session = qaic.Session(sys.argv[1], aic_num_cores=4)
session.setup()
kept = session._loaded
child = os.fork()
if child == 0:
    del kept, session
    gc.collect()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    path = session_models.save(tmp_path, session_models.affine(width=256, rows=256))
    assert finishes(code, path) == ["0"]


def test_fork_that_goes_around_python_is_noticed(tmp_path):
    code = """
import ctypes, os, sys
import numpy as np
import qaic

inputs = {"n": np.int64(1), "x": np.zeros(1, np.float32)}
session = qaic.Session(sys.argv[1])
session.run(inputs)
child = ctypes.PyDLL(None).fork()
if child == 0:
    code = 1
    try:
        session.run(inputs)
    except qaic.errors.StateError as error:
        code = 0 if error.code == "call.forked" else 2
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), session.run(inputs)["y"].tolist())
"""
    path = session_models.save(tmp_path, session_models.endless())
    assert finishes(code, path) == ["0", "[1.0]"]


# --- files of other kinds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipe.onnx", "pipe.bin", "programqpc.bin"])
def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path, name):
    os.mkfifo(tmp_path / name)
    code = """
import sys, qaic
try:
    qaic.Session(sys.argv[1])
except qaic.errors.OptionError as error:
    print(error.code)
"""
    given = tmp_path if name == "programqpc.bin" else tmp_path / name
    assert finishes(code, given) == ["option.model_path"]


def test_endless_device_is_no_container():
    with pytest.raises(QpcFormatError, match="not a QPC"):
        qaic.Qpc("/dev/zero")
    assert [finding.code for finding in qaic.qpc.validate("/dev/zero")] == ["qpc.bad_magic"]


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_container_from_a_pipe_is_read_to_its_stated_size(tmp_path, extra):
    content = container(program(constants=bytes(3 << 20)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        with pipe.open("wb", buffering=0) as stream:
            stream.write(content + extra)

    writer = threading.Thread(target=feed)
    writer.start()
    try:
        if extra:
            with pytest.raises(QpcFormatError):
                qaic.Qpc(pipe)
        else:
            assert qaic.Qpc(pipe).segments["constants.bin"].size == 3 << 20
    finally:
        writer.join()


# --- containers that contradict themselves ----------------------------------------------------------------


def changed(path, folder, change):
    """Write the container of a model again with another network descriptor and plan."""
    original = qaic.Qpc(compile_model(path, CompileOptions(), {}))
    network, plan = copy.deepcopy(original.network_descriptor), copy.deepcopy(original.plan)
    change(network, plan)
    sections = [
        ("metadata_fb", bytes(original._core.elf_section("metadata_fb"))),
        ("openqaic_graph", original.graph.tobytes()),
        ("openqaic_plan", json.dumps(plan).encode()),
    ]
    payloads = {
        "network.elf": bytes(_core.encode_elf(sections)),
        "networkdesc.bin": bytes(_core.encode_network_desc(json.dumps(network))),
    }
    segments = [
        (name, payloads.get(name, segment.data.tobytes()), segment.offset)
        for name, segment in original.segments.items()
    ]
    forged = folder / "forged.bin"
    forged.write_bytes(container(segments, alignment=64))
    return forged


def test_plan_that_names_what_the_graph_lacks_is_refused_by_name(path, tmp_path, capfd):
    def rename(network, plan):
        network["inputs"][0]["name"] = plan["inputs"][0]["name"] = "elsewhere"

    with pytest.raises(DeviceError) as caught:
        qaic.Session(changed(path, tmp_path, rename)).run({"elsewhere": X})
    # Only the log of a card contains the failure of its cores.
    assert "elsewhere" in f"{caught.value} {capfd.readouterr().err}"
    assert caught.value.code == ("device.channel_lost" if emulated_cards.are_meant() else "engine.graph")


@pytest.mark.virtual_card("cards accept partial inputs")
def test_partial_input_of_a_cpu_program_is_refused_at_load(tmp_path):
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    built = session_models.model(nodes, [("x", "float32", [4])], [("y", "float32", [4])])

    def allow_less(network, plan):
        network["inputs"][0]["is_partial_allowed"] = True

    session = qaic.Session(changed(session_models.save(tmp_path, built), tmp_path, allow_less))
    with pytest.raises(DeviceError, match="input `x` accepts partial data"):
        session.setup()


def test_unknown_element_type_of_a_binding_is_a_format_error():
    binding = {
        "name": "x",
        "io_initial": {"type": 77, "dims": [2]},
        "io_transformed": {"type": 77, "dims": [2]},
    }
    opened = qaic.Qpc(container(program(network={"inputs": [binding]})))
    with pytest.raises(QpcFormatError) as caught:
        _ = opened.buffer_mappings
    assert caught.value.code == "qpc.unknown_element_type"
