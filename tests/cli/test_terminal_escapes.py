"""Names from a file are escaped before they reach a terminal, a page, a log or an archive."""

import ast
import logging
import re
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
from qaic.cli.compile import main as qaic_compile
from qaic.cli.openqaic import main as openqaic
from qaic.cli.qpc import main as qaic_qpc
from qaic.cli.runner import main as qaic_runner
from qaic.support.program_names import archive_names
from qaic.support.text import escape_html, escape_json, escape_lines, escape_unprintable

#: Characters that move the cursor, set the title, reorder a line, or start a new line.
EVIL = "\x1b]0;own\x07\x1b[31m\u202e\x9b31m\u2066\x7f\nerror: made up"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|^error: made up", re.M)
PACKAGE = Path(qaic.__file__).parent


def evil_model(folder, size="4"):
    def value(name):
        dims = [f"n{EVIL}" if size == "symbol" else 4, 4]
        return helper.make_tensor_value_info(name + EVIL, TensorProto.FLOAT, dims)

    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), f"w{EVIL}")
    nodes = [
        helper.make_node("MatMul", [f"x{EVIL}", f"w{EVIL}"], [f"m{EVIL}"], name=f"node{EVIL}"),
        helper.make_node("Relu", [f"m{EVIL}"], [f"y{EVIL}"], name=f"last{EVIL}"),
    ]
    graph = helper.make_graph(nodes, f"graph{EVIL}", [value("x")], [value("y")], [weight])
    path = folder / f"{size}\x1b[31m.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


COMMANDS = {
    **{
        " ".join(words): (openqaic, [words[0], "{model}", *words[1:]])
        for words in (
            *(["compile"], ["compile", "-o", "{out}"], ["compile", "--json"], ["compile", "-vvv"]),
            *(["compile", "--aic-perf-metrics", "--aic-perf-warnings", "--time-passes"],),
            *(["compile", "--options-path", "{options}"], ["compile", "--convert-to-fp16={evil}"]),
            *(["run"], ["run", "--json"], ["run", "-o", "{npz}"], ["run", "-i", "{evil}={npz}"]),
            *(
                ["bench", "--seconds", "0.01"],
                ["profile"],
                ["profile", "--json"],
                ["profile", "-o", "{page}"],
            ),
            *(["inspect"], ["inspect", "nodes"], ["inspect", "tensors"], ["inspect", "--json"]),
            *(["inspect", "graph", "-o", "{page}"], ["inspect", "fit"], ["accuracy", "--to", "fp16"]),
            *(
                ["accuracy", "--to", "fp16", "-o", "{page}"],
                ["accuracy", "--to", "fp16", "--samples", "{evil}"],
            ),
            *(["diff", "{model}"], ["plot"], ["run", "--{evil}"], ["run", "{evil}"]),
        )
    },
    "symbol": (openqaic, ["compile", "{symbol}"]),
    "explain": (openqaic, ["explain", "{evil}"]),
    "command": (openqaic, ["{evil}"]),
    "qaic-compile": (qaic_compile, ["-m={model}", "-aic-binary-dir={out}", "-v"]),
    "qaic-compile, option": (qaic_compile, ["-m={model}", "-{evil}"]),
    "qaic-compile, symbol": (qaic_compile, ["-m={symbol}", "-aic-binary-dir={out}"]),
    "qaic-runner": (qaic_runner, ["-t", "{out}", "-n", "1", "--write-output-dir", "{written}"]),
    "qaic-runner, nothing": (qaic_runner, ["-t", "{evil}"]),
    **{f"qaic-qpc {name}": (qaic_qpc, [name, "{out}"]) for name in ("info", "list", "validate")},
    "qaic-qpc extract": (qaic_qpc, ["extract", "{out}", "-o", "{written}"]),
    "qaic-qpc diff": (qaic_qpc, ["diff", "{out}", "{out}"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_terminals_and_pages_get_no_raw_name(tmp_path, capfd, name):
    places = {
        "evil": EVIL,
        "model": evil_model(tmp_path),
        "symbol": evil_model(tmp_path, "symbol"),
        "out": tmp_path / "out",
        "npz": tmp_path / "o.npz",
        "page": tmp_path / "page.html",
        "written": tmp_path / "written",
        "options": tmp_path / "o.yaml",
    }
    places["options"].write_text('execute_nodes_in_fp16: ["A\\e[31m\\u202e"]\nunknown\x1b[31m: 1\n')
    main, words = COMMANDS[name]
    if "{out}" in words and main is not openqaic:
        qaic.compile(places["model"], output_dir=places["out"])
    (tmp_path / "written").mkdir()
    capfd.readouterr()
    try:
        code = main([word.format(**places) for word in words])
    except SystemExit as usage:
        code = usage.code
    printed = capfd.readouterr()
    assert code != 70
    assert RAW.search(printed.out + printed.err) is None
    assert printed.out + printed.err
    if places["page"].exists():
        assert RAW.search(places["page"].read_text()) is None
    for path in places["written"].rglob("*"):
        assert path.name.isprintable()


def test_the_log_of_the_library_gets_no_raw_name(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "qaic"):
        qaic.compile(evil_model(tmp_path), execute_nodes_in_fp16=[f"nothing{EVIL}"])
    assert caplog.records
    assert not any(RAW.search(record.getMessage()) for record in caplog.records)


@pytest.mark.parametrize(
    "name", ["file", "allow_pickle", "../../evil", "/etc/passwd", "a/./b", "..", "a\\b", EVIL]
)
def test_outputs_of_any_name_are_written_and_read_again(tmp_path, name):
    value = [helper.make_tensor_value_info(text, TensorProto.FLOAT, [4]) for text in ("x", name)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [name])], "g", value[:1], value[1:])
    again = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", value[1:], value[:1])
    again.output[0].name = "y"
    for file, made in (("a.onnx", graph), ("b.onnx", again)):
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / file)
    assert openqaic(["run", str(tmp_path / "a.onnx"), "-o", str(tmp_path / "o.npz")]) == 0
    (member,) = zipfile.ZipFile(tmp_path / "o.npz").namelist()
    assert member.isprintable()
    assert not member.startswith("/")
    assert not {"..", ".", ""} & set(member.split("/"))
    assert np.load(tmp_path / "o.npz")[member.removesuffix(".npy")].shape == (4,)
    assert openqaic(["run", str(tmp_path / "b.onnx"), "-i", str(tmp_path / "o.npz")]) == 0


def test_archive_names_are_those_of_the_outputs_where_they_are_harmless():
    names = ["logits", "past_key.0_RetainedState", "model/layer.0/Add", "a b", "50%", "\u00e9"]
    assert archive_names(names) == {name: name for name in names}
    assert len(set(archive_names(["/a", "%2Fa", "%2Fa~"]).values())) == 3


@pytest.mark.parametrize("name", [EVIL, "a\tb\u2028c", "\ud800", "plain"])
def test_the_ways_to_escape(name):
    for escaped in (escape_unprintable(name), escape_html(name)):
        assert escaped.isprintable()
    assert escape_lines(f"{name}\nnext").endswith("\nnext")
    assert escape_unprintable("plain \u00e9\u4e2d") == "plain \u00e9\u4e2d"


@pytest.mark.parametrize("value", [EVIL, {"\x7f\u202e": ["\x9b", 1.5, None]}, "\U0010ffff"])
def test_escaped_json_is_the_same_value(value):
    import json

    escaped = escape_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(escaped) == value
    assert RAW.search(escaped) is None


#: (file, function) that writes text to a stream, without text from files.
WITHOUT_NAMES = {
    ("support/status_line.py", "erase"),
    ("cli/device_info.py", "_draw"),  # facts about devices, escaped when they are read
    ("cli/device_info.py", "run"),
    ("cli/device_info.py", "_screen"),
    ("configs/aic_models.py", "list_config_options"),
    ("configs/htp.py", "list_options"),
    ("rt/benchmark.py", "_serve"),
    ("runtime/metrics.py", "print_metrics"),
    ("runtime/metrics.py", "plot_latency"),
}


def writes(tree):
    """Calls that write to standard output or error, with the function that contains each."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (
                (isinstance(node.func, ast.Name) and node.func.id == "print")
                or (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in {"write", "writelines", "print_exc", "print_exception"}
                    and re.search(r"\bstd(out|err)\b|traceback", ast.unparse(node.func))
                )
            ):
                yield function.name, node


def test_every_printer_escapes():
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for function, call in writes(ast.parse(path.read_text(encoding="utf-8"))):
            place = (str(path.relative_to(PACKAGE)), function)
            called = {
                node.func.id
                for node in ast.walk(call)
                if isinstance(node, ast.Call) and hasattr(node.func, "id")
            }
            if not called & {"escape_lines", "escape_unprintable", "escape_json"}:
                found.add(place)
    assert found == WITHOUT_NAMES
