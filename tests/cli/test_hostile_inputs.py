"""Damaged files of every kind: each command that reads one ends with an error about the input.

`make explore` draws other damage for any length of time.
"""

import argparse
import json
import os
import re
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import child_process
import qaic
import weight_free_models
from qaic.cli import console
from qaic.cli.compile import main as qaic_compile
from qaic.cli.compile_and_run import main as qaic_exec
from qaic.cli.openqaic import SUBCOMMANDS
from qaic.cli.openqaic import main as openqaic
from qaic.cli.openqaic import parser as openqaic_parser
from qaic.cli.opstats import main as qaic_opstats
from qaic.cli.qpc import main as qaic_qpc
from qaic.cli.runner import main as qaic_runner
from qaic.cli.util import main as qaic_util
from qaic.options.table import SPECS
from transcript.__main__ import tool as transcript_tool

TRANSCRIPT = Path(__file__).parent.parent / "data" / "transcripts" / "run.jsonl"
STATS = "aic-program-0-inf-0-net-aiccyclecounts.bin"
#: Number of examples for each file and command; a run with other seeds draws more.
EXAMPLES = 12 if settings.default.derandomize else 200
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def transcript(argv):
    return console.run(transcript_tool, argv)


def model():
    """A model with a function, a nested graph, and constants in nodes and in the graph."""

    def value(name, dims=(1, 4)):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    twice = helper.make_function(
        "f", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets
    )
    body = [
        helper.make_graph([helper.make_node(op, ["t"], ["r"])], op, [], [value("r")]) for op in ("Neg", "Abs")
    ]
    shape = numpy_helper.from_array(np.array([1, 4]), "shape")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["m"], name="gemm"),
        helper.make_node("Constant", [], ["s"], value=shape),
        helper.make_node("Reshape", ["m", "s"], ["q"], name="reshape"),
        helper.make_node("Twice", ["q"], ["t"], domain="f", name="twice"),
        helper.make_node("If", ["c"], ["y"], then_branch=body[0], else_branch=body[1], name="if"),
    ]
    weights = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32), "c": np.array(True)}
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", ["n", 4])],
        [value("y")],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[twice])


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Undamaged files of all kinds."""
    folder = tmp_path_factory.mktemp("sound")
    onnx.save(model(), folder / "m.onnx")
    onnx.save(
        model(),
        folder / "external.onnx",
        save_as_external_data=True,
        location="external.data",
        size_threshold=0,
    )
    np.save(folder / "x.npy", np.ones((1, 4), np.float32))
    np.savez(folder / "x.npz", x=np.ones((1, 4), np.float32))
    np.ones((1, 4), np.float32).tofile(folder / "x.raw")
    (folder / "list.txt").write_text(f"{folder / 'x.npy'}\n{folder / 'x.raw'}\n")
    (folder / "options.yaml").write_text("aic_num_cores: 2\nonnx_define_symbol: {n: 1}\nstats_level: 70\n")
    (folder / "precision.yaml").write_text("FP16NodeInstanceNames: [m, y]\n")
    (folder / "io.yaml").write_text("- IOName: x\n  Precision: float16\n- IOName: y\n  Precision: float16\n")
    (folder / "runs.txt").write_text(f"{folder / 'x.raw'}\n")
    (folder / "sizes.json").write_text('{"specializations": [{"n": "1"}]}')
    (folder / "batch.json").write_text(
        '{"IO-files": [[{"path": "x.raw", "io-direction": "in", "dims": [1, 4], "map-to": "x", '
        '"elem-size": 4}]]}'
    )
    weight_free_models.export(folder)
    at_one = {"onnx_define_symbol": {"n": 1}}
    qaic.compile(folder / "m.onnx", output_dir=folder / "qpc", stats_level=70, **at_one)
    (folder / "inputs.txt").write_text(f"{folder / 'x.npy'}\n")
    measured = {"input_list_file": folder / "inputs.txt", "dump_profile": folder / "profile.yaml"}
    qaic.compile(folder / "m.onnx", **measured, **at_one)
    qaic.compile(folder / "m.onnx", mdp_dump_partition_config=folder / "parts.json", **at_one)
    (folder / "encodings.json").write_text(
        '{"activation_encodings": {"m": [{"bitwidth": 8, "max": 0.9906, "min": -0.9984, "offset": -128, '
        '"scale": 0.0078}]}, "param_encodings": {}}'
    )
    np.savez(folder / "card.npz", y=np.ones((1, 4), np.float32))
    assert openqaic(["run", str(folder / "m.onnx"), ONE, "-o", str(folder / "outputs.npz")]) == 0
    (folder / "runs.csv").write_text(
        "cores,instances,batch,set_size,inferences_per_s,latency_ms\n2,7,1,1,9000,0.8\n2,7,1,2,9500,1.5\n"
    )
    (folder / "metrics.json").write_text(json.dumps(dict.fromkeys(METRICS, 0.5) | {METRICS[0]: 9}))
    runner = ["-t", str(folder / "qpc"), "-n", "3", "--aic-profiling-type", "latency"]
    assert qaic_runner([*runner, "--aic-profiling-out-dir", str(folder / "latency")]) == 0
    (folder / "latency.txt").write_bytes(next((folder / "latency").glob("*.txt")).read_bytes())
    (folder / "transcript.jsonl").write_bytes(TRANSCRIPT.read_bytes())
    with qaic.Session(folder / "qpc") as session, session.profile() as profile:
        session.run({"x": np.ones((1, 4), np.float32)})
    profile.save(folder / "profile")
    (folder / STATS).write_bytes(next((folder / "profile").glob("*.bin")).read_bytes())
    (folder / "trace.json").write_bytes(next((folder / "profile").glob("*trace.json")).read_bytes())
    return folder


#: The result of get_metrics().
METRICS = ("num_of_inferences", "min_latency", "max_latency", "P25", "P50", "P75", "P90", "P99", "P999")
METRICS += ("total_inference_time", "avg_latency")
ONE = "--onnx-define-symbol=n,1"
QUANTIZE = ["-aic-binary-dir={out}", "-convert-to-quantize"]
DASH = "-onnx-define-symbol=n,1"
#: settings of a latency report
SETTINGS = ("--aic-num-cores=2", "-a", "1", "-S", "1", "--batchsize=1")
#: Name of the damaged file -> command lines that read it; `{0}` is its path, `{s}` the folder of undamaged
#: files.
READERS = {
    "m.onnx": [
        (openqaic, ["compile", "{0}", ONE]),
        (openqaic, ["run", "{0}", ONE]),
        (openqaic, ["inspect", "{0}", ONE]),
        (openqaic, ["compile", "{0}", ONE, "--convert-to-fp16", "--stats-level=70"]),
        (openqaic, ["accuracy", "{0}", "--to", "fp16", ONE]),
        (openqaic, ["bench", "{0}", ONE, "-n", "3"]),
        (openqaic, ["profile", "{0}", ONE, "-o", "{out}.html"]),
        (openqaic, ["profile", "{s}/m.onnx", ONE, "-n", "2", "--against", "{0}"]),
        (openqaic, ["check", "{0}", ONE]),
        (openqaic, ["inspect", "{0}", ONE, "graph", "-o", "{out}.html"]),
        (openqaic, ["accuracy", "{0}", "--to", "int8", ONE, "-o", "{out}.html", "--json", "{out}.json"]),
        (openqaic, ["accuracy", "{0}", "--to", "fp16", ONE, "--target", "sqnr>=20", "--find", "{out}.yaml"]),
        (qaic_exec, ["-m={0}", DASH, "-aic-binary-dir={out}"]),
        (qaic_compile, ["-m={0}", "-aic-binary-dir={out}", "-batchsize=1"]),
        (qaic_compile, ["-m={0}", DASH, "-mdp-dump-partition-config={out}.json"]),
        (
            qaic_compile,
            ["-m={0}", DASH, *QUANTIZE, "-use-random-input-data"],
        ),
    ],
    "external.onnx": [(openqaic, ["run", "{0}", ONE])],
    "profile.yaml": [(qaic_compile, ["-m={s}/m.onnx", DASH, "-aic-binary-dir={out}", "-load-profile={0}"])],
    "encodings.json": [
        (qaic_compile, ["-m={s}/m.onnx", DASH, "-aic-binary-dir={out}", "-external-quantization={0}"])
    ],
    "parts.json": [(openqaic, ["compile", "{s}/m.onnx", ONE, "--mdp-load-partition-config={0}"])],
    "card.npz": [
        (
            openqaic,
            ["accuracy", "{s}/m.onnx", "--to", "fp16", ONE, "--samples", "{s}/x.npz", "--against", "{0}"],
        )
    ],
    "transcript.jsonl": [
        (transcript, ["show", "{0}"]),
        (transcript, ["diff", "{0}", "{s}/transcript.jsonl"]),
    ],
    "x.npy": [
        (openqaic, ["run", "{s}/m.onnx", ONE, "-i", "{0}"]),
        (
            qaic_compile,
            ["-m={s}/m.onnx", DASH, *QUANTIZE, "-input-list-file={l}"],
        ),
    ],
    "x.npz": [
        (openqaic, ["run", "{s}/m.onnx", ONE, "-i", "{0}"]),
        (openqaic, ["accuracy", "{s}/m.onnx", "--to", "fp16", ONE, "--samples", "{0}"]),
        (openqaic, ["check", "{s}/m.onnx", "--precision", "int8", ONE, "--samples", "{0}"]),
        (openqaic, ["bench", "{s}/m.onnx", ONE, "-n", "2", "-i", "{0}"]),
        (openqaic, ["profile", "{s}/m.onnx", ONE, "-n", "2", "-i", "{0}"]),
    ],
    "outputs.npz": [
        (openqaic, ["run", "{s}/m.onnx", ONE, "-i", "{s}/x.npy", "--expect", "{0}", "--atol", "9"])
    ],
    "runs.csv": [(openqaic, ["check", "{s}/m.onnx", ONE, "--measured", "{0}"])],
    "latency.txt": [
        (openqaic, ["plot", "{0}"]),
        (openqaic, ["check", "{s}/m.onnx", ONE, *SETTINGS, "--measured", "{0}"]),
    ],
    "metrics.json": [(openqaic, ["plot", "{0}"])],
    "x.raw": [
        (openqaic, ["run", "{s}/m.onnx", ONE, "-i", "{0}"]),
        (qaic_runner, ["-t", "{s}/qpc", "-n", "1", "-i", "{0}"]),
    ],
    "list.txt": [
        (
            qaic_compile,
            ["-m={s}/m.onnx", DASH, *QUANTIZE, "-input-list-file={0}"],
        ),
    ],
    "runs.txt": [(qaic_runner, ["-t", "{s}/qpc", "-n", "1", "--aic-batch-input-file-list", "{0}"])],
    "options.yaml": [
        (openqaic, ["compile", "{s}/m.onnx", "--options-path", "{0}"]),
        (qaic_compile, ["-m={s}/m.onnx", "-aic-binary-dir={out}", "-options-path={0}"]),
    ],
    "precision.yaml": [(openqaic, ["compile", "{s}/m.onnx", ONE, "--node-precision-info={0}"])],
    "io.yaml": [(openqaic, ["compile", "{s}/m.onnx", ONE, "--custom-IO-list-file={0}"])],
    "sizes.json": [(openqaic, ["compile", "{s}/m.onnx", "--network-specialization-config={0}"])],
    "batch.json": [(qaic_runner, ["-t", "{s}/qpc", "-n", "1", "--aic-batch-json-input", "{0}"])],
    "export/LlamaForCausalLM.onnx": [(openqaic, ["compile", "{0}"])],
    "checkpoints/tiny-qeff-prepared-float32/model_0000.safetensors": [(openqaic, ["compile", "{e}"])],
    "qpc/programqpc.bin": [
        (openqaic, ["run", "{0}"]),
        *((openqaic, ["inspect", "{0}", *view]) for view in ([], ["nodes"], ["tensors"], ["fit"])),
        (openqaic, ["inspect", "{0}", "graph", "-o", "{out}.html"]),
        (openqaic, ["inspect", "{0}", "--onnx", "{out}.onnx"]),
        (openqaic, ["diff", "{0}", "{s}/qpc"]),
        (openqaic, ["bench", "{0}", "-n", "3"]),
        (openqaic, ["profile", "{0}", "-n", "2", "--against", "{s}/qpc"]),
        (openqaic, ["profile", "{s}/qpc", "-n", "2", "--against", "{0}"]),
        *((qaic_qpc, [name, "{0}"]) for name in ("info", "list", "validate")),
        (qaic_qpc, ["extract", "{0}", "-o", "{out}"]),
        (qaic_qpc, ["diff", "{0}", "{s}/qpc"]),
        (qaic_runner, ["-t", "{0}", "-n", "1"]),
    ],
    STATS: [
        (openqaic, ["plot", "{0}"]),
        (qaic_opstats, ["--input", "{d}", "--qpc", "{s}/qpc", "--summary", "--output-dir", "{out}"]),
        (qaic_opstats, ["report", "{0}", "--qpc", "{s}/qpc"]),
    ],
    "trace.json": [(openqaic, ["plot", "{0}"])],
}


@cache
def content(path):
    return path.read_bytes()


@st.composite
def damaged(draw, data):
    """Bytes of which some are changed, removed, repeated, truncated, or have numbers and words exchanged."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(1, 24))
        some = st.binary(min_size=1, max_size=8)
        number = st.sampled_from(
            [b"9" * 5000, b"-1", b"1e999", b"0", b"NaN", b"\x1b[31m", b"[[", b"{", b"'", b"\0"]
        )
        data = draw(
            st.sampled_from(
                [
                    data[:place],
                    data[:place] + data[place + length :],
                    data[:place] + data[place : place + length] * 3 + data[place + length :],
                    data[:place] + draw(some) + data[place + 1 :],
                    data[:place] + bytes([data[place] ^ (1 << draw(st.integers(0, 7)))]) + data[place + 1 :]
                    if data
                    else b"",
                    data[:place] + b"\xff" * length + data[place + length :],
                    data[:place] + draw(number) + data[place:],
                    re.sub(rb"\d+", draw(number).replace(b"\\", b""), data, count=1),
                ]
            )
        )
    return data


@pytest.mark.parametrize("name", READERS)
def test_a_sound_file_is_read(sound, tmp_path, name):
    """Checks that every file is read by some command; otherwise, damage would have no effect."""
    (tmp_path / "list").write_text(f"{sound / name}\n")
    export = sound / "export" / "LlamaForCausalLM.onnx"
    for number, (main, words) in enumerate(READERS[name]):
        out = tmp_path / str(number)
        out.mkdir() if main is qaic_opstats else None
        alone = tmp_path / "alone"
        if name == STATS:
            alone.mkdir(exist_ok=True)
            (alone / name).write_bytes(content(sound / name))
        places = {"s": sound, "d": alone, "out": out, "l": tmp_path / "list", "e": export}
        assert main([word.format(sound / name, **places) for word in words]) == 0


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_file_is_an_error_of_the_input(sound, tmp_path_factory, capfd, name, data):
    source = sound / name
    bad = data.draw(damaged(content(source)))
    main, words = data.draw(st.sampled_from(READERS[name]))
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / source.name
    path.write_bytes(bad)
    if name == "external.onnx":
        (folder / "external.data").write_bytes(content(sound / "external.data"))
    if "{e}" in words or name.startswith("export/"):
        # The model and its checkpoint are separate files; the test damages one of them.
        weight_free_models.export(folder / "weights")
        model_path = folder / "weights" / "export" / "LlamaForCausalLM.onnx"
        target = model_path if name.startswith("export/") else folder / "weights" / name
        target.write_bytes(bad)
        path = model_path
    (folder / "list").write_text(f"{path}\n")
    places = {"s": sound, "d": folder, "out": folder / "out", "l": folder / "list", "e": path}
    (folder / "out").mkdir() if main is qaic_opstats else None
    # Tools print warnings; only the tests turn warnings into errors.
    warnings.simplefilter("default", UserWarning)
    try:
        code = main([word.format(path, **places) for word in words])
    except SystemExit as usage:
        code = usage.code
    printed = capfd.readouterr()
    assert code in {0, 1, 2, 3}, printed.err
    assert RAW.search(printed.out + printed.err) is None
    assert "Traceback" not in printed.err
    if code:
        assert printed.out + printed.err


def flags_of(name):
    """Flags of a subcommand of `openqaic`."""
    made = openqaic_parser(frozenset({name}))
    (commands,) = (action for action in made._actions if isinstance(action, argparse._SubParsersAction))
    return sorted(commands.choices[name]._option_string_actions)


#: Subcommands that read no file or number. `tests/serving/test_hostile.py` tests the flags of a server.
NOT_HERE = {"completion", "demo", "serve", "shims"}
#: Command line without options, and its flags; commands that wait are excluded.
ARGUMENTS = {
    **{
        name: (openqaic, [name, *model], flags_of(name))
        for name, model in (
            *(
                (name, ["{s}/m.onnx"])
                for name in ("compile", "run", "inspect", "accuracy", "check", "profile")
            ),
            ("bench", ["{s}/m.onnx", ONE, "--seconds", "0.01", "--streams", "1"]),
            *(("plot", ["{s}/trace.json"]), ("explain", ["device.busy"]), ("cache", ["list"]), ("info", [])),
            ("diff", ["{s}/qpc", "{s}/qpc"]),
        )
    },
    "devices": (openqaic, ["devices"], sorted(set(flags_of("devices")) - {"--watch"})),
    "qaic-util": (qaic_util, [], ["-q", "-d", "-f", "-j", "-V", "--filter", "--aic-device-id"]),
    "qaic-compile": (
        qaic_compile,
        ["-m={s}/m.onnx", "-aic-binary-dir=out"],
        sorted(f"-{text}" for spec in SPECS if spec.flag is not None for text in spec.flag.texts),
    ),
    "qaic-runner": (
        qaic_runner,
        ["-t", "{s}/qpc", "-n", "1"],
        [
            "-D",
            "-d",
            "-a",
            "-S",
            "-i",
            "-o",
            "-c",
            "-v",
            "--rtol",
            "--atol",
            "--json",
            "--aic-profiling-type",
        ],
    ),
    "qaic-qpc": (qaic_qpc, ["extract", "{s}/qpc"], ["-o", "--pattern", "--force", "--json"]),
    "qaic-opstats": (
        qaic_opstats,
        ["--qpc", "{s}/qpc"],
        ["--input", "--select-cores", "--summary", "--trace", "--output-dir", "--host-trace", "--format"],
    ),
}


def test_every_command_is_here():
    """A new subcommand must be added to the list above."""
    read = {words[0] for lines in READERS.values() for main, words in lines if main is openqaic}
    assert read | ARGUMENTS.keys() | NOT_HERE >= {subcommand.name for subcommand in SUBCOMMANDS}
    assert not NOT_HERE & (read | ARGUMENTS.keys())


VALUES = [
    "",
    "0",
    "-1",
    "9" * 5000,
    "1e999",
    "nan",
    "true",
    "x,1",
    "n,1",
    "[",
    "{}",
    "../..",
    "a" * 300,
    "list.txt",
]
VALUES += [
    "list.txt",
    "\udcff",
    "\u202e\x1b[31m\n",
    "int8",
    "1:2",
    "0,0",
    "card",
    ":",
    "=",
    "%s%n",
    "\U0001f600",
    ".",
]


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_argument_is_a_defect(sound, tmp_path_factory, capfd, name, data):
    main, words, flags = ARGUMENTS[name]
    words = [word.format(s=sound) for word in words]
    for _ in range(data.draw(st.integers(1, 3))):
        flag, value = data.draw(st.sampled_from(flags)), data.draw(st.sampled_from(VALUES))
        words += data.draw(st.sampled_from([[flag], [f"{flag}={value}"], [flag, value]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("arguments"))
        warnings.simplefilter("default", UserWarning)
        try:
            code = main(words)
        except SystemExit as usage:
            code = usage.code
    printed = capfd.readouterr()
    assert code in {0, 1, 2, 3}, printed.err
    assert RAW.search(printed.out + printed.err) is None


#: Kind of a file without an end or without contents -> function that creates it.
ENDLESS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "kernel": lambda path: path.symlink_to("/proc/self/pagemap"),
    "circle": lambda path: path.symlink_to(path),
    "holes": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}


#: Text files; arrays, containers and traces have separate readers.
TEXTS = ["profile.yaml", "encodings.json", "parts.json", "list.txt", "runs.txt", "runs.csv", "options.yaml"]
TEXTS += ["precision.yaml", "io.yaml", "sizes.json", "batch.json"]


def most_memory():
    """Return the peak memory of this process in bytes."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) << 10


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_read_without_end(sound, tmp_path, capfd, name, kind):
    """Each command ends, uses little memory, and reports an error."""
    path = tmp_path / Path(name).name
    ENDLESS[kind](path)
    (tmp_path / "list").write_text(f"{path}\n")
    reason = ""
    for number, (main, words) in enumerate(READERS[name]):
        if "{e}" in words:
            continue
        out = tmp_path / str(number)
        out.mkdir() if main is qaic_opstats else None
        places = {"s": sound, "d": tmp_path, "out": out, "l": tmp_path / "list"}
        # The kernel resets the peak of memory here.
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            reason = str(error)
        before = most_memory()
        try:
            code = main([word.format(path, **places) for word in words])
        except SystemExit as usage:
            code = usage.code
        assert code in {1, 2, 3}, words
        assert reason or most_memory() - before < 1 << 30
        assert "Traceback" not in capfd.readouterr().err
    if reason:
        pytest.skip(f"the most memory cannot be counted: {reason}")


SIZES = """
import itertools, resource
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import qaic
from qaic.errors import QaicError

constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("zero", 0), ("one", 1))]
makers = {
    "Range": [
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["r"]),
    ],
    "ConstantOfShape": [helper.make_node("ConstantOfShape", ["s"], ["r"])],
    "Expand": [helper.make_node("Expand", ["one", "s"], ["r"])],
}
x = helper.make_tensor_value_info("x", TensorProto.BOOL, ["n"])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
# No input has the first three sizes. Inputs have the others, but no value has their squares.
cases = [("Identity", 2**33), ("Identity", 2**40), ("Identity", 2**62), ("Square", 2**20), ("Square", 2**29)]
for (first, size), (name, nodes) in itertools.product(cases, makers.items()):
    whole = [
        helper.make_node("Shape", ["x"], ["t"]),
        helper.make_node("Mul", ["t", "t" if first == "Square" else "one"], ["s"]),
        *nodes,
        helper.make_node("Cast", ["r"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(whole, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        qaic.compile(model, onnx_define_symbol={"n": size})
        print("compiled")
    except QaicError as error:
        print(error.code)
"""


def test_the_size_of_a_symbol_takes_no_memory():
    """Fifteen compilations, with one gigabyte of address space in addition to that of the libraries."""
    found = child_process.run_script(SIZES).stdout.splitlines()
    assert found == 9 * ["compile.tensor_too_large"] + 6 * ["compiled"]
