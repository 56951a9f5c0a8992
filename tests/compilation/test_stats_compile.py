"""Measurements of a program at each level: the message, the buffer, the binding and the plan."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import qaic
import qaicrt
import session_models
import wire_reader
from qaic import _core
from qaic.cli import qpc as qpc_tool
from qaic.compiler.driver import compile_model
from qaic.errors import CompileError, InputError
from qaic.options import resolve
from qaic.options.table import CompileOptions
from qaic.qpc import DataType
from qaic.support import program_names
from rt_programs import Client

FIXTURES = Path(__file__).parents[1] / "data" / "qpc"

#: sections of a stats buffer with bytes of a record
RECORD_BYTES = {"CORE": 64, "THREAD": 64, "PORT": 32, "PMU_EVENTS": 32, "PMU": 80, "OP": 48, "META": 1}
ALWAYS = {"CORE": 1, "THREAD": 1, "META": 4096}


@pytest.fixture
def model(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


def program(model, folder, **options):
    """Compile as users do."""
    resolved = resolve(options, options_path=None, model_is_container=False)
    path = compile_model(model, resolved.compile, resolved.set_compile, output_dir=folder)
    return qaic.Qpc(path)


def network(qpc):
    return wire_reader.fields(bytes(qpc.segments["networkdesc.bin"].data))


def stats_of(qpc):
    """Field number -> value of the message, packed fields as lists; None without the field."""
    messages = network(qpc).get(12)
    if messages is None:
        return None
    found = wire_reader.fields(messages[0])
    return {
        number: wire_reader.packed(values[0]) if number in {10, 11} else values[0]
        for number, values in found.items()
    }


def buffer_sizes(qpc):
    return [wire_reader.fields(message).get(1, [0])[0] for message in network(qpc)[6]]


def output_names(qpc):
    return [wire_reader.fields(message)[1][0].decode() for message in network(qpc)[5]]


def in_blocks(size):
    return (size + 63) // 64 * 64


def buffer_bytes(counts):
    """Size of header, directory and sections, each rounded up to 64 bytes."""
    records = sum(in_blocks(RECORD_BYTES[name] * count) for name, count in counts.items())
    return in_blocks(128 + 32 * len(counts)) + records


@pytest.mark.parametrize("level", [0, 10, 39])
def test_a_low_level_measures_nothing(model, tmp_path, level):
    qpc = program(model, tmp_path / "out", stats_level=level)
    assert stats_of(qpc) is None
    assert output_names(qpc) == ["y"]
    assert len(buffer_sizes(qpc)) == 2
    assert "stats" not in qpc.plan
    assert not qpc.program_info.stats_available


def test_the_default_level_has_a_buffer_and_no_binding(model, tmp_path):
    qpc = program(model, tmp_path / "out")
    assert stats_of(qpc) == {1: 2, 3: 40, 7: 1, 9: 19_200}
    assert output_names(qpc) == ["y"]
    network_desc = bytes(qpc.segments["networkdesc.bin"].data)
    assert qpc.plan["stats"] == {
        "level": 40,
        "op_level": 0,
        "batch_size": 1,
        "buffer": 2,
        "capacity": ALWAYS,
        "fingerprint": hashlib.sha256(network_desc).hexdigest()[:32],
    }
    assert buffer_sizes(qpc)[2] == buffer_bytes(ALWAYS) == 4480
    assert "opstatsdesc.open" not in qpc.segments
    assert [mapping.name for mapping in qpc.buffer_mappings] == ["x", "y"]
    assert qpc.program_info.stats_available


PORTS = ALWAYS | {"PORT": 2}
PMU = {"PMU_EVENTS": 1, "PMU": 1}


@pytest.mark.parametrize(
    ("options", "message", "counts"),
    [
        ({"stats_level": 40}, {3: 40}, ALWAYS),
        ({"stats_level": 49}, {3: 49}, ALWAYS),
        ({"stats_level": 50}, {3: 50}, PORTS),
        ({"stats_level": 69, "stats_batchsize": 8}, {3: 69, 7: 8}, PORTS),
        ({"ddr_stats": True}, {3: 40, 8: 1}, ALWAYS),
        ({"aic_pmu_recipe": "KernelUtil"}, {3: 40}, ALWAYS | PMU),
        ({"aic_pmu_events": "3F,70,200"}, {3: 40, 10: [0x3F, 0x70, 0x200]}, ALWAYS | PMU),
        (
            {"aic_pmu_events": "FFFFFFFF", "stats_level": 50},
            # A negative number takes ten bytes in this format.
            {3: 50, 10: [2**64 - 1]},
            PORTS | PMU,
        ),
    ],
)
def test_what_is_asked_for_has_a_binding(model, tmp_path, options, message, counts):
    qpc = program(model, tmp_path / "out", **options)
    assert stats_of(qpc) == {1: 2, 7: 1, 9: 19_200} | message
    assert output_names(qpc) == ["y", "aiccyclecounts"]
    planned = qpc.plan["stats"]
    assert (planned["level"], planned["capacity"], planned["buffer"]) == (message[3], counts, 2)
    assert (planned.get("ddr", False), planned["batch_size"]) == (bool(message.get(8)), message.get(7, 1))
    assert [event % 2**64 for event in planned.get("pmu_events", [])] == [
        event % 2**32 for event in message.get(10, [])
    ]
    size = buffer_bytes(counts)
    assert buffer_sizes(qpc)[2] == size
    assert [edge["name"] for edge in qpc.plan["outputs"]] == ["y"]
    last = qpc.buffer_mappings[-1]
    assert (last.name, last.index, last.io_type, last.size) == ("aiccyclecounts", 2, 2, size)
    assert (last.data_type, last.is_partial_allowed) == (DataType.INT8, False)
    binding = qpc.network_descriptor["outputs"][-1]
    assert binding["io_initial"] == binding["io_transformed"] == {"type": 8, "dims": [size]}
    (copy,) = binding["transformseq"]
    assert (copy["kind"], copy["copy_dma_buffer"]) == (6, {"dir": 1, "buffer_num": 2})
    assert qpc.io_desc["selected_set"]["bindings"][-1]["name"] == "aiccyclecounts"
    assert not qpc.validate()


@pytest.mark.parametrize(("level", "pmu_level"), [(70, 0), (75, 0), (100, 100), (2**31 - 1, 2**31 - 1)])
def test_operations_are_in_the_message_and_in_their_segment(model, tmp_path, level, pmu_level):
    qpc = program(model, tmp_path / "out", stats_level=level, aic_pmu_events="70")
    segment = bytes(qpc.segments["opstatsdesc.open"].data)
    # The ELF, which is loaded on a card, also contains the descriptor; the plan contains its fingerprint.
    container = _core.Qpc(str(tmp_path / "out" / "programqpc.bin"))
    assert bytes(container.elf_section("openqaic_ops")) == segment
    assert qpc.plan["stats"]["fingerprint"] == hashlib.sha256(segment).hexdigest()[:32]
    descriptor = json.loads(segment)
    (core,) = descriptor.pop("cores")
    assert descriptor == {
        "version": 1,
        "network": "net",
        "batch_size": 1,
        "ucycles_per_ms": 19_200,
        "stats_level": level,
        "op_stats_level": level,
        "pmu_events": [0x70],
        "groups": ["CPU"],
        "thread_groups": [0],
    }
    assert core == {
        "slice": 0,
        "ops": [
            {
                "name": "m/__0",
                "engine_name": "fused m/MatMulAddFusion",
                "nodes": ["m", "a", "y"],
                "outputs": ["y"],
                "kind": "FusedGemm",
                "group": 0,
                "memory": "HOST",
                "types": "float32",
                "precision": "float32",
                "shape": "[2 x 4]",
                "operands": [
                    "in [HOST] Src0 x float32 <2 x 4> 0.03KB",
                    "in [HOST] Src1 w float32 <4 x 4> 0.06KB",
                    "in [HOST] Src2 b float32 <4> 0.02KB",
                    "out [HOST] Dest y float32 <2 x 4> 0.03KB",
                ],
                "output_bytes": 32,
                "macs": 32,
                "constant_bytes": 80,
                "attributes": core["ops"][0]["attributes"],
            },
            {
                "name": "engine/__1",
                "engine_name": "*",
                "kind": "engine",
                "group": 0,
                "memory": "HOST",
                "types": "",
                "output_bytes": 0,
            },
        ],
    }
    assert core["ops"][0]["attributes"].startswith("{activation: Relu, alpha: 1, beta: 1, ")
    message = stats_of(qpc)
    kinds = message.pop(12)
    expected = {1: 2, 3: level, 6: level, 7: 1, 9: 19_200, 10: [0x70], 11: [2]}
    assert message == expected | ({13: pmu_level} if pmu_level else {})
    (group,) = wire_reader.fields(kinds)[1]
    for encoded, op in zip(wire_reader.fields(group)[1], core["ops"], strict=True):
        values = wire_reader.fields(encoded)
        texts = {"name": 1, "kind": 2, "type": 3, "memory": 4, "shape": 5, "attributes": 8}
        for key, number in texts.items():
            assert values.get(number, [b""])[0].decode() == op.get({"type": "types"}.get(key, key), "")
        assert values.get(7, [0])[0] == op["output_bytes"]
        assert [text.decode() for text in values.get(9, [])] == op.get("operands", [])
    # The nodes of the program, the last operation for all others, and free space.
    assert qpc.plan["stats"]["capacity"] == PORTS | PMU | {"OP": 3 + 16}
    assert not qpc.validate()


@pytest.mark.parametrize("options", [{}, {"stats_level": 0}, {"stats_level": 70}])
def test_thread_groups(model, tmp_path, options):
    fields = network(program(model, tmp_path / "out", aic_num_cores=4, **options))
    assert fields[7] == [4]
    if options.get("stats_level") == 0:
        assert [name.decode() for name in fields[13]] == ["HVX", "HMX", "DMAIssue"]
        return
    assert (fields[8], fields.get(9)) == ([1], None)
    assert wire_reader.packed(fields[10][0]) == [0]
    assert (fields[11], fields[13]) == ([1], [b"CPU"])


def test_size_is_what_the_device_computes(model, tmp_path):
    for options in ({}, {"stats_level": 70}, {"stats_level": 100, "aic_pmu_recipe": "AxiRd"}):
        qpc = program(model, tmp_path / "out", **options)
        counts = qpc.plan["stats"]["capacity"]
        assert buffer_sizes(qpc)[-2] == _core.stats_capacity(counts) == buffer_bytes(counts)


@pytest.mark.parametrize(("given", "has_binding"), [({}, False), ({"aic_profiling_type": ["trace"]}, True)])
def test_a_profile_of_the_run_asks_for_statistics(model, tmp_path, given, has_binding):
    path = compile_model(model, CompileOptions(), given, output_dir=tmp_path / "out")
    assert output_names(qaic.Qpc(path)) == ["y", *["aiccyclecounts"] * has_binding]


def test_options_of_the_run_reach_the_compiler(model, tmp_path, capfd):
    from qaic.cli import compile as compile_tool

    out = tmp_path / "out"
    flags = [f"-m={model}", f"-aic-binary-dir={out}", "-aic-profiling-type=raw_device_stats"]
    assert compile_tool.main(flags) == 0
    assert output_names(qaic.Qpc(out)) == ["y", "aiccyclecounts"]
    assert qaic.Qpc(out).options == {"aic_profiling_type": ["raw_device_stats"]}
    assert compile_tool.main([*flags[:1], f"-aic-binary-dir={out}2", "-stats-level=0", flags[2]]) == 0
    assert output_names(qaic.Qpc(f"{out}2")) == ["y"]
    capfd.readouterr()


def test_combined_buffers_and_sets_of_shapes(tmp_path):
    built = session_models.model(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [("x", "float32", ["n", 4])],
        [("y", "float32", None), ("z", "float32", None)],
    )
    path = session_models.save(tmp_path, built)
    for combined in (True, False):
        qpc = program(
            path,
            tmp_path / "out",
            stats_level=70,
            combine_outputs=combined,
            network_specialization_config=[{"n": 1}, {"n": 5}],
        )
        *_, size, control = buffer_sizes(qpc)
        assert stats_of(qpc)[1] == len(buffer_sizes(qpc)) - 2 == (2 if combined else 3)
        assert (control, qpc.plan["control_buffer"]) == (64, len(buffer_sizes(qpc)) - 1)
        assert not qpc.validate()
        shapes = [
            [shape["dims"] for shape in entry["shapes"]] for entry in qpc.network_descriptor["allowed_shapes"]
        ]
        assert shapes == [[[n, 4], [n, 4], [n, 4], [size]] for n in (1, 5)]
        ops = json.loads(bytes(qpc.segments["opstatsdesc.open"].data))["cores"][0]["ops"]
        assert [(op["shape"], op["output_bytes"]) for op in ops[:2]] == [("[5 x 4]", 80)] * 2


def test_session_never_shows_the_binding(model, tmp_path):
    x = np.ones((2, 4), np.float32)
    with qaic.Session(model, stats_level=0) as plain:
        expected = plain.run({"x": x})
    with qaic.Session(model, stats_level=70, output_dir=tmp_path / "out") as session:
        assert list(session.model_input_shape_dict) == ["x"]
        assert list(session.model_output_shape_dict) == ["y"]
        found = session.run({"x": x})
        assert list(found) == ["y"]
        assert found["y"].tobytes() == expected["y"].tobytes()
        with pytest.raises(InputError, match="aiccyclecounts"):
            session.run({"x": x}, output_names=["aiccyclecounts"])


def test_qaicrt_shows_the_binding(model, tmp_path):
    program(model, tmp_path / "out", stats_level=70)
    client = Client(str(tmp_path / "out"))
    mappings = list(client.program.getBufferMappings())
    assert [mapping.bufferName for mapping in mappings] == ["x", "y", "aiccyclecounts"]
    assert mappings[2].size == buffer_sizes(qaic.Qpc(tmp_path / "out"))[2]
    assert mappings[2].ioType == qaicrt.BufferIoTypeEnum.BUFFER_IO_TYPE_OUTPUT


def test_an_empty_buffer_wants_no_statistics(model, tmp_path):
    program(model, tmp_path / "out", stats_level=70)
    client = Client(str(tmp_path / "out"))
    exec_obj = client.exec_obj()
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    size = client.program.getBufferMappings()[2].size
    results = []
    for bytes_given in (0, size, 0):
        stats = np.zeros(bytes_given, np.int8)
        client.infer(exec_obj, [qaicrt.QBuffer(array) for array in (x, y, stats)])
        assert bytes(stats[:8]) == b"OQSTATS1"[:bytes_given]
        results.append(y.tobytes())
    assert results[0] != bytes(32)
    assert len(set(results)) == 1


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_name_of_the_binding_is_taken(tmp_path, side):
    names = ("aiccyclecounts", "y") if side == "input" else ("x", "aiccyclecounts")
    built = session_models.model(
        [helper.make_node("Relu", [names[0]], [names[1]])],
        [(names[0], "float32", [2])],
        [(names[1], "float32", [2])],
    )
    with pytest.raises(CompileError, match="'aiccyclecounts'") as caught:
        program(session_models.save(tmp_path, built), tmp_path / "out", stats_level=0)
    assert caught.value.code == "compile.reserved_name"


SCRIPT = """
import sys
from qaic.compiler.driver import compile_model
from qaic.options.table import CompileOptions
from qaic.qpc import DataType
compile_model(sys.argv[1], CompileOptions(stats_level=70), {"stats_level": 70}, output_dir=sys.argv[2])
"""


def test_the_same_model_gives_the_same_bytes(tmp_path):
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    built = session_models.model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
            helper.make_node("HardSwish", ["c"], ["h"]),
            helper.make_node("Softmax", ["h"], ["y"]),
        ],
        [("x", "float32", [1, 3, 6, 6])],
        [("y", "float32", [1, 8, 6, 6])],
        {"w": weight},
    )
    path = session_models.save(tmp_path, built)
    found = set()
    for seed in ("1", "2"):
        out = tmp_path / seed
        values = os.environ | {"QAIC_CACHE_DIR": str(tmp_path / f"cache{seed}"), "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", SCRIPT, str(path), str(out)], env=values, check=True)
        found.add((out / program_names.QPC_FILE_NAME).read_bytes())
    assert len(found) == 1


def test_nothing_is_left_behind(model, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    program(model, tmp_path / "out", stats_level=70)
    assert list(temporary.iterdir()) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["programqpc.bin"]
    files = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith(".tmp")]


def test_tools_tell_what_is_measured(model, tmp_path, capsys):
    for level, folder in ((70, "a"), (0, "b")):
        program(model, tmp_path / folder, stats_level=level, ddr_stats=bool(level))
    size = buffer_sizes(qaic.Qpc(tmp_path / "a"))[2]
    assert qpc_tool.main(["info", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("stats  "))
    shown = f"{size / 1024:.3g} KiB"
    assert line.split(None, 1)[1] == (
        f"level 70, 2 operations, DDR traffic, {shown} in DMA buffer 2, output aiccyclecounts"
    )
    assert qpc_tool.main(["info", "--json", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["stats"] == {
        "level": 70,
        "op_level": 70,
        "batch": 1,
        "operations": 2,
        "ddr": True,
        "pmu_events": [],
        "dma_buffer": 2,
        "bytes": size,
        "output": "aiccyclecounts",
    }
    assert qpc_tool.main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "stats  level=70, " in out
    assert "outputs: - aiccyclecounts" in out


def test_a_container_for_a_card_with_statistics(capsys):
    path = FIXTURES / "s10_stats.qpc"
    assert qaic.Qpc(path).program_info.stats_available
    assert qpc_tool.main(["info", str(path)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("stats  "))
    assert line.split(None, 1)[1].startswith("level ")
    assert line.endswith("no separate output")
