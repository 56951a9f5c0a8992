"""A decoder that was partitioned for two devices, on two virtual cards."""

from __future__ import annotations

import numpy as np
import pytest

import decoder_model
import qaicrt
from qaic.compiler.driver import compile_model
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


def decoded(context, queue, program, qpc):
    """Logits of one token, through a queue of the client."""
    exec_obj = qaicrt.ExecObj(context, program)
    logits = np.zeros((1, 1, decoder_model.Sizes().vocabulary), np.float32)
    names = [mapping.bufferName for mapping in qpc.getBufferMappings()]
    arrays = {"input_ids": np.int64([[3]]), "position_ids": np.int64([[0]]), "logits": logits}
    wired = [(names.index(name), array) for name, array in arrays.items()]
    assert exec_obj.setData(wired) == QStatus.QS_SUCCESS
    assert queue.enqueue(exec_obj) == QStatus.QS_SUCCESS
    assert exec_obj.waitForCompletion() == QStatus.QS_SUCCESS
    return logits


@pytest.mark.virtual_card("cards run only programs for one device")
def test_program_takes_cores_of_both_devices_and_runs_as_one(context, qpc):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = "0:1"
    program = qaicrt.Program(context, None, qpc, properties)
    before = [free_cores(0), free_cores(1)]
    assert program.activate() == QStatus.QS_SUCCESS
    assert [free_cores(0), free_cores(1)] == [count - 4 for count in before]
    logits = decoded(context, qaicrt.Queue(context, 0), program, qpc)
    assert np.isfinite(logits).all()
    assert logits.any()


@pytest.mark.virtual_card("cards run only programs for one device")
@pytest.mark.parametrize(("device", "mapping"), [(None, "0"), (0, "")])
def test_program_with_too_few_devices_is_refused(context, qpc, capfd, device, mapping):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = mapping
    before = [free_cores(0), free_cores(1)]
    assert qaicrt.Program(context, device, qpc, properties).load() == QStatus.QS_INVAL
    error = capfd.readouterr().err
    assert "partitioned for 2 devices" in error
    assert "omit the mapping to select them" in error
    assert [free_cores(0), free_cores(1)] == before


@pytest.mark.virtual_card("cards run only programs for one device")
def test_without_a_device_as_many_as_the_program_needs_are_chosen(monkeypatch, qpc):
    """The call of clients that let the runtime choose the devices: no device, and a queue of device 0."""
    monkeypatch.setenv("QAIC_CPU_DEVICES", "4")
    context = qaicrt.Context()
    queue = qaicrt.Queue(context, 0)
    first = qaicrt.Program(context, None, qpc, qaicrt.QAicProgramProperties())
    assert repr(first).endswith("on device 0:1)")
    logits = decoded(context, queue, first, qpc)
    assert logits.any()
    assert first.activate() == QStatus.QS_SUCCESS

    # For another program, devices 0 and 2 are now full.
    full = []
    for device in (0, 0, 0, 2, 2, 2, 2):
        properties = qaicrt.QAicProgramProperties()
        properties.devMapping = f"{device}:{device + 1}"
        full.append(qaicrt.Program(context, None, qpc, properties))
        assert full[-1].activate() == QStatus.QS_SUCCESS
    assert [free_cores(device) for device in range(4)] == [0, 0, 0, 0]
    assert full.pop().deactivate() == QStatus.QS_SUCCESS
    second = qaicrt.Program(context, qpcObj=qpc)
    assert repr(second).endswith("on device 2:3)")
    # The queue belongs to a device that does not run the program.
    np.testing.assert_array_equal(decoded(context, queue, second, qpc), logits)
    # If too few devices are free, the activation reports this.
    assert second.activate() == QStatus.QS_SUCCESS
    assert qaicrt.Program(context, None, qpc).activate() == QStatus.QS_DEV_ERROR


@pytest.mark.virtual_card("cards run only programs for one device")
def test_devices_are_chosen_among_those_of_the_context(monkeypatch, qpc):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "5")
    context = qaicrt.Context(qaicrt.QIDList([4, 1, 3]))
    assert repr(qaicrt.Program(context, None, qpc)).endswith("on device 4:1)")
    inferences = qaicrt.InferenceSet(context, qpc, None, 1, 1)
    assert [free_cores(device) for device in range(5)] == [16, 12, 16, 16, 12]
    del inferences


@pytest.mark.virtual_card("cards run only programs for one device")
@pytest.mark.parametrize(
    ("environment", "devices", "fix"),
    [
        ({}, r"1 device, with the ids \[0\]", "set QAIC_CPU_DEVICES=2"),
        ({"QAIC_CPU_DEVICES": "1"}, r"1 device, with the ids \[0\]", "set QAIC_CPU_DEVICES=2"),
        (
            {"QAIC_CPU_DEVICES": "4", "QAIC_VISIBLE_DEVICES": "3"},
            r"1 device, with the ids \[3\]",
            "QAIC_VISIBLE_DEVICES hides 3 more",
        ),
    ],
)
def test_too_few_devices_to_choose_from_are_named_with_the_way_to_more(
    monkeypatch, qpc, environment, devices, fix
):
    monkeypatch.delenv("QAIC_CPU_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    message = rf"partitioned for 2 devices; kind `cpu` has {devices}; {fix}"
    with pytest.raises(qaicrt.ExceptionInit, match=message) as caught:
        qaicrt.Program(qaicrt.Context(), None, qpc)
    assert caught.value.code == "device.too_few"


def test_program_on_a_device_that_does_not_exist_is_refused(context, qpc):
    properties = qaicrt.QAicProgramProperties()
    properties.devMapping = "0:5"
    with pytest.raises(qaicrt.ExceptionInit, match=r"device 5 does not exist; existing ids: \[0, 1\]"):
        qaicrt.Program(context, None, qpc, properties)
