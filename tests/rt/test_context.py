"""``Context``: the choice of devices, the log level, and callbacks."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import qaicrt
from child_process import WATCHDOG_S
from qaicrt import QLogLevel, QStatus

DATA = Path(__file__).parents[1] / "data" / "qpc"

LINE = re.compile(r"\[\d\d:\d\d:\d\d\.\d{3}\]\[(\w+)\]\[(Aic-\d+)\](.*)")


@pytest.fixture(autouse=True)
def _two_test_devices(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")


def run(program, **environment):
    """Run a program in a separate process; returns its outputs and errors."""
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


class TestConstruction:
    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            (None,),
            ([0],),
            ([0, 1],),
            ((1, 0),),
            (range(2),),
            ([1, 1],),
            ([],),
            (qaicrt.QIDList([1]),),
            (qaicrt.QIDList(),),
            (None, None),
            ([0], None),
            ([0], 0),
            (0, [0]),
            (0, qaicrt.QIDList([0, 1]), None, None),
        ],
    )
    def test_positional_forms(self, arguments):
        assert qaicrt.Context(*arguments).objName() == "Context"

    @pytest.mark.parametrize(
        "keywords",
        [
            {},
            {"devList": [1]},
            {"devList": None, "properties": None},
            {"properties": 0},
            {"logCallback": print, "errorHandler": print},
            {"logCallback": None, "errorHandler": None},
        ],
    )
    def test_keyword_forms(self, keywords):
        assert qaicrt.Context(**keywords).objNameCstr() == "Context"

    @pytest.mark.parametrize("ids", [[2], [0, 7], [-1], [1 << 40], qaicrt.QIDList([9])])
    def test_an_unknown_device_raises(self, ids):
        with pytest.raises(
            qaicrt.ExceptionInit, match=r"^Initialization Exception: in object: Context "
        ) as caught:
            qaicrt.Context(ids)
        assert caught.value.code == "device.not_found"
        assert "[0, 1]" in str(caught.value)

    @pytest.mark.parametrize("ids", [["0"], [None], [0.0], 1.5])
    def test_what_is_no_id_is_a_type_error(self, ids):
        with pytest.raises(TypeError):
            qaicrt.Context(ids)

    @pytest.mark.parametrize("keyword", ["logCallback", "errorHandler"])
    def test_what_cannot_be_called_is_a_type_error(self, keyword):
        with pytest.raises(TypeError, match=keyword):
            qaicrt.Context(**{keyword: 3})

    def test_an_environment_without_devices_raises(self, monkeypatch):
        monkeypatch.setenv("QAIC_DEVICE", "abacus")
        with pytest.raises(qaicrt.ExceptionInit, match="abacus"):
            qaicrt.Context()
        monkeypatch.setenv("QAIC_DEVICE", "noop")
        monkeypatch.setenv("QAIC_CPU_DEVICES", "many")
        with pytest.raises(qaicrt.ExceptionInit, match="QAIC_CPU_DEVICES") as caught:
            qaicrt.Context()
        assert caught.value.code == "option.cpu_devices"

    def test_unknown_properties_are_logged_and_not_fatal(self, capfd):
        assert qaicrt.Context([0], 4).objName() == "Context"
        assert "0x4" in capfd.readouterr().err
        with pytest.raises((TypeError, OverflowError)):
            qaicrt.Context(properties=-1)

    def test_has_no_native_object_and_no_further_attributes(self):
        context = qaicrt.Context()
        with pytest.raises(AttributeError):
            context.get()
        with pytest.raises(AttributeError):
            context.name = "mine"


class TestNumbers:
    def test_every_context_has_its_own(self):
        numbers = [qaicrt.Context().getId() for _ in range(3)]
        assert len(set(numbers)) == 3
        assert all(type(number) is int for number in numbers)


class TestFindDevice:
    def test_takes_the_first_of_its_devices(self):
        qpc = qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc")
        assert qaicrt.Context().findDevice(qpc) == (QStatus.QS_SUCCESS, 0)
        assert qaicrt.Context([1, 0]).findDevice(qpc) == (QStatus.QS_SUCCESS, 1)

    def test_passes_over_a_device_without_room(self, capfd):
        context = qaicrt.Context()
        qpc, programs = qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc"), []
        while (found := context.findDevice(qpc))[0] == QStatus.QS_SUCCESS:
            programs.append(qaicrt.Program(context, found[1], qpc))
            assert programs[-1].activate() == QStatus.QS_SUCCESS
        # Both cards are full; the first one was filled first.
        cores = qpc.getInfo().program[0].numCores
        assert len(programs) == 2 * (16 // cores)
        assert found == (QStatus.QS_DEV_ERROR, -1)
        assert "device 0" in capfd.readouterr().err
        programs.pop(0)
        gc.collect()
        assert context.findDevice(qpc) == (QStatus.QS_SUCCESS, 0)

    def test_is_refused_in_a_forked_child(self):
        output, errors = run(f"""
            import os, sys, qaicrt
            context, qpc = qaicrt.Context(), qaicrt.Qpc({str(DATA / "s01_simple_f32_file.qpc")!r})
            child = os.fork()
            if child == 0:
                print(context.findDevice(qpc), qaicrt.Context().findDevice(qpc), flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """)
        assert output == "(<QStatus.QS_ERROR: 500>, -1) (<QStatus.QS_SUCCESS: 0>, 0)\n"
        assert "before the process was forked" in errors

    def test_needs_a_container(self):
        with pytest.raises(TypeError):
            qaicrt.Context().findDevice(None)


class TestLog:
    def test_context_without_a_level_logs_errors_only(self):
        context = qaicrt.Context()
        assert context.getLogLevel() == (QStatus.QS_SUCCESS, QLogLevel.QL_ERROR)
        for level in QLogLevel:
            assert context.setLogLevel(level) == QStatus.QS_SUCCESS
            assert context.getLogLevel() == (QStatus.QS_SUCCESS, level)

    def test_a_level_that_does_not_exist_is_refused(self, capfd):
        context = qaicrt.Context()
        for level in (4, -1, 1 << 40):
            assert context.setLogLevel(level) == QStatus.QS_INVAL
        assert context.getLogLevel()[1] == QLogLevel.QL_ERROR
        with pytest.raises(TypeError):
            context.setLogLevel("QL_DEBUG")
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 3
        for line in lines:
            level, name, text = LINE.fullmatch(line).groups()
            assert (level, name) == ("ERROR", f"Aic-{context.getId()}")
            assert "level" in text

    def test_a_callback_gets_what_the_console_would(self, capfd):
        got = []
        context = qaicrt.Context(logCallback=lambda *line: got.append(line))
        context.setLogLevel(4)
        assert context._dispatcher().flush(10)
        assert got == [(QLogLevel.QL_ERROR, "Context: log level 4 does not exist")]
        assert capfd.readouterr().err == ""

    def test_a_callback_lives_as_long_as_anything_that_logs(self):
        got, called = [], threading.Event()

        def log(_, text):
            got.append(text)
            called.set()

        qpc = qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc")
        context = qaicrt.Context(logCallback=log)
        program = qaicrt.Program(context, 0, qpc)
        exec_obj = qaicrt.ExecObj(context, program)
        del context, qpc
        gc.collect()
        assert program.unload() == QStatus.QS_ERROR
        assert called.wait(WATCHDOG_S)
        assert "exec object" in got[0]
        del exec_obj

    def test_an_error_handler_alone_leaves_the_log_to_the_console(self, capfd):
        context = qaicrt.Context(errorHandler=print)
        context.setLogLevel(4)
        assert "log level 4" in capfd.readouterr().err

    def test_a_failure_reaches_the_error_handler(self):
        got = []
        context = qaicrt.Context(logCallback=lambda *_: None, errorHandler=lambda *report: got.append(report))
        qpc, programs, status = qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc"), [], QStatus.QS_SUCCESS
        while status == QStatus.QS_SUCCESS:
            # Until no cores of the card are left.
            programs.append(qaicrt.Program(context, 0, qpc))
            status = programs[-1].activate()
        assert status == QStatus.QS_DEV_ERROR
        assert context._dispatcher().flush(10)
        [(number, text, kind, data)] = got
        assert number == context.getId()
        assert "core" in text
        assert kind == qaicrt.QAicErrorType.QAIC_ERROR_PROGRAM_ACTIVATION
        assert data == b""


class TestDispatcher:
    def test_calls_in_order_on_one_thread_that_is_not_the_callers(self):
        context, got = qaicrt.Context(), []
        dispatcher = context._dispatcher()
        for number in range(1000):
            assert dispatcher.post(lambda n: got.append((n, threading.get_ident())), number)
        assert dispatcher.flush(10)
        assert [number for number, _ in got] == list(range(1000))
        [thread] = {thread for _, thread in got}
        assert thread != threading.get_ident()

    def test_one_for_each_context(self):
        one, other = qaicrt.Context(), qaicrt.Context()
        assert one._dispatcher() is one._dispatcher()
        blocked, ended = threading.Event(), threading.Event()
        one._dispatcher().post(blocked.wait, 30)
        other._dispatcher().post(ended.set)
        # Callbacks of the other context do not wait for those of this context.
        assert ended.wait(WATCHDOG_S)
        blocked.set()
        assert one._dispatcher().flush(10)

    def test_an_exception_is_logged_and_ends_nothing(self):
        lines = []
        context = qaicrt.Context(logCallback=lambda _, text: lines.append(text))
        dispatcher = context._dispatcher()

        def fail(why):
            raise why

        for why in (ValueError("the reason"), SystemExit(3), KeyboardInterrupt()):
            dispatcher.post(fail, why)
        assert dispatcher.flush(10)
        # The thread itself logs the error, after the mark of the first flush.
        assert dispatcher.flush(10)
        assert [line.splitlines()[-1] for line in lines] == [
            "ValueError: the reason",
            "SystemExit: 3",
            "KeyboardInterrupt",
        ]

    def test_log_callback_that_fails_is_reported_on_the_console(self, capfd):
        def fail(*_):
            raise ValueError("the reason")

        context = qaicrt.Context(logCallback=fail)
        context.setLogLevel(4)
        assert context._dispatcher().flush(10)
        assert capfd.readouterr().err.count("ValueError: the reason") == 1

    def test_a_callback_may_use_the_context(self):
        got = []

        def log(level, text):
            got.append((level, text, context.getLogLevel()))
            if len(got) < 3:
                context.setLogLevel(40 + len(got))
            assert context._dispatcher().flush()

        context = qaicrt.Context(logCallback=log)
        context.setLogLevel(40)
        for _ in range(3):
            assert context._dispatcher().flush(10)
        assert [text[-20:] for _, text, _ in got] == [f"level {n} does not exist"[-20:] for n in (40, 41, 42)]

    def test_slow_callback_loses_lines_and_gets_their_count(self):
        go, got = threading.Event(), []

        def log(level, text):
            go.wait(WATCHDOG_S)
            got.append((level, text))

        context = qaicrt.Context(logCallback=log)
        sent = 10_050
        for _ in range(sent):
            context.setLogLevel(4)
        go.set()
        assert context._dispatcher().flush(30)
        summaries = [re.match(r"dropped log lines: (\d+)", text) for _, text in got]
        [dropped] = [int(found[1]) for found in summaries if found]
        assert len(got) - 1 + dropped == sent
        assert dropped >= sent - 10_001

    def test_ends_with_its_context(self):
        context = qaicrt.Context(logCallback=print)
        thread = context._dispatcher()._runner._thread
        assert thread.is_alive()
        del context
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()

    def test_delivers_what_is_left_when_the_interpreter_ends(self):
        output, errors = run("""
            import sys, qaicrt
            context = qaicrt.Context(logCallback=lambda level, text: print(text, flush=True))
            for number in range(100, 200):
                context.setLogLevel(number)
            del context
            other = qaicrt.Context(errorHandler=print)
            """)
        assert output.count("does not exist") == 100
        assert output.splitlines()[-1].endswith("199 does not exist")
        assert errors == ""

    def test_a_callback_that_hangs_does_not_keep_the_process(self):
        run("""
            import threading, qaicrt
            import qaic.rt.dispatch
            qaic.rt.dispatch._EXIT_SECONDS = 0.1
            context = qaicrt.Context()
            context._dispatcher().post(threading.Event().wait)
            """)

    def test_a_forked_child_has_a_thread_of_its_own(self):
        output, _ = run("""
            import os, sys, threading, qaicrt
            got, busy, go = [], threading.Event(), threading.Event()
            context = qaicrt.Context(logCallback=lambda level, text: got.append(text))
            dispatcher = context._dispatcher()
            # The parent's thread is inside of a callback, and letters wait, when it forks.
            dispatcher.post(lambda: (busy.set(), go.wait(60)))
            dispatcher.post(got.append, "a letter of the parent")
            assert busy.wait(60)
            child = os.fork()
            if child == 0:
                context.setLogLevel(77)
                assert dispatcher.flush(30)
                print(got, flush=True)
                made_here = qaicrt.Context(logCallback=lambda level, text: print(text, flush=True))
                made_here.setLogLevel(88)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            go.set()
            assert dispatcher.flush(30)
            print(got, flush=True)
            """)
        child, other, parent = output.splitlines()
        assert child == "['Context: log level 77 does not exist']"
        assert other == "Context: log level 88 does not exist"
        assert parent == "['a letter of the parent']"
