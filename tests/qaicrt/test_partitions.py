"""A decoder that was partitioned for two devices, on two virtual cards."""

from __future__ import annotations

import numpy as np
import pytest

import decoder_model
import qaicrt
from qaic.compiler import compile_model
from qaic.options import resolve
from qaicrt import QStatus

PARTITIONS = {
    "connections": [{"devices": [0, 1], "type": "p2p"}],
    "partitions": [
        {"name": "Partition0", "devices": [{"deviceId": i, "numCores": 4} for i in (0, 1)]},
    ],
}


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")
    return qaicrt.Context()


@pytest.fixture(scope="module")
def qpc(tmp_path_factory):
    options = {
        "network_specialization_config": decoder_model.specializations(),
        "retained_state": True,
        "mdp_load_partition_config": PARTITIONS,
        "aic_num_cores": 4,
    }
    found = resolve(options, options_path=None, model_is_container=False)
    folder = tmp_path_factory.mktemp("partitioned")
    compile_model(decoder_model.decoder(), found.compile, found.set_compile, output_dir=folder)
    return qaicrt.Qpc(str(folder))


def free_cores(device):
    status, resources = qaicrt.Util().getResourceInfo(device)
    assert status == QStatus.QS_SUCCESS
    return resources.nspFree


@pytest.mark.virtual_card("cards run programs of one device only")
def test_program_takes_cores_of_both_devices_and_runs_as_one(context, qpc):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = "0:1"
    program = qaicrt.Program(context, None, qpc, properties)
    before = [free_cores(0), free_cores(1)]
    assert program.activate() == QStatus.QS_SUCCESS
    assert [free_cores(0), free_cores(1)] == [count - 4 for count in before]
    exec_obj = qaicrt.ExecObj(context, program)
    logits = np.zeros((1, 1, decoder_model.Sizes().vocabulary), np.float32)
    names = [mapping.bufferName for mapping in qpc.getBufferMappings()]
    arrays = {"input_ids": np.int64([[3]]), "position_ids": np.int64([[0]]), "logits": logits}
    wired = [(names.index(name), array) for name, array in arrays.items()]
    assert exec_obj.setData(wired) == QStatus.QS_SUCCESS
    assert qaicrt.Queue(context, 0).enqueue(exec_obj) == QStatus.QS_SUCCESS
    assert exec_obj.waitForCompletion() == QStatus.QS_SUCCESS
    assert np.isfinite(logits).all()
    assert logits.any()


@pytest.mark.virtual_card("cards run programs of one device only")
@pytest.mark.parametrize(("device", "mapping"), [(None, "0"), (None, ""), (0, "")])
def test_program_with_too_few_devices_is_refused(context, qpc, capfd, device, mapping):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = mapping
    before = [free_cores(0), free_cores(1)]
    assert qaicrt.Program(context, device, qpc, properties).load() == QStatus.QS_INVAL
    assert "partitioned for 2 devices" in capfd.readouterr().err
    assert [free_cores(0), free_cores(1)] == before


def test_program_on_a_device_that_does_not_exist_is_refused(context, qpc):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = "0:5"
    with pytest.raises(qaicrt.ExceptionInit, match=r"device 5 does not exist; existing ids: \[0, 1\]"):
        qaicrt.Program(context, None, qpc, properties)
