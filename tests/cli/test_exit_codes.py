"""Exceptions become lines on stderr and exit codes; no other code determines either."""

import io

import pytest

from qaic import errors
from qaic.cli import console
from qaic.report.text import rows_text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("wrong", code="input.x"), 1),
        (errors.QpcFormatError("wrong", code="qpc.x"), 1),
        (FileNotFoundError(2, "No such file or directory", "nope"), 1),
        (errors.OptionError("wrong", code="option.x"), 2),
        (errors.UnknownOptionError("wrong", code="option.unknown"), 2),
        (errors.DeviceBusyError("wrong", code="device.busy"), 3),
        (errors.InternalError("wrong", code="internal"), 70),
        (ZeroDivisionError("wrong"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error, code, capsys):
    def tool(_argv):
        raise error

    assert console.run(tool, []) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
    assert ("Traceback" in printed.err) == isinstance(error, ZeroDivisionError)


def test_hints_follow_the_error(capsys):
    def tool(_argv):
        raise errors.StateError("nothing there", code="x.y", hints=("do this", "or that"))

    assert console.run(tool, []) == 1
    assert capsys.readouterr().err == "error: nothing there [x.y]\nhint: do this\nhint: or that\n"


def test_the_code_follows_the_first_line_of_an_error(capsys):
    def tool(_argv):
        raise errors.OptionError("2 options are wrong:\n  a: no\n  b: no", code="x.y")

    assert console.run(tool, []) == 2
    assert capsys.readouterr().err == "error: 2 options are wrong: [x.y]\n  a: no\n  b: no\n"


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_colored"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, False, False)],
)
def test_messages_have_colors_on_terminals(monkeypatch, environment, is_terminal, is_colored):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(console.sys, "stderr", stream)
    console.print_message("error", "file \x1b[31m is missing")
    word = "\x1b[1;31merror\x1b[0m" if is_colored else "error"
    assert stream.getvalue() == f"{word}: file \\x1b[31m is missing\n"


def test_success_passes_the_code_of_the_tool(capsys):
    assert console.run(len, ["a", "b"]) == 2
    assert capsys.readouterr().err == ""


def test_wrong_usage_exits_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        console.Parser(prog="tool").parse_args(["--nope"])
    assert caught.value.code == 2
    assert "hint: `tool --help`" in capsys.readouterr().err


def test_table_aligns_numbers_to_the_right():
    text = rows_text("name | n:int", [["a", 1], ["long", 100]])
    assert text == "name    n\na       1\nlong  100"


def test_positional_arguments_stand_anywhere_unless_an_option_excludes_them():
    free = console.Parser(prog="free")
    free.add_argument("things", nargs="*")
    free.add_argument("--flag")
    for words in (["a", "b", "--flag", "1"], ["a", "--flag", "1", "b"], ["--flag", "1", "a", "b"]):
        found = free.parse_args(words)
        assert (found.things, found.flag) == (["a", "b"], "1")
    excluding = console.Parser(prog="excluding")
    either = excluding.add_mutually_exclusive_group()
    either.add_argument("file", nargs="?")
    either.add_argument("--input")
    assert excluding.parse_args(["x"]).file == "x"
    assert excluding.parse_args(["--input", "y"]).input == "y"
