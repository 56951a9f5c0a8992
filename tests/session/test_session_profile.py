"""``Session.profile``: the recorded data and the reports about it."""

import asyncio
import doctest
import itertools
import json
import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import qaic
from qaic import stats
from qaic.errors import OptionError, StateError
from qaic.profile import _waited_ns
from qaic.runtime.metrics import Measurements
from session_models import affine, model, save

X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(tmp_path_factory.mktemp("profile"), affine())


@pytest.fixture
def session(path):
    with qaic.Session(path, num_activations=2, set_size=2) as made:
        yield made


@pytest.fixture(scope="module")
def measured(path):
    """Session of a program that measures operators."""
    with qaic.Session(path, stats_level=70) as made:
        made.setup()
        yield made


def test_every_way_to_run_is_recorded(session):
    async def asynchronous():
        await session.run_async(X)

    with session.profile() as profile:
        session.run(X)
        session.submit(X).result()
        list(session.map([X] * 3))
        asyncio.run(asynchronous())
        completed, *_ = session.run_benchmark(num_inferences=5)
        thread = threading.Thread(target=session.run, args=(X,))
        thread.start()
        thread.join()
    assert completed == 5
    assert len(profile) == len(profile.samples) == 12
    assert sorted(profile.samples["inference"]) == list(range(12))


def test_times_ascend_and_add_up(session):
    with session.profile() as profile:
        for _ in range(20):
            session.run(X)
    times = profile.samples
    assert not times.flags.writeable
    stages = ["enqueued_ns", "begun_ns", "inputs_ready_ns", "executed_ns", "outputs_ready_ns", "completed_ns"]
    for first, second in itertools.pairwise(stages):
        assert (times[first] <= times[second]).all()
    expected = (times["completed_ns"] - times["enqueued_ns"]) / 1e9
    np.testing.assert_allclose(profile.latencies_s, expected)
    assert profile.latency["P50"] == pytest.approx(np.median(expected))
    assert profile.latency.keys() == _metrics(session).keys()
    assert sum(profile.stages.values()) == pytest.approx(expected.mean())


def _metrics(session):
    with qaic.Session(session._qpc.path, enable_metrics=True) as other:
        other.run(X)
        return other.get_metrics()


def test_what_is_outside_of_the_block_is_not_recorded(session):
    session.run(X)
    with session.profile() as profile:
        session.run(X)
    session.run(X)
    assert len(profile) == 1


def test_several_profiles_record_by_themselves(measured):
    with measured.profile(device=False) as outer:
        measured.run(X)
        with measured.profile(device=False, samples=1) as inner:
            measured.run(X)
            measured.run(X)
        measured.run(X)
    assert (len(outer), len(inner)) == (4, 1)
    assert inner.samples["inference"][0] == outer.samples["inference"][1]


def test_threads_that_profile_at_once_count_their_own_and_the_others(session):
    begun, profiles = threading.Barrier(4), []

    def work():
        with session.profile(device=False) as profile:
            begun.wait(timeout=60)
            for _ in range(50):
                session.run(X)
            begun.wait(timeout=60)
        profiles.append(profile)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # All blocks recorded all inferences: they begin before the first one and end after the last one.
    assert [len(profile) for profile in profiles] == [200] * 4
    for profile in profiles:
        assert len(set(profile.samples["inference"].tolist())) == 200


def test_latencies_of_a_profile_can_be_drawn(session, capsys, tmp_path):
    with pytest.raises(StateError):
        session.plot_latency()
    with session.profile(device=False) as profile:
        for _ in range(5):
            session.run(X)
    session.plot_latency()
    assert "5 runs" in capsys.readouterr().out
    session.plot_latency(tmp_path / "latency.html")
    assert (tmp_path / "latency.html").is_file()
    assert len(profile) == 5


def test_a_session_that_is_loaded_inside_of_the_block(path):
    session = qaic.Session(path)
    with session.profile() as profile:
        session.run(X)
        session.reset()
        session.run(X)
    assert profile.samples["program"].tolist() == [0, 1]
    session.reset()
    assert len(profile.samples) == 2


def test_a_block_that_fails_still_has_its_samples(session):
    seen = []

    def broken():
        with session.profile() as profile:
            seen.append(profile)
            session.run(X)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    (profile,) = seen
    assert len(profile) == 1
    # The error does not affect the next inference.
    with session.profile() as later:
        session.run(X)
    assert len(later) == 1


@settings(max_examples=25, deadline=None)
@given(
    first=st.integers(0, 6),
    samples=st.none() | st.integers(1, 6),
    sampling=st.sampled_from([1, 2, 4, 8, 16]),
    count=st.integers(0, 20),
)
def test_the_window_of_inferences(measured, first, samples, sampling, count):
    with measured.profile(first=first, samples=samples, sampling=sampling, device=False) as profile:
        for _ in range(count):
            measured.run(X)
    expected = range(count)[first::sampling][:samples]
    assert len(profile) == len(expected)
    if len(profile):
        found = profile.samples["inference"]
        assert (found - found[0]).tolist() == [number - expected[0] for number in expected]


@pytest.mark.run_profiles
def test_buffers_of_the_device(measured):
    with measured.profile(samples=3) as profile:
        for _ in range(5):
            measured.run(X)
    assert [buffer.run.inference for buffer in profile.device] == profile.samples["inference"].tolist()
    for buffer, sample in zip(profile.device, profile.samples, strict=True):
        buffer.check()
        assert len(buffer.ops)
        names = buffer.descriptor.ops(0).name[buffer.ops["oc"]]
        assert all(names)
        # The device uses the host's clock, so its interval is within that of the host.
        thread = buffer.threads[0]
        begin_ns, end_ns = (thread[name] * 1e9 / buffer.run.ucycle_hz for name in ("start_u", "end_u"))
        tick_ns = 1e9 / buffer.run.ucycle_hz
        assert sample["enqueued_ns"] - tick_ns <= begin_ns <= end_ns <= sample["completed_ns"] + tick_ns


def test_buffers_can_be_declined_and_required(session, measured, path):
    with measured.profile(device=False) as profile:
        measured.run(X)
    assert profile.device == ()
    # The default level also measures, but the session keeps buffers only at explicit levels.
    with session.profile() as profile:
        session.run(X)
    assert profile.device == ()
    with session.profile(device=True) as profile:
        session.run(X)
    assert [len(buffer.ops) for buffer in profile.device] == [0]
    with qaic.Session(path, stats_level=0) as silent:
        with pytest.raises(StateError, match="no device statistics") as caught, silent.profile(device=True):
            pass
        assert caught.value.code == "profile.no_device"
        with silent.profile() as profile:
            silent.run(X)
    assert profile.device == ()


def test_the_trace_has_host_and_device(measured, tmp_path):
    with measured.profile() as profile:
        for _ in range(3):
            measured.run(X)
    trace = json.loads(profile.trace())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = [event for event in trace["traceEvents"] if event["name"] == "process_name"]
    processes = {event["pid"]: event["args"]["name"] for event in named}
    host = [event for event in slices if processes[event["pid"]] == "HOST_PROC"]
    totals = {int(event["args"]["sample"]): event for event in host if event["name"] == "total"}
    assert sorted(totals) == sorted(profile.samples["inference"].tolist())
    of_device = [event for event in slices if processes[event["pid"]] != "HOST_PROC"]
    assert of_device
    # Both use one clock, so the device's work is within one of the inferences (to the digits of the text).
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in totals.values()]
    for event in of_device:
        assert any(
            start - 1 <= event["ts"] and event["ts"] + event["dur"] <= end + 1 for start, end in spans
        ), event
    profile.trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace
    profile.trace(tmp_path / "trace.pftrace")
    assert (tmp_path / "trace.pftrace").read_bytes() == profile.trace(format="perfetto")
    assert (tmp_path / "trace.pftrace").read_bytes() != profile.trace()


@pytest.mark.run_profiles
@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="inferences use one thread on one processor")
def test_measured_inferences_of_a_program_with_several_threads_run_alone(tmp_path):
    layers = 16
    products = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(layers)]
    shape = [64, 128]
    built = model(
        products,
        [("x0", "float32", shape)],
        [(f"x{layers}", "float32", shape)],
        {"w": np.eye(128, dtype=np.float32)},
    )
    inputs = {"x0": np.arange(64 * 128, dtype=np.float32).reshape(shape)}
    with (
        qaic.Session(save(tmp_path, built), stats_level=70, aic_num_cores=2, set_size=4) as session,
        session.profile(device=True) as profile,
    ):
        # With overlaps, the engine ends the process, or its profiles contain nodes of other inferences.
        for result in session.map([inputs] * 100):
            np.testing.assert_array_equal(result[f"x{layers}"], inputs["x0"])
    events = json.loads(profile.trace())["traceEvents"]
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["ph"] == "X" and event["name"] == "Device_0-Execution"
    )
    assert spans
    rounding_us = 0.002
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start + rounding_us


def test_a_trace_without_device(session):
    with session.profile(device=False) as profile:
        session.run(X)
    events = json.loads(profile.trace())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"HOST_PROC"}


def test_files_of_a_profile_are_those_of_the_runner(measured, tmp_path):
    with measured.profile() as profile:
        for _ in range(2):
            measured.run(X)
    written = profile.save(tmp_path / "profile")
    assert sorted(written) == sorted((tmp_path / "profile").iterdir())
    first = profile.samples["inference"][0]
    raw = f"aic-profiling-program-0-activation-0-inf-{first}-{profile.device[0].descriptor.network}"
    by_suffix = {
        suffix: [path for path in written if path.suffix == suffix] for suffix in (".txt", ".json", ".bin")
    }
    assert [path.name for path in by_suffix[".txt"]] == ["aic-profiling-program-0-latency.txt"]
    assert [path.name for path in by_suffix[".json"]] == ["aic-profiling-program-0-trace.json"]
    assert by_suffix[".bin"][0].name == f"{raw}-aiccyclecounts.bin"
    opened = stats.open(by_suffix[".bin"][0], qpc=qaic.Qpc(measured._qpc.path))
    assert opened.run == profile.device[0].run


@pytest.mark.run_profiles
def test_reports(measured):
    with measured.profile() as profile:
        for _ in range(3):
            measured.run(X)
    report = profile.report("ops")
    counts = report.tables[0].rows
    assert counts
    assert profile.report("host-latency").tables
    with pytest.raises(OptionError, match="unknown report 'op'; known: overview, ") as caught:
        profile.report("op")
    assert caught.value.code == "profile.report"


@pytest.mark.run_profiles
def test_the_longest_wait_of_a_thread_for_a_processor_makes_the_verdict_uncertain(measured, monkeypatch):
    """Threads that start or end inside the block have no other reading."""
    readings = iter([{"1": 5, "2": 0, "ended": 9}, {"1": 5, "2": 10**15, "started": 7}])
    monkeypatch.setattr("qaic.profile._waited_ns", lambda: next(readings))
    with measured.profile() as profile:
        measured.run(X)
    assert profile.capture().waits.waited_s == 1e6
    assert "waited for a processor in 1,000,000 s" in profile.report().verdict[0]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits")
def test_every_thread_has_a_wait_for_a_processor():
    assert str(threading.get_native_id()) in _waited_ns()


def test_a_kernel_that_does_not_count_waits_makes_no_claim(measured, monkeypatch):
    monkeypatch.setattr("qaic.profile._waited_ns", dict)
    with measured.profile() as profile:
        measured.run(X)
    assert profile.capture().waits is None


def test_the_summary_says_how_many_and_how_long(measured):
    with measured.profile() as profile:
        assert str(profile) == repr(profile) == "<qaic Profile: recording>"
        for _ in range(3):
            measured.run(X)
    text = str(profile)
    assert text.startswith("3 inferences on 1 activation in ")
    assert f"P50 {profile.latency['P50'] * 1e6:.1f}" in text
    assert "execution " in text
    assert "in 3 buffers" in text
    assert repr(profile) == "<qaic Profile: 3 inferences>"


@pytest.mark.parametrize("ask", ["samples", "latency", "device", "stages", "dropped", "latencies_s"])
def test_nothing_recorded_is_said(session, ask):
    with session.profile() as profile:
        with pytest.raises(StateError) as caught:
            getattr(profile, ask)
        assert caught.value.code == "profile.recording"
    with pytest.raises(StateError) as caught:
        getattr(profile, ask)
    assert caught.value.code == "profile.empty"
    assert caught.value.hints


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"first": -1}, "profile.first"),
        ({"first": 1.5}, "profile.first"),
        ({"samples": 0}, "profile.samples"),
        ({"samples": True}, "profile.samples"),
        ({"sampling": 3}, "profile.sampling"),
        ({"sampling": "full"}, "profile.sampling"),
    ],
)
def test_bad_numbers_are_refused(session, options, code):
    with pytest.raises(OptionError) as caught, session.profile(**options):
        pass
    assert caught.value.code == code
    assert repr(next(iter(options.values()))) in str(caught.value)


def test_a_trace_that_cannot_be_written_leaves_the_file_as_it_was(session, tmp_path):
    with session.profile() as profile:
        session.run(X)
    with pytest.raises(OptionError, match="format is 'xml'; one of json, perfetto"):
        profile.trace(tmp_path / "trace.json", format="xml")
    with pytest.raises(OSError, match="nowhere"):
        profile.trace(tmp_path / "nowhere" / "trace.json")
    assert not list(tmp_path.iterdir())


def test_metrics_stay_as_they_are(path):
    with qaic.Session(path) as session:
        with session.profile():
            session.run(X)
        with pytest.raises(StateError) as caught:
            session.get_metrics()
        assert caught.value.code == "metrics.off"


def test_a_forked_child_has_no_profile_of_its_parent(session):
    session.run(X)
    with session.profile() as profile:
        child = os.fork()
        if child == 0:
            try:
                session.run(X)
            finally:
                os._exit(0 if not session._profiles else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session.run(X)
    assert len(profile) == 1


@pytest.mark.run_profiles
def test_states_and_loops_are_measured_too(tmp_path):
    body = model(
        [
            onnx.helper.make_node("Add", ["value", "value"], ["next"], name="double"),
            onnx.helper.make_node("Identity", ["going"], ["still"], name="go_on"),
        ],
        [("step", "int64", []), ("going", "bool", []), ("value", "float32", [4])],
        [("still", "bool", []), ("next", "float32", [4])],
    ).graph
    looped = model(
        [onnx.helper.make_node("Loop", ["times", "", "x"], ["y"], name="loop", body=body)],
        [("x", "float32", [4])],
        [("y", "float32", [4])],
        {"times": np.array(5, np.int64)},
    )
    with qaic.Session(save(tmp_path, looped), stats_level=70) as session:
        with session.profile() as profile:
            outputs = session.run({"x": np.ones(4, np.float32)})
        np.testing.assert_array_equal(outputs["y"], np.full(4, 32, np.float32))
        (buffer,) = profile.device
        kinds = buffer.descriptor.ops(0).kind[buffer.ops["oc"]]
        assert (kinds == "Add").sum() == 5
        assert json.loads(profile.trace())["traceEvents"]


def test_the_example_of_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = model(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        [("x", "float32", [1, 16])],
        [("y", "float32", [1, 16])],
    )
    save(tmp_path, example)
    (test,) = [
        found
        for found in doctest.DocTestFinder(recurse=False).find(Measurements.profile, "profile", globs={})
        if found.examples
    ]
    assert doctest.DocTestRunner().run(test).failed == 0
    assert (tmp_path / "trace.json").is_file()
