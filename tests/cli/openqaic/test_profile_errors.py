"""`openqaic profile --errors`: the graph has the errors that `openqaic accuracy --json` measured."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from page_captures import carried_graph
from qaic.cli.openqaic import main


@pytest.fixture
def model(tmp_path):
    """A model whose square overflows float16; the compiler fuses its sum with its activation."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], name="/norm/square"),
        helper.make_node("Add", ["square", "x"], ["sum"], name="/norm/sum"),
        helper.make_node("Relu", ["sum"], ["y"], name="/norm/relu"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph(nodes, "norm", [x], [y])
    path = tmp_path / "norm.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def report(model):
    path = model.with_name("accuracy.json")
    np.savez(model.with_name("samples.npz"), x=np.array([1.1, 2.2, 300.3, 4.4], np.float32))
    samples = str(model.with_name("samples.npz"))
    assert (
        main(["accuracy", str(model), "--to", "fp16,mxfp6+fp16", "--samples", samples, "--json", str(path)])
        == 0
    )
    return path


def profile(model, *more):
    return main(["profile", str(model), "-n", "2", *map(str, more)])


def test_the_graph_has_the_errors_of_the_report(model, report):
    page = model.with_name("page.html")
    assert profile(model, "--convert-to-fp16", "--errors", report, "-o", page) == 0
    rows = json.loads(report.read_text())["precisions"][0]["nodes"]
    assert {row["own_sqnr_db"] for row in rows} & {"-inf"}
    for at in (0, 1):
        held = carried_graph(page, at)
        names = [held["texts"][place] for place in held["names"]]
        colorings = {one["name"]: one for one in held["colorings"]}
        assert held["colorings"][0]["name"] == "time"
        assert {"own error in fp16", "inherited error in mxfp6+fp16"} <= colorings.keys()
        for side in ("own", "inherited"):
            one = colorings[f"{side} error in fp16"]
            shown = dict(zip(names, [one["values"][code] for code in one["codes"]], strict=True))
            assert shown["x"] == "not compared"
            for row in rows:
                for value in [row["name"], *row["fused"]]:
                    name = {"square": "/norm/square", "sum": "/norm/sum", "y": "/norm/relu"}[value]
                    if name in shown:
                        assert shown[name] == step(row[f"{side}_sqnr_db"])


def step(sqnr_db):
    if sqnr_db is None:
        return "not compared"
    number = float(sqnr_db)
    if number >= 60:
        return "60 dB or more"
    return "below 20 dB" if number < 20 else "20 to 40 dB" if number < 40 else "40 to 60 dB"


def test_details_of_a_node_have_its_errors_and_the_reason(model, report):
    page = model.with_name("page.html")
    assert profile(model, "--convert-to-fp16", "--errors", report, "-o", page) == 0
    held = carried_graph(page, 0)
    place = [held["texts"][name] for name in held["names"]].index("/norm/square")
    facts = [held["texts"][text] for text in held["facts"][place]]
    found = dict(zip(facts[::2], facts[1::2], strict=True))
    assert found["own SQNR in fp16"] == "not finite"
    assert found["reason in fp16"] == "overflow"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "7",
        '{"precisions": [{"to": "fp16"}]}',
        '{"precisions": [{"nodes": 1, "to": 2}]}',
        '{"precisions": []}',
        '{"precisions": {}}',
        '{"precisions": [{"nodes": [], "to": "fp16"}]}',
    ],
)
def test_another_file_is_refused_before_the_model_is_compiled(model, tmp_path, capsys, content):
    given = tmp_path / "other.json"
    given.write_text(content)
    assert profile(model, "--errors", given, "-o", tmp_path / "page.html") == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: --errors {given}: found ")
    assert hint == f"hint: `openqaic accuracy {model} --to fp16 --json accuracy.json` writes the report"


def test_a_report_of_another_model_is_announced(model, report, capsys):
    report.write_text(report.read_text().replace('"y"', '"z"').replace("square", "s").replace('"sum"', '"t"'))
    assert profile(model, "--errors", report, "-o", model.with_name("page.html")) == 0
    said = capsys.readouterr().err
    assert f"warning: --errors {report} has no effect: found errors of the nodes 's', 't', 'z', " in said
    assert "'y'" in said
    assert f"hint: `openqaic accuracy {model} --to fp16 --json accuracy.json` writes the report" in said


def test_a_page_without_a_graph_is_announced(model, report, capsys, monkeypatch):
    monkeypatch.setattr("qaic.qpc.Qpc.graph", None)
    assert profile(model, "--errors", report, "-o", model.with_name("page.html")) == 0
    assert "warning: --errors has no effect: " in capsys.readouterr().err


def test_errors_need_a_page(model, report, capsys):
    assert profile(model, "--errors", report) == 2
    assert "-o page.html" in capsys.readouterr().err
