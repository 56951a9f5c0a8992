"""Tools run programs whose specializations do not have the largest size of every dimension."""

import json
import re

import numpy as np
import pytest
from onnx import helper

import qaic
from qaic.cli import openqaic
from runner_support import batch_json, compiled, doubling, entry, raw, run
from session_models import model

SHAPES = [(1, 8), (4, 3)]
STATS = r"InferenceCnt (\d+) TotalDuration (\d+)us BatchSize (\d+) Inf/Sec (\d+\.\d{3})"


def program_of(folder, shapes):
    symbols = [{"symbols": {"b": str(rows), "s": str(columns)}} for rows, columns in shapes]
    return compiled(folder, doubling(("b", "s")), network_specialization_config={"specializations": symbols})


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return program_of(tmp_path_factory.mktemp("specialized"), SHAPES)


def inference(folder, shape):
    rows = np.ones(shape, np.float32)
    return [entry(raw(folder, f"x{shape[0]}", rows), "in", "x", 4, list(shape))]


def test_every_tool_runs_without_inputs(program, capsys):
    assert run("-t", program, "-n", "2") == 0
    for command in (["run"], ["bench", "--num-iter", "1", "--streams", "1"]):
        assert openqaic.main([command[0], str(program), *command[1:]]) == 0, capsys.readouterr().err
    with qaic.Session(program) as session:
        assert session.run_benchmark(num_inferences=2).inf_completed == 2


def test_default_inputs_have_the_compiled_shapes_if_the_program_accepts_them(tmp_path, capsys):
    assert openqaic.main(["run", str(program_of(tmp_path, [(1, 8), (4, 8)])), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == [4, 8]


@pytest.mark.parametrize("chosen", [SHAPES[:1], SHAPES[1:], SHAPES])
def test_the_rate_counts_the_samples_of_each_inference(program, tmp_path, capsys, chosen):
    batch = batch_json(tmp_path, [inference(tmp_path, shape) for shape in chosen])
    path = tmp_path / "run.json"
    assert run("-t", program, "--aic-batch-json-input", batch, "-n", "6", "--json", path) == 0
    count, microseconds, size, rate = re.search(STATS, capsys.readouterr().out).groups()
    samples = 6 // len(chosen) * sum(rows for rows, _ in chosen)
    assert (int(count), int(size)) == (6, max(rows for rows, _ in chosen))
    assert float(rate) == pytest.approx(samples * 1e6 / int(microseconds), abs=1e-3)
    found = json.loads(path.read_text())
    assert found["samples_per_second"] == pytest.approx(float(rate), abs=1e-3)
    assert found["inferences_per_second"] == pytest.approx(6e6 / int(microseconds))


def test_the_size_of_a_file_selects_the_shapes(program, tmp_path, capsys):
    file = raw(tmp_path, "x", np.arange(12, dtype=np.float32))
    assert run("-t", program, "-i", file, "-n", "1", "--write-output-dir", tmp_path / "out") == 0
    (written,) = (tmp_path / "out").iterdir()
    np.testing.assert_array_equal(np.fromfile(written, np.float32), 2 * np.arange(12))
    assert run("-t", program, "-i", raw(tmp_path, "large", np.zeros(32, np.float32))) == 1
    assert "large has 128 bytes; 'x' takes 32 or 48" in capsys.readouterr().err


def test_the_sizes_of_all_files_select_the_shapes_together(tmp_path):
    nodes = [
        helper.make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "b"], ["y"]),
    ]
    floats = [("a", "float32", ["n", "s"]), ("b", "float32", ["n", 1])]
    built = model(nodes, floats, [("y", "float32", ["n", 1])])
    # Both shapes of `a` have 32 bytes.
    symbols = [{"symbols": {"n": rows, "s": columns}} for rows, columns in (("1", "8"), ("4", "2"))]
    folder = compiled(tmp_path, built, network_specialization_config={"specializations": symbols})
    files = [raw(tmp_path, "a", np.ones(8, np.float32)), raw(tmp_path, "b", np.arange(4, dtype=np.float32))]
    assert (
        run("-t", folder, "-i", files[0], "-i", files[1], "-n", "1", "--write-output-dir", tmp_path / "out")
        == 0
    )
    (written,) = (tmp_path / "out").iterdir()
    np.testing.assert_array_equal(np.fromfile(written, np.float32), 8 + np.arange(4))


def test_a_file_that_fits_several_shapes_is_refused_with_the_way_to_select_one(tmp_path, capsys):
    folder = program_of(tmp_path, [(1, 8), (4, 2)])
    assert run("-t", folder, "-i", raw(tmp_path, "x", np.zeros(8, np.float32))) == 1
    error = capsys.readouterr().err
    assert "several shapes of 'x': [1, 8], [4, 2]" in error
    assert '"dims" in the file of --aic-batch-json-input' in error
