"""Precisions of nodes in `openqaic inspect nodes`, compared with the requested options."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import qaic
from compiler_oracle import info, model_of
from qaic import page
from qaic.cli.graph_model import read_graph
from qaic.cli.openqaic import main, program_graph
from qaic.stats.reports import REPORTS

#: Operators that compute new values, which makes rounding visible.
OPERATORS = ("MatMul", "Add", "Tanh", "Mul", "Sigmoid", "Sqrt")


def chain(operators):
    """Build a chain of these operators; names of nodes and results contain their position."""
    nodes, weights = [], []
    for place, operator in enumerate(operators):
        inputs = [f"v{place}"]
        if operator in {"MatMul", "Add", "Mul"}:
            shape = (4, 4) if operator == "MatMul" else (4,)
            values = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)
            weights.append(numpy_helper.from_array(values, f"w{place}"))
            inputs.append(f"w{place}")
        nodes.append(helper.make_node(operator, inputs, [f"v{place + 1}"], name=f"n{place}"))
    value = {"elem_type": TensorProto.FLOAT, "shape": [2, 4]}
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", **value)],
        [helper.make_tensor_value_info(f"v{len(nodes)}", **value)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def precisions(folder, model, **options):
    """Compile, and map each operator of the user's model to its reported precision."""
    program = qaic.compile(model, aic_binary_dir=folder, **options)
    rows = program_graph.nodes(program_graph.with_shapes(read_graph(qaic.Qpc(program.path))))
    return {row["node"]: (row["operator"], row["precision"]) for row in rows if row["node"]}, rows


@settings(max_examples=25, deadline=None)
@given(
    operators=st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6),
    kept=st.sets(st.sampled_from(OPERATORS), max_size=3),
)
def test_nodes_that_an_option_keeps_are_float_and_all_others_float16(tmp_path_factory, operators, kept):
    found, _ = precisions(
        tmp_path_factory.mktemp("program"),
        chain(operators),
        convert_to_fp16=True,
        keep_original_precision_for_nodes=sorted(kept),
    )
    assert found == {
        f"n{place}": (operator, "float32" if operator in kept else "float16")
        for place, operator in enumerate(operators)
    }


def test_without_options_no_node_is_float16(tmp_path):
    found, rows = precisions(tmp_path, chain(OPERATORS))
    assert {precision for _, precision in found.values()} == {"float32"}
    assert program_graph.precision_split(rows) == f"{len(rows)} float32"


@settings(max_examples=10, deadline=None)
@given(operators=st.lists(st.sampled_from(("MatMul", "Tanh", "Sigmoid")), min_size=1, max_size=4))
def test_quantized_nodes_have_the_type_of_their_integers(tmp_path_factory, operators):
    """Regression: only the conversions around the nodes had a type of integers."""
    samples = [{"v0": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}]
    folder = tmp_path_factory.mktemp("program")
    found, rows = precisions(folder, chain(operators), convert_to_quantize=True, calibration_data=samples)
    assert {precision for _, precision in found.values()} == {"uint8"}
    shown, _ = program_graph.without_conversions(rows)
    assert {row["node"] for row in shown} == set(found)


def test_a_node_that_picks_rounded_values_is_float16(tmp_path):
    model = chain(["Tanh"])
    model.graph.node.append(helper.make_node("Relu", ["v1"], ["v2"], name="pick"))
    model.graph.output[0].name = "v2"
    assert precisions(tmp_path, model, convert_to_fp16=True)[0]["pick"] == ("Relu", "float16")


@settings(max_examples=10, deadline=None)
@given(
    operators=st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=5),
    kept=st.sets(st.sampled_from(OPERATORS), max_size=2),
)
def test_measured_operations_have_the_precision_of_their_node(tmp_path_factory, operators, kept):
    program = qaic.compile(
        chain(operators),
        aic_binary_dir=tmp_path_factory.mktemp("program"),
        convert_to_fp16=True,
        keep_original_precision_for_nodes=sorted(kept),
        stats_level=70,
    )
    described = json.loads(program.segments["opstatsdesc.open"].data.tobytes())
    for op in described["cores"][0]["ops"]:
        places = {int(name[1:]) for name in op.get("nodes", ()) if name[1:].isdecimal()}
        # An operation that the engine fused computes several nodes and has the name of one of them.
        if len(places) == 1 and op["kind"] == operators[min(places)]:
            assert op["precision"] == ("float32" if op["kind"] in kept else "float16"), op
    precisions_found = {op.get("precision") for op in described["cores"][0]["ops"]}
    assert precisions_found & {"float16", "float32"}


def test_reports_and_the_title_of_a_page_name_the_precision(tmp_path):
    session = qaic.Session(chain(["MatMul", "Tanh"]), convert_to_fp16=True, stats_level=70)
    with session, session.profile() as profile:
        session.run(v0=np.ones((2, 4), np.float32))
    capture = profile.capture()
    (table,) = [one for one in REPORTS["overview"](capture).tables if one.name == "precisions"]
    assert table.column("precision") == ["float16"]
    assert table.column("share") == [pytest.approx(100)]
    written = page.write(capture, [REPORTS["overview"](capture)], tmp_path / "page.html").read_text()
    assert "<h1>chain in float16 on the CPU device</h1>" in written
    assert f"openqaic {qaic.__version__} \u00b7 onnxruntime " in written


def test_inspect_shows_why_a_rule_left_a_node(tmp_path, capsys):
    path = tmp_path / "narrow.onnx"
    values = {"w": np.ones((64, 3), np.float32)}
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="narrow")
    path.write_bytes(
        model_of([product], [info("x", [2, 64])], [info("y", [2, 3])], values.items()).SerializeToString()
    )
    options = ["--convert-to-fp16", "--mxfp6-matmul", "--time-passes"]
    assert main(["inspect", str(path), "nodes", *options]) == 0
    printed = capsys.readouterr().out
    assert "compress-weights left 1 node (first 'narrow'): the matrix has a side below 32\n" in printed
