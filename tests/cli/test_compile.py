"""``qaic-compile`` as its users call it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
from qaic.cli import compile as tool


@pytest.fixture
def model(tmp_path):
    """y = x + x on float[batch, 4]."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "doubled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    path = tmp_path / "doubled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_flags_reach_the_container(model, tmp_path, capsys):
    out = tmp_path / "binaries"
    argv = [
        f"-m={model}",
        "-onnx-define-symbol=batch,3",
        "-convert-to-fp16",
        "--aic-num-cores=4",
        "-compile-only",
    ]
    assert tool.main([*argv, f"-aic-binary-dir={out}"]) == 0
    assert capsys.readouterr().out == f"compiled {out / 'programqpc.bin'}\n"
    with qaic.Session(out) as session:
        assert session.model_input_shape_dict["x"] == ((3, 4), np.dtype("float32"))
        assert session.run({"x": np.full((3, 4), 1.5, np.float32)})["y"].tolist() == [[3.0] * 4] * 3
    effective = qaic.Qpc(out / "programqpc.bin").plan["options"]
    assert effective == {"aic_num_cores": 4, "convert_to_fp16": True, "onnx_define_symbol": {"batch": 3}}


def test_repeated_flags_and_switches_that_are_off(model, tmp_path):
    config = tmp_path / "specializations.json"
    config.write_text(json.dumps({"specializations": [{"batch": "1"}, {"batch": "2"}]}))
    out = tmp_path / "binaries"
    argv = ["-m", str(model), f"-network-specialization-config={config}", "-convert-to-fp16=false"]
    assert tool.main([*argv, "-aic-binary-dir", str(out)]) == 0
    with qaic.Session(out) as session:
        for batch in (1, 2):
            assert session.run({"x": np.ones((batch, 4), np.float32)})["y"].shape == (batch, 4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no model; -m=MODEL.onnx is expected"),
        (["-aic-num-cores=2"], "no model"),
        (["model.onnx"], "unexpected argument model.onnx"),
        (["-m"], "-m needs a value"),
        (["-m=a.onnx", "-m=b.onnx"], "given twice"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_done(argv, message, capsys):
    assert tool.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.out == ""


def test_unknown_and_unsupported_flags_and_values(model, capsys):
    for flag, message in [
        ("-aic-num-core=2", "aic_num_cores"),
        ("-io-encrypt=x", "io_encrypt"),
        ("-aic-num-cores=17", "1 to 16"),
    ]:
        assert tool.main([f"-m={model}", flag]) == 2
        assert message in capsys.readouterr().err.replace("-", "_")


def test_symbol_without_a_size(model, capsys):
    assert tool.main([f"-m={model}"]) != 0
    assert "batch" in capsys.readouterr().err


def test_missing_model(tmp_path, capsys):
    assert tool.main([f"-m={tmp_path / 'missing.onnx'}"]) == 1
    assert "missing.onnx" in capsys.readouterr().err


def test_help_lists_every_flag(capsys):
    assert tool.main(["-h"]) == 0
    text = capsys.readouterr().out
    for flag in ("-m=VALUE", "-aic-binary-dir=VALUE", "-convert-to-fp16\n", "-retained-state\n"):
        assert f"  {flag}" in text
