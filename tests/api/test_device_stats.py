"""Measurements of the CPU device: times of the host and operations of the engine, without unknown values.

The decoder validates every buffer against its program.
"""

import importlib.util
import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import decoder_model
import emulated_cards
import engine_version
import qaic
import qaic.stats
from child_process import WATCHDOG_S, run_script
from qaic import _core
from qaic.errors import DeviceTimeoutError
from session_models import affine, endless, model, save

# Flags of operations in a stats buffer.
NESTED, EXECUTED = 8, 1
OUT_BYTES = 64
ACTIVATION = 1


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    """The folder in which the engine writes files; no file may remain."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert left_in(folder) == []


def left_in(folder):
    # The engine itself also leaves a file.
    return [entry.name for entry in folder.iterdir() if entry.name.startswith("openqaic")]


@pytest.fixture
def opened(tmp_path):
    """Create a session of a program that is compiled for a stats level."""
    sessions = []

    def opened(net, level=70, runtime=None, **options):
        path = net if isinstance(net, Path) else save(tmp_path, net)
        if level is not None:
            options["stats_level"] = level
        program = qaic.compile(path, output_dir=tmp_path / f"qpc{len(sessions)}", **options)
        session = qaic.Session(program.path, **(runtime or {}))
        sessions.append(session)
        session.program_file = program.path
        return session

    yield opened
    for session in sessions:
        session.reset()


class Measured:
    """Measures the inferences that run inside the block."""

    def __init__(self, session, **options):
        self.qpc = session.program_file
        self.profiler = _core.Profiler([session._ensure_loaded()], device_stats=True, **options)

    def __enter__(self):
        self.profiler.start()
        return self

    def __exit__(self, *_):
        self.profiler.stop()

    def buffers(self):
        """Open and check the measurements."""
        samples = self.profiler.drain()
        found = [qaic.stats.open(samples.stats(index), qpc=self.qpc) for index in range(len(samples))]
        for buffer, times in zip(found, samples.times(), strict=True):
            check(buffer, times)
        return found


def measured(session, *feeds):
    """Run an inference for each of the inputs; return their buffers."""
    with Measured(session) as probe:
        for feed in feeds:
            session.run(feed)
    buffers = probe.buffers()
    assert len(buffers) == len(feeds)
    return buffers


def check(buffer, times):
    """Check a buffer against the rules of the decoder, and the order of its times."""
    buffer.check()
    assert buffer.warnings == ()
    run = buffer.run
    assert (run.ucycle_hz, run.device_name, run.cores, run.threads_per_core) == (19_200_000, "CPU", 1, 1)
    assert run.pcycles_absent
    assert not run.pcycles_estimated
    (core,), (thread,) = buffer.cores, buffer.threads
    assert (core["start_u"], core["end_u"]) == (thread["start_u"], thread["end_u"])
    assert core["flags"] == 0
    assert core["pcycles"] == 0
    assert thread["flags"] == ACTIVATION
    assert thread["act_start_u"] <= thread["act_end_u"] <= thread["start_u"] <= thread["end_u"]
    # The clock is that of the host's stages, in nanoseconds.
    ticks = {name: int(times[name]) * 192 // 10_000 for name in times.dtype.names if name.endswith("_ns")}
    assert ticks["inputs_ready_ns"] <= thread["start_u"]
    assert thread["end_u"] <= ticks["executed_ns"] + 1
    level = run.stats_level
    ports = buffer.ports
    if level < 50:
        # docs/guide/profiling.md names the sections that no device fills.
        assert not any(buffer.has(name) for name in ("PORT", "RING", "PMU", "OP_PMU"))
    else:
        assert list(zip(ports["port"], ports["direction"], strict=True)) == [(100, 0), (101, 1)]
        assert ports["wait_u"][0] == ticks["inputs_ready_ns"] - ticks["begun_ns"]
        assert ports["wait_u"][1] == ticks["outputs_ready_ns"] - ticks["executed_ns"]
    assert run.instrumented == run.coarse_clock == buffer.has("OP")
    for name in ("RING", "PMU", "PMU_EVENTS", "OP_PMU"):
        assert not buffer.has(name)
    check_ops(buffer.ops, thread)


def check_ops(ops, thread):
    ends = ops["start_u"] + ops["dur_u"]
    assert np.all(np.diff(ops["start_u"].astype(np.int64)) >= 0)
    assert np.all(ops["start_u"] >= thread["start_u"])
    assert np.all(ends <= thread["end_u"])
    assert np.all(ops["kflags"] & ~np.uint8(NESTED) == EXECUTED)
    # The operations have neither waits nor processor cycles.
    assert np.all(ops["flags"] & ~np.uint16(OUT_BYTES) == 0)
    assert not ops["sync_u"].any()
    assert not ops["barrier_u"].any()
    assert not ops["pcycles"].any()
    top = ops[ops["kflags"] & NESTED == 0]
    assert np.all(top["start_u"][1:] >= (top["start_u"] + top["dur_u"])[:-1])
    for op in ops[ops["kflags"] & NESTED != 0]:
        around = (top["start_u"] <= op["start_u"]) & (
            op["start_u"] + op["dur_u"] <= top["start_u"] + top["dur_u"]
        )
        assert around.any()


def graph_of(session, tmp_path):
    """Nodes that the engine runs for the program, as the engine saves them."""
    folder = tmp_path / "engine"
    folder.mkdir(exist_ok=True)
    path = _core.save_optimized_graph(session.program_file, folder)
    return onnx.load(path, load_external_data=False).graph


def kinds_of(buffer, *, nested=False):
    """Return the number of executions of each kind of operation."""
    ops = buffer.ops
    chosen = ops[(ops["kflags"] & NESTED != 0) == nested]
    return Counter(buffer.descriptor.ops(0).kind[int(oc)] for oc in chosen["oc"])


X = {"x": np.ones((2, 4), np.float32)}


# --- levels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level", [None, 40, 50, 60, *(pytest.param(level, marks=pytest.mark.run_profiles) for level in (70, 100))]
)
def test_each_level_records_what_the_specification_says(opened, level):
    session = opened(affine(), level)
    for number, buffer in enumerate(measured(session, X, X, X)):
        run = buffer.run
        assert (run.stats_level, run.complete, run.ops_truncated) == (level or 40, True, False)
        assert (run.inference, run.specialization) == (number, 0)
        assert buffer.has("OP") == ((level or 40) >= 70)
        assert "notes" not in buffer.meta
        assert buffer.meta["engine"].startswith("onnxruntime ")


def test_level_zero_has_nothing_to_measure(opened):
    session = opened(affine(), 0)
    with Measured(session) as probe:
        session.run(X)
    samples = probe.profiler.drain()
    assert len(samples) == 1
    assert samples.stats(0) is None


def test_results_are_the_same_when_measured(opened):
    session = opened(affine(), 70)
    plain = session.run(X)["y"]
    with Measured(session):
        np.testing.assert_array_equal(session.run(X)["y"], plain)
    np.testing.assert_array_equal(session.run(X)["y"], plain)


def test_what_a_host_cannot_count_is_said(opened):
    session = opened(affine(), 70, ddr_stats=True, aic_pmu_events=["3F", "200"])
    (buffer,) = measured(session, X)
    assert any("traffic" in note for note in buffer.meta["notes"])
    assert any("hardware events" in note for note in buffer.meta["notes"])
    assert buffer.run.complete == engine_version.profiles_runs()


# --- operations -----------------------------------------------------------------------------------


@pytest.mark.run_profiles
def test_operations_are_the_nodes_of_the_engine(opened, tmp_path):
    session = opened(affine(width=64), 70)
    (buffer,) = measured(session, {"x": np.ones((2, 64), np.float32)})
    assert kinds_of(buffer) == Counter(node.op_type for node in graph_of(session, tmp_path).node)
    columns = buffer.descriptor.ops(0)
    for op in buffer.ops:
        assert op["flags"] & OUT_BYTES
        assert op["out_bytes"] == columns.output_bytes[int(op["oc"])]


@pytest.mark.run_profiles
def test_a_real_model(opened, tmp_path):
    spec = importlib.util.find_spec("magika")
    if spec is None:
        pytest.skip("the package magika, which has the model, is not installed")
    path = next(Path(spec.origin).parent.glob("models/*/model.onnx"))
    (batch,) = {
        dim.dim_param
        for entry in onnx.load(path).graph.input
        for dim in entry.type.tensor_type.shape.dim
        if dim.dim_param
    }
    session = opened(path, 70, onnx_define_symbol={batch: 1})
    ((name, (shape, _dtype)),) = session.model_input_shape_dict.items()
    feed = {name: np.zeros(shape, np.int32)}
    for buffer in measured(session, feed, feed):
        assert kinds_of(buffer) == Counter(node.op_type for node in graph_of(session, tmp_path).node)
        assert buffer.run.complete
        cost = buffer.meta["calibration"]
        assert cost["plain_count"] >= 1
        assert cost["plain_us"] > 0
        assert cost["profiled_us"] > 0


@pytest.mark.run_profiles
@pytest.mark.parametrize("turns", [0, 1, 7])
def test_bodies_of_loops_are_nested_and_numbered(opened, turns):
    session = opened(endless(), 70)
    (buffer,) = measured(session, {"n": np.int64(turns), "x": np.zeros(1, np.float32)})
    assert kinds_of(buffer)["Loop"] == 1
    inner = kinds_of(buffer, nested=True)
    assert inner["Add"] == turns
    ops = buffer.ops
    kinds = buffer.descriptor.ops(0).kind
    turns_of_add = [int(op["iter"]) for op in ops if kinds[int(op["oc"])] == "Add"]
    assert turns_of_add == list(range(turns))


@pytest.mark.run_profiles
def test_more_operations_than_room_are_cut_and_said(opened):
    session = opened(endless(), 70)
    feed = {"n": np.int64(1), "x": np.zeros(1, np.float32)}
    (short,) = measured(session, feed)
    assert short.run.complete
    with Measured(session) as probe:
        # Without a limit, cards wait for an inference for 30 seconds.
        session.run({**feed, "n": np.int64(100_000)}, timeout=WATCHDOG_S)
    samples = probe.profiler.drain()
    buffer = qaic.stats.open(samples.stats(0), qpc=session.program_file)
    buffer.check()
    assert buffer.run.ops_truncated
    assert not buffer.run.complete
    assert 0 < len(buffer.ops) < 300_000
    # The next inference is normal, and contains nothing of the long one.
    (after,) = measured(session, feed)
    assert len(after.ops) == len(short.ops)


# --- shapes and state -----------------------------------------------------------------------------


@pytest.mark.run_profiles
def test_specializations_and_state_of_a_decoder(opened, tmp_path):
    sizes = decoder_model.Sizes()
    config = decoder_model.specializations(prefill=8)
    session = opened(
        decoder_model.decoder(sizes), 70, network_specialization_config=config, retained_state=True
    )
    plain = opened(
        decoder_model.decoder(sizes), 40, network_specialization_config=config, retained_state=True
    )
    with Measured(session) as probe:
        position = 0
        for rows in (8, 1, 1, 8):
            feed = {
                "input_ids": np.arange(rows)[None] % sizes.vocabulary,
                "position_ids": np.arange(position, position + rows)[None],
            }
            np.testing.assert_array_equal(session.run(feed)["logits"], plain.run(feed)["logits"])
            position += rows
    buffers = probe.buffers()
    assert [buffer.run.specialization for buffer in buffers] == [0, 1, 1, 0]
    # The inference has state, so it is not repeated to measure the cost of measuring.
    assert [buffer.meta["calibration"]["plain_count"] for buffer in buffers] == [0] * 4
    bytes_of = [int(buffer.ops["out_bytes"].sum()) for buffer in buffers]
    assert bytes_of[0] == bytes_of[3] > bytes_of[1] == bytes_of[2]


def test_random_operators_are_not_run_twice(opened):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], seed=3.0),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    net = model(nodes, [("x", "float32", [2, 4])], [("y", "float32", [2, 4])])
    plain, probed = opened(net, 40), opened(net, 70)
    with Measured(probed):
        found = [probed.run(X)["y"] for _ in range(3)]
    np.testing.assert_array_equal(found, [plain.run(X)["y"] for _ in range(3)])


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.run_profiles
def test_inferences_at_the_same_time_do_not_mix(opened):
    session = opened(endless(), 70, runtime={"set_size": 4, "num_activations": 2})
    turns = [1, 2, 3, 5, 8, 13, 21, 34] * 4
    with Measured(session) as probe:
        futures = [session.submit({"n": np.int64(n), "x": np.full(1, n, np.float32)}) for n in turns]
        for n, future in zip(turns, futures, strict=True):
            assert future.result()["y"][0] == 2 * n
    buffers = probe.buffers()
    assert sorted(buffer.run.inference for buffer in buffers) == list(range(len(turns)))
    assert {buffer.run.activation for buffer in buffers} == {0, 1}
    assert sorted(kinds_of(buffer, nested=True)["Add"] for buffer in buffers) == sorted(turns)


@pytest.mark.run_profiles
def test_two_sessions_in_two_threads(opened):
    sessions = [opened(affine(width=width), 70) for width in (4, 64)]
    found = {}

    def work(number):
        width = (4, 64)[number]
        found[number] = measured(sessions[number], *[{"x": np.ones((2, width), np.float32)}] * 20)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, width in ((0, 4), (1, 64)):
        sizes = {int(buffer.ops["out_bytes"].max()) for buffer in found[number]}
        assert sizes == {2 * width * 4}


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.run_profiles
def test_a_time_limit_during_a_measured_inference_leaves_no_file(opened, profiles):
    session = opened(endless(), 70)
    one = {"n": np.int64(1), "x": np.zeros(1, np.float32)}
    with Measured(session) as probe:
        with pytest.raises(DeviceTimeoutError):
            session.run({**one, "n": np.int64(2**62)}, timeout=0.3)
        emulated_cards.end_stuck_inference(session)
        assert left_in(profiles) == []
        if emulated_cards.are_meant():
            return  # The probe belonged to the deleted session.
        session.run(one)
    (buffer,) = probe.buffers()
    assert buffer.run.complete
    assert kinds_of(buffer, nested=True)["Add"] == 1


CTRL_C = """
import os, sys
from pathlib import Path
import numpy as np, emulated_cards, qaic, qaic.stats
from qaic import _core
from child_process import interrupted
folder = Path(sys.argv[2])
os.environ["TMPDIR"] = str(folder)
session = qaic.Session(sys.argv[1])
probe = _core.Profiler([session._ensure_loaded()], device_stats=True)
probe.start()
outcome = interrupted(lambda: session.run({"n": np.int64(2**62), "x": np.zeros(1, np.float32)}))
assert outcome == "interrupted", outcome
emulated_cards.end_stuck_inference(session)
assert not list(folder.glob("openqaic*"))
if emulated_cards.are_meant():
    sys.exit()  # The probe was of what is gone.
session.run({"n": np.int64(3), "x": np.zeros(1, np.float32)})
probe.stop()
samples = probe.drain()
assert qaic.stats.open(samples.stats(len(samples) - 1), qpc=sys.argv[1]).run.complete
"""


@pytest.mark.run_profiles
def test_ctrl_c_during_a_measured_inference_leaves_no_file(opened, profiles):
    session = opened(endless(), 70)
    run_script(CTRL_C, session.program_file, profiles)


FORK = """
import os, sys
from pathlib import Path
import numpy as np, qaic, qaic.stats
from qaic import _core
folder = Path(sys.argv[2])
os.environ["TMPDIR"] = str(folder)
X = {"x": np.ones((2, 4), np.float32)}
def measure():
    session = qaic.Session(sys.argv[1])
    probe = _core.Profiler([session._ensure_loaded()], device_stats=True)
    probe.start()
    session.run(X)
    probe.stop()
    buffer = qaic.stats.open(probe.drain().stats(0), qpc=sys.argv[1])
    buffer.check()
    assert buffer.run.complete and len(buffer.ops)
    return session
session = measure()
child = os.fork()
if child == 0:
    try:
        measure()
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
measure()
assert not list(folder.glob("openqaic*"))
"""


@pytest.mark.run_profiles
def test_a_forked_child_measures_programs_of_its_own(opened, profiles):
    run_script(FORK, opened(affine(), 70).program_file, profiles)


@pytest.mark.run_profiles
def test_without_room_for_temporary_files_there_are_no_operations(opened, monkeypatch, tmp_path):
    session = opened(affine(), 70)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with Measured(session) as probe:
        plain = session.run(X)["y"]
    samples = probe.profiler.drain()
    buffer = qaic.stats.open(samples.stats(0), qpc=session.program_file)
    buffer.check()
    assert plain.shape == (2, 4)
    assert not buffer.has("OP")
    assert not buffer.run.complete
    assert not buffer.run.instrumented
    assert buffer.threads["end_u"][0] > buffer.threads["start_u"][0]
    (note,) = buffer.meta["notes"]
    assert "operations were not measured" in note
    assert "No such file" in note


@pytest.mark.skipif("not engine_version.profiles_runs()", reason="this engine measures no operations")
def test_times_are_of_no_operation_where_the_graph_could_not_be_written_at_load(
    opened, monkeypatch, tmp_path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    session = opened(affine(), 70)
    session.setup()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (buffer,) = measured(session, X)
    assert set(buffer.descriptor.ops(0).engine_name[buffer.ops["oc"]]) == {"*"}
    assert any("the executed operations are unknown" in note for note in buffer.meta["notes"])
    assert list(tmp_path.glob("openqaic-*")) == []


@pytest.mark.skipif("engine_version.profiles_runs()", reason="this engine measures operations")
def test_an_engine_without_profiles_of_runs_measures_all_but_operations(opened):
    session = opened(affine(), 70)
    (buffer,) = measured(session, X)
    assert not buffer.has("OP")
    assert not buffer.run.complete
    assert buffer.threads["end_u"][0] > buffer.threads["start_u"][0]
    (note,) = buffer.meta["notes"]
    assert "operations were not measured" in note
    assert f"onnxruntime 1.{engine_version.minor()}." in note
    assert "expected 1.25 or newer" in note


FULL = """
import json, os, resource, signal, sys
from pathlib import Path
import numpy as np, qaic, qaic.stats
from qaic import _core
os.environ["TMPDIR"] = sys.argv[2]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
session = qaic.Session(sys.argv[1])
feed = {"n": np.int64(20), "x": np.zeros(1, np.float32)}
expected = session.run(feed)["y"]
probe = _core.Profiler([session._ensure_loaded()], device_stats=True)
probe.start()
for limit in (0, 1, 5_000, 20_000):
    # No file may be larger: what a full disk does to the engine.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert session.run(feed)["y"] == expected
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
session.run(feed)
probe.stop()
samples = probe.drain()
for index in range(5):
    buffer = qaic.stats.open(samples.stats(index), qpc=sys.argv[1])
    buffer.check()
    run = buffer.run
    print(json.dumps([len(buffer.ops), run.complete, run.ops_truncated, buffer.meta.get("notes", [])]))
"""


@pytest.mark.run_profiles
def test_a_full_disk_cuts_operations_off_and_crashes_nothing(opened, profiles):
    lines = run_script(FULL, opened(endless(), 70).program_file, profiles).stdout.splitlines()
    *cut, whole = [json.loads(line) for line in lines]
    counts = [count for count, *_ in cut]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert 0 < counts[-1] < whole[0]
    for _count, complete, truncated, notes in cut:
        assert not complete
        assert truncated
        assert "truncated" in notes[0]
    assert whole[1:] == [True, False, []]


@pytest.mark.run_profiles
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(names=st.lists(st.text(min_size=0, max_size=12), min_size=3, max_size=3))
def test_names_of_nodes_may_be_anything(opened, names):
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], name=names[0]),
        helper.make_node("Cos", ["a"], ["b"], name=names[1]),
        helper.make_node("Tan", ["b"], ["y"], name=names[2]),
    ]
    session = opened(model(nodes, [("x", "float32", [2, 4])], [("y", "float32", [2, 4])]), 70)
    with session:
        (buffer,) = measured(session, X)
    assert kinds_of(buffer) == Counter(["Sin", "Cos", "Tan"])
    assert buffer.run.complete


# --- the device that computes nothing -------------------------------------------------------------


def test_the_noop_device_says_that_it_is_a_test(monkeypatch, opened):
    path = opened(affine(), 50).program_file
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    session = qaic.Session(path)
    session.program_file = path
    with Measured(session) as probe:
        session.run(X)
    samples = probe.profiler.drain()
    buffer = qaic.stats.open(samples.stats(0))
    buffer.check()
    assert buffer.run.device_name == "test"
    assert len(buffer.threads) == 1
    assert len(buffer.ports) == 2
    assert not buffer.has("META")
