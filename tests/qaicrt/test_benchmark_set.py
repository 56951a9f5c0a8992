"""``InferenceBenchmarkSet``: counts, rates, callbacks and live reports."""

import re
import threading

import numpy as np
import pytest

import inference_sets
import qaicrt
from child_process import WATCHDOG_S
from inference_sets import Client, S, affine_of, refused

LEVEL = qaicrt.LiveReportingLevelEnum
FORMAT = qaicrt.QAicOpStatsFormatEnum


@pytest.fixture(scope="module")
def affine():
    return Client(inference_sets.affine())


def benchmark_set(client, set_size=2, activations=1, data=None, **more):
    return qaicrt.InferenceBenchmarkSet(
        context=client.context,
        qpc=client.qpc,
        setSize=set_size,
        numActivations=activations,
        inferenceDataVector=client.buffers() if data is None else data,
        **more,
    )


def enabled(*arguments, **more):
    made = benchmark_set(*arguments, **more)
    assert made.enable() == S.QS_SUCCESS
    return made


@pytest.mark.parametrize(("set_size", "activations"), [(1, 1), (2, 3)])
def test_a_number_of_inferences(affine, set_size, activations):
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    data = [qaicrt.QBuffer(x), qaicrt.QBuffer(y)]
    benchmark = enabled(affine, set_size, activations, data)
    assert benchmark.getInfCompleted() == [0] * activations
    assert benchmark.getLastRunStats() == (0, 0.0, 0, 2)
    for count in (1, 100):
        assert benchmark.run(count) == S.QS_SUCCESS
        assert sum(benchmark.getInfCompleted()) == count
        assert len(benchmark.getInfCompleted()) == activations
        done, rate, took_us, batch = benchmark.getLastRunStats()
        assert (done, batch) == (count, 2)
        # The rate counts inferences, not samples.
        assert rate == pytest.approx(count * 1e6 / took_us, rel=1 / took_us)
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)


def test_a_duration(affine):
    benchmark = enabled(affine)
    assert benchmark.runForDuration(0.05) == S.QS_SUCCESS
    done, rate, took_us, _ = benchmark.getLastRunStats()
    assert done > 0
    assert rate > 0
    # No inference starts after the time limit, but inferences in flight must end.
    assert took_us >= 50_000


def test_a_vector_in_place_of_buffers(affine):
    vector = affine.vector(np.ones((2, 4), np.float32))
    assert enabled(affine, data=vector).run(3) == S.QS_SUCCESS


def test_cores_are_held_while_enabled(affine):
    before = affine.cores()
    benchmark = benchmark_set(affine, 1, 5)
    assert affine.cores() == before
    for _ in range(2):
        assert benchmark.enable() == S.QS_SUCCESS
        assert benchmark.enable() == S.QS_SUCCESS
        assert affine.cores() == before - 5
        assert benchmark.run(2) == S.QS_SUCCESS
        assert benchmark.disable() == S.QS_SUCCESS
        assert benchmark.disable() == S.QS_SUCCESS
        assert affine.cores() == before


# --- refusals --------------------------------------------------------------------------------------


def test_without_room(affine, capfd):
    benchmark = benchmark_set(affine, 1, 17)
    refused(capfd, benchmark.enable(), "cores", status=S.QS_ERROR)
    refused(capfd, benchmark.run(1), "call enable first", status=S.QS_ERROR)


def test_the_log_names_the_class_of_the_interface(affine, capfd, monkeypatch):
    monkeypatch.setattr(qaicrt, "InferenceBenchmarkSet", type("Mine", (qaicrt.InferenceBenchmarkSet,), {}))
    benchmark = benchmark_set(affine, 1, 1)
    assert type(benchmark).__name__ == "Mine"
    refused(capfd, benchmark.run(1), "InferenceBenchmarkSet: ", status=S.QS_ERROR)


def test_bad_counts(affine, capfd):
    benchmark = enabled(affine)
    for count in (0, -1):
        refused(capfd, benchmark.run(count), str(count))
        refused(capfd, benchmark.runForDuration(count), str(count))
    refused(capfd, benchmark.runForDuration(float("nan")), "nan")
    refused(capfd, benchmark.runForDuration(float("inf")), "inf")
    with pytest.raises(TypeError):
        benchmark.run("many")
    assert benchmark.getLastRunStats()[0] == 0


def test_bad_buffers(affine, capfd):
    with pytest.raises(qaicrt.ExceptionInit, match="has 1 buffer; the program has 2 bindings"):
        benchmark_set(affine, data=affine.buffers()[:1])
    benchmark = benchmark_set(affine, data=[qaicrt.QBuffer(bytes(31)), qaicrt.QBuffer(bytes(32))])
    assert benchmark.enable() == S.QS_SUCCESS
    refused(capfd, benchmark.run(1), "`x`", "31", "32")


def test_what_is_missing(affine):
    with pytest.raises(TypeError, match="numActivations, inferenceDataVector"):
        qaicrt.InferenceBenchmarkSet(affine.context, affine.qpc, 0, 1)
    with pytest.raises(qaicrt.ExceptionNullPtr, match="in object: InferenceBenchmarkSet qpc is None"):
        qaicrt.InferenceBenchmarkSet(affine.context, None, 0, 1, 1, [])


def test_a_failed_inference_ends_the_run(noop, capfd):
    benchmark = enabled(Client(inference_sets.PLAIN))
    noop.plan("execute@5=fail")
    refused(capfd, benchmark.run(1000), "InferenceSet", status=S.QS_ERROR)
    assert sum(benchmark.getInfCompleted()) < 1000
    assert benchmark.getLastRunStats()[0] == 0
    assert benchmark.run(10) == S.QS_SUCCESS


def test_one_run_at_a_time(noop, capfd):
    benchmark = enabled(Client(inference_sets.PLAIN))
    answers = []
    noop.hold()
    worker = threading.Thread(target=lambda: answers.append(benchmark.run(4)))
    worker.start()
    assert noop.wait_executing(1)
    refused(capfd, benchmark.run(1), "already running", status=S.QS_ERROR)
    refused(capfd, benchmark.enable(), "while a benchmark runs", status=S.QS_ERROR)
    refused(capfd, benchmark.disable(), "while a benchmark runs", status=S.QS_ERROR)
    noop.release()
    worker.join()
    assert answers == [S.QS_SUCCESS]


# --- callbacks -------------------------------------------------------------------------------------


def test_completion_callbacks_run_on_one_other_thread(affine):
    benchmark = enabled(affine, 2, 2)
    seen = []

    def completed(exec_obj, info):
        seen.append((exec_obj, info, threading.current_thread()))
        if len(seen) == 3:
            raise ValueError("a callback that fails")

    assert benchmark.enableExecObjCompletionCallback(completed) in (None, S.QS_SUCCESS)
    assert benchmark.run(50) == S.QS_SUCCESS
    # Every callback has run when the run ends.
    assert len(seen) == 50
    assert len({thread for _, _, thread in seen}) == 1
    assert seen[0][2] is not threading.current_thread()
    for exec_obj, info, _ in seen:
        assert isinstance(exec_obj, qaicrt.ExecObj)
        assert isinstance(info, qaicrt.ExecObjInfo)
        assert info.status == S.QS_SUCCESS
        assert exec_obj.getId() == info.execObjIndex * 2 + info.activationIndex
        assert info.programName == affine.qpc.getInfo().program[0].name
    assert {info.activationIndex for _, info, _ in seen} <= {0, 1}
    assert len({info.programId for _, info, _ in seen}) == len({info.activationIndex for _, info, _ in seen})
    assert [buffer.size for buffer in seen[0][0].getData()[1]] == [32, 32]
    assert benchmark.disableExecObjCompletionCallback() is None
    assert benchmark.run(5) == S.QS_SUCCESS
    assert len(seen) == 50


def test_a_slow_callback_slows_the_benchmark_instead_of_filling_the_memory(noop):
    client = Client(inference_sets.PLAIN)
    benchmark = enabled(client)
    go, calls = threading.Event(), []

    def slow(_, info):
        assert go.wait(WATCHDOG_S)
        calls.append(info)

    benchmark.enableExecObjCompletionCallback(slow)
    worker = threading.Thread(target=benchmark.run, args=(5000,))
    worker.start()
    # The number of completed inferences is at most that of inferences in flight and waiting for the callback.
    while sum(benchmark.getInfCompleted()) < 1024:
        assert worker.is_alive()
    assert sum(benchmark.getInfCompleted()) < 1100
    go.set()
    worker.join()
    assert len(calls) == 5000


def test_a_callback_is_callable(affine):
    benchmark = benchmark_set(affine)
    with pytest.raises(TypeError, match="callable"):
        benchmark.enableExecObjCompletionCallback(None)
    with pytest.raises(TypeError, match="callable"):
        benchmark.enableOpStatsCallback(7, 0, 1, FORMAT.QAIC_OPSTATS_FORMAT_ASCII)


def test_no_statistics_without_a_statistics_output(affine, capfd):
    benchmark = enabled(affine)
    calls = []
    for form in FORMAT:
        assert benchmark.enableOpStatsCallback(calls.append, 0, 1, form) == S.QS_SUCCESS
    refused(capfd, benchmark.enableOpStatsCallback(calls.append, 0, 1, 5), "QAicOpStatsFormatEnum")
    refused(
        capfd, benchmark.enableOpStatsCallback(calls.append, -1, 1, FORMAT.QAIC_OPSTATS_FORMAT_JSON), "-1"
    )
    refused(
        capfd, benchmark.enableOpStatsCallback(calls.append, 0, 0, FORMAT.QAIC_OPSTATS_FORMAT_JSON), "samples"
    )
    assert benchmark.run(5) == S.QS_SUCCESS
    assert benchmark.disableOpStatsCallback() == S.QS_SUCCESS
    assert calls == []


# --- live reports ----------------------------------------------------------------------------------

LINE = re.compile(
    r"InferenceCnt (\d+) TotalDuration (\d+)us BatchSize 2 Inf/Sec (\d+\.\d{3})"
    r"( HostRoundTripUs \d+\.\d)?( Activations \d+(?:,\d+)*)?"
)


def reported(capsys):
    found = [LINE.fullmatch(line) for line in capsys.readouterr().out.splitlines()]
    assert found
    assert all(found)
    return found


def test_live_reports(affine, capsys):
    benchmark = enabled(affine, 2, 2)
    assert benchmark.run(5) == S.QS_SUCCESS
    assert capsys.readouterr().out == ""
    assert benchmark.setLiveReporting(reportingPeriodMs=10) == S.QS_SUCCESS
    assert benchmark.runForDuration(0.2) == S.QS_SUCCESS
    lines = reported(capsys)
    # One report per period, and one for the rest.
    assert len(lines) > 2
    counts = [int(line[1]) for line in lines]
    assert counts == sorted(counts)
    assert counts[-1] == benchmark.getLastRunStats()[0]
    assert {line[4] for line in lines} == {line[5] for line in lines} == {None}


def test_detailed_reports_and_profiling(affine, capsys):
    benchmark = enabled(affine, 1, 3)
    assert benchmark.setLiveReporting(LEVEL.LIVE_REPORTING_DETAILED, 10_000) == S.QS_SUCCESS
    assert benchmark.setLiveProfilingLevel(LEVEL.LIVE_REPORTING_SUMMARY) == S.QS_SUCCESS
    assert benchmark.run(30) == S.QS_SUCCESS
    (line,) = reported(capsys)
    assert line[1] == "30"
    assert line[4] is not None
    assert [int(count) for count in line[5].split()[1].split(",")] == benchmark.getInfCompleted()


def test_bad_levels(affine, capfd):
    benchmark = benchmark_set(affine)
    summary = LEVEL.LIVE_REPORTING_SUMMARY
    refused(capfd, benchmark.setLiveProfilingLevel(summary), "setLiveReporting", status=S.QS_ERROR)
    refused(capfd, benchmark.setLiveReporting(0), "level 0")
    refused(capfd, benchmark.setLiveReporting(summary, 0), "0 ms")
    refused(capfd, benchmark.setLiveReporting(summary, 2**31), "2147483648 ms")
    refused(capfd, benchmark.setLiveProfilingLevel(1), "LiveReportingLevelEnum")
    # Nothing was enabled.
    refused(capfd, benchmark.setLiveProfilingLevel(summary), "setLiveReporting", status=S.QS_ERROR)


def test_a_closed_output_does_not_end_the_run(affine, monkeypatch):
    class Closed:
        def write(self, _):
            raise ValueError("I/O operation on closed file")

    benchmark = enabled(affine)
    assert benchmark.setLiveReporting(reportingPeriodMs=1) == S.QS_SUCCESS
    monkeypatch.setattr("sys.stdout", Closed())
    assert benchmark.run(100) == S.QS_SUCCESS


def test_default_properties(affine):
    properties = qaicrt.BenchmarkProperties()
    properties.queueProperties.numThreadsPerQueue = 1
    assert enabled(affine, properties=properties).run(4) == S.QS_SUCCESS
    properties.programProperties.SubmitNumRetries = 77
    assert qaicrt.InferenceBenchmarkSet.initDefaultProperties(properties) is None
    assert properties.programProperties.SubmitNumRetries == 5
    assert properties.queueProperties.numThreadsPerQueue == 4
