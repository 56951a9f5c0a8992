"""Each tool names options as its own users type them, in messages and in reports."""

import shlex
from importlib import import_module

import pytest

from qaic.cli import openqaic
from qaic.cli.runner import command_line
from qaic.errors import StateError
from qaic.options.argv import read_argv, with_flags
from qaic.options.codecs.structures import ModelInput
from qaic.options.table import SPECS, find
from session_models import affine, save

#: tool -> its arguments, and the function that works for them
FRONTS = {
    "openqaic": (["check", "m.onnx"], "qaic.cli.openqaic.commands.check", "run"),
    "compile": (["-m=m.onnx", "-aic-binary-dir=p"], "qaic.cli.compile", "_do"),
    "runner": (["-t", "p"], "qaic.cli.runner.flow", "run"),
}
#: options of running as the tools take them
OWN = {
    "openqaic": {"num_activations": "-a", "set_size": "-S"},
    "runner": {"num_activations": "-a", "set_size": "-S", "submit_num_retries": "--submit-retry-count"},
}
KEYWORDS = sorted(spec.name for spec in SPECS if "_" in spec.name or spec.name == "batchsize")


def options_of(front):
    """Return the options of a tool: flag -> keyword."""
    if front == "compile":
        flags = {text: spec for spec in SPECS if spec.flag is not None for text in spec.flag.texts}
        return {f"-{text}": spec.name for text, spec in flags.items()}
    if front == "openqaic":
        parser = openqaic.parser(frozenset({"check"}))._actions[-1].choices["check"]
    else:
        parser = command_line.parser()
    actions = parser._option_string_actions.items()
    found = {
        flag: next(filter(None, map(find, (action.dest, *action.option_strings))), None)
        for flag, action in actions
    }
    taken = {flag: spec.name for flag, spec in found.items() if spec is not None}
    # Users of the runner compile with `qaic-compile`, and only `openqaic compile` has this -o.
    return {**options_of("compile"), **taken} if front == "runner" else {**taken, "-o": "output_dir"}


@pytest.mark.parametrize("front", FRONTS)
def test_hints_name_options_that_the_tool_takes(front, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments, module, name = FRONTS[front]

    def refuse(*_arguments, **_more):
        raise StateError("refused", code="runtime.test", hints=(" | ".join(KEYWORDS),))

    monkeypatch.setattr(import_module(module), name, refuse)
    assert import_module(f"qaic.cli.{front}").main(arguments) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hint: ")]
    shown = dict(zip(KEYWORDS, line.removeprefix("hint: ").split(" | "), strict=True))
    options = options_of(front)
    # Only Python and options files have the others.
    assert {keyword for keyword in KEYWORDS if shown[keyword] != keyword} == {*options.values()} & {*KEYWORDS}
    assert {flag: options.get(flag) for flag in shown.values() if flag.startswith("-")} == {
        flag: keyword for keyword, flag in shown.items() if flag.startswith("-")
    }
    own = OWN.get(front, {})
    assert {keyword: shown[keyword] for keyword in own} == own


@pytest.mark.parametrize(
    "shapes",
    [{"x": (2, 4)}, {"a:0": (1, 2), "a,b": (3,)}, {"x": ()}, {"": (1, 3)}, {"1": (5,), "x[0]": (7, 1)}],
)
def test_shapes_are_written_in_the_form_of_openqaic(shapes):
    given = [{"input_name": name, "input_type": None, "input_shape": shape} for name, shape in shapes.items()]
    given = [{key: value for key, value in one.items() if value is not None} for one in given]
    flags = shlex.split(with_flags(f"model_inputs={given}", "--"))
    assert all(flag.startswith("--shape=") for flag in flags)
    (option,) = read_argv(flags)
    assert find("model_inputs").codec.parse(option.value) == tuple(
        ModelInput(name, None, shape) for name, shape in shapes.items()
    )


@pytest.mark.parametrize(
    "command", ["check", "check --cards 1 --precision int8", "profile -n 3", "accuracy --to fp16,int8"]
)
def test_reports_name_options_as_flags(command, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, affine())
    name, *options = command.split()
    assert openqaic.main([name, "model.onnx", *options]) == 0
    shown = capfd.readouterr().out
    assert shown == with_flags(shown, "--")
