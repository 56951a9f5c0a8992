"""Reports of the compiler: times of passes, graphs after passes, costs, hints."""

import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qaic.compiler import output_folder
from qaic.compiler.diagnostics.progress import PassLog
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.reports import emit_report, perf_metrics
from qaic.compiler.reports.emit_report import debug_log
from qaic.errors import OptionError
from qaic.options import resolve

NODE = helper.make_node


def floats(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def array(name, *dims):
    return numpy_helper.from_array(np.zeros(dims, np.float32), name)


def form(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def macs(*args):
    return perf_metrics.work_of(form(*args)).macs


# --- costs: each expected value is counted by hand or with loops, not with the formulas of the module


@given(*(st.integers(1, 6) for _ in range(4)))
def test_macs_of_products(batch, rows, inner, columns):
    nodes = [NODE("MatMul", ["x", "w"], ["y"])]
    assert macs(
        nodes,
        [floats("x", batch, rows, inner)],
        [floats("y", batch, rows, columns)],
        [array("w", inner, columns)],
    ) == {"MatMul": sum(1 for _ in np.ndindex(batch, rows, inner, columns))}


@given(*(st.integers(1, 6) for _ in range(4)), st.sampled_from(["MatMulNBits", "StoredMatMul"]))
def test_macs_of_products_whose_weights_are_packed(batch, rows, inner, columns, kind):
    """The dims of the weights are those of their bytes, or the weights are not an operand."""
    node = helper.make_node(kind, ["x", "packed", "scales"] if kind == "MatMulNBits" else ["x"], ["y"])
    shapes = {"x": (batch, rows, inner), "y": (batch, rows, columns), "packed": (columns, 1, 16)}
    assert macs_of(node, shapes) == sum(1 for _ in np.ndindex(batch, rows, inner, columns))


@pytest.mark.parametrize("transposed", [0, 1])
def test_macs_of_gemm(transposed):
    shape = (5, 2) if transposed else (2, 5)
    nodes = [NODE("Gemm", ["x", "w"], ["y"], transA=transposed)]
    assert macs(nodes, [floats("x", *shape)], [floats("y", 2, 7)], [array("w", 5, 7)]) == {"Gemm": 2 * 5 * 7}


@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    kernel=st.integers(1, 3),
    size=st.integers(3, 6),
)
def test_macs_of_convolutions(groups, inputs, outputs, kernel, size):
    weight = array("w", groups * outputs, inputs, kernel, kernel)
    nodes = [NODE("Conv", ["x", "w"], ["y"], group=groups)]
    out = size - kernel + 1
    found = macs(
        nodes,
        [floats("x", 2, groups * inputs, size, size)],
        [floats("y", 2, groups * outputs, out, out)],
        [weight],
    )
    assert found == {
        "Conv": sum(1 for _ in np.ndindex(2, groups * outputs, out, out, inputs, kernel, kernel))
    }


def test_macs_of_transposed_convolutions_and_einsum_and_lstm():
    nodes = [NODE("ConvTranspose", ["x", "w"], ["y"])]
    assert macs(nodes, [floats("x", 1, 4, 5, 5)], [floats("y", 1, 3, 7, 7)], [array("w", 4, 3, 3, 3)]) == {
        "ConvTranspose": 4 * 5 * 5 * 3 * 3 * 3
    }
    nodes = [NODE("Einsum", ["x", "w"], ["y"], equation="bij,bjk->bik")]
    assert macs(nodes, [floats("x", 2, 3, 4), floats("w", 2, 4, 5)], [floats("y", 2, 3, 5)]) == {
        "Einsum": 2 * 3 * 4 * 5
    }
    nodes = [NODE("LSTM", ["x", "w", "r"], ["y"], hidden_size=6)]
    found = macs(
        nodes, [floats("x", 7, 2, 5)], [floats("y", 7, 1, 2, 6)], [array("w", 1, 24, 5), array("r", 1, 24, 6)]
    )
    assert found == {"LSTM": 7 * 2 * (24 * 5 + 24 * 6)}


def test_nodes_of_unknown_cost_are_counted_as_such():
    model = form(
        [NODE("MatMul", ["x", "w"], ["y"])], [floats("x", "n", 4)], [floats("y", "n", 5)], [array("w", 4, 5)]
    )
    work = perf_metrics.work_of(model)
    assert (work.macs, work.unknown) == (Counter(), 1)


def test_activations_that_are_alive_at_one_time():
    # x -> a (400 bytes) -> b (400); a is read again at the end, and c (40) frees b.
    nodes = [
        NODE("Relu", ["x"], ["a"]),
        NODE("Neg", ["a"], ["b"]),
        NODE("ReduceSum", ["b", "axis"], ["c"], keepdims=0),
        NODE("Add", ["a", "c"], ["y"]),
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    model = form(nodes, [floats("x", 10, 10)], [floats("y", 10, 10)], [axis])
    # While ReduceSum runs: a, b and c; while Add runs: a, c and y.
    assert perf_metrics.work_of(model).peak_bytes == 400 + 400 + 40


def test_hints_name_what_is_slow():
    nodes = [
        NODE("MatMul", ["x", "w"], ["m"], name="odd"),
        NODE("Transpose", ["m"], ["t"], name="first", perm=[1, 0]),
        NODE("Transpose", ["t"], ["u"], name="second", perm=[1, 0]),
        NODE("Einsum", ["u"], ["e"], name="sum", equation="ij->ij"),
        NODE("BatchNormalization", ["e", "s", "s", "s", "s"], ["n"], name="norm"),
        NODE("Add", ["i", "i"], ["j"], name="indices"),
        NODE("Add", ["one", "one"], ["two"], name="folded"),
    ]
    integers = [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in ("i", "j", "two")]
    one = numpy_helper.from_array(np.ones(2, np.int64), "one")
    model = form(
        nodes,
        [floats("x", 2, 64), integers[0]],
        [floats("n", 2, 33), *integers[1:]],
        [array("w", 64, 33), array("s", 33), one],
    )
    halves = dict.fromkeys(["m", "e", "n"], PrecisionClass.FP16)
    found = perf_metrics.hints(model, {}, halves)
    assert [line.rpartition(": ")[2] for line in found] == [
        "'norm'",
        "'sum'",
        "'second'",
        "'indices'",
        "'odd'",
    ]
    more = perf_metrics.hints(model, {}, {**halves, "m": PrecisionClass.FP32})
    assert sorted(set(more) - set(found)) == [
        "1x computed in float32, slow on a card (convert_to_fp16): 'odd'"
    ]


# --- the way of a report to the user


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.onnx"
    graph = helper.make_graph(
        [NODE("MatMul", ["x", "w"], ["m"]), NODE("Relu", ["m"], ["y"])],
        "net",
        [floats("x", 2, 32)],
        [floats("y", 2, 32)],
        [array("w", 32, 32)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def build(path, **options):
    resolved = resolve(options, options_path=None, model_is_container=False)
    return compile_model(path, resolved.compile, resolved.set_compile, output_dir=resolved.compile.output_dir)


def test_times_and_costs_are_reported_each_time(model, caplog):
    build(model)
    for _ in range(2):
        caplog.clear()
        build(model, time_passes=True, aic_perf_metrics=True, aic_perf_warnings=True)
        titles = {r.getMessage().splitlines()[0]: r for r in caplog.records}
        assert set(titles) == {"performance warnings", "performance metrics", "passes of the compiler"}
        assert {r.levelno for r in titles.values()} == {logging.INFO}
        metrics = titles["performance metrics"].getMessage()
        assert "parameters        1,024" in metrics
        assert "weight bytes      4,096 (float32 4,096), 4 per parameter" in metrics
        assert "MACs              2,048 (MatMul 2,048)" in metrics
        rows = titles["passes of the compiler"].getMessage().splitlines()[2:]
        assert rows[0].split()[0] == "read"
        assert {"check-model", "infer-shapes", "write", "total"} <= {row.split()[0] for row in rows}


def test_hints_follow_the_options_about_precision(model, caplog):
    for options, expected in [
        ({}, True),
        ({"convert_to_fp16": True}, False),
        ({"execute_nodes_in_fp16": ["MatMul", "Relu"]}, False),
        ({"convert_to_fp16": True, "keep_original_precision_for_nodes": ["MatMul"]}, True),
    ]:
        caplog.clear()
        build(model, aic_perf_warnings=True, **options)
        assert ("computed in float32" in caplog.text) == expected, options


def test_reports_do_not_change_the_container(model, tmp_path):
    plain = build(model).read_bytes()
    options = {"time_passes": True, "aic_perf_metrics": True, "aic_perf_warnings": True, "enable_debug": True}
    assert build(model, output_dir=tmp_path / "out", **options).read_bytes() == plain


def test_reports_without_configured_logging_are_printed(model):
    code = f"import qaic; qaic.Session({str(model)!r}, time_passes=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("passes of the compiler\npass ")


def test_passes_add_up():
    passes = PassLog()
    for name in ("one", "two", "one", ""):
        passes.enter(name)
    assert list(passes.seconds) == ["one", "two"]
    table = passes.table().splitlines()
    assert [line.split()[0] for line in table] == ["pass", "one", "two", "total"]


def test_debug_keeps_each_graph_and_a_log(model, tmp_path, caplog):
    out = tmp_path / "out"
    build(model, enable_debug=True, convert_to_fp16=True, output_dir=out)
    folder = out / output_folder.DEBUG_FOLDER
    graphs = sorted(folder.glob("*.onnx"))
    assert [path.stem[:2] for path in graphs] == [f"{number:02}" for number in range(len(graphs))]
    first, last = (onnx.load(path) for path in (graphs[0], graphs[-1]))
    onnx.checker.check_model(first)
    assert [node.op_type for node in first.graph.node] == ["MatMul", "Relu"]
    assert "w" in {value.name for value in first.graph.input}
    assert "Cast" in {node.op_type for node in last.graph.node}
    log = (folder / emit_report.DEBUG_LOG).read_text()
    assert "debug qaic.compiler: pass check-model: " in log
    assert onnx.load(graphs[1]) != first
    # Files of an earlier run do not belong to this run; files of other programs are kept.
    (folder / "thesis.txt").touch()
    build(model, enable_debug=True, output_dir=out)
    assert len(list(folder.glob("*.onnx"))) < len(graphs)
    assert (folder / "thesis.txt").exists()


@pytest.mark.parametrize("taken", ["folder", "file", "link"])
def test_debug_does_not_take_a_place_that_is_not_its_own(model, tmp_path, taken):
    folder = tmp_path / "out" / output_folder.DEBUG_FOLDER
    folder.parent.mkdir()
    kept = tmp_path / "kept" if taken == "link" else folder
    if taken == "file":
        folder.write_text("mine")
    else:
        kept.mkdir()
        (kept / "compile.log").write_text("mine")
    if taken == "link":
        folder.symlink_to(kept)
    with pytest.raises(OptionError, match="compiler-debug was not created by openqaic"):
        build(model, enable_debug=True, output_dir=tmp_path / "out")
    assert (kept if taken == "file" else kept / "compile.log").read_text() == "mine"


def test_debug_without_a_place_says_so(model, caplog):
    build(model, enable_debug=True)
    assert "so it needs output_dir" in caplog.text


def test_a_debug_log_does_not_change_what_is_shown(tmp_path):
    code = (
        "import logging, pathlib\n"
        "from qaic.compiler.reports.emit_report import debug_log\n"
        "logger = logging.getLogger('qaic.compiler')\n"
        "with debug_log(pathlib.Path('one.log')), debug_log(pathlib.Path('two.log')):\n"
        "    logger.warning('loud')\n"
        "    logger.info('quiet')\n"
        "logger.warning('after')\n"
        "logger.info('never')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr == "loud\nafter\n"
    kept = "warning qaic.compiler: loud\ninfo qaic.compiler: quiet\n"
    assert [(tmp_path / name).read_text() for name in ("one.log", "two.log")] == [kept, kept]


def test_reports_and_warnings_are_shown_once_beside_a_debug_log(model, tmp_path):
    code = (
        "import qaic\n"
        f"qaic.compile({str(model)!r}, time_passes=True, enable_debug=True, output_dir={str(tmp_path)!r},"
        " onnx_define_symbol={'gone': 1})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("passes of the compiler\npass ") == 1
    assert done.stderr.count("the model has no symbol 'gone'") == 1


def test_a_debug_log_that_fails_costs_nothing(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with debug_log(Path("/dev/full")):
        logging.getLogger("qaic.compiler").warning("still fine")
