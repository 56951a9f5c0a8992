import io
import sys

import pytest

from qaic.compiler.diagnostics import progress
from qaic.compiler.diagnostics.progress import Progress
from qaic.support.status_line import lines_in_pipes


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def plain_terminal(monkeypatch):
    """Stand in for a terminal; called inside the test, for pytest puts its own stream back after fixtures."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_nothing_is_shown_within_the_first_second(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("read")
        clock[0] += 0.9
        shown.stage("check")
    assert terminal.getvalue() == ""


def test_long_stages_are_shown_and_removed_at_the_end(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("write")
        clock[0] += 2
        shown.advance(50, 200)
        clock[0] += 0.01
        shown.advance(51, 200)
        assert terminal.getvalue() == "\r\x1b[Kcompiling net: write 25 % (2 s)"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_samples_are_counted_with_and_without_a_known_number(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("calibrate")
        clock[0] += 2
        shown.count(3, 20, "samples")
        clock[0] += 1
        shown.count(4, None, "samples")
        assert terminal.getvalue() == (
            "\r\x1b[Kcompiling net: calibrate 3 of 20 samples (2 s)"
            "\r\x1b[Kcompiling net: calibrate 4 samples (3 s)"
        )


def test_a_stream_that_is_no_terminal_stays_silent(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("compiling net") as shown:
        clock[0] += 5
        shown.stage("write")
        shown.advance(1, 0)
    assert stream.getvalue() == ""


def test_a_command_writes_a_line_into_a_pipe_every_ten_seconds(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with lines_in_pipes(), Progress("compiling net") as shown:
        for done in range(25):
            shown.stage("write")
            shown.advance(done, 25)
            clock[0] += 1
    assert stream.getvalue() == ("note: compiling net: write (10 s)\nnote: compiling net: write (20 s)\n")


def test_a_pipe_that_nothing_reads_any_more_does_not_end_the_work(clock, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    with lines_in_pipes(), Progress("compiling net") as shown:
        clock[0] += 11
        shown.stage("write")
        monkeypatch.undo()


def test_a_process_without_standard_error_is_no_problem(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("compiling net") as shown:
        clock[0] += 5
        shown.stage("write")
