"""``StreamProfilingHandle``: boundaries, rates, and programs that are created and deleted while it runs.

The clock belongs to the tests: its time changes only when a test changes it.
"""

import gc
import json
import queue
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import qaicrt
import session_models
from inference_sets import S
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from qaic.rt.profiling import stream
from qaic.rt.profiling.stream import compile_pattern

TYPE = qaicrt.QAicProfilingTypeEnum
TRACE = TYPE.QAIC_PROFILING_INFERENCE_TRACE_TYPE
KPI = TYPE.QAIC_PROFILING_INFERENCE_DEV_KPI_TYPE
RAW = TYPE.QAIC_PROFILING_INFERENCE_RAW_DEVICE_STATS_TYPE


class VirtualClock:
    """A clock that a test advances to the next boundary for which a thread waits."""

    def __init__(self, now_ms):
        self.time_ms = now_ms
        self._asked = queue.Queue()
        self._moved = threading.Semaphore(0)

    def now_ms(self):
        return self.time_ms

    def wait_until(self, time_ms, stopped):
        self._asked.put(time_ms)
        while not self._moved.acquire(timeout=0.01):
            if stopped.is_set():
                return True
        return stopped.is_set()

    def move(self, late_ms=0):
        """Advance to the boundary for which a thread waits, or beyond it; return the boundary."""
        boundary = self._asked.get(timeout=60)
        self.time_ms = boundary + late_ms
        self._moved.release()
        return boundary

    def next(self):
        """The next boundary, as soon as the thread waits for it."""
        boundary = self._asked.get(timeout=60)
        self._asked.put(boundary)
        return boundary


class ReportSink:
    """A callback that stores its reports."""

    def __init__(self):
        self.reports = queue.Queue()
        self.count = 0

    def __call__(self, report, kind):
        self.count += 1
        self.reports.put((report, kind))

    def next(self):
        """Rows of the next latency report, and its kind."""
        report, kind = self.reports.get(timeout=60)
        return [line for line in report.splitlines() if line[:1].isdigit()], kind


class Client:
    """A program of a network, and inferences of the program."""

    def __init__(self, path):
        self.context = qaicrt.Context()
        self.program = qaicrt.Program(self.context, 0, qaicrt.Qpc(path))
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)
        data = [np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)]
        assert self.exec_obj.setData([qaicrt.QBuffer(array) for array in data]) == S.QS_SUCCESS

    def run(self, count=1):
        for _ in range(count):
            assert self.exec_obj.run() == S.QS_SUCCESS


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    resolved = resolve({}, options_path=None, model_is_container=False)
    model = session_models.save(folder, session_models.affine())
    return str(compile_model(model, resolved.compile, resolved.set_compile, output_dir=folder / "qpc").parent)


@pytest.fixture
def clock(monkeypatch):
    made = VirtualClock(4400.0)
    monkeypatch.setattr(stream, "CLOCK", made)
    return made


def test_reports_come_at_multiples_of_the_period(path, clock):
    client, sink = Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink)
    assert handle.addProgram(client.program) == S.QS_SUCCESS
    assert handle.start() == S.QS_SUCCESS
    client.run(2)
    # The published example: the profile starts at 4.400 s, and the first report is at 4.500 s.
    assert clock.move() == 4500
    assert len(sink.next()[0]) == 2
    # The interval has no samples, but a report.
    assert clock.move() == 5000
    assert sink.next()[0] == []
    assert clock.next() == 5500
    client.run(1)
    assert handle.stop() == S.QS_SUCCESS
    assert handle.flushReports() == S.QS_SUCCESS
    assert sink.count == 3
    assert len(sink.next()[0]) == 1


def test_a_clock_that_is_set_back_delays_no_report(path, clock):
    sink = ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink)
    assert handle.addProgram(Client(path).program) == S.QS_SUCCESS
    assert handle.start() == S.QS_SUCCESS
    # The clock goes back by an hour; then a wait ends a millisecond early.
    assert clock.move(late_ms=-3_600_000) == 4500
    assert clock.move(late_ms=-1) == 5000 - 3_600_000
    assert clock.next() == 5500 - 3_600_000
    assert handle.stop() == S.QS_SUCCESS


def test_samples_without_room_are_counted(path, clock, capfd):
    client, sink = Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink)
    handle._profiler = _core.Profiler(max_samples=2)
    assert handle.addProgram(client.program) == S.QS_SUCCESS
    assert handle.start() == S.QS_SUCCESS
    client.run(5)
    assert handle.stop() == S.QS_SUCCESS
    assert len(sink.next()[0]) == 2
    assert "samples dropped, because the buffer was full: 3" in capfd.readouterr().err


def test_a_late_boundary_is_not_made_up_for(path, clock):
    sink = ReportSink()
    handle = qaicrt.StreamProfilingHandle(1, 1000, sink)
    assert handle.start() == S.QS_SUCCESS
    assert clock.move(late_ms=3100) == 5000
    assert clock.next() == 9000
    assert handle.stop() == S.QS_SUCCESS
    assert handle.flushReports() == S.QS_SUCCESS
    assert sink.count == 2


def test_it_starts_again_like_the_first_time(path, clock):
    client, sink = Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle("half", 500, sink)
    assert handle.addProgram(client.program) == S.QS_SUCCESS
    for _ in range(2):
        assert handle.start() == S.QS_SUCCESS
        assert clock.next() == 4500
        clock._asked.get()
        client.run(5)
        assert handle.stop() == S.QS_SUCCESS
        assert len(sink.next()[0]) == 3
        client.run(5)


def test_programs_come_and_go(path, clock, capfd):
    first, second, sink = Client(path), Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink)
    assert handle.addProgram(first.program) == S.QS_SUCCESS
    assert handle.removeProgram(second.program) == S.QS_INVAL
    assert "was not added" in capfd.readouterr().err
    assert handle.start() == S.QS_SUCCESS
    second.run(1)
    assert handle.addProgram(second.program) == S.QS_SUCCESS
    assert handle.addProgram(second.program) == S.QS_SUCCESS
    first.run(1)
    second.run(2)
    assert handle.removeProgram(first.program) == S.QS_SUCCESS
    first.run(4)
    clock.move()
    assert len(sink.next()[0]) == 3
    # Samples of a deleted program are kept.
    second.run(2)
    del second
    gc.collect()
    clock.move()
    assert len(sink.next()[0]) == 2
    assert handle.stop() == S.QS_SUCCESS
    assert sink.reports.get(timeout=60)[0] == ""


def test_a_pattern_adds_programs_when_they_are_made(path, clock):
    before, sink = Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink, None, "mine", "n[e]t")
    other = qaicrt.StreamProfilingHandle("full", 500, sink, regex="ne")
    assert handle.name == "mine"
    assert handle.start() == S.QS_SUCCESS
    after = Client(path)
    before.run(1)
    after.run(3)
    clock.move()
    assert len(sink.next()[0]) == 3
    del after
    gc.collect()
    again = Client(path)
    again.run(1)
    assert handle.stop() == S.QS_SUCCESS
    assert len(sink.next()[0]) == 1
    assert other.stop() == S.QS_INVAL


@pytest.mark.parametrize("kind", [TRACE, KPI])
def test_other_types(path, clock, kind):
    client, sink = Client(path), ReportSink()
    handle = qaicrt.StreamProfilingHandle(1, 500, sink, qaicrt.ProfilingProperties(kind))
    assert handle.addProgram(client.program) == S.QS_SUCCESS
    assert handle.start() == S.QS_SUCCESS
    for runs in (3, 0):
        client.run(runs)
        clock.move()
        report, found = sink.reports.get(timeout=60)
        assert found is kind
        if kind is TRACE:
            events = json.loads(report)["traceEvents"]
            assert sum(event["name"] == "total" for event in events) == runs
        else:
            assert f"ProfilingSamples_Func_0,{runs}," in report
    assert handle.stop() == S.QS_SUCCESS


def test_a_slow_callback_gets_fewer_reports_and_all_samples(path, clock, monkeypatch):
    monkeypatch.setattr(stream, "MOST_UNDELIVERED", 2)
    client, sink = Client(path), ReportSink()
    entered, go = threading.Event(), threading.Event()

    def slow(report, kind):
        entered.set()
        assert go.wait(60)
        sink(report, kind)

    handle = qaicrt.StreamProfilingHandle("full", 500, slow)
    assert handle.addProgram(client.program) == S.QS_SUCCESS
    assert handle.start() == S.QS_SUCCESS
    for boundary in range(8):
        client.run(1)
        clock.move()
        if boundary == 0:
            assert entered.wait(60)
    clock.next()
    go.set()
    assert handle.stop() == S.QS_SUCCESS
    assert handle.flushReports() == S.QS_SUCCESS
    assert sink.count < 8
    assert sum(len(sink.next()[0]) for _ in range(sink.count)) == 8


def test_a_callback_that_raises_is_called_again(path, clock, capfd):
    calls = []

    def callback(report, kind):
        calls.append(kind)
        raise RuntimeError("of the client")

    handle = qaicrt.StreamProfilingHandle("full", 500, callback)
    assert handle.start() == S.QS_SUCCESS
    clock.move()
    clock.next()
    assert handle.stop() == S.QS_SUCCESS
    assert handle.flushReports() == S.QS_SUCCESS
    assert len(calls) == 2
    assert "of the client" in capfd.readouterr().err


def test_a_handle_that_is_gone_leaves_no_thread(path, clock):
    sink = ReportSink()
    handle = qaicrt.StreamProfilingHandle("full", 500, sink)
    assert handle.start() == S.QS_SUCCESS
    thread = handle._stream._thread
    del handle
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert sink.count == 0


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        (("third", 500, print), {}, qaicrt.ExceptionInit, "'third'"),
        ((3, 500, print), {}, qaicrt.ExceptionInit, "samplingRate is 3"),
        ((True, 500, print), {}, qaicrt.ExceptionInit, "samplingRate"),
        ((1, 501, print), {}, qaicrt.ExceptionInit, "reportingRate is 501"),
        ((1, "500", print), {}, qaicrt.ExceptionInit, "reportingRate"),
        ((1, 500, None), {}, qaicrt.ExceptionNullPtr, "callback"),
        ((1, 500, print, qaicrt.ProfilingProperties(5)), {}, qaicrt.ExceptionInit, "QAicProfilingTypeEnum"),
        ((1, 500, print, qaicrt.ProfilingProperties(RAW)), {}, qaicrt.ExceptionInit, "files"),
        ((1, 500, print), {"regex": "("}, qaicrt.ExceptionInit, "not a regular expression"),
        ((1, 500, print), {"regex": "(?P<name>a)"}, qaicrt.ExceptionInit, "not supported"),
    ],
)
def test_what_a_handle_cannot_be_made_of(arguments, keywords, error, text):
    with pytest.raises(error, match=text.replace("(", r"\(")):
        qaicrt.StreamProfilingHandle(*arguments, **keywords)


def test_states_are_checked(path, clock, capfd):
    handle = qaicrt.StreamProfilingHandle("full", 4000, lambda *_: None)
    assert handle.flushReports() == S.QS_SUCCESS
    assert handle.stop() == S.QS_INVAL
    assert handle.start() == S.QS_SUCCESS
    assert handle.start() == S.QS_INVAL
    assert handle.stop() == S.QS_SUCCESS
    assert "call stop first" in capfd.readouterr().err
    with pytest.raises(TypeError, match="int"):
        handle.addProgram(7)
    with pytest.raises(qaicrt.ExceptionNullPtr):
        handle.removeProgram(None)


@given(now_ms=st.floats(0, 1e13), period=st.sampled_from([500, 1000, 2000, 4000]))
@example(now_ms=5000.0, period=500)
def test_the_next_boundary_is_the_first_multiple_after_now(now_ms, period):
    boundary = stream.next_boundary_ms(now_ms, period)
    assert boundary % period == 0
    assert boundary > now_ms >= boundary - period


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_a_pattern_or_refused(text):
    problem = "it "
    try:
        compile_pattern(text).fullmatch("QAicGraph_0")
    except ValueError as error:
        problem = str(error)
    assert problem.startswith("it ")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("net_\\d+", "net_12", "net_\N{ARABIC-INDIC DIGIT ONE}"),
        (r"(?:a|b)+", "abba", "abc"),
        (r"a(?=b).", "ab", "ac"),
        (r"[\w.]*", "a.b_1", "ä"),
        (r"\[x\]", "[x]", "x"),
        (r"[^/]+", "net", "a/b"),
    ],
)
def test_patterns_of_ecmascript(pattern, matching, others):
    compiled = compile_pattern(pattern)
    assert compiled.fullmatch(matching)
    assert not compiled.fullmatch(others)


@pytest.mark.parametrize(
    "pattern",
    ["[[:alpha:]]+", "(?i)a", "(?<name>a)", "a++", r"\Aa", "[]", "[^]", "(?#x)", r"\cA", "a{2}+", r"(a)\g1"],
)
def test_patterns_that_the_languages_read_differently(pattern):
    with pytest.raises(ValueError, match="it "):
        compile_pattern(pattern)
