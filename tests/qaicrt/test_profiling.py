"""``ProfilingHandle``: samples, reports, files and callbacks."""

import gc
import json
import re
import threading
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inference_sets
import qaicrt
import session_models
from inference_sets import S
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from qaic.rt.profiling import reports as profiling_reports

TYPE = qaicrt.QAicProfilingTypeEnum
LATENCY = TYPE.QAIC_PROFILING_INFERENCE_LATENCY_TYPE
TRACE = TYPE.QAIC_PROFILING_INFERENCE_TRACE_TYPE
RAW = TYPE.QAIC_PROFILING_INFERENCE_RAW_DEVICE_STATS_TYPE
KPI = TYPE.QAIC_PROFILING_INFERENCE_DEV_KPI_TYPE

COLUMNS = [
    *("Sample", "devInfPerSec", "devExecUs", "devInWaitTimeUs", "devOutWaitTimeUs", "hostRoundTripUs"),
    *("enqTimeUs", "preProcTimeUs", "submitTimeUs", "execTotalUs", "exectoVcUs", "execToCompleteUs"),
    *("postProcUs", "totalRoundtripTimeUs", "queueDepth", "numInfInQueue"),
]


def compiled(folder, **options):
    path = session_models.save(folder, session_models.affine())
    resolved = resolve(options, options_path=None, model_is_container=False)
    return str(compile_model(path, resolved.compile, resolved.set_compile, output_dir=folder / "qpc").parent)


class Client:
    """A program, an exec object with its own arrays, and inferences of both."""

    def __init__(self, path, context=None):
        self.context = context or qaicrt.Context()
        self.program = qaicrt.Program(self.context, 0, qaicrt.Qpc(path))
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)
        self.x, self.y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
        mappings = self.program.getBufferMappings()
        data = [qaicrt.QBuffer(self.x), qaicrt.QBuffer(self.y)]
        data += [qaicrt.QBuffer(b"") for _ in mappings[2:]]
        assert self.exec_obj.setData(data) == S.QS_SUCCESS

    def run(self, count=1):
        for _ in range(count):
            assert self.exec_obj.run() == S.QS_SUCCESS


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A container with the default statistics."""
    return compiled(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Container with a requested stats level."""
    return compiled(tmp_path_factory.mktemp("measured"), stats_level=70)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """Container without statistics."""
    return compiled(tmp_path_factory.mktemp("silent"), stats_level=0)


def rows(text):
    """Rows of a latency report by column, after a check of its header."""
    lines = text.splitlines()
    assert lines[3] == ""
    assert lines[4].split(", ") == COLUMNS
    return [dict(zip(COLUMNS, line.split(", "), strict=True)) for line in lines[5:]]


def test_files_of_the_vendor_form(plain, tmp_path):
    client = Client(plain)
    out = tmp_path / "profiling_output"
    handle = qaicrt.ProfilingHandle(
        programs=[client.program], type=LATENCY, fileNamePrefix="mine", outputDirectory=str(out)
    )
    client.run()
    assert handle.start() == S.QS_SUCCESS
    client.run(3)
    assert handle.stop() == S.QS_SUCCESS
    client.run()
    assert [path.name for path in out.iterdir()] == ["mine-program-0-latency.txt"]
    text = (out / "mine-program-0-latency.txt").read_text()
    assert text.splitlines()[1:3] == [
        "Program 0: net",
        "Activations 1, Set size N/A, Cores 1, Batch size 2",
    ]
    found = rows(text)
    assert [row["Sample"] for row in found] == ["1", "2", "3"]
    for row in found:
        parts = [float(row[name]) for name in ("enqTimeUs", "preProcTimeUs", "execTotalUs", "postProcUs")]
        assert 0 < sum(parts) <= float(row["totalRoundtripTimeUs"]) + 1e-6
        assert {row[name] for name in ("exectoVcUs", "hostRoundTripUs", "submitTimeUs", "devExecUs")} == {
            "N/A"
        }


def test_a_second_start_is_like_the_first(plain, tmp_path):
    client = Client(plain)
    handle = qaicrt.ProfilingHandle([client.program], LATENCY, "", tmp_path)
    for runs in (2, 1):
        assert handle.start() == S.QS_SUCCESS
        client.run(runs)
        assert handle.stop() == S.QS_SUCCESS
        assert len(rows((tmp_path / "aic-profiling-program-0-latency.txt").read_text())) == runs


def test_without_an_inference_there_is_no_file_and_no_call(plain, tmp_path):
    client = Client(plain)
    reports = []
    files = qaicrt.ProfilingHandle(programs=[client.program], outputDirectory=tmp_path)
    calls = qaicrt.ProfilingHandle(client.program, 3, lambda *report: reports.append(report))
    for handle in (files, calls):
        assert handle.start() == S.QS_SUCCESS
        assert handle.stop() == S.QS_SUCCESS
    assert (list(tmp_path.iterdir()), reports) == ([], [])


def test_the_callback_comes_when_all_samples_are_there(plain):
    client = Client(plain)
    reports, arrived = [], threading.Event()

    def callback(report, kind):
        reports.append((report, kind, threading.current_thread().name))
        arrived.set()

    handle = qaicrt.ProfilingHandle(client.program, 3, callback)
    for runs in (1, 2):
        arrived.clear()
        assert handle.start() == S.QS_SUCCESS
        client.run(5)
        assert arrived.wait(60)
        assert len(reports) == runs
        report, kind, thread = reports[-1]
        assert (len(rows(report)), kind, thread) == (3, LATENCY, "qaicrt callbacks")
    assert handle.stop() == S.QS_SUCCESS
    assert len(reports) == 2


def test_stop_delivers_what_there_is(plain):
    client = Client(plain)
    reports = []
    handle = qaicrt.ProfilingHandle(client.program, 100, lambda *report: reports.append(report), TRACE)
    assert handle.start() == S.QS_SUCCESS
    client.run(2)
    assert handle.stop() == S.QS_SUCCESS
    ((report, kind),) = reports
    assert kind is TRACE
    trace = json.loads(report)
    events = trace["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["HOST_PROC"]
    (thread,) = [event for event in events if event["name"] == "thread_name"]
    slices = [event for event in events if event["ph"] == "X"]
    names = ["total", "enqueue", "preProcess", "device", "postProcess"]
    assert [event["name"] for event in slices] == 2 * names
    assert {(event["pid"], event["tid"]) for event in slices} == {(thread["pid"], thread["tid"])}
    assert {event["args"]["sample"] for event in slices} == {"0", "1"}
    for line in report.splitlines()[1:-1]:
        assert json.loads(line.rstrip(","))["pid"]


@pytest.mark.parametrize("kind", [TRACE, KPI, RAW])
def test_files_of_the_other_types(measured, tmp_path, kind):
    client = Client(measured)
    handle = qaicrt.ProfilingHandle(programs=[client.program], type=kind, outputDirectory=tmp_path)
    assert handle.start() == S.QS_SUCCESS
    client.run(2)
    assert handle.stop() == S.QS_SUCCESS
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    expected = {
        TRACE: ["aic-profiling-program-0-trace.json"],
        KPI: ["aic-profiling-program-0-stats.txt"],
        RAW: [
            f"aic-profiling-program-0-activation-0-inf-{number}-net-aiccyclecounts.bin" for number in (0, 1)
        ],
    }
    assert sorted(found) == expected[kind]
    if kind is RAW:
        for number, name in enumerate(sorted(found)):
            buffer = _core.StatsBuffer(found[name])
            assert buffer.run["inference"] == number
            assert buffer.section("THREAD") is not None


def test_device_columns_where_statistics_were_asked_for(measured, tmp_path):
    client = Client(measured)
    handle = qaicrt.ProfilingHandle(programs=[client.program], outputDirectory=tmp_path)
    assert handle.start() == S.QS_SUCCESS
    client.run()
    assert handle.stop() == S.QS_SUCCESS
    (row,) = rows((tmp_path / "aic-profiling-program-0-latency.txt").read_text())
    assert 0 < float(row["devExecUs"]) < float(row["totalRoundtripTimeUs"])
    # The rate counts samples of the stats batch size, which is 1 by default.
    assert float(row["devInfPerSec"]) == pytest.approx(1e6 / float(row["devExecUs"]), rel=1e-3)


def test_a_device_report_has_the_form_of_the_runner(measured):
    client = Client(measured)
    reports = []
    handle = qaicrt.ProfilingHandle(client.program, 10, lambda *report: reports.append(report), KPI)
    assert handle.start() == S.QS_SUCCESS
    client.run(4)
    assert handle.stop() == S.QS_SUCCESS
    lines = reports[0][0].splitlines()
    assert lines[0] == "--- Cumulative Device Metrics Report ---"
    assert lines[1:3] == [
        "Metric,                 Value,         Unit           ",
        "ProfilingSamples_Func_0,4,             Samples        ",
    ]
    assert lines[3] == "--- Aggregated Device Metrics Report ---"
    assert re.fullmatch(r"Metric, +Avg, {11}Min, {11}Max, {11}Std {12}", lines[4])
    table = {line.split(",")[0]: [float(cell) for cell in line.split(",")[1:]] for line in lines[5:]}
    mean, least, most, deviation = table["ExecTimeUs_Func_0"]
    assert 0 < least <= mean <= most
    assert 0 <= deviation <= most - least
    # Metrics that were not measured have no row.
    assert "DDRTrafficMB_Func_0" not in table


def test_the_published_table_is_reproduced():
    # The metrics of docs/reference/statistics.md, with the suffix of one device.
    name = "ExecTimeUs_Dev_2_Func_0"
    lines = profiling_reports._table(
        ["Metric", "Avg", "Min", "Max", "Std"],
        [
            [name, "118076.773", "117851.250", "118479.479", "153.279"],
            ["InputWaitTimeUs_Dev_2_Func_0", *"1234"],
        ],
    )
    assert lines[1] == f"{name},     118076.773,    117851.250,    118479.479,    153.279        "


def test_reports_of_devices_need_statistics(silent, tmp_path, capfd):
    client = Client(silent)
    for kind in (RAW, KPI):
        handle = qaicrt.ProfilingHandle(programs=[client.program], type=kind, outputDirectory=tmp_path)
        assert handle.start() == S.QS_UNSUPPORTED
        assert "without statistics" in capfd.readouterr().err
        assert handle.stop() == S.QS_INVAL


def test_several_programs_have_a_file_each(plain, tmp_path):
    context = qaicrt.Context()
    clients = [Client(plain, context) for _ in range(3)]
    handle = qaicrt.ProfilingHandle([client.program for client in clients], outputDirectory=tmp_path)
    assert handle.start() == S.QS_SUCCESS
    clients[0].run(1)
    clients[2].run(2)
    assert handle.stop() == S.QS_SUCCESS
    found = {path.name: len(rows(path.read_text())) for path in tmp_path.iterdir()}
    assert found == {"aic-profiling-program-0-latency.txt": 1, "aic-profiling-program-2-latency.txt": 2}


def test_an_inference_set_reports_its_activations(plain, tmp_path):
    client = inference_sets.Client(plain)
    handles = client.inference_set(set_size=1, activations=2)
    profile = qaicrt.ProfilingHandle([handles], outputDirectory=tmp_path)
    assert profile.start() == S.QS_SUCCESS
    for number in range(6):
        assert handles.submit(client.vector(), number) == S.QS_SUCCESS
        status, handle = handles.getCompletedId(number)
        assert status == S.QS_SUCCESS
        handles.putCompleted(handle)
    assert profile.stop() == S.QS_SUCCESS
    text = (tmp_path / "aic-profiling-program-0-latency.txt").read_text()
    assert "Activations 2, Set size 1, Cores 1, Batch size 2" in text
    assert [row["Sample"] for row in rows(text)] == [str(number) for number in range(6)]


def test_states_are_checked(plain, tmp_path, capfd):
    client = Client(plain)
    handle = qaicrt.ProfilingHandle(programs=[client.program], outputDirectory=tmp_path)
    assert handle.stop() == S.QS_INVAL
    assert handle.start() == S.QS_SUCCESS
    assert handle.start() == S.QS_INVAL
    assert handle.stop() == S.QS_SUCCESS
    assert handle.stop() == S.QS_INVAL
    said = capfd.readouterr().err
    assert "call stop first" in said
    assert "before start" in said


def test_a_directory_that_cannot_be_made(plain, tmp_path, capfd):
    client = Client(plain)
    for out in (tmp_path / "no" / "such", tmp_path / "file"):
        (tmp_path / "file").touch()
        handle = qaicrt.ProfilingHandle(programs=[client.program], outputDirectory=out)
        assert handle.start() == S.QS_INVAL
        assert "outputDirectory cannot be created" in capfd.readouterr().err


def test_a_directory_that_is_gone_at_the_end(plain, tmp_path, capfd):
    client = Client(plain)
    out = tmp_path / "out"
    handle = qaicrt.ProfilingHandle(programs=[client.program], outputDirectory=out)
    assert handle.start() == S.QS_SUCCESS
    client.run()
    out.rmdir()
    assert handle.stop() == S.QS_ERROR
    assert "the report was not created" in capfd.readouterr().err
    assert handle.start() == S.QS_SUCCESS


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        ((), {}, TypeError, "missing"),
        ((), {"programs": []}, qaicrt.ExceptionInit, "no program"),
        ((), {"programs": None}, qaicrt.ExceptionInit, "no program"),
        ((), {"programs": [None]}, qaicrt.ExceptionNullPtr, "None"),
        ((), {"programs": [7]}, TypeError, "int"),
        (("P",), {"programs": ["P"]}, TypeError, "twice"),
        ((["P"],), {"type": 0}, qaicrt.ExceptionInit, "QAicProfilingTypeEnum"),
        ((["P"],), {"fileNamePrefix": "a/b"}, qaicrt.ExceptionInit, "fileNamePrefix"),
        ((["P"],), {"numSamples": 3}, TypeError, "numSamples"),
        (("P", 0, print), {}, qaicrt.ExceptionInit, "numSamples is 0"),
        (("P", 1, None), {}, qaicrt.ExceptionNullPtr, "callback"),
        (("P", 1, 7), {}, qaicrt.ExceptionInit, "callable"),
        (("P", 1, print, RAW), {}, qaicrt.ExceptionInit, "files"),
        (("P", 1, print, LATENCY, 5), {}, TypeError, "4 arguments"),
        ((None, 1, print), {}, qaicrt.ExceptionNullPtr, "None"),
    ],
)
def test_what_a_handle_cannot_be_made_of(plain, arguments, keywords, error, text):
    program = Client(plain).program

    def real(value):
        if isinstance(value, list):
            return [real(entry) for entry in value]
        return program if isinstance(value, str) and value == "P" else value

    with pytest.raises(error, match=text):
        qaicrt.ProfilingHandle(
            *map(real, arguments), **{name: real(value) for name, value in keywords.items()}
        )


def test_a_handle_does_not_keep_its_program(plain):
    client = Client(plain)
    cores = inference_sets.Client(plain).cores
    reports = []
    handle = qaicrt.ProfilingHandle(client.program, 100, lambda *report: reports.append(report))
    assert handle.start() == S.QS_SUCCESS
    client.run(2)
    held = cores()
    del client
    gc.collect()
    assert cores() > held
    assert handle.stop() == S.QS_SUCCESS
    assert len(rows(reports[0][0])) == 2


def test_a_handle_that_is_gone_takes_no_samples(plain):
    client = Client(plain)
    reports = []
    handle = qaicrt.ProfilingHandle(client.program, 2, reports.append)
    assert handle.start() == S.QS_SUCCESS
    gone = weakref.ref(handle)
    del handle
    gc.collect()
    assert gone() is None
    client.run(3)
    client.context._dispatcher().flush()
    assert reports == []


def test_a_callback_may_use_its_handle(plain):
    client = Client(plain)
    statuses, done = [], threading.Event()

    def callback(report, kind):
        statuses.extend([handle.stop(), handle.start(), handle.stop()])
        done.set()

    handle = qaicrt.ProfilingHandle(client.program, 1, callback)
    assert handle.start() == S.QS_SUCCESS
    client.run()
    assert done.wait(60)
    assert statuses == [S.QS_SUCCESS] * 3


def test_threads_start_and_stop_one_handle(plain):
    client = Client(plain)
    reports, results = [], []
    handle = qaicrt.ProfilingHandle(client.program, 1000, lambda *report: reports.append(report))
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        results.extend((handle.start(), handle.stop()) for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    client.run(200)
    for thread in threads:
        thread.join()
    client.context._dispatcher().flush()
    started = sum(start == S.QS_SUCCESS for start, _ in results)
    stopped = sum(stop == S.QS_SUCCESS for _, stop in results)
    assert started == stopped > 0
    numbers = [row["Sample"] for report, _ in reports for row in rows(report)]
    assert len(numbers) == len(set(numbers)), "a sample was reported twice"


@given(
    before=st.integers(0, 3),
    first=st.integers(0, 6),
    count=st.none() | st.integers(1, 6),
    every=st.sampled_from([1, 2, 4, 8, 16]),
    runs=st.integers(0, 20),
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_profiler_takes_what_a_slice_would(plain, before, first, count, every, runs):
    client = Client(plain)
    client.run(before)
    profiler = _core.Profiler([client.program], first=first, count=count, sampling=every)
    assert profiler.start()
    client.run(runs)
    assert profiler.wait(0) == (count is not None and len(range(first, runs, every)) >= count)
    times = profiler.drain().times()
    assert times["inference"].tolist() == list(range(before, before + runs))[first::every][:count]
    stages = ["enqueued_ns", "begun_ns", "inputs_ready_ns", "executed_ns", "outputs_ready_ns", "completed_ns"]
    ordered = np.stack([times[name] for name in stages]) if len(times) else np.zeros((6, 1), np.uint64)
    assert (np.diff(ordered.astype(np.int64), axis=0) >= 0).all()


def test_samples_beyond_the_room_are_counted(plain):
    client = Client(plain)
    profiler = _core.Profiler([client.program], max_samples=2)
    profiler.start()
    client.run(5)
    samples = profiler.drain()
    assert (len(samples), samples.dropped) == (2, 3)
    assert samples.latency_report().startswith("Inference latency; dropped samples: 3\n")
    assert profiler.drain().latency_report() is None
    with pytest.raises(IndexError):
        samples.stats(2)
    with pytest.raises(IndexError):
        samples.latency_report(1)
    with pytest.raises(TypeError, match=r"found type .*, expected a Program"):
        profiler.add(7)


def test_what_explains_buffers_outlives_the_program(measured):
    client = Client(measured)
    profiler = _core.Profiler([client.program], device_stats=True)
    profiler.start()
    client.run(2)
    assert profiler.programs[0]["is_profiled"]
    del client
    gc.collect()
    samples = profiler.drain()
    assert not samples.programs[0]["is_profiled"]
    assert len(samples.device_kpis(0)) == 2
    assert b"total batch ucycles:" in profiling_reports.operations_report(samples, 1, 0, as_trace=False)
    # The image is kept only as long as needed, because it keeps the container mapped.
    assert profiler.drain().descriptor(0) is None


def test_benchmarks_report_operators(measured):
    client = inference_sets.Client(measured)
    made = qaicrt.InferenceBenchmarkSet(
        client.context, client.qpc, None, 1, 2, client.buffers(), qaicrt.BenchmarkProperties()
    )
    assert made.enable() == S.QS_SUCCESS
    reports = []
    formats = qaicrt.QAicOpStatsFormatEnum
    for form in formats:
        reports.clear()
        assert made.enableOpStatsCallback(lambda *report: reports.append(report), 1, 2, form) == S.QS_SUCCESS
        assert made.run(9) == S.QS_SUCCESS
        assert {info.activationIndex for *_, info in reports} == {0, 1}
        assert len(reports) == 4
        for report, size, kind, _, info in reports:
            assert (len(report), kind, info.programName) == (size, form, "net")
            if form is formats.QAIC_OPSTATS_FORMAT_JSON:
                names = {event.get("args", {}).get("name") for event in json.loads(report)["traceEvents"]}
                assert any(name and "_Core_0" in name for name in names)
            else:
                assert b"total batch ucycles:" in report
    assert made.disableOpStatsCallback() == S.QS_SUCCESS
    reports.clear()
    assert made.run(3) == S.QS_SUCCESS
    assert reports == []
