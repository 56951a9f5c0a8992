"""Messages and reports of each tool name options in the form that its users type."""

import itertools
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from qaic.cli import console, openqaic
from qaic.cli.runner import command_line
from qaic.errors import StateError
from qaic.options.argv import read_argv, with_flags
from qaic.options.table import SPECS, find
from qaic.report import Prose, Report, Table, columns_of
from session_models import save

#: Tool -> its arguments, and the function that runs it.
FRONTS = {
    "openqaic": (["check", "m.onnx"], "qaic.cli.openqaic.commands.check", "run"),
    "compile": (["-m=m.onnx", "-aic-binary-dir=p"], "qaic.cli.compile", "_do"),
    "runner": (["-t", "p"], "qaic.cli.runner.flow", "run"),
}
#: Options of a run, in the form of the tools.
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
    # Users of the runner compile with `qaic-compile`. Only `openqaic compile` has this -o.
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
    # Other keywords exist only in Python and in options files.
    assert {keyword for keyword in KEYWORDS if shown[keyword] != keyword} == {*options.values()} & {*KEYWORDS}
    assert {flag: options.get(flag) for flag in shown.values() if flag.startswith("-")} == {
        flag: keyword for keyword, flag in shown.items() if flag.startswith("-")
    }
    own = OWN.get(front, {})
    assert {keyword: shown[keyword] for keyword in own} == own


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (2, 4)},
        {"a:0": (1, 2), "a,b": (3,)},
        {"x": ()},
        {"": (1, 3)},
        {"1": (5,), "x[0]": (7, 1)},
        {"x[0]": ()},
        {"x:": (2, 2)},
    ],
)
@pytest.mark.parametrize("kind", [None, "float32"])
def test_shapes_are_written_in_the_form_of_openqaic(shapes, kind):
    kind = None if "" in shapes else kind
    given = [{"input_name": name, "input_type": kind, "input_shape": shape} for name, shape in shapes.items()]
    given = [{key: value for key, value in one.items() if value is not None} for one in given]
    shown = with_flags(f"model_inputs={given}", "--")
    if kind is None and shapes.keys() & {"x[0]", "x:"} and "1" not in shapes:
        # The form of these options requires a type.
        assert shown == f"model_inputs={given}"
        return
    flags = shlex.split(shown)
    assert all(flag.startswith("--shape=") for flag in flags)
    (option,) = read_argv(flags)
    read = find("model_inputs").codec.parse(option.value)
    assert {one.input_name: one.input_shape for one in read} == shapes
    assert {one.input_type for one in read} <= {None, kind}


def test_reports_name_options_as_flags_and_names_as_they_are(capsys):
    columns = columns_of("node | remedy")
    rows = [
        ("host_preproc", Prose("compile with stats_level=70 for host_preproc", names=["host_preproc"])),
        ("batchsize", "set_size"),
        ("a", Prose("measure again.", options=["batchsize", "set_size=1"])),
    ]
    sentences = ["batchsize is slow", Prose("Fix: give batchsize.")]
    tables = [Table("nodes", "Nodes", columns, rows)]
    next_steps = {"batchsize": "openqaic explain", Prose("with batchsize"): "openqaic explain"}
    report = Report("r", "host_preproc", sentences, tables, next_steps)
    assert console.run(lambda _: console.print_reports([report]) or 0, []) == 0
    assert (
        capsys.readouterr().out
        == """\
== host_preproc ==
batchsize is slow
Fix: give -batchsize.

Nodes
  node          remedy
  host_preproc  compile with -stats-level=70 for host_preproc
  batchsize     set_size
  a             measure again (-batchsize).

next, batchsize: openqaic explain
next, with -batchsize: openqaic explain
"""
    )
    # Messages show keywords in Python.
    assert "measure again (batchsize, set_size=1)." in str(report)


@pytest.mark.parametrize("command", ["accuracy --to fp16 --json -", "profile -n 2 --json"])
def test_a_graph_whose_names_are_keywords_keeps_them(command, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = ["host_preproc", "batchsize", "stats_level", "convert_to_fp16"]
    nodes = [
        helper.make_node("Exp", [first], [second], name=second) for first, second in itertools.pairwise(names)
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in names]
    graph = helper.make_graph(nodes, "g", values[:1], values[-1:])
    save(tmp_path, helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    command, *options = command.split(" --json")[0].split(), *command.split()
    texts = []
    for words in (command, options):
        assert openqaic.main([words[0], "model.onnx", *words[1:]]) == 0
        texts.append(capfd.readouterr().out)
    for name in names[1:]:
        assert all(name in text for text in texts)
        flag = f"--{name.replace('_', '-')}"
        # Next commands, and options in parentheses, are shown as flags.
        lines = [line for line in texts[0].splitlines() if not line.startswith("next")]
        assert flag not in "".join(lines).replace(f"({flag})", "")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("qpc", ["info", "batchsize"]),
        ("qpc", ["diff", "batchsize", "set_size"]),
        ("openqaic", ["check", "batchsize"]),
        ("openqaic", ["run", "stats_level"]),
        ("opstats", ["report", "./stats_level"]),
        ("compile", ["-m=batchsize", "-aic-binary-dir=p"]),
    ],
)
def test_messages_name_files_as_they_are(tool, arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (name,) = {Path(word.partition("=")[2] or word).name for word in arguments} & {"batchsize", "stats_level"}
    for file in (name, "set_size"):
        (tmp_path / file).write_bytes(b"neither")
    assert import_module(f"qaic.cli.{tool}").main(arguments) in {1, 2}
    shown = capsys.readouterr().err.splitlines()[0]
    assert name in shown
    assert f"-{name.replace('_', '-')}" not in shown.replace(f"-m={name}", "")
