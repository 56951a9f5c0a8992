"""Programs compiled for one hardware family on a device of the other."""

import numpy as np
import onnx
import pytest
from onnx import helper

import qaic
from qaic.errors import DeviceError


@pytest.fixture
def model(tmp_path):
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "net", info[:1], info[1:])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_program_of_the_other_family_is_refused(model):
    with (
        qaic.Session(model, aic_hw_version="ai200") as session,
        pytest.raises(DeviceError, match=r"compiled for ai200.*family ai100") as caught,
    ):
        session.run({"x": np.ones(2, np.float32)})
    assert caught.value.code == "device.hardware_family"
    assert "allow_hw_mismatch" in caught.value.hints[0]


def test_the_override_takes_it(model):
    with qaic.Session(model, aic_hw_version="ai200", allow_hw_mismatch=True) as session:
        np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [2, 2])


def test_cards_of_the_other_family(model, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_FAMILY", "AI200")
    with qaic.Session(model, aic_hw_version="ai200") as session:
        np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [2, 2])
    with qaic.Session(model) as session, pytest.raises(DeviceError, match=r"for ai100.*family ai200"):
        session.run({"x": np.ones(2, np.float32)})


def test_unknown_family_is_refused(model, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_FAMILY", "ai300")
    with qaic.Session(model) as session, pytest.raises(qaic.errors.QaicError, match="QAIC_CPU_FAMILY"):
        session.run({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("version", [None, "2.0", "ai100", 2.0])
def test_all_names_of_the_own_family_are_taken(model, version):
    options = {} if version is None else {"aic_hw_version": version}
    with qaic.Session(model, **options) as session:
        np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [2, 2])


def test_family_is_recorded_in_the_container(model, tmp_path):
    versions = {}
    for version in ("ai100", "ai200"):
        folder = tmp_path / version
        with qaic.Session(model, aic_hw_version=version, output_dir=folder):
            pass
        qpc = qaic.Qpc(folder / "programqpc.bin")
        versions[version] = (qpc.plan.get("hardware"), qpc.plan["options"]["aic_hw_version"])
    assert versions == {"ai100": (None, "ai100"), "ai200": ("ai200", "ai200")}
