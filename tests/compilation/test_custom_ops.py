"""Custom operators at the interface of the session."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import emulated_cards
import qaic
from qaic.errors import CompileError, OptionError

SOURCE = Path(__file__).parents[1] / "data" / "custom_op" / "plus_one.c"

DESCRIPTION = """
CustomOps:
  - operationInfo:
      name: PlusOne
      inputs: [{name: x, maxDims: 4}]
      outputs: [{name: y, maxDims: 4}]
    functionsLibrary: libfunctions.so
    implementations:
      - {backend: AIC, type: AICKernel, impl: plus_one_aic.c}
      - {backend: Interpreter, type: library, impl: libplus_one.so}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("custom") / "libplus_one.so"
    command = ["gcc", "-std=gnu11", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True)
    return path


def saved(folder, *, functions=()):
    nodes = [
        helper.make_node("PlusOne", ["x"], ["h"], domain="test.custom"),
        helper.make_node("Neg", ["h"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("test.custom", 1)]
    graph = helper.make_graph(nodes, "custom", values[:1], values[1:])
    path = folder / "model.onnx"
    model = helper.make_model(graph, opset_imports=sets, ir_version=8, functions=functions)
    path.write_bytes(model.SerializeToString())
    return path


def described(folder, text=DESCRIPTION):
    path = folder / "ops.yaml"
    path.write_text(text)
    return path


def test_the_library_for_the_interpreter_runs(tmp_path, library):
    shutil.copy(library, tmp_path / "libplus_one.so")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with qaic.Session(saved(tmp_path), register_custom_op=[described(tmp_path)]) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], -(x + 1))


SCRIPT = """
import sys, numpy as np, qaic
try:
    with qaic.Session(sys.argv[1]) as session:
        print(session.run({"x": np.zeros((2, 3), np.float32)})["y"].ravel()[0])
except qaic.errors.QaicError as error:
    print(error)
"""


@pytest.mark.parametrize("content", [None, "same", "other"])
def test_a_container_loads_only_the_allowed_library_of_its_compilation(
    tmp_path, library, monkeypatch, content
):
    shutil.copy(library, tmp_path / "libplus_one.so")
    qaic.Session(saved(tmp_path), register_custom_op=[described(tmp_path)], output_dir=tmp_path / "qpc")
    if content == "other":
        with (tmp_path / "libplus_one.so").open("ab") as file:
            file.write(b"changed")
    if content:
        monkeypatch.setenv("QAIC_CUSTOM_OP_LIBRARIES", str(tmp_path / "libplus_one.so"))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "qpc" / "programqpc.bin")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if content == "same":
        assert done.stdout.strip() == "-1.0"
    else:
        # The firmware of an emulated card only refuses; the log contains the reason.
        text = done.stderr if emulated_cards.are_meant() else done.stdout
        assert "needs the custom operator library `libplus_one.so`" in text
        assert "QAIC_CUSTOM_OP_LIBRARIES" in text


def test_a_rebuilt_library_makes_another_container(tmp_path, library):
    path = tmp_path / "libplus_one.so"
    shutil.copy(library, path)
    made = []
    for _ in range(2):
        qaic.Session(saved(tmp_path), register_custom_op=[described(tmp_path)], output_dir=tmp_path / "qpc")
        made.append((tmp_path / "qpc" / "programqpc.bin").read_bytes())
        # Bytes after the sections: another file with the same code.
        path.unlink()
        path.write_bytes(library.read_bytes() + b"rebuilt")
    assert made[0] != made[1]


def test_a_function_of_the_model_serves_where_there_is_no_library(tmp_path):
    body = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Add", ["x", "one"], ["y"]),
    ]
    function = helper.make_function(
        "test.custom", "PlusOne", ["x"], ["y"], body, [helper.make_opsetid("", 17)]
    )
    text = DESCRIPTION.replace("backend: Interpreter", "backend: AIC")
    model = saved(tmp_path, functions=[function])
    with qaic.Session(model, register_custom_op=[described(tmp_path, text)]) as session:
        np.testing.assert_array_equal(session.run({"x": np.zeros((2, 3), np.float32)})["y"], -np.ones((2, 3)))


def test_an_operator_without_any_implementation_is_refused(tmp_path):
    text = DESCRIPTION.replace("backend: Interpreter", "backend: AIC")
    with pytest.raises(CompileError, match=r"'PlusOne'.*without a library for the interpreter"):
        qaic.Session(saved(tmp_path), register_custom_op=[described(tmp_path, text)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DESCRIPTION, "libplus_one.so' cannot be read"),
        ("- name: A\n", "found no operator"),
        ("- implementations: []\n", "no name"),
        ("- {name: A, implementations: 3}\n", "are not a list"),
        ("- {name: A, implementations: [{type: x}]}\n", "no backend"),
        ("- {name: A, implementations: [{backend: interpreter}]}\n", "no impl"),
        ("- {name: A, implementations: []}\n- {name: A, implementations: []}\n", "described twice"),
        ("a: &a [*a]\n", "at most 8 levels of lists and mappings, found more"),
        ("- {name: A, name: B, implementations: []}\n", "'name' is already on line 1"),
        ("{", "not a YAML"),
        ("[" * 5000, "not a YAML"),
    ],
)
def test_wrong_descriptions_are_refused_by_name(tmp_path, text, said):
    with pytest.raises(OptionError, match=said) as caught:
        qaic.Session(saved(tmp_path), register_custom_op=[described(tmp_path, text)])
    assert caught.value.code == "option.register_custom_op"
    assert "ops.yaml" in str(caught.value)


def test_statistics_of_a_custom_operator(tmp_path, library):
    shutil.copy(library, tmp_path / "libplus_one.so")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    options = {"register_custom_op": [described(tmp_path)], "output_dir": tmp_path / "out"}
    with qaic.Session(saved(tmp_path), stats_level=70, **options) as session:
        assert np.array_equal(session.run({"x": x})["y"], -(x + 1))
    ops = json.loads(bytes(qaic.Qpc(tmp_path / "out").segments["opstatsdesc.open"].data))["cores"][0]["ops"]
    assert [(op["kind"], op.get("nodes")) for op in ops] == [
        ("PlusOne", ["h"]),
        ("Neg", ["y"]),
        ("engine", None),
    ]
