"""The check of printed commands finds them, runs them, and fails when one fails."""

import os
from pathlib import Path

import pytest

import printed_steps
from qaic.cli import console


def printing(*lines):
    def tool(_argv):
        console.print_line(lines[0])
        for line in lines[1:]:
            console.print_message("hint", line)
        return 0

    return tool


def test_commands_are_next_lines_and_quoted_in_hints():
    assert printed_steps.commands_of("next: openqaic info") == ["openqaic info"]
    assert printed_steps.commands_of("next, for latency: openqaic info") == ["openqaic info"]
    assert printed_steps.commands_of("next: in Python: qaic.compile('m.onnx')") == []
    assert printed_steps.commands_of("9 codes; next: openqaic explain x") == ["openqaic explain x"]
    assert printed_steps.commands_of("hint: `openqaic info` or `--json` or `pip install x`") == [
        "openqaic info"
    ]
    assert printed_steps.commands_of("note: `openqaic info`") == []
    with pytest.raises(AssertionError, match="backquotes"):
        printed_steps.commands_of("hint: openqaic info shows it")


def test_commands_run_where_they_were_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with printed_steps.collected() as steps:
        console.run(
            printing("next: openqaic explain qpc.bad_magic", "`mkdir -p made/here` makes it"), ["argument"]
        )
    os.chdir("/")
    printed_steps.run_all(steps, Path(__file__))
    assert (tmp_path / "made" / "here").is_dir()
    with printed_steps.collected() as steps:
        console.run(printing("next: openqaic explain nothing"), [])
    with pytest.raises(AssertionError, match="`openqaic explain nothing`, printed by ``, ends with 2"):
        printed_steps.run_all(steps, Path(__file__))
    # The same command from the same origin does not run again.
    printed_steps.run_all(steps, Path(__file__))


def test_a_command_whose_file_is_gone_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_text("")
    with printed_steps.collected() as steps:
        console.run(printing("next: openqaic run model.onnx"), [])
    (tmp_path / "model.onnx").unlink()
    printed_steps.run_all(steps, Path(__file__))
