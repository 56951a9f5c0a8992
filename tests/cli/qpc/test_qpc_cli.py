"""``qaic-qpc`` as users see it: complete outputs, exit codes, and errors about damaged files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from compiler_oracle import info, model_of, node
from qaic.cli.qpc import main
from qaic.qpc import Qpc
from qpc_support import DATA, FIXTURES, HOSTILE, container, program

QUANTIZED = DATA / "qpc" / "s05_quant_i8.qpc"
SHAPES = DATA / "qpc" / "s08_dynamic_shapes.qpc"
SPLIT = DATA / "qpc" / "s09_constants_split.qpc"
TRUNCATED = DATA / "qpc" / "bad02_truncated.qpc"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs the tool in its own folder; returns the exit code, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def runner(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return runner


@pytest.fixture
def here(tmp_path):
    """Puts containers into the folder in which the tool runs."""

    def put(name, data):
        (tmp_path / name).write_bytes(data)
        return name

    return put


def text(block: str) -> str:
    return dedent(block).lstrip("\n")


def test_info(run, here):
    assert run("info", here("quantized.qpc", QUANTIZED.read_bytes())) == (
        0,
        text(
            """
            file       quantized.qpc
            size       3.06 KiB, 4 segments
            target     card
            program    quant_i8
            cores      4
            batch      4
            memory     4.06 MiB on the device per activation
            constants  256 bytes static
            metadata   flatbuffer in metadata_fb, hardware version 2.0, 2 semaphores
            stats      none

            inputs
              name   dtype    shape    bytes  DMA buffer
              image  float32  1x4x4x3    192  0 at 0      quantize to int8 (scale 0.05, offset -3)

            outputs
              name    dtype    shape  bytes  DMA buffer
              scores  float32  4x10     160  1 at 0      dequantize to float32

            DMA buffers
              buffer  dir  bytes
                   0  in      48
                   1  out     40

            segments
              segment            bytes  start
              constants.bin        256    228
              constantsdesc.bin     24    484
              network.elf        2,416    508
              networkdesc.bin      210  2,924
            """
        ),
        "",
    )


def section(output: str, title: str) -> str:
    """The block under a title."""
    lines = output.splitlines()
    start = lines.index(title) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return "\n".join(line.strip() for line in lines[start:end])


def test_info_shows_allowed_shapes(run):
    _, out, _ = run("info", SHAPES)
    assert section(out, "allowed shapes") == text(
        """
        binding    #1         #2         #3
        input_ids  1x1        1x8        1x32
        mask       1x1x1x128  1x1x8x128  1x1x32x128
        logits     1x1x10     1x8x10     1x32x10"""
    )


def test_info_shows_split_constants(run):
    _, out, _ = run("info", SPLIT)
    assert "constants  96 bytes static, 160 bytes dynamic\n" in out
    assert "constants.bin        256    240  dynamic from 96\n" in out


def test_info_shows_partial_and_removed_bindings(run):
    _, out, _ = run("info", DATA / "qpc" / "s06_partial_single.qpc")
    assert "partial allowed" in section(out, "inputs")
    _, out, _ = run("info", DATA / "qpc" / "s11_optimized_away.qpc")
    assert section(out, "outputs").splitlines()[-1].split()[-3:] == ["none", "optimized", "away"]


CPU_PLAN = {
    "version": 1,
    "target": "cpu",
    "producer": "openqaic 9.9.9",
    "batch": 1,
    "cores": 2,
    "inputs": [{"name": "x", "dtype": "bool", "dims": [2]}],
    "outputs": [{"name": "y", "dtype": "float32", "dims": []}],
    "initializers": [{"name": "w", "dtype": "float32", "dims": [512], "offset": 0, "size": 2048}],
    "options": {"aic_num_cores": 2, "convert_to_fp16": True, "onnx_define_symbol": {"batch": 1, "seq": 8}},
    "effective": {"aic_num_cores": 2},
}


def binding(name, kind, dims, *, out):
    tensor = {"type": kind, "dims": dims}
    place = {"dir": out, "buffer_num": out}
    copy = {"kind": 6, "type": kind, "scale": 1.0, "dims": dims, "copy_dma_buffer": place}
    return {"name": name, "io_initial": tensor, "io_transformed": tensor, "transformseq": [copy]}


NETWORK = {
    "inputs": [binding("x", 8, [2], out=0)],
    "outputs": [binding("y", 0, [], out=1)],
    "dma_buffers": [{"size": 64}, {"size": 64, "dir": 1}],
}


def cpu_program(**more):
    return container(program(constants=bytes(2048), plan=CPU_PLAN, network=NETWORK, **more), alignment=64)


def test_info_of_a_cpu_program(run, here):
    _, out, _ = run("info", here("net.qpc", cpu_program()))
    head = out.split("\n\n")[0]
    assert head == text(
        """
        file       net.qpc
        size       3.39 KiB, 4 segments
        target     cpu, compiled by openqaic 9.9.9
        program    net
        cores      2
        batch      1
        constants  2.00 KiB static in 1 initializer
        weights    float32 2.00 KiB
        precision  float16
        metadata   flatbuffer in metadata_fb, hardware version 0.0, 0 semaphores
        stats      none"""
    )
    assert section(out, "inputs").splitlines()[1].split() == ["x", "bool", "2", "2", "0", "at", "0"]
    assert section(out, "outputs").splitlines()[1].split() == ["y", "float32", "scalar", "4", "1", "at", "0"]
    assert section(out, "options") == text(
        """
        option              value
        aic_num_cores       2
        convert_to_fp16     true
        onnx_define_symbol  batch=1, seq=8"""
    )


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        ({}, "as in the model"),
        ({"convert_to_fp16": True, "mxfp6_matmul": True}, "float16; weights of matrix products in MXFP6"),
        (
            {"load_profile": "ab12", "enable_channelwise": True},
            "as in the model; Int8 (symmetric_with_uint8, whole ranges, by channel)",
        ),
        (
            {
                "convert_to_quantize": True,
                "quantization_schema": "asymmetric",
                "quantization_schema_constants": "symmetric",
                "quantization_calibration": "MSE",
                "quantization_precision": "Int16",
                "execute_nodes_in_fp16": ["Add", "Div"],
            },
            "as in the model; Int16 (asymmetric, constants symmetric, calibrated by MSE); "
            "float16 for Add, Div",
        ),
        # The plan is a part of the file and can contain any value.
        ({"execute_nodes_in_fp16": {"a": 1}, "load_profile": ["\x1b"], "quantization_precision": 7}, None),
    ],
)
def test_info_sums_up_the_precision(run, here, options, summary):
    plan = {**CPU_PLAN, "options": options}
    code, out, err = run("info", here("net.qpc", container(program(constants=bytes(2048), plan=plan))))
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    if summary is not None:
        assert f"precision  {summary}" in out.splitlines()


@pytest.mark.parametrize("size", [10**400, -1, True, "many", None])
def test_info_of_weights_with_impossible_sizes(run, here, size):
    record = {"name": "w", "dtype": "float32", "dims": [4], "offset": 0, "size": size}
    plan = {**CPU_PLAN, "initializers": [record]}
    code, out, err = run("info", here("net.qpc", container(program(constants=bytes(2048), plan=plan))))
    assert (code, err) == (0, "")
    assert "target " in out


def test_info_marks_what_means_nothing_on_a_cpu(run, here):
    options = {"aic_num_cores": 2, "ols": 4, "multicast_weights": True, "no_longer_known": 1}
    path = here("net.qpc", container(program(constants=bytes(2048), plan={**CPU_PLAN, "options": options})))
    lines = section(run("info", path)[1], "options").splitlines()
    assert {line.split()[0]: line.endswith("no effect on the cpu target") for line in lines[1:]} == {
        "aic_num_cores": False,
        "ols": True,
        "multicast_weights": True,
        "no_longer_known": False,
    }
    assert json.loads(run("info", path, "--json")[1])["without_effect"] == ["ols", "multicast_weights"]


def test_info_json(run, here):
    code, out, err = run("info", here("net.qpc", cpu_program()), "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["target"] == "cpu"
    assert facts["options"] == CPU_PLAN["options"]
    assert facts["effective_options"] == CPU_PLAN["effective"]
    assert facts["inputs"] == [
        {
            "name": "x",
            "dtype": "bool",
            "shape": [2],
            "bytes": 2,
            "partial": False,
            "dma": {"buffer": 0, "offset": 0},
            "stages": [{"kind": "copy", "dtype": "int8", "shape": [2]}],
        }
    ]
    assert facts["constants"]["initializers"] == 1
    assert facts["problems"] == []


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_every_command_handles_every_recorded_container(run, fixture):
    for command in ("info", "list", "validate"):
        code, out, err = run(command, fixture)
        assert (code, err) == (0, "")
        assert out
        code, out, err = run(command, fixture, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)


def test_list(run):
    assert run("list", SPLIT) == (
        0,
        text(
            """
            segment            bytes  start
            constants.bin        256    240  dynamic from 96
            constantsdesc.bin     24    496
            network.elf        2,416    520
            networkdesc.bin      135  2,936
            """
        ),
        "",
    )


def two_slices() -> bytes:
    inner = [QUANTIZED.read_bytes(), SPLIT.read_bytes()]
    slices = [(f"QAicGraph_slice{number:02}", data) for number, data in enumerate(inner)]
    return container([("mdp_meta_info", b"order"), *slices], alignment=64)


def test_list_gives_places_in_the_file(run, here):
    data = two_slices()
    _, out, _ = run("list", here("two.qpc", data), "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    for name in ("QAicGraph_slice01", "QAicGraph_slice01/network.elf"):
        row = rows[name]
        payload = data[row["start"] : row["start"] + row["bytes"]]
        assert payload.startswith(b"\x7fELF" if name.endswith("elf") else SPLIT.read_bytes()[:4])
    assert len(rows) == 3 + 4 + 4


def test_slices(run, here):
    code, out, err = run("info", here("two.qpc", two_slices()))
    assert (code, err) == (0, "")
    assert "kind  container of 2 containers, one per device\n" in out
    assert "--- QAicGraph_slice00\n" in out
    assert "--- QAicGraph_slice01\n" in out
    code, out, err = run("validate", "two.qpc")
    assert code == 0
    assert "Number of NSP required by QAicGraph_slice00: 4\n" in out
    run("extract", "two.qpc", "-o", "out", "-s", "*networkdesc.bin_dir/networkdesc.json")
    found = sorted(Path("out").rglob("*.json"))
    assert [json.loads(file.read_bytes())["network_name"] for file in found] == ["quant_i8", "simple_f32"]
    assert [str(file) for file in found] == [
        f"out/QAicGraph_slice0{number}_dir/networkdesc.bin_dir/networkdesc.json" for number in (0, 1)
    ]


def test_validate(run, here):
    assert run("validate", "-i", here("split.qpc", SPLIT.read_bytes())) == (
        0,
        text(
            """
            file       split.qpc
            size       3.00 KiB, 4 segments
            target     card
            program    simple_f32
            cores      4
            batch      1
            memory     4.06 MiB on the device per activation
            constants  96 bytes static, 160 bytes dynamic
            metadata   flatbuffer in metadata_fb, hardware version 2.0, 2 semaphores
            stats      none
            Number of NSP required: 4

            valid
            """
        ),
        "",
    )


def test_validate_shows_warnings(run):
    code, out, _ = run("validate", QUANTIZED)
    assert code == 0
    assert out.endswith(
        "\nwarning: networkdesc.bin: the open card runtime refuses transforms other than a single DMA copy "
        "[qpc.not_copy_only]\nvalid\n"
    )


def test_validate_of_what_does_not_open(run):
    assert run("validate", TRUNCATED) == (
        1,
        "error: the header declares 2830 bytes, the file has 2730 [qpc.size_mismatch]\nnot valid\n",
        "",
    )


def test_validate_json(run):
    code, out, _ = run("validate", TRUNCATED, "--json")
    assert code == 1
    assert json.loads(out) == {
        "valid": False,
        "findings": [
            {
                "severity": "error",
                "code": "qpc.size_mismatch",
                "segment": None,
                "message": "the header declares 2830 bytes, the file has 2730",
            }
        ],
        "facts": None,
    }


def test_validate_finds_what_opening_does_not(run, here):
    data = bytearray(cpu_program(extra=[("constants.bin.crc", b"\0\0\0\0")]))
    code, out, _ = run("validate", here("crc.qpc", bytes(data)))
    assert code == 1
    assert out.splitlines()[-1] == "not valid"
    assert "[qpc.crc" in out
    assert run("info", "crc.qpc")[0] == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(run, name):
    path = DATA / "hostile" / name
    for command in ("info", "list", "validate"):
        code, out, err = run(command, path)
        assert code in {0, 1}
        assert "Traceback" not in out + err
        assert (code == 1) == bool(err) or command == "validate"
    assert run("validate", path)[0] == 1


@pytest.mark.parametrize("command", ["info", "list", "extract"])
def test_a_broken_file_is_one_line_on_stderr(run, command):
    arguments = ["-o", "out"] if command == "extract" else []
    code, out, err = run(command, TRUNCATED, *arguments)
    assert (code, out) == (1, "")
    assert (
        err == f"error: {TRUNCATED}: the header declares 2830 bytes, the file has 2730 [qpc.size_mismatch]\n"
    )
    assert list(Path().iterdir()) == []


def test_a_missing_file(run):
    assert run("info", "none.qpc") == (1, "", "error: none.qpc: No such file or directory\n")
    assert run("validate", "none.qpc") == (1, "", "error: none.qpc: No such file or directory\n")


def test_an_onnx_model(run, here):
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y", [1])])
    path = here("net.onnx", model.SerializeToString())
    code, _, err = run("info", path)
    assert code == 1
    assert err.splitlines()[1] == f"hint: `openqaic compile {path}` compiles the model"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["info"], "one of the arguments FILE -i/-q/--qpc is required"),
        (["info", "a", "-i", "b"], "argument -i/-q/--qpc: not allowed with argument FILE"),
        (["info", "a", "--force"], "--force is an option of another command"),
        (["extract", "a"], "the following arguments are required: -o/--output-dir"),
    ],
)
def test_wrong_usage(run, arguments, complaint):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"error: {complaint}"
    assert "--help" in err.splitlines()[1]


@pytest.mark.parametrize("option", ["", "-i", "-q", "--qpc"])
def test_ways_to_name_the_file(run, here, option, tmp_path):
    (tmp_path / "program").mkdir()
    here("program/programqpc.bin", SPLIT.read_bytes())
    for name in ("program/programqpc.bin", "program", "pro*", tmp_path / "program"):
        code, out, _ = run("list", *([option] if option else []), name)
        assert code == 0
        assert "networkdesc.bin" in out


def test_several_files_for_a_glob(run, here):
    here("a.bin", SPLIT.read_bytes())
    here("b.bin", SPLIT.read_bytes())
    code, _, err = run("info", "*.bin")
    assert code == 2
    assert "a.bin, b.bin" in err


def test_extract(run, here):
    code, out, err = run("extract", "--qpc", here("split.qpc", SPLIT.read_bytes()), "--output-dir", "out")
    assert (code, err) == (0, "")
    names = [
        *("constants.bin", "constantsdesc.bin", "constantsdesc.bin_dir/constantsdesc.json", "network.elf"),
        *("network.elf_dir/metadata.json", "networkdesc.bin", "networkdesc.bin_dir/networkdesc.json"),
        "networkdesc.bin_dir/iodesc.json",
    ]
    assert [line.split() for line in out.splitlines()] == [
        ["bytes", "file"],
        *([f"{Path('out', name).stat().st_size:,}", f"out/{name}"] for name in names),
    ]


def test_extract_a_part(run):
    pattern = "*networkdesc.bin_dir/networkdesc.json"
    code, out, _ = run("extract", "--qpc", SPLIT, "--output-dir", "out", "-s", pattern, "--json")
    assert code == 0
    assert json.loads(out) == ["out/networkdesc.bin_dir/networkdesc.json"]
    assert json.loads(Path(*json.loads(out)).read_bytes()) == Qpc(SPLIT).network_descriptor


def test_extract_twice(run):
    assert run("extract", SPLIT, "-o", "out")[0] == 0
    assert run("extract", SPLIT, "-o", "out") == (
        1,
        "",
        "error: out/constants.bin: the file exists\n"
        "hint: --force overwrites it; another --output-dir keeps both\n",
    )
    assert run("extract", SPLIT, "-o", "out", "--force")[0] == 0


def test_extract_nothing(run):
    code, out, err = run("extract", SPLIT, "-o", "out", "-s", "*opstatsdesc.bin")
    assert (code, out) == (1, "")
    assert err.startswith("error: no file matches '*opstatsdesc.bin'\nhint: ")
    assert list(Path().iterdir()) == []


@pytest.mark.filterwarnings("default")
def test_extract_says_what_it_leaves_out(run, here):
    code, _, err = run("extract", here("broken.qpc", container(program(elf=b"no elf"))), "-o", "out")
    assert code == 0
    assert err.splitlines() == [
        f"warning: network.elf_dir/{name} is skipped: network.elf: the file header is invalid"
        for name in ("metadata.json", "plan.json", "graph.onnx")
    ]


def test_damaged_parts_are_named(run, here):
    code, out, err = run("info", here("broken.qpc", container(program(elf=b"no elf"))))
    assert (code, err) == (0, "")
    assert "target   unknown\n" in out
    assert "problem: plan: network.elf: the file header is invalid\n" in out
    assert "problem: metadata: network.elf: the file header is invalid\n" in out


def test_names_cannot_command_the_terminal(run, here):
    evil = "\x1b[2J\x1b]0;owned\x07\n\u202e"
    data = container(program(name=evil, extra=[(evil, b"1")]))
    here("evil.qpc", data)
    for command in ("info", "list", "validate"):
        _, out, _ = run(command, "evil.qpc")
        assert not {"\x1b", "\x07", "\u202e"} & set(out)
        assert "\\x1b[2J" in out
    _, out, _ = run("info", "evil.qpc", "--json")
    assert json.loads(out)["name"] == evil


def test_as_a_module_and_in_a_pipe():
    command = [sys.executable, "-m", "qaic.cli.qpc", "list", str(SPLIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("segment")
    command[-1] = "/dev/stdin"
    piped = subprocess.run(command, input=SPLIT.read_bytes(), capture_output=True, check=True)
    assert piped.stdout.decode() == done.stdout


def test_a_terminal_that_cannot_show_a_name(tmp_path):
    path = tmp_path / "name.qpc"
    path.write_bytes(container(program(name="Größe")))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "qaic.cli.qpc", "info", path], capture_output=True, check=True, env=environment
    )
    assert b"program    Gr\\xf6\\xdfe\n" in done.stdout


def test_help(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("info", "list", "extract", "validate"):
        assert command in out
    code, out, _ = run("extract", "--help")
    assert code == 0
    assert "--output-dir" in out
