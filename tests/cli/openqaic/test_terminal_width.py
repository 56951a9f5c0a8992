"""Reports fit the terminal; only commands and paths to paste are longer than its lines."""

import os
import pty
import sys

import onnx
import pytest

import accuracy_models
import child_process
from qaic.cli.openqaic.commands import bench

COMMANDS = [
    "--help",
    "check model.onnx",
    "accuracy model.onnx --to fp16,int8",
    "bench model.onnx -n 3 --streams 1",
    "profile model.onnx -n 3",
    "inspect model.onnx nodes",
    "inspect model.onnx tensors",
]


def shown(command, columns, folder):
    """Run a command in a terminal; returns the lines on the screen."""
    code = "import sys; from qaic.cli.openqaic import main; sys.exit(main())"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    options = {"cwd": folder, "env": environment, "stdout": theirs}
    printed = b""
    with child_process.started([sys.executable, "-c", code, *command.split()], **options) as process:
        os.close(theirs)
        # If no program has a terminal open, reading from it fails.
        try:
            while piece := os.read(ours, 1 << 16):
                printed += piece
        except OSError:
            pass
        finally:
            os.close(ours)
        assert process.wait(child_process.WATCHDOG_S) == 0
    return printed.decode().splitlines()


@pytest.mark.run_profiles
@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("command", COMMANDS)
def test_reports_are_as_wide_as_the_terminal(command, columns, tmp_path):
    model, _, _ = accuracy_models.overflowing((1,))
    for node in model.graph.node:
        node.name = f"/a/long/path/of/nested/modules/that/exporters/write/{node.name}"
    onnx.save(model, tmp_path / "model.onnx")
    lines = shown(command, columns, tmp_path)
    assert lines
    assert [line for line in lines if len(line) > columns and not line.startswith("next")] == []


@pytest.mark.parametrize("longest_us", [99.0, 9_999.0, 99_999.0, 9_999_999.0])
def test_a_row_of_bench_fits_80_columns_on_a_busy_host(longest_us, capsys):
    latency = {f"{name}_us": 27.4 for name in ("min", "mean", "p50")} | {"count": 1_234_567}
    latency |= {f"{name}_us": 99_999.0 for name in ("p90", "p95", "p99")} | {"max_us": longest_us}
    bench._print_rows(
        [{"runtime": "onnxruntime", "streams": 16, "inferences_per_s": 123_456.0, "latency": latency}]
    )
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
