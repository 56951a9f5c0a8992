"""``QAIC_VISIBLE_DEVICES``: the devices that are visible to a process, with their own ids."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qaic
import qaicrt
import session_models
from qaic import _core
from qaic.cli import console, openqaic
from qaic.cli.util import main as qaic_util
from qaic.errors import DeviceNotFoundError, QaicError
from qaicrt import QStatus

COUNT = 4
X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", str(COUNT))
    monkeypatch.delenv("QAIC_VISIBLE_DEVICES", raising=False)
    return lambda listed: monkeypatch.setenv("QAIC_VISIBLE_DEVICES", listed)


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


@pytest.fixture
def container(path, tmp_path):
    from qaic.compiler.driver import compile_model
    from qaic.options.table import CompileOptions

    return str(compile_model(path, CompileOptions(aic_num_cores=16), {}, output_dir=tmp_path / "qpc").parent)


def ids_everywhere():
    """Ids of the devices in each of the interfaces."""
    status, of_util = qaicrt.Util().getDeviceIds()
    assert status == QStatus.QS_SUCCESS
    found = {tuple(of_util), tuple(_core.Context().ids())}
    found.add(tuple(device["id"] for device in _core.Context().devices()))
    (ids,) = found
    return list(ids)


@given(st.lists(st.integers(0, COUNT - 1), unique=True, min_size=1), st.sampled_from([",", " , ", ", "]))
def test_those_listed_are_seen_in_the_order_of_their_ids(ids, separator):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CPU_DEVICES", str(COUNT))
        patch.setenv("QAIC_VISIBLE_DEVICES", separator.join(map(str, ids)))
        assert ids_everywhere() == sorted(ids)


@pytest.mark.parametrize("nothing", ["", "  "])
def test_a_list_without_characters_hides_nothing(four, nothing):
    four(nothing)
    assert ids_everywhere() == [0, 1, 2, 3]


def test_hidden_devices_do_not_exist_for_qaicrt(four, container):
    four("1,3")
    context, qpc = qaicrt.Context(), qaicrt.Qpc(container)
    assert repr(qaicrt.Program(context, None, qpc)).endswith("on device 1)")
    assert repr(qaicrt.Program(context, 3, qpc)).endswith("on device 3)")
    for construct in (
        lambda: qaicrt.Program(context, 0, qpc),
        lambda: qaicrt.Context(qaicrt.QIDList([0])),
        lambda: qaicrt.Queue(context, 7),
    ):
        with pytest.raises(qaicrt.ExceptionInit, match=r"does not exist; existing ids: \[1, 3\]"):
            construct()
    assert qaicrt.Util().getDeviceInfo(0)[0] != QStatus.QS_SUCCESS
    assert qaicrt.Util().getResourceInfo(3)[0] == QStatus.QS_SUCCESS
    assert context.findDevice(qpc) == (QStatus.QS_SUCCESS, 1)


def test_a_queue_of_a_hidden_device_serves_programs_whose_device_was_chosen(four, container, capfd):
    """Clients that name no device create a queue for device 0."""
    four("2")
    context, qpc = qaicrt.Context(), qaicrt.Qpc(container)
    queue = qaicrt.Queue(context, 0)
    y = np.zeros((2, 4), np.float32)
    for program, expected in (
        (qaicrt.Program(context, None, qpc), QStatus.QS_SUCCESS),
        (qaicrt.Program(context, 2, qpc), QStatus.QS_INVAL),
    ):
        exec_obj = qaicrt.ExecObj(context, program)
        assert exec_obj.setData([(0, X["x"]), (1, y)]) == QStatus.QS_SUCCESS
        assert queue.enqueue(exec_obj) == expected
        assert exec_obj.waitForCompletion() == QStatus.QS_SUCCESS
        del exec_obj
    assert y.any()
    assert "this queue belongs to device 0" in capfd.readouterr().err


def test_a_session_is_on_the_first_that_is_seen(four, path):
    expected = qaic.Session(path).run(X)["y"]
    four("2,1")
    with qaic.Session(path, aic_num_cores=5) as session:
        np.testing.assert_array_equal(session.run(X)["y"], expected)
        assert {device["id"]: device["nsp_free"] for device in _core.Context().devices()} == {1: 11, 2: 16}
    with pytest.raises(
        DeviceNotFoundError, match=r"device 0 does not exist; existing ids: \[1, 2\]"
    ) as caught:
        qaic.Session(path, dev_id=0).setup()
    assert any("QAIC_VISIBLE_DEVICES" in hint for hint in caught.value.hints)
    with qaic.Session(path) as session:
        session.update_backend_options(dev_id=0)
        with pytest.raises(DeviceNotFoundError, match="device 0"):
            session.setup()
        session.update_backend_options(dev_id=2)
        session.setup()


def test_device_in_several_lists_has_the_same_cores(four, path):
    with qaic.Session(path, dev_id=2, aic_num_cores=7) as session:
        session.setup()
        four("2")
        assert [(device["id"], device["nsp_free"]) for device in _core.Context().devices()] == [(2, 9)]


def test_tools_show_and_take_what_is_seen(four, container, capfd):
    from qaic.cli.runner import main as qaic_runner

    four("3,1")
    assert qaic_util(["-j", "-"]) == 0
    assert [device["qid"] for device in json.loads(capfd.readouterr().out)["device_info"]] == [1, 3]
    assert qaic_util(["-q", "-d", "0"]) == 3
    assert capfd.readouterr().err == "Device 0 invalid\n"
    for device, code in ((None, 0), (3, 0), (0, 3)):
        chosen = [] if device is None else ["-d", str(device)]
        assert qaic_runner(["-t", container, "-n", "1", "-v", *chosen]) == code
        captured = capfd.readouterr()
        if code:
            assert "Device 0 invalid; the ids are: 1, 3" in captured.err
        else:
            assert f"Device: {device or 1}" in captured.out
    assert console.run(openqaic.tool, ["info", "--json"]) == 0
    assert [device["id"] for device in json.loads(capfd.readouterr().out)["devices"]] == [1, 3]


@pytest.mark.parametrize(
    ("listed", "what"),
    [
        ("0:1", "'0:1'|\"0:1\" is not a device id"),
        ("0,,1", '"" is not a device id'),
        ("all", '"all" is not a device id'),
        ("-1", '"-1" is not a device id'),
        ("1,1", "device 1 occurs twice"),
        ("0,4", r"names device 4, which does not exist; existing ids: \[0, 1, 2, 3\]; .*QAIC_CPU_DEVICES"),
        ("99999999999", "is not a device id"),
    ],
)
def test_what_is_no_list_of_devices_is_refused_everywhere(four, path, capfd, listed, what):
    four(listed)
    with pytest.raises(QaicError, match=f"QAIC_VISIBLE_DEVICES.*({what})"):
        qaic.Session(path).setup()
    with pytest.raises(qaicrt.ExceptionInit, match=f"QAIC_VISIBLE_DEVICES.*({what})"):
        qaicrt.Context()
    assert qaicrt.Util().getDeviceIds() == (QStatus.QS_ERROR, [])
    capfd.readouterr()
    assert qaic_util(["-q"]) != 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: QAIC_VISIBLE_DEVICES")
