"""Cards and virtual cards in one process: ids, environment, sessions, forks."""

import subprocess
import sys

import numpy as np
import pytest

import child_process
import qaic
import qaicrt
import session_models
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.errors import DeviceNotFoundError, OptionError, QaicError
from qaic.options import resolve

X = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("QAIC_DEVICE", "QAIC_KMD", "QAIC_CPU_DEVICES", "QAIC_EMU_FAULTS", "QAIC_EMU_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"QAIC_{name}", value)

    return set_all


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


def kinds():
    context = _core.Context()
    assert [entry["id"] for entry in context.devices()] == context.ids()
    return [context.kind(number) for number in context.ids()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"KMD": "emu"}, ["kmd", "cpu"]),
        ({"KMD": "emu", "DEVICE": ""}, ["kmd", "cpu"]),
        ({"KMD": "emu", "CPU_DEVICES": "3"}, ["kmd"] * 3 + ["cpu"] * 3),
        ({"KMD": "emu", "DEVICE": "kmd", "CPU_DEVICES": "3"}, ["kmd"] * 3),
        ({"KMD": "emu", "DEVICE": "cpu", "CPU_DEVICES": "3"}, ["cpu"] * 3),
        ({"KMD": "emu", "DEVICE": "noop", "CPU_DEVICES": "2"}, ["noop"] * 2),
        ({"DEVICE": "cpu", "KMD": "no matter"}, ["cpu"]),
        ({"KMD": "emu", "CPU_DEVICES": "64"}, ["kmd"] * 64 + ["cpu"] * 64),
    ],
)
def test_cards_come_first(environment, values, expected):
    environment(**values)
    assert kinds() == expected
    assert _core.Context().ids() == list(range(len(expected)))
    assert qaicrt.Util().getDeviceIds() == (qaicrt.QStatus.QS_SUCCESS, list(range(len(expected))))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        # Bytes that are not text have this form in the environment.
        ({"KMD": "em\udcff"}, ["QAIC_KMD", "em\N{REPLACEMENT CHARACTER}"]),
        ({"KMD": "emulator"}, ["QAIC_KMD", "emulator", "sys or emu"]),
        ({"KMD": "sys:"}, ["QAIC_KMD", "sys or emu"]),
        ({"KMD": "emu", "EMU_PROFILE": "newest"}, ["QAIC_EMU_PROFILE", "newest", "old, new or ssr"]),
        ({"KMD": "emu", "EMU_FAULTS": "execute=3"}, ["QAIC_EMU_FAULTS", "execute=3"]),
        (
            {"KMD": "emu", "EMU_WORKLOAD": "tensor"},
            ["QAIC_EMU_WORKLOAD", "tensor", "graph, echo or loopback"],
        ),
        ({"KMD": "emu", "EMU_TIME": "slow"}, ["QAIC_EMU_TIME", "slow", "system or virtual"]),
        ({"KMD": "emu", "CPU_DEVICES": "65"}, ["QAIC_CPU_DEVICES", "65", "1 to 64"]),
        ({"KMD": "emu", "CPU_FAMILY": "ai300"}, ["QAIC_CPU_FAMILY", "ai300", "ai100 or ai200"]),
        ({"KMD": "emu", "KMD_TRANSCRIPT": "/none/such/file"}, ["QAIC_KMD_TRANSCRIPT", "/none/such/file"]),
    ],
)
@pytest.mark.parametrize("device", [None, "kmd"])
def test_wrong_values_are_named(environment, values, words, device):
    environment(**values, **({} if device is None else {"DEVICE": device}))
    with pytest.raises(QaicError) as caught:
        _core.Context()
    assert isinstance(caught.value, OptionError)
    for word in words:
        assert word in str(caught.value)


def test_unknown_kinds_are_named(environment):
    environment(DEVICE="gpu")
    with pytest.raises(DeviceNotFoundError, match="`gpu` does not exist; known kinds: cpu, kmd, noop"):
        _core.Context()


def test_sessions_choose_by_id(environment, path):
    environment(KMD="emu")
    results = []
    for number in range(2):
        with qaic.Session(path, dev_id=number) as session:
            results.append(session.run(X)["y"])
            busy = [device["nsp_total"] - device["nsp_free"] for device in _core.Context().devices()]
            assert [cores > 0 for cores in busy] == [number == 0, number == 1]
    np.testing.assert_array_equal(*results)
    assert _core.EmuControl(0).calls("execute") > 0
    with pytest.raises(OptionError, match="device 1 is of kind `cpu`"):
        _core.EmuControl(1)
    with pytest.raises(DeviceNotFoundError):
        qaic.Session(path, dev_id=2).setup()


@pytest.fixture
def partitioned(path, tmp_path):
    """A container for two devices."""
    devices = [{"deviceId": number, "numCores": 4} for number in range(2)]
    partitions = {
        "connections": [{"devices": [0, 1], "type": "p2p"}],
        "partitions": [{"name": "Partition0", "devices": devices}],
    }
    found = resolve({"mdp_load_partition_config": partitions}, options_path=None, model_is_container=False)
    return compile_model(path, found.compile, found.set_compile, output_dir=tmp_path / "partitioned")


def test_programs_of_several_devices_are_placed_on_virtual_cards(environment, partitioned):
    environment(KMD="emu", CPU_DEVICES="4")
    assert kinds() == ["kmd"] * 4 + ["cpu"] * 4
    program = qaicrt.Program(qaicrt.Context(), None, qaicrt.Qpc(str(partitioned.parent)))
    assert repr(program).endswith("on device 4:5)")
    with qaic.Session(partitioned) as session:
        assert session.run(X)["y"].any()
        held = [device["nsp_total"] - device["nsp_free"] for device in _core.Context().devices()]
        assert [cores > 0 for cores in held] == [number in (4, 5) for number in range(8)]
    # The given id is used, even if it is the default id.
    for given in ({"dev_id": 0}, {"dev_id": 4}):
        with pytest.raises(QaicError, match="device"):
            qaic.Session(partitioned, **given).setup()


def test_cards_alone_refuse_programs_of_several_devices(environment, partitioned, capfd):
    environment(DEVICE="kmd", KMD="emu", CPU_DEVICES="4")
    program = qaicrt.Program(qaicrt.Context(), None, qaicrt.Qpc(str(partitioned.parent)))
    assert program.load() != qaicrt.QStatus.QS_SUCCESS
    assert "cards only run programs for one device" in capfd.readouterr().err


def test_contexts_choose_by_id(environment):
    environment(KMD="emu", CPU_DEVICES="2")
    assert qaicrt.Context([3, 0]).getId() >= 0
    with pytest.raises(qaicrt.ExceptionInit, match="device 4 does not exist"):
        qaicrt.Context([4])


def test_a_broken_card_does_not_stand_in_the_way_of_virtual_ones(environment, path):
    environment(KMD="emu", EMU_FAULTS="open@1=EACCES*all")
    assert [device["status"] for device in _core.Context().devices()] == ["error", "ready"]
    assert "accel0" in _core.Context().devices()[0]["reason"]
    with qaic.Session(path, dev_id=1) as session:
        assert session.run(X)["y"].shape == (2, 4)
    with pytest.raises(QaicError, match="device 0"):
        qaic.Session(path, dev_id=0).setup()


def test_info_lists_all_kinds(environment, monkeypatch):
    environment(KMD="emu", EMU_FAULTS="open@1=EACCES*all")
    done = subprocess.run([sys.executable, "-m", "qaic", "info"], check=True, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["0", "kmd", "error"] in [row[:3] for row in rows]
    assert ["1", "cpu", "ready"] in [row[:3] for row in rows]
    assert "device 0: " in done.stdout


FORK = """
import os, sys
import numpy as np
import qaic
from child_process import WATCHDOG_S
from qaic import _core

X = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
session = qaic.Session(sys.argv[1], dev_id=0)
expected = session.run(X)["y"]
control = _core.EmuControl(0)
calls = control.calls("execute")
child = os.fork()
if child == 0:
    ok = np.array_equal(session.run(X)["y"], expected)
    ok = ok and _core.EmuControl(0).calls("execute") == 1
    session.reset()
    ok = ok and _core.await_teardown(WATCHDOG_S) and _core.EmuControl(0).ledger()["elves"] == 0
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert control.calls("execute") == calls
assert np.array_equal(session.run(X)["y"], expected)
session.reset()
assert _core.await_teardown(WATCHDOG_S)
assert control.ledger()["elves"] == 0
"""


def test_a_forked_child_has_emulated_cards_of_its_own(environment, path):
    environment(DEVICE="kmd", KMD="emu")
    child_process.run_script(FORK, path)
