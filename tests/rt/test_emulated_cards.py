"""Facts about cards from ``Util`` and ``EmuControl``, with emulated cards."""

import numpy as np
import pytest

import qaicrt
import rt_programs
from child_process import WATCHDOG_S
from qaic import _core
from qaic.errors import DeviceNotFoundError, OptionError
from qaicrt import QDevStatus, QStatus, Util
from rt_programs import Client, S

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def cards(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "kmd")
    monkeypatch.setenv("QAIC_KMD", "emu")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")


@pytest.fixture
def client(tmp_path):
    return Client(rt_programs.compiled(tmp_path, rt_programs.affine(), aic_num_cores=3), dev=1)


class TestFacts:
    def test_everything_about_a_card(self):
        assert Util().getDeviceIds() == (QStatus.QS_SUCCESS, [0, 1])
        status, info = Util().getDeviceInfo(1)
        assert (status, info.devStatus, info.qid) == (QStatus.QS_SUCCESS, QDevStatus.QDS_READY, 1)
        assert info.name == "/dev/accel/accel1"
        assert (info.pciInfo.domain, info.pciInfo.bus, info.pciInfo.device, info.pciInfo.function) == (
            0,
            2,
            0,
            0,
        )
        assert "Cloud AI 100" in info.pciInfo.devicename
        link = info.pciInfo.pcieExtInfo
        assert (link.maxLinkSpeed, link.maxLinkWidth, link.currLinkSpeed, link.currLinkWidth) == (4, 8, 4, 8)
        assert link.bar2Addr > 0
        data = info.devData
        assert (data.hwVersion, data.metaVerMaj, data.metaVerMin) == (0x0002_0000, 1, 0)
        assert (data.nncCommandProtocolMajorVersion, data.nncCommandProtocolMinorVersion) == (17, 0)
        assert "EMU" in data.fwQCImageVersionString
        assert "AIC200" not in data.fwImageVariantString
        assert data.formatVersion >= 12
        assert data.resourceInfo == Util().getResourceInfo(1)[1]
        assert data.performanceInfo == Util().getPerformanceInfo(1)[1]
        assert info.nspData.nspFwVersion.major == 1
        texts = (data.serial, data.sblImageString, info.nspData.nspFwVersion.qc, info.pciInfo.classname)
        assert all(type(text) is str for text in texts)

    def test_figures_are_those_of_a_real_card(self):
        _, found = Util().getResourceInfo(0)
        assert (found.dramTotal, found.nspTotal, found.vcTotal) == (32692, 16, 16)
        assert (found.mcidTotal, found.semTotal, found.skuType) == (3072, 32, 2)
        _, clocks = Util().getPerformanceInfo(0)
        assert (clocks.nspFrequencyHz, clocks.sysFrequencyHz) == (825_000_000, 667_000_000)
        assert clocks.peakCompute > 0

    def test_resources_are_asked_anew(self, client):
        def busy():
            found = Util().getResourceInfo(1)[1]
            data = Util().getDeviceInfo(1)[1].devData
            return found.nspTotal - found.nspFree, found.vcTotal - found.vcFree, data.numActiveNWs

        assert busy() == (0, 0, 0)
        assert client.program.activate() == S.QS_SUCCESS
        assert busy() == (3, 1, 1)
        assert Util().getResourceInfo(0)[1].nspFree == 16
        assert client.program.deactivate() == S.QS_SUCCESS
        assert busy() == (0, 0, 0)

    def test_another_family(self, monkeypatch):
        monkeypatch.setenv("QAIC_CPU_FAMILY", "ai200")
        _, info = Util().getDeviceInfo(0)
        assert info.devData.hwVersion == 0x0003_0000
        assert "200" in info.pciInfo.devicename


class TestCardsThatDoNotAnswer:
    @pytest.mark.parametrize(
        "faults", ["open@1=EACCES*all", "open@1=ENOENT*all", "open@1=ENODEV*all", "manage@1=EIO*all"]
    )
    def test_are_listed_with_an_error(self, monkeypatch, capfd, faults):
        monkeypatch.setenv("QAIC_EMU_FAULTS", faults)
        util = Util()
        assert util.getDeviceIds() == (QStatus.QS_SUCCESS, [0, 1])
        status, info = util.getDeviceInfo(1)
        assert (status, info.devStatus) == (QStatus.QS_SUCCESS, QDevStatus.QDS_ERROR)
        # The test reads the facts that the bus reports.
        assert (info.qid, info.pciInfo.bus) == (1, 2)
        assert info.devData == qaicrt.QDevInfo().devData
        assert util.getResourceInfo(1) == (QStatus.QS_DEV_ERROR, qaicrt.QResourceInfo())
        assert util.getPerformanceInfo(1) == (QStatus.QS_DEV_ERROR, qaicrt.QPerformanceInfo())
        assert capfd.readouterr().err.count("device 1 does not respond: ") == 3

    def test_say_what_is_missing_for_permission(self, monkeypatch, capfd):
        monkeypatch.setenv("QAIC_EMU_FAULTS", "open@1=EACCES*all")
        Util().getDeviceInfo(0)
        error = capfd.readouterr().err
        assert "/dev/accel/accel0" in error
        assert "group" in error

    def test_answer_again(self):
        control = _core.EmuControl(0)
        control.set_faults("manage@1=ETIMEDOUT*all")
        assert Util().getDeviceInfo(0)[1].devStatus == QDevStatus.QDS_ERROR
        control.set_faults("")
        assert Util().getDeviceInfo(0)[1].devStatus == QDevStatus.QDS_READY


class TestControl:
    def test_counts_the_calls_of_an_inference(self, client):
        exec_obj = client.exec_obj()
        output = np.zeros((2, 4), np.float32)
        control = _core.EmuControl(1)
        before = control.calls()
        client.infer(exec_obj, [(0, X), (1, output)])
        after = control.calls()
        made = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert made == {"execute": 1, "wait": 1}
        assert control.calls("execute") == after["execute"]
        np.testing.assert_allclose(output, rt_programs.affine_of(X), rtol=1e-6)

    def test_shows_the_books(self, client):
        control = _core.EmuControl(1)
        fresh = control.ledger()
        assert fresh["free"] == fresh["total"]
        exec_obj = client.exec_obj()
        books = control.ledger()
        assert books["total"]["cores"] - books["free"]["cores"] == 3
        assert (books["elves"], books["activations"], len(books["channels"])) == (1, 1, 1)
        assert control.invariants() != []
        del exec_obj
        assert client.program.unload() == S.QS_SUCCESS
        # Deleting an object waits only briefly for its teardown.
        assert _core.await_teardown(WATCHDOG_S)
        assert control.ledger() == fresh

    def test_a_reset_loses_what_was_loaded(self, client):
        exec_obj = client.exec_obj()
        output = np.zeros((2, 4), np.float32)
        client.infer(exec_obj, [(0, X), (1, output)])
        control = _core.EmuControl(1)
        control.reset()
        control.hurry()
        assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
        assert exec_obj.waitForCompletion() == S.QS_DEV_ERROR
        assert control.ledger()["elves"] == 0

    def test_every_card_of_the_process_can_be_held(self, client, monkeypatch):
        client.program.activate()
        monkeypatch.setenv("QAIC_DEVICE", "cpu")
        held = [control.ledger()["activations"] for control in _core.EmuControl.every()]
        assert sum(held) == 1
        monkeypatch.setenv("QAIC_DEVICE", "kmd")
        assert len(_core.EmuControl.every()) == len(held)
        assert client.program.deactivate() == S.QS_SUCCESS

    def test_wrong_use_is_said(self):
        with pytest.raises(OptionError, match="rule"):
            _core.EmuControl(0).set_faults("execute@0=fire")
        with pytest.raises(OptionError, match="execute, partial_execute"):
            _core.EmuControl(0).calls("run")
        with pytest.raises(DeviceNotFoundError, match="existing ids"):
            _core.EmuControl(2)

    @pytest.mark.parametrize("device", ["cpu", "noop"])
    def test_is_for_emulated_cards(self, monkeypatch, device):
        monkeypatch.setenv("QAIC_DEVICE", device)
        with pytest.raises(OptionError, match=f"`{device}` and not emulated; set QAIC_KMD=emu"):
            _core.EmuControl(0)
        monkeypatch.setenv("QAIC_DEVICE", "kmd")
        with pytest.raises(OptionError, match="only `noop` devices"):
            _core.NoopControl(0)
