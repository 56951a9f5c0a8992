import io
import sys

import pytest

from qaic.compiler.diagnostics.progress import Progress
from qaic.support import status_line
from qaic.support.status_line import lines_in_pipes


class Terminal(io.StringIO):
    def isatty(self):
        return True


def plain_terminal(monkeypatch):
    """Replace the stream by a terminal; called inside the test, because pytest restores its own stream after
    fixtures.
    """
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_nothing_is_shown_within_the_first_second(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("read")
        clock.advance(0.9)
        shown.stage("check")
    assert terminal.getvalue() == ""


def test_a_stage_that_reports_nothing_is_shown_with_its_time(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("read")
        clock.advance(3)
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[0] == lines[-1] == ""
    assert list(dict.fromkeys(lines[1:-1])) == [f"compiling net: read ({seconds} s)" for seconds in (1, 2, 3)]


def test_long_stages_are_shown_and_removed_at_the_end(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("write")
        shown.advance(50, 200)
        clock.advance(2)
        assert terminal.getvalue().endswith("\r\x1b[Kcompiling net: write 25 % (2 s)")
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("done", "total", "shown_text"),
    [
        (3, 20, "calibrate 3 of 20 samples (2 s)"),
        (1, 1, "calibrate 1 of 1 sample (2 s)"),
        (1, None, "calibrate 1 sample (2 s)"),
        (3, None, "calibrate 3 samples (2 s)"),
    ],
)
def test_samples_are_counted_with_and_without_a_known_number(clock, monkeypatch, done, total, shown_text):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("calibrate")
        shown.count(done, total, "sample")
        clock.advance(2)
        assert terminal.getvalue().endswith(f"\r\x1b[Kcompiling net: {shown_text}")


def test_a_stream_that_is_no_terminal_stays_silent(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("compiling net") as shown:
        shown.stage("write")
        clock.advance(25)
    assert stream.getvalue() == ""


def test_a_command_writes_a_line_into_a_pipe_every_ten_seconds(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with lines_in_pipes(), Progress("compiling net") as shown:
        shown.stage("write")
        clock.advance(25)
    assert stream.getvalue() == ("note: compiling net: write (10 s)\nnote: compiling net: write (20 s)\n")


def test_other_output_has_a_line_of_its_own(clock, monkeypatch):
    terminal = plain_terminal(monkeypatch)
    with Progress("compiling net") as shown:
        shown.stage("write")
        clock.advance(1.2)
        status_line.erase()
        terminal.write("warning: one\n")
        clock.advance(0.1)
    assert "(1 s)\r\x1b[Kwarning: one\n\r\x1b[Kcompiling net: write (1 s)" in terminal.getvalue()


def test_a_pipe_that_nothing_reads_any_more_does_not_end_the_work(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr(status_line, "_PIPE_PERIOD_S", 0.0)
    with lines_in_pipes(), Progress("compiling net") as shown:
        shown.stage("write")
        monkeypatch.undo()


def test_a_process_without_standard_error_is_no_problem(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("compiling net") as shown:
        shown.stage("write")
        clock.advance(5)
