"""The command ``openqaic``: every subcommand, from its command line to its results."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
import qaicrt
import session_models
from qaic.cli.openqaic import SUBCOMMANDS
from qaic.cli.openqaic.commands import bench
from qaic.compiler import cache_contents
from session_models import affine, model_of_open_batch, save

QPCS = Path(__file__).parents[2] / "data" / "qpc"
NAMES = [subcommand.name for subcommand in SUBCOMMANDS]


def test_help_lists_every_command_and_imports_none():
    code = (
        "import sys\n"
        "from qaic.cli.openqaic import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "import json\n"
        "print(json.dumps([name for name in sys.modules if name in "
        "('onnx', 'numpy', 'pydantic', 'qaic.options.table', 'qaic._core') "
        "or name.startswith('qaic.cli.openqaic.')]))\n"
    )
    # The compiled module contains the exceptions.
    package = subprocess.run(
        [sys.executable, "-c", "import qaic.errors, sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    shown, loaded = done.rsplit("\n", 2)[:2]
    assert all(f"\n    {name}" in shown for name in NAMES)
    assert set(json.loads(loaded)) <= set(package)


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_help_with_examples_and_a_version(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert f"openqaic {name}" in out.split("examples:")[1]
    assert "\x1b" not in out
    for flag in ("-V", "--version"):
        assert call(name, flag)[:2] == (0, f"openqaic {qaic.__version__}\n")


def test_help_names_the_form_of_each_value(call):
    shown = call("compile", "--help")[1]
    assert "--aic-num-cores N" in shown
    assert "--input-list-file FILE" in shown
    assert "--shape [INPUT:]NxN" in shown


@pytest.mark.parametrize(
    "tool", [*NAMES, "qaic-opstats", "qaic-opstats report", "qaic-qpc", "qaic-runner", "qaic-util"]
)
def test_help_has_seconds_for_times_alone_and_no_nameless_value(tool, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name, *words = tool.split() if tool.startswith("qaic-") else ("openqaic", tool)
    with pytest.raises(SystemExit) as end:
        import_module(f"qaic.cli.{name.removeprefix('qaic-')}").main([*words, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > 80 and "|" not in line] == []
    assert [line for line in shown.splitlines() if re.search(r"--\w[\w-]*-$", line)] == []
    of_seconds = set(re.findall(r"(--[a-z-]+) \[?SECONDS", shown))
    assert of_seconds <= {"--seconds", "--time", "--watch", "--drain", "--body-timeout", "--table"}
    assert not re.search(r"-[a-z-]+ \[?VALUE\b", shown)


def test_nothing_to_do_shows_help_as_wrong_usage(call):
    code, out, err = call()
    assert (code, out) == (2, "")
    assert "profile model.onnx -o page.html" in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["complie", "m.onnx"], "did you mean compile?"),
        (["latency"], "hint: `openqaic --help` lists the commands\n"),
        (["model.onnx"], "did you mean openqaic run model.onnx?"),
        (["compile", "model.onnx", "--aic-num-core", "2"], "did you mean --aic-num-cores?"),
        (["compile", "model.onnx", "-aic-num-core=2"], "did you mean --aic-num-cores?"),
        (["compile", "model.onnx", "--aic-num-cores", "two"], "-aic-num-cores"),
        (["bench", "model.onnx", "--streams", "0"], "'0' is not a whole number"),
        (["bench", "model.onnx", "--warm-up", "-1"], "'-1' is not a whole number of at least 0"),
        (["bench", "model.onnx", "--seconds", "nan"], "'nan' is not a positive number"),
        (["bench", "model.onnx", "--rate", "0"], "'0' is not a positive number"),
        (["bench", "model.onnx", "--rate", "9", "--beside", "onnxruntime"], "--rate and --beside"),
        (["profile", "model.onnx", "-o", "page.pdf"], "ends in .html"),
        (["accuracy", "model.onnx", "--to", "fp16", "-o", "page.pdf"], "ends in .html"),
        (["run", "model.onnx", "-o", "out.txt"], ".npz"),
        (
            ["inspect", "model.onnx", "grpah"],
            "error: found 'grpah', expected one of nodes, tensors, graph, fit; did you mean graph?",
        ),
        (
            ["completion", "zhs"],
            "error: found 'zhs', expected one of bash, fish, tcsh, zsh; did you mean zsh?",
        ),
        (["shims"], "error: the following arguments are required: install|remove\n"),
        (["bench", "model.onnx", "--beside", "onnx"], "argument --beside: found 'onnx'"),
        (["cache", "prune"], "--limit SIZE"),
        (["cache", "list", "--limit", "2G"], "--limit needs prune"),
        (["cache", "prune", "--limit", "much"], "'much' is not a size"),
        (["devices", "--watch", "--json"], "omit --json"),
        (["devices", "--watch", "--format", "spark"], "omit --format"),
        (["devices", "--json", "--format", "dask"], "--format and --json"),
        (["explain", "device.bsy"], "did you mean device.busy?"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_expected(call, model, argv, said):
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "words", ["compile", "check", "accuracy --to fp16", "accuracy --to fp16 --target sqnr>=9 --find l.yaml"]
)
def test_every_command_for_models_refuses_other_paths_with_the_same_words(call, model, program, words):
    name, *options = words.split()
    for path, code, said in (
        (program, 2, "is a compiled container; an .onnx file is expected"),
        (".", 1, "the folder contains no programqpc.bin; it contains model.onnx: pass that file"),
    ):
        assert call(name, path, *options)[:2] == (code, "")
        assert said in call(name, path, *options)[2]


def test_a_comparison_of_random_inputs_qualifies_its_verdict_in_place(call, model):
    """Regression: the remark was the last of 70 lines; a check had a command without samples."""
    remark = "fp16: the inputs were random numbers, which do not show accuracy (--samples)."
    _, out, err = call("accuracy", model, "--to", "fp16")
    lines = out.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line == remark)
    assert lines[at - 1].startswith("fp16: output ")
    assert "random" not in err
    assert json.loads(call("accuracy", model, "--to", "fp16", "--json", "-")[1])["precisions"][0][
        "random_samples"
    ]
    np.savez("samples.npz", x=np.ones(qaic.Qpc(qaic.compile(model).path).inputs[0].shape, np.float32))
    assert remark not in call("accuracy", model, "--to", "fp16", "--samples", "samples.npz")[1]
    assert remark in call("check", model, "--samples", "random")[1]


def test_a_check_without_samples_names_them_in_the_command(call, model):
    out = call("check", model)[1]
    (line,) = re.findall("^next: openqaic (accuracy .*)", out, re.MULTILINE)
    assert "Replace FILE in the next line with the path of these samples.\n" in out
    np.savez("samples.npz", x=np.ones(qaic.Qpc(qaic.compile(model).path).inputs[0].shape, np.float32))
    code, out, _ = call(*(word.replace("FILE", "samples.npz") for word in shlex.split(line)))
    assert (code, "random" in out) == (0, False)


def test_too_many_streams_name_the_option(call, model):
    code, _, err = call("bench", model, "--streams", "99", "-n", "1")
    assert code == 3
    assert "hint: lower --streams or --aic-num-cores, or end another program on the device\n" in err
    assert "num_activations" not in err


def test_names_of_columns_of_measured_runs_stay_names(call, model, tmp_path):
    """Regression: columns were replaced by options of the command."""
    (tmp_path / "runs.csv").write_text("cores,batch,setsize\n1,1,1\n")
    code, _, err = call("check", model, "--measured", "runs.csv")
    assert code == 1
    assert "expected also 'instances', 'set_size'; is 'setsize' meant for 'set_size'?" in err
    assert "'cores,instances,batch,set_size,inferences_per_s,latency_ms'" in err
    (tmp_path / "runs.json").write_text('{"measurements": []}')
    assert "found JSON, expected a CSV table" in call("check", model, "--measured", "runs.json")[2]


def test_errors_about_samples_name_the_option(call, model, tmp_path):
    np.savez(tmp_path / "samples.npz", other=np.zeros(3, np.float32))
    code, _, err = call("accuracy", model, "--to", "fp16", "--samples", "samples.npz")
    assert code == 2
    assert err.startswith("error: --samples, samples.npz: found the unknown input 'other', expected ")


def test_files_of_a_comparison_are_written_if_the_reader_of_the_output_ends(model, tmp_path):
    """Regression: `openqaic accuracy ... --json FILE | head` wrote nothing and succeeded."""
    reader, writer = os.pipe()
    os.close(reader)
    files = ["-o", "page.html", "--json", "report.json", "--overlay", "overlay.json"]
    command = [sys.executable, "-m", "qaic", "accuracy", model, "--to", "fp16", *files]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert all((tmp_path / name).stat().st_size for name in files[1::2])


WRITERS = [
    ("run", "-o", "out.npz"),
    ("bench", "-o", "bench.json"),
    ("profile", "-o", "page.html"),
    ("inspect", "--onnx", "graph.onnx"),
    ("inspect", "graph", "-o", "graph.html"),
    ("accuracy", "--to", "fp16", "-o", "page.html"),
    ("accuracy", "--to", "fp16", "--json", "report.json"),
    ("accuracy", "--to", "fp16", "--overlay", "overlay.json"),
    ("accuracy", "--to", "fp16", "--target", "same>=1", "--find", "lists.yaml"),
]


@pytest.mark.parametrize("argv", WRITERS, ids=" ".join)
@pytest.mark.parametrize(
    ("place", "said"), [("nowhere/", "the folder nowhere does not exist"), ("", "a folder")]
)
def test_an_output_without_a_place_is_refused_before_any_work(call, model, tmp_path, argv, place, said):
    (tmp_path / argv[-1]).mkdir()
    code, out, err = call(argv[0], model, *argv[1:-1], place + argv[-1])
    assert (code, out) == (2, "")
    assert said in err
    assert "cache" not in err
    assert "compiled" not in err


def model_named(tmp_path, name):
    """Write a model under the name of an output: the contents, not the name, determine the kind of a file."""
    path = tmp_path / name
    path.write_bytes(affine().SerializeToString())
    return path


@pytest.mark.parametrize("argv", WRITERS, ids=" ".join)
def test_a_file_that_is_read_is_not_written_over(call, tmp_path, argv):
    model = model_named(tmp_path, argv[-1])
    before = model.read_bytes()
    code, out, err = call(argv[0], model, *argv[1:])
    assert (code, out) == (2, "")
    assert "the command also reads this file" in err
    assert model.read_bytes() == before


def test_inputs_are_not_written_over(call, model, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), np.float32))
    before = (tmp_path / "x.npz").read_bytes()
    for given in ("x.npz", "x=x.npz"):
        code, _, err = call("run", model, "-i", given, "-o", "./x.npz")
        assert code == 2
        assert "the command also reads this file" in err
    assert (tmp_path / "x.npz").read_bytes() == before


@pytest.mark.parametrize("command", ["compile", "run", "bench", "profile", "inspect"])
def test_a_missing_file_is_named_with_its_neighbor(call, model, command):
    code, _, err = call(command, "modle.onnx")
    assert code == 1
    assert "did you mean model.onnx?" in err


def test_the_hint_about_a_dimension_without_a_name_can_be_pasted(call, tmp_path):
    built = model_of_open_batch()
    for value in (*built.graph.input, *built.graph.output):
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    model = save(tmp_path, built)
    code, _, err = call("compile", model)
    assert code == 1
    (flag,) = shlex.split(err.splitlines()[-1].partition("e.g. ")[2])
    assert flag.startswith("--shape=")
    assert call("compile", model, flag)[0] == 0


@pytest.mark.parametrize(
    "command", ["compile", "run", "bench -n 1", "profile -n 1", "inspect", "check", "accuracy --to fp16"]
)
def test_every_command_takes_shapes_in_the_forms_of_other_tools(call, tmp_path, command):
    model = save(tmp_path, model_of_open_batch())
    name, *options = command.split()
    for flag in ("--shape=2x4", "--shapes=x:2x4", "--model-input=x[2,4]", "--model-input=x,float,[2,4]"):
        code, _, complaints = call(name, model, *options, flag)
        assert code == 0, complaints
    code, _, complaints = call(name, model, *options, "--shape=z:2x4")
    assert code == 2
    assert "input 'z' does not exist; the model has 'x: float32 [batch, 4]'" in complaints


def test_missing_external_data_names_the_tensor_that_needs_it(call, tmp_path):
    built = model_with_weights()
    onnx.save(built, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    code, _, err = call("compile", "m.onnx")
    assert code == 1
    name = built.graph.initializer[0].name
    assert "m.data: No such file or directory; m.onnx needs it for external data of" in err
    assert repr(name) in err


def test_compile_writes_what_qaic_compile_writes_and_tells_the_cache(call, model, own_cache, tmp_path):
    code, out, _ = call("compile", model, "-o", "program", "--aic-num-cores", "2", "--convert-to-fp16")
    assert code == 0
    assert out.startswith("compiled in ")
    assert f"next, for accuracy: openqaic accuracy {model} --aic-num-cores=2 --to fp16\n" in out
    assert out.endswith("next, for speed: openqaic bench program/programqpc.bin\n")
    expected = qaic.compile(model, aic_num_cores=2, convert_to_fp16=True)
    written = tmp_path / "program" / "programqpc.bin"
    assert written.read_bytes() == expected.path.read_bytes()
    code, out, _ = call("compile", model, "--json", "--aic-num-cores", "2", "--convert-to-fp16")
    facts = json.loads(out)
    assert facts["from_cache"] is True
    assert facts["bytes"] == written.stat().st_size


def test_options_of_messages_can_be_pasted(call, tmp_path):
    save(tmp_path, model_of_open_batch())
    code, _, err = call("compile", "model.onnx")
    assert code == 1
    (flag,) = [word for word in err.split() if word.startswith("--shape=")]
    assert call("compile", "model.onnx", flag)[0] == 0


def test_switches_take_values_and_no_option_has_two(call, model, tmp_path):
    code, _, said = call(
        "compile", model, "--convert-to-fp16=false", "--aic-num-cores=2", "-o", tmp_path / "p"
    )
    assert (code, said) == (0, "")
    code, _, said = call("compile", model, "--aic-num-cores=2", "--aic-num-cores=3")
    assert code == 2
    assert said.startswith("error: --aic-num-cores has two values: give it once")


def test_a_folder_of_other_things_is_left_alone(call, model, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("a")
    code, _, err = call("compile", model, "-o", "mine")
    assert code == 2
    assert "thesis.txt" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_and_no_traceback(model):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "qaic", "info"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_without_room_is_named(tmp_path):
    code = (
        "import resource\n"
        "from pathlib import Path\n"
        "from qaic.support.atomic_io import replace_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))\n"
        "try:\n    replace_bytes(Path('page.html'), bytes(64))\n"
        "except OSError as error:\n    print(error.filename)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "page.html\n"
    assert not list(tmp_path.iterdir())


def test_run_reads_each_kind_of_input_and_writes_what_the_session_computes(call, model, program, tmp_path):
    with qaic.Session(program) as session:
        ((name, (shape, dtype)),) = session.model_input_shape_dict.items()
        array = np.random.default_rng(3).random(shape).astype(dtype)
        expected = session.run({name: array})
    np.save("array.npy", array)
    np.savez("array.npz", **{name: array})
    array.tofile("array.raw")
    for given in ("array.npy", f"{name}=array.npy", "array.npz", "array.raw"):
        assert call("run", program, "-i", given, "-o", "out.npz")[0] == 0
        with np.load("out.npz") as written:
            assert {key: written[key].tobytes() for key in written} == {
                key: value.tobytes() for key, value in expected.items()
            }
    code, out, _ = call("run", model, "--json")
    assert code == 0
    assert {key: value["shape"] for key, value in json.loads(out)["outputs"].items()} == {
        key: list(value.shape) for key, value in expected.items()
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("other=a.npy", "no input 'other'"),
        ("text.npy", "text.npy"),
        ("short.raw", "short.raw has 3 bytes; input 'x' (float32 [2, 4]) needs 32 bytes [run.input_size]"),
        ("x=few.raw", "few.raw has 12 bytes; input 'x' (float32 [2, 4]) needs 32 bytes [run.input_size]"),
        ("few.raw", "few.raw has 12 bytes; input 'x' (float32 [2, 4]) needs 32 bytes [run.input_size]"),
        ("a.npy", "a.npy: input 'x' is float32 of shape [3]"),
        ("named.npz", "named.npz: input 'x' is float32 of shape [3]"),
        ("missing.npy", "missing.npy"),
        ("shrt.raw", "did you mean short.raw?"),
        ("x=txt.npy", "did you mean text.npy?"),
        ("tensors.npz", "did you mean tensor.npz?"),
    ],
)
def test_inputs_that_cannot_be_used_are_named(call, program, tmp_path, given, said):
    np.save("a.npy", np.zeros(3, np.float32))
    (tmp_path / "text.npy").write_text("no array")
    np.savez("named.npz", x=np.zeros(3, np.float32))
    (tmp_path / "few.raw").write_bytes(bytes(12))
    (tmp_path / "short.raw").write_bytes(b"123")
    (tmp_path / "tensor.npz").touch()
    for command in ("run", "bench", "profile"):
        code, _, err = call(command, program, "-i", given)
        assert code == 1
        assert said in err
        assert "Traceback" not in err


def test_bench_counts_inferences_and_tells_load_and_first_inference(call, model):
    arguments = ("bench", model, "--streams", "2", "-n", "40", "--warm-up", "2", "--beside", "onnxruntime")
    code, out, _ = call(*arguments)
    assert code == 0
    assert out.startswith("loaded in ")
    # A user must not mistake the times for those of a card.
    assert "times are those of this host, not of a card\n" in out
    code, out, _ = call(*arguments, "--json")
    result = json.loads(out)
    assert result["load_s"] > 0
    assert result["first_inference_s"] > 0
    assert [row["latency"]["count"] for row in result["measurements"]] == [40, 40]
    latency = result["measurements"][0]["latency"]
    parts = sum(result["measurements"][0]["stages_s"].values())
    assert parts == pytest.approx(latency["mean_us"] / 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("p50_us", "header", "cell"), [(1.112, "latency, us", "1.11"), (2295.0, "latency, ms", "2.29")]
)
def test_short_latencies_are_in_microseconds(capsys, p50_us, header, cell):
    # Without samples, there are no percentiles.
    latency = {f"{name}_us": p50_us for name in bench._FIGURES if name != "p99"} | {"count": 3}
    rows = [{"runtime": "openqaic", "streams": 1, "inferences_per_s": 500.0, "latency": latency}]
    bench._print_rows(rows)
    slow = {**rows[0], "latency": {**latency, "p50_us": 1e6}}
    bench._print_rows([*rows, slow])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].strip() == header
    assert lines[1].startswith("runtime ")
    assert cell in lines[2]
    # All rows of a table use one unit.
    assert ("1000000" if "us" in header else "1,000") in lines[3].split()


@pytest.mark.parametrize("command", ["run", "bench", "profile"])
@pytest.mark.parametrize("given", ["=x.npy", "x=", "="])
def test_inputs_without_a_name_or_a_file_are_refused(call, program, command, given):
    code, _, err = call(command, program, "-i", given)
    assert code == 2
    assert f"found '{given}', expected FILE or NAME=FILE" in err


def test_bench_beside_an_engine_that_would_end_the_process_leaves_an_optimizer_out(call, tmp_path):
    """onnxruntime asserts if a body captures the result of a DequantizeLinear and of an operator that moves
    values.
    """
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["m"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, operator in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["m"]),
        helper.make_node("If", ["go"], ["y"], **bodies),
    ]
    made = session_models.model(
        nodes,
        [("x", TensorProto.FLOAT, [2, 4]), ("go", TensorProto.BOOL, [])],
        [("y", TensorProto.FLOAT, None)],
        {"s": np.float32(0.5), "z": np.uint8(128)},
    )
    save(tmp_path, made)
    command = [sys.executable, "-m", "qaic", "bench", "model.onnx", "--beside", "onnxruntime"]
    done = subprocess.run(
        [*command, "--streams", "1", "-n", "5", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["runtime"] for row in json.loads(done.stdout)["measurements"]] == ["openqaic", "onnxruntime"]
    assert "note: onnxruntime runs without QDQPropagationTransformer" in done.stderr


@pytest.mark.parametrize("seconds", ["0.02", "1e-9"])
def test_bench_measures_each_number_of_streams_beside_onnxruntime(call, model, seconds):
    options = ["--streams", "1,2", "--seconds", seconds, "--beside", "onnxruntime", "-o", "bench.json"]
    code, out, _ = call("bench", model, *options)
    assert code == 0
    assert out.splitlines()[-1] == f"next: openqaic profile {model} -o page.html"
    result = json.loads(Path("bench.json").read_text())
    assert [(row["runtime"], row["streams"]) for row in result["measurements"]] == [
        ("openqaic", 1),
        ("onnxruntime", 1),
        ("openqaic", 2),
        ("onnxruntime", 2),
    ]
    for row in result["measurements"]:
        latency = row["latency"]
        samples = latency["samples_us"]
        assert len(samples) + latency["dropped"] == latency["count"] > 0
        assert row["inferences_per_s"] > 0
        for percent in (50, 90, 95, 99):
            assert latency[f"p{percent}_us"] == pytest.approx(np.percentile(samples, percent))
        assert latency["max_us"] == max(samples)


def test_bench_of_a_container_has_no_model_to_measure_beside(call, program):
    code, _, err = call("bench", program, "--beside", "onnxruntime")
    assert code == 2
    assert "give the .onnx file" in err


def test_options_of_the_compiler_are_refused_for_a_container(call, program):
    code, _, err = call("run", program, "--aic-num-cores", "2")
    assert code == 2
    assert "-aic-num-cores=2 has no effect" in err


@pytest.mark.run_profiles
def test_profile_is_one_command_from_model_to_page(call, model, tmp_path):
    code, out, _ = call("profile", model, "-o", "page.html", "-n", "3")
    assert code == 0
    assert "wrote page.html" in out
    page = (tmp_path / "page.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    code, out, _ = call("profile", model, "--json", "-n", "3")
    assert code == 0
    assert "overview" in json.dumps(json.loads(out))


@pytest.mark.run_profiles
def test_profile_compares_with_a_baseline(call, model, tmp_path):
    assert call("compile", model, "-o", "baseline", "--stats-level", "70")[0] == 0
    code, out, err = call("profile", model, "--convert-to-fp16", "-n", "3", "--against", "baseline")
    assert code == 0
    assert "warning" not in err
    assert out.startswith("== From baseline to ")
    # Two medians may be equal in microseconds.
    verdict = (
        r"(the new program takes [0-9.,]+ % (more|less) time than the baseline \(|both take the same time, )"
    )
    assert re.search(rf"^{verdict}", out, re.MULTILINE), out
    code, out, err = call("profile", model, "-n", "3", "--against", model, "-o", "page.html")
    assert code == 0
    assert f"warning: --against {model} is the measured program" in err
    assert re.match(verdict, out), out
    assert 'id="diff"' in (tmp_path / "page.html").read_text()


def test_inspect_compiles_a_model(call, model, own_cache):
    code, out, err = call("inspect", model, "nodes", "--convert-to-fp16")
    assert code == 0
    assert "compiled in" in err
    assert " float16" in out.splitlines()[-1]


def test_inspect_lists_the_nodes_of_the_model_without_the_casts_that_were_added(call, model):
    nodes = json.loads(call("inspect", model, "nodes", "--convert-to-fp16", "--json")[1])
    added = [node for node in nodes if node["node"] is None and node["operator"] == "Cast"]
    lines = call("inspect", model, "nodes", "--convert-to-fp16")[1].splitlines()
    assert added
    assert len(lines) == 1 + len(nodes) - len(added) + 2
    assert lines[-2].startswith(f"The table omits {len(added)} conversions ")
    assert lines[-1].startswith(f"{len(nodes) - len(added)} nodes: ")


@pytest.mark.parametrize(
    "command", ["compile", "run", "bench --seconds 0.01", "profile -n 3", "inspect", "check"]
)
def test_reports_of_the_compiler_leave_json_alone(call, model, command):
    name, *options = command.split()
    code, out, complaints = call(name, model, *options, "--json", "--time-passes")
    assert code == 0, complaints
    json.loads(out)
    assert "legalize" in complaints


@pytest.mark.parametrize(
    "report", ["--time-passes", "--aic-perf-metrics", "--aic-perf-warnings", "--enable-debug"]
)
@pytest.mark.parametrize("task", ["--to fp16,int8", "--to fp16 --target sqnr>=20 --find overlay.yaml"])
def test_a_comparison_names_reports_that_it_does_not_write(call, model, task, report):
    code, _, complaints = call("accuracy", model, *task.split(), report)
    assert code == 0, complaints
    assert complaints.count(f"warning: {report}: no effect") == 1


def model_with_weights():
    """Build a product with a matrix that is large enough to be a constant of the container."""
    value = helper.make_tensor_value_info
    weights = numpy_helper.from_array(np.ones((32, 32), np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "product",
        [value("x", TensorProto.FLOAT, [1, 32])],
        [value("y", TensorProto.FLOAT, [1, 32])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_inspect_fit_says_how_often_a_program_is_activated_at_once(call, tmp_path, own_cache):
    model = save(tmp_path, model_with_weights())
    assert call("compile", model, "-o", "program", "--aic-num-cores", "6")[0] == 0
    fit = json.loads(call("inspect", "program", "fit", "--json")[1])
    assert fit["cores"] == 6
    assert fit["constants_bytes"] == 32 * 32 * 4
    assert {row["limited_by"] for row in fit["fits"]} == {"cores"}
    context, qpc = qaicrt.Context(), qaicrt.Qpc("program")
    for row in fit["fits"]:
        programs = [qaicrt.Program(context, row["device"], qpc) for _ in range(row["activations"] + 1)]
        statuses = [program.activate() for program in programs]
        assert statuses == [qaicrt.QStatus.QS_SUCCESS] * row["activations"] + [statuses[-1]]
        assert statuses[-1] != qaicrt.QStatus.QS_SUCCESS
    out = call("inspect", "program", "fit")[1]
    assert "cores   6" in out
    assert "limited by" in out


def test_fit_and_inspect_count_the_same_constants(call, program, tmp_path):
    without = json.loads(call("inspect", program, "fit", "--json")[1])
    assert without["constants_bytes"] == 0
    assert call("compile", save(tmp_path, model_with_weights()), "-o", "product")[0] == 0
    for path in ("product", QPCS / "s07_partial_multi.qpc", QPCS / "s09_constants_split.qpc"):
        shown = json.loads(call("inspect", path, "--json")[1])["constants"]
        fit = json.loads(call("inspect", path, "fit", "--json")[1])
        assert fit["constants_bytes"] == shown["static_bytes"] + shown["dynamic_bytes"] > 0


def test_inspect_counts_multiply_accumulates(call, model, program):
    nodes = json.loads(call("inspect", program, "nodes", "--json")[1])
    assert sum(node["macs"] for node in nodes) == 2 * 4 * 4


def test_inspect_lists_small_tensors_too(call, tmp_path):
    """Regression: tensors in the graph, and not in `constants.bin`, were omitted."""
    save(tmp_path, affine())
    wanted = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in affine().graph.initializer}
    rows = json.loads(call("inspect", "model.onnx", "tensors", "--json")[1])
    assert wanted
    assert {row["tensor"]: (row["min"], row["max"]) for row in rows} == {
        name: (pytest.approx(array.min()), pytest.approx(array.max())) for name, array in wanted.items()
    }


def test_diff_names_a_file_once_and_says_what_takes_it(call, model, program):
    code, _, err = call("diff", program, model)
    assert code == 2
    assert err.splitlines()[0].count(str(model)) == 1
    assert f"hint: `openqaic compile {model}` compiles the model" in err


def test_inspect_shows_the_graph_that_runs(call, model, program, tmp_path):
    code, out, _ = call("inspect", program, "--json")
    assert code == 0
    assert json.loads(out)["target"] == "cpu"
    nodes = json.loads(call("inspect", program, "nodes", "--json")[1])
    assert nodes
    assert {output for node in nodes for output in node["outputs"]} >= {
        value.name for value in onnx.load(model).graph.output
    }
    assert f"{len(nodes)} nodes" in call("inspect", program, "nodes")[1]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(model).graph.initializer}
    rows = json.loads(call("inspect", program, "tensors", "--json")[1])
    assert {row["tensor"]: row["bytes"] for row in rows} == {
        name: array.nbytes for name, array in weights.items()
    }
    for row in rows:
        assert row["min"] == weights[row["tensor"]].min()
        assert row["max"] == weights[row["tensor"]].max()


def test_inspect_writes_one_onnx_file_that_computes_the_same(call, program):
    assert call("inspect", program, "--onnx", "whole.onnx")[0] == 0
    with qaic.Session(program) as session:
        feeds = {
            name: np.random.default_rng(5).random(shape).astype(dtype)
            for name, (shape, dtype) in session.model_input_shape_dict.items()
        }
        ours = session.run(feeds)
    theirs = onnxruntime.InferenceSession("whole.onnx", providers=["CPUExecutionProvider"]).run(
        list(ours), feeds
    )
    for array, other in zip(ours.values(), theirs, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5)


def test_diff_ends_as_diff_does(call, model, program):
    assert call("diff", program, program)[0] == 0
    assert call("compile", model, "-o", "other", "--aic-num-cores", "2")[0] == 0
    code, out, _ = call("diff", program, "other", "--json")
    assert code == 1
    assert json.loads(out)["same"] is False
    assert call("diff", program, "missing")[0] == 2
    assert "next: " not in call("diff", program, program)[1]
    step = call("diff", program, "other")[1].splitlines()[-1].removeprefix("next: ")
    assert step == "openqaic inspect other nodes"
    assert call(*shlex.split(step)[1:])[0] == 0


def test_devices_in_the_formats_of_schedulers(call):
    ids = [device.id for device in qaic.devices() if device.is_ready]
    assert call("devices", "--format", "dask")[1] == f"QAIC={len(ids)}\n"
    assert json.loads(call("devices", "--format", "ray")[1]) == {"QAIC": len(ids)}
    spark = json.loads(call("devices", "--format", "spark")[1])
    assert spark == {"name": "qaic", "addresses": [str(number) for number in ids]}


def test_devices_are_those_of_the_runtime(call):
    listed = json.loads(call("devices", "--json")[1])
    assert [device["id"] for device in listed] == [device.id for device in qaic.devices()]
    code, out, _ = call("devices")
    assert code == 0
    assert len(out.splitlines()) >= 1 + len(listed)
    assert "next: " not in out


def test_without_a_device_the_next_step_is_info(call, monkeypatch, tmp_path):
    monkeypatch.setenv("QAIC_DEVICE", "kmd")
    monkeypatch.setenv("QAIC_KMD", "sys")
    if qaic.devices():
        pytest.skip("this machine has cards")
    code, out, _ = call("devices")
    assert code == 3
    assert out.splitlines()[-1] == "next: openqaic info"
    assert "QAIC_DEVICE=cpu" in call("info")[1]
    model = save(tmp_path, affine())
    code, _, err = call("run", model)
    assert code == 3
    assert "device 0 does not exist; no device was found" in err
    assert "QAIC_DEVICE=cpu" in err


def test_cache_lists_and_removes(call, model, own_cache):
    assert call("cache", "list")[:2] == (0, f"0 programs, 0 bytes in {own_cache}\n")
    assert call("cache", "dir")[1] == f"{own_cache}\n"
    for cores in (1, 2):
        assert call("compile", model, "--aic-num-cores", cores)[0] == 0
    listed = json.loads(call("cache", "list", "--json")[1])
    assert len(listed) == 2
    assert json.loads(call("cache", "prune", "--limit", "1G", "--json")[1])["kept"] == 2
    # The test simulates a removal by another process. Files that a process has received exist as long as it
    # runs.
    cache_contents._uses.clear()
    for path in own_cache.glob(".in-use-*"):
        path.unlink()
    removed = json.loads(call("cache", "prune", "--limit", listed[0]["bytes"], "--json")[1])
    assert (removed["removed"], removed["kept"]) == (1, 1)
    # The most recently used program is kept.
    assert [entry["path"] for entry in json.loads(call("cache", "list", "--json")[1])] == [listed[0]["path"]]
    assert json.loads(call("cache", "clear", "--json")[1])["kept"] == 0
    assert call("compile", model)[1].startswith("compiled in ")
