"""``qaic-compile`` and ``qaic-exec`` as their users call them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

import qaic
import session_models
from child_process import ignoring, started
from qaic.cli import compile as compile_tool
from qaic.cli import compile_and_run


def doubled():
    """y = x + x on float[batch, 4]."""
    return session_models.model(
        [helper.make_node("Add", ["x", "x"], ["y"], name="sum")],
        [("x", TensorProto.FLOAT, ["batch", 4])],
        [("y", TensorProto.FLOAT, ["batch", 4])],
    )


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "doubled.onnx"
    onnx.save(doubled(), path)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "binaries"


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


BATCH = "-onnx-define-symbol=batch,3"


def test_flags_reach_the_container(model, out, capsys):
    argv = [f"-m={model}", BATCH, "-convert-to-fp16", "--aic-num-cores=4", "-compile-only"]
    assert compile_tool.main([*argv, f"-aic-binary-dir={out}"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        f"reading {model}",
        "compiling for the CPU device, 4 cores",
        "precision float16",
        f"compiled {out / 'programqpc.bin'}",
    ]
    assert printed.err == ""
    with qaic.Session(out) as session:
        assert session.model_input_shape_dict["x"] == ((3, 4), np.dtype("float32"))
        assert session.run({"x": np.full((3, 4), 1.5, np.float32)})["y"].tolist() == [[3.0] * 4] * 3
    effective = qaic.Qpc(out / "programqpc.bin").plan["options"]
    assert effective == {"aic_num_cores": 4, "convert_to_fp16": True, "onnx_define_symbol": {"batch": 3}}


def test_the_command_line_of_wrappers(model, out):
    """Checks tool, target, version and model; the exit code and the file show the result."""
    command = [
        *(sys.executable, "-m", "qaic.cli.compile", "-aic-hw", "-aic-hw-version=ai100", f"-m={model}"),
        *("-compile-only", "-retained-state=false", "-aic-num-cores=16", "-mxfp6-matmul", "-mos=1"),
        *("-aic-enable-depth-first", "-allow-mxint8-mdp-io=false", BATCH, f"-aic-binary-dir={out}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    # The model of the tests has no product of that size.
    assert [line.split(":")[:2] for line in done.stderr.splitlines()] == [["warning", " -mxfp6-matmul"]]
    assert names_in(out) == ["programqpc.bin"]


def test_repeated_flags_and_switches_that_are_off(model, out, tmp_path):
    config = tmp_path / "specializations.json"
    config.write_text(json.dumps({"specializations": [{"batch": "1"}, {"batch": "2"}]}))
    argv = ["-m", str(model), f"-network-specialization-config={config}", "-convert-to-fp16=false"]
    assert compile_tool.main([*argv, "-aic-binary-dir", str(out)]) == 0
    with qaic.Session(out) as session:
        for batch in (1, 2):
            assert session.run({"x": np.ones((batch, 4), np.float32)})["y"].shape == (batch, 4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no model; qaic-compile expects -m=MODEL.onnx"),
        (["-aic-num-cores=2"], "no model"),
        (["model.onnx"], "unexpected argument model.onnx"),
        (["-m"], "-m needs a value"),
        (["-m=a.onnx", "-m=b.onnx"], "give it once"),
        (["-m=a.onnx"], "the folder for the container is missing; -aic-binary-dir=DIR is expected"),
        (["-m=a.onnx", "-aic-binary-dir=d", "-io-encrypt=x"], "needs the SDK"),
        (["-operators-supported=caffe"], "expected -operators-supported=onnx"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_done(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compile_tool.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_wrong_flags_and_values_are_all_named(model, out, capsys):
    for flag, message in [
        ("-aic-num-core=2", "aic-num-cores"),
        ("-aic-num-cores=17", "1 to 16"),
        ("-convert-to-fp17", "-convert-to-fp16"),
        ("-dump-profile=p -load-profile=p", "load-profile"),
    ]:
        assert compile_tool.main([f"-m={model}", f"-aic-binary-dir={out}", *flag.split()]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.out == ""
    assert not out.exists()


def test_symbol_without_a_size(model, out, capsys):
    assert compile_tool.main([f"-m={model}", f"-aic-binary-dir={out}"]) != 0
    assert "batch" in capsys.readouterr().err
    assert not out.exists()


def test_missing_model(tmp_path, out, capsys):
    assert compile_tool.main([f"-m={tmp_path / 'missing.onnx'}", f"-aic-binary-dir={out}"]) == 1
    assert "missing.onnx" in capsys.readouterr().err


def test_a_container_is_no_model(model, out, capsys):
    assert compile_tool.main([f"-m={model}", BATCH, f"-aic-binary-dir={out}"]) == 0
    assert compile_tool.main([f"-m={out / 'programqpc.bin'}", f"-aic-binary-dir={out}2"]) == 2
    assert "is a compiled container" in capsys.readouterr().err


def test_a_model_in_text_form(tmp_path, out, capsys):
    path = tmp_path / "doubled.onnxtxt"
    path.write_text(text_format.MessageToString(doubled()))
    assert compile_tool.main([f"-m={path}", BATCH, f"-aic-binary-dir={out}"]) == 0
    with qaic.Session(out) as session:
        assert session.run({"x": np.ones((3, 4), np.float32)})["y"].tolist() == [[2.0] * 4] * 3
    for content in (b"graph {", b"\xff", b"{" * 100_000):
        path.write_bytes(content)
        assert compile_tool.main([f"-m={path}", f"-aic-binary-dir={out}"]) == 2
        assert "is not a model in the text form" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["-h", "-help", "--help", "--usage", "-u"])
def test_help_wins_over_everything(flag, capsys):
    assert compile_tool.main(["-no-such-flag", flag]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: qaic-compile ")
    assert printed.err == ""


def test_help_lists_every_flag(capsys):
    from qaic.options.spec import Stage
    from qaic.options.table import SPECS

    assert compile_tool.main(["-h"]) == 0
    words = capsys.readouterr().out.replace("=", " ").replace("[", " ").split()
    for spec in SPECS:
        if spec.flag is not None and spec.stage is Stage.COMPILE and spec.flag.text != "v":
            assert f"-{spec.flag.text}" in words


USAGE = """\
usage: {} -m=MODEL.onnx -aic-binary-dir=DIR [-OPTION[=VALUE] ...]

Compile an ONNX model to a program container{}.

"""


@pytest.mark.parametrize(
    ("module", "words"),
    [(compile_tool, ("qaic-compile", "")), (compile_and_run, ("qaic-exec", " and run it"))],
)
def test_help_is_the_golden_one(module, words, capsys):
    flags = Path(__file__).parents[2] / "docs" / "reference" / "flags.txt"
    assert tool_help(module, capsys) == USAGE.format(*words) + flags.read_text(encoding="utf-8")


def tool_help(module, capsys):
    assert module.main(["-h"]) == 0
    return capsys.readouterr().out


# --- the directory for the container


def compiled(model, out, *flags):
    return compile_tool.main([f"-m={model}", BATCH, f"-aic-binary-dir={out}", *flags])


def test_our_own_container_is_replaced(model, out, capsys):
    assert compiled(model, out) == 0
    first = (out / "programqpc.bin").read_bytes()
    (out / "notes.txt").write_text("mine")
    assert compiled(model, out, "-aic-num-cores=2") == 0
    assert (out / "programqpc.bin").read_bytes() != first
    assert names_in(out) == ["notes.txt", "programqpc.bin"]


def test_an_empty_directory_is_used(model, out):
    out.mkdir()
    assert compiled(model, out) == 0


@pytest.mark.parametrize("content", ["file", "damaged", "foreign", "not a directory", "the model"])
def test_what_is_not_ours_is_left_alone(model, out, content, capsys):
    from qpc_support import container, program

    if content == "not a directory":
        out.write_text("x")
    elif content == "the model":
        out = model
    else:
        out.mkdir()
        name = "thesis.txt" if content == "file" else "programqpc.bin"
        (out / name).write_bytes(container(program()) if content == "foreign" else b"something")
    before = out.read_bytes() if out.is_file() else {path.name: path.read_bytes() for path in out.iterdir()}
    assert compiled(model, out) == 2
    printed = capsys.readouterr()
    assert f"error: -aic-binary-dir: '{out}' cannot be used: it" in printed.err
    assert ("it is a file" in printed.err) == out.is_file()
    assert "remove" not in printed.err
    assert printed.out == ""
    after = out.read_bytes() if out.is_file() else {path.name: path.read_bytes() for path in out.iterdir()}
    assert after == before


def test_a_failed_compilation_keeps_the_container_that_was_there(model, out, tmp_path):
    assert compiled(model, out) == 0
    before = (out / "programqpc.bin").read_bytes()
    assert compile_tool.main([f"-m={model}", f"-aic-binary-dir={out}"]) == 1
    assert (out / "programqpc.bin").read_bytes() == before
    assert names_in(out) == ["programqpc.bin"]


#: A hook in the tool that prints a line when it is called, and waits for a line before it continues.
WORKING = """
import sys
from qaic.compiler.frontend.files import onnx_file
parse = onnx_file.OnnxFile.parse
def reported(self):
    print("working", file=sys.stderr, flush=True)
    sys.stdin.readline()
    return parse(self)
onnx_file.OnnxFile.parse = reported
"""


def sent_ctrl_c(model, out, folder, *before):
    """Send SIGINT to a compiler that is running; returns the exit code, the errors, and the files in its
    cache.
    """
    (folder / "sitecustomize.py").write_text(WORKING)
    cache = folder / "cache"
    command = [
        *before,
        sys.executable,
        "-m",
        "qaic.cli.compile",
        f"-m={model}",
        BATCH,
        f"-aic-binary-dir={out}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder), "QAIC_CACHE_DIR": str(cache)}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with started(command, text=True, env=environment, **pipes) as child:
        assert child.stderr.readline() == "working\n"
        child.send_signal(signal.SIGINT)
        if before:
            child.stdin.write("\n")
        _, complaints = child.communicate()
    return (
        child.returncode,
        complaints,
        [path for path in cache.rglob("*") if path.suffix in (".bin", ".tmp")],
    )


def test_ctrl_c_leaves_nothing(model, out, tmp_path):
    """The tool waits for a line that is never written."""
    assert sent_ctrl_c(model, out, tmp_path) == (130, "error: interrupted\n", [])
    assert not out.exists()


def test_a_tool_that_starts_with_sigint_ignored_keeps_ignoring_it(model, out, tmp_path):
    """Ctrl-C in a terminal also reaches background jobs, which ignore SIGINT because of the shell."""
    code, complaints, kept = sent_ctrl_c(model, out, tmp_path, *ignoring(signal.SIGINT))
    assert (code, complaints) == (0, "")
    assert kept
    assert names_in(out) == ["programqpc.bin"]


FULL = """
import resource, sys
from qaic.cli import compile
arguments = sys.argv[1:]
assert compile.main(arguments) == 0
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
sys.exit(compile.main(arguments))
"""


def test_a_target_without_room_is_named(model, out, tmp_path):
    """A limit of file sizes simulates a full disk at the same call. The cache contains the program."""
    before = out / "programqpc.bin"
    done = subprocess.run(
        [sys.executable, "-c", FULL, f"-m={model}", BATCH, f"-aic-binary-dir={out}"],
        env={**os.environ, "QAIC_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"error: {out / 'programqpc.bin'}: File too large\n"
    assert before.stat().st_size > 100
    assert names_in(out) == ["programqpc.bin"]


# --- reports and messages


def test_reports_are_on_stdout(model, out, capsys):
    assert (
        compiled(model, out, "-time-passes", "-aic-perf-metrics", "-aic-perf-warnings", "-enable-debug") == 0
    )
    printed = capsys.readouterr()
    for title in ("passes of the compiler", "performance metrics", "performance warnings"):
        assert title in printed.out.splitlines()
    assert printed.err == ""
    assert (out / "compiler-debug" / "compile.log").exists()


def test_verbosity(model, out, capsys, monkeypatch):
    monkeypatch.setenv("QAIC_COMPILER_OPTS_UNSUPPORTED", "-secret")
    errors = []
    for flags in ((), ("-v",), ("-vv",), ("-v", "-v"), ("-vvv",)):
        assert compiled(model, out, "-ols=2", *flags) == 0
        errors.append(capsys.readouterr().err)
    assert errors[0] == ""
    assert "note: recorded, no effect on the cpu target: -ols\n" in errors[1]
    assert "QAIC_COMPILER_OPTS_UNSUPPORTED" not in errors[1]
    assert errors[2].count("debug: QAIC_COMPILER_OPTS_UNSUPPORTED is for the vendor's compiler") == 1
    assert errors[2] == errors[3] == errors[4]


def test_warnings_come_each_time(tmp_path, out, capsys):
    graph = helper.make_graph(
        [
            helper.make_node("NonZero", ["x"], ["z"], name="select"),
            helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for _ in range(2):
        assert compile_tool.main([f"-m={path}", f"-aic-binary-dir={out}"]) == 0
        assert capsys.readouterr().err == (
            "warning: a compiler for the card is unlikely to accept this model: "
            "NonZero (not on the list of operators) at 'select'\n"
        )
    assert compile_tool.main([f"-m={path}", f"-aic-binary-dir={out}2", "-strict-aic"]) == 1
    assert not (tmp_path / "binaries2").exists()


def test_the_list_of_operators(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compile_tool.main(["-operators-supported=onnx"]) == 0
    lines = (tmp_path / "OnnxSupportedOperators.txt").read_text().splitlines()
    assert "estimate" in capsys.readouterr().out
    assert lines[0].startswith("# estimated")
    assert {"Conv", "MatMul"} < set(lines[1:])
    assert lines[1:] == sorted(lines[1:])
    mine = tmp_path / "mine.txt"
    mine.write_text("Zeta\nAlpha\n")
    assert (
        compile_tool.main(["-operators-supported=onnx", f"-aic-operator-list={mine}", "-aic-binary-dir=sub"])
        == 0
    )
    assert (tmp_path / "sub" / "OnnxSupportedOperators.txt").read_text() == "Alpha\nZeta\n"


@pytest.mark.parametrize("flag", ["-mdp-dump-partition-config", "-dump-custom-IO-config-template"])
def test_files_about_a_model_without_a_container(model, out, tmp_path, flag, capsys):
    written = tmp_path / "written"
    assert compile_tool.main([f"-m={model}", BATCH, f"{flag}={written}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {written}"
    assert written.exists()
    written.unlink()
    assert compiled(model, out, f"{flag}={written}") == 0
    assert written.exists()
    assert (out / "programqpc.bin").exists()


def test_a_profile_ends_the_work_of_the_tool(model, out, tmp_path):
    written = tmp_path / "profile.yaml"
    assert compiled(model, out, f"-dump-profile={written}", "-use-random-input-data") == 0
    assert written.exists()
    assert not out.exists()


# --- running


def test_flags_of_a_run_are_noted_with_their_tool(model, out, capsys):
    assert compiled(model, out, "-num-iter=3", "-device-id=0", "-aic-profiling-type=latency") == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("note: ")
    for flag in ("-num-iter", "-device-id", "-aic-profiling-type"):
        assert flag in error
    assert "qaic-runner" in error


@pytest.mark.parametrize("flag", ["-input-list-file={list}", "-use-random-input-data"])
def test_samples_without_a_measurement_are_noted(model, out, tmp_path, capsys, flag):
    listed = tmp_path / "list.txt"
    listed.write_text("x.raw\n")
    assert compiled(model, out, flag.format(list=listed)) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"note: {flag.partition('=')[0]} without -convert-to-quantize or -dump-profile:")
    assert compiled(model, out, "-use-random-input-data", "-convert-to-quantize") == 0
    assert "without" not in capsys.readouterr().err


def test_exec_runs_what_it_compiled(model, out, tmp_path, capsys):
    results = tmp_path / "results"
    argv = [
        *(f"-m={model}", BATCH, f"-aic-binary-dir={out}", "-num-iter=5", "-aic-num-of-instances=2"),
        *(f"-write-output-dir={results}", "-write-output-num-samples=2", "-device-id=0"),
    ]
    assert compile_and_run.main(argv) == 0
    printed = capsys.readouterr()
    assert f"compiled {out / 'programqpc.bin'}" in printed.out.splitlines()
    assert "InferenceCnt 5 " in printed.out
    assert len(list(results.glob("y-activation-*.bin"))) == 2


def test_exec_runs_given_inputs(model, out, tmp_path, capsys):
    values = np.arange(12, dtype=np.float32)
    values.tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(f"{tmp_path / 'x.raw'}\n")
    (tmp_path / "io.json").write_text(
        json.dumps(
            {
                "IO-files": [
                    [{"path": "x.raw", "io-direction": "in", "elem-size": 4, "map-to": "x", "dims": [3, 4]}]
                ]
            }
        )
    )
    for flag in (f"-input-list-file={tmp_path / 'list.txt'}", f"-json-input-file={tmp_path / 'io.json'}"):
        results = tmp_path / f"results{len(flag)}"
        argv = [f"-m={model}", BATCH, f"-aic-binary-dir={out}", f"-write-output-dir={results}", flag]
        assert compile_and_run.main(argv) == 0, capsys.readouterr().err
        (written,) = results.glob("*.bin")
        assert np.fromfile(written, np.float32).tolist() == (2 * values).tolist()


def test_exec_with_compile_only_does_not_run(model, out, capsys):
    argv = [f"-m={model}", BATCH, f"-aic-binary-dir={out}", "-compile-only"]
    assert compile_and_run.main(argv) == 0
    assert "InferenceCnt" not in capsys.readouterr().out
    assert compile_and_run.main([*argv, "-num-iter=3"]) == 0
    printed = capsys.readouterr()
    assert "InferenceCnt" not in printed.out
    assert printed.err == "warning: -num-iter: no effect, because -compile-only only compiles\n"


def test_exec_refuses_before_it_compiles(model, out, capsys):
    argv = [f"-m={model}", BATCH, f"-aic-binary-dir={out}"]
    for flags in (["-num-iter=3", "-time=2"], ["-aic-profiling-type=trace_stream"]):
        try:
            code = compile_and_run.main([*argv, *flags])
        except SystemExit as error:
            code = error.code
        assert code == 2
        assert not out.exists()


def test_exec_works_without_a_directory(model, capsys):
    assert compile_and_run.main([f"-m={model}", BATCH, "-num-iter=2"]) == 0
    assert "InferenceCnt 2 " in capsys.readouterr().out


def test_the_version_stands_alone_or_among_flags(model, out, capsys):
    for flag in ("-V", "-version", "--version"):
        assert compile_tool.main([flag]) == 0
        assert capsys.readouterr().out == f"qaic-compile {qaic.__version__}\n"
    assert compile_tool.main([f"-m={model}", "-version", BATCH, f"-aic-binary-dir={out}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"qaic-compile {qaic.__version__}"
    assert (out / "programqpc.bin").exists()


def test_the_documented_run_of_one_input_writes_its_second_inference(model, tmp_path, capsys):
    np.ones((3, 4), np.float32).tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(f"{tmp_path / 'x.raw'}\n")
    words = [
        f"-m={model}",
        BATCH,
        f"-input-list-file={tmp_path / 'list.txt'}",
        f"-write-output-dir={tmp_path / 'o'}",
    ]
    assert compile_and_run.main([*words, "-write-output-start-iter=1", "-write-output-num-samples=1"]) == 0
    assert "InferenceCnt 2 " in capsys.readouterr().out
    assert names_in(tmp_path / "o") == ["y-activation-0-inf-1.bin"]
