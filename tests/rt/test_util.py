"""``Util``: devices, versions and device locks."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import qaic
import qaicrt
from child_process import WATCHDOG_S, started
from qaic import _core
from qaicrt import QStatus, Util

DATA = Path(__file__).parents[1] / "data" / "qpc"

REFUSED = (QStatus.QS_NODEV, QStatus.QS_NODEV, QStatus.QS_NODEV)


@pytest.fixture
def _three_cards(monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "3")


@pytest.mark.usefixtures("_three_cards")
class TestDevices:
    def test_ids(self):
        status, ids = Util().getDeviceIds()
        assert status == QStatus.QS_SUCCESS
        assert repr(ids) == "QIDList[0, 1, 2]"
        assert Util().getDeviceIds(qaicrt.QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT) == (status, ids)
        assert Util().getDeviceIds(deviceType=qaicrt.QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT)[1] == ids

    def test_a_type_that_does_not_exist(self):
        assert Util().getDeviceIds(7) == (QStatus.QS_INVAL, [])
        with pytest.raises(TypeError):
            Util().getDeviceIds("all")

    def test_resources_are_those_of_a_real_card(self):
        status, found = Util().getResourceInfo(2)
        assert status == QStatus.QS_SUCCESS
        assert (found.dramTotal, found.nspTotal, found.vcTotal) == (32692, 16, 16)
        assert (found.mcidTotal, found.semTotal) == (3072, 32)
        assert (found.nspFree, found.mcidFree, found.semFree) == (16, 3072, 32)
        assert found.QResourceReservationID == -1

    def test_performance_is_that_of_a_real_card(self):
        status, found = Util().getPerformanceInfo(0)
        assert status == QStatus.QS_SUCCESS
        clocks = (
            *(found.nspFrequencyHz, found.ddrFrequencyHz, found.compFrequencyHz),
            *(found.memFrequencyHz, found.sysFrequencyHz),
        )
        assert [clock / 1e6 for clock in clocks] == [825, 2133, 1450, 1000, 667]

    @pytest.mark.virtual_card("another test covers the properties of cards")
    def test_everything_about_a_device(self):
        status, info = Util().getDeviceInfo(1)
        assert status == QStatus.QS_SUCCESS
        assert info.devStatus == qaicrt.QDevStatus.QDS_READY
        assert info.devStatus.value == 1
        assert info.qid == 1
        texts = (
            *(info.name, info.pciInfo.devicename, info.pciInfo.classname, info.pciInfo.vendorname),
            *(info.devData.fwQCImageVersionString, info.devData.serial, info.devData.fwImageVariantString),
            *(info.nspData.nspFwVersion.qc, info.nspData.nspFwVersion.variant),
        )
        assert all(type(text) is str and text for text in texts)
        assert "cpu" in info.pciInfo.devicename
        assert "CPU" in info.devData.fwQCImageVersionString
        assert "AIC200" not in info.devData.fwImageVariantString
        assert " " not in info.devData.fwImageVariantString
        assert len(info.devData.serial) < 16
        assert info.devData.resourceInfo == Util().getResourceInfo(1)[1]
        assert info.devData.performanceInfo == Util().getPerformanceInfo(1)[1]
        assert (info.pciInfo.pcieExtInfo.maxLinkSpeed, info.devData.nspPgMask) == (0, 0)
        # The same computation as in FEDML.
        assert info.devData.resourceInfo.dramFree / info.devData.resourceInfo.dramTotal == 1.0
        assert info.devData.resourceInfo.nspFree / info.devData.resourceInfo.nspTotal == 1.0

    def test_every_card_has_a_serial_number_of_its_own(self):
        assert len({Util().getDeviceInfo(number)[1].devData.serial for number in range(3)}) == 3

    @pytest.mark.parametrize("number", [3, -1, 1 << 40])
    def test_a_device_that_does_not_exist(self, number, capfd):
        util = Util()
        found = (util.getDeviceInfo(number), util.getResourceInfo(number), util.getPerformanceInfo(number))
        assert tuple(status for status, _ in found) == REFUSED
        assert found[0][1] == qaicrt.QDevInfo()
        assert found[1][1] == qaicrt.QResourceInfo()
        assert found[2][1] == qaicrt.QPerformanceInfo()
        assert capfd.readouterr().err.count(f"device {number} does not exist; existing ids: [0, 1, 2]") == 3

    @pytest.mark.parametrize("number", ["0", 0.0, None])
    def test_what_is_no_id_is_a_type_error(self, number):
        with pytest.raises(TypeError):
            Util().getDeviceInfo(number)

    def test_shows_what_a_session_takes(self, monkeypatch):
        monkeypatch.setenv("QAIC_DEVICE", "noop")
        session = qaic.Session(str(DATA / "s01_simple_f32_file.qpc"), dev_id=1)
        try:
            session.setup()
            cores = qaicrt.Qpc(DATA / "s01_simple_f32_file.qpc").getInfo().program[0].numCores
            assert cores > 0
            _, info = Util().getDeviceInfo(1)
            assert info.devData.resourceInfo.nspFree == info.devData.resourceInfo.nspTotal - cores
            assert (info.devData.numLoadedNWs, info.devData.numActiveNWs) == (1, 1)
        finally:
            session.reset()
        _, info = Util().getDeviceInfo(1)
        assert info.devData.resourceInfo.nspFree == info.devData.resourceInfo.nspTotal
        assert (info.devData.numLoadedNWs, info.devData.numActiveNWs) == (0, 0)

    # Python 3.12 and newer warn if a process with threads forks.
    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
    def test_works_in_a_forked_child(self):
        util = Util()
        assert util.getDeviceIds()[0] == QStatus.QS_SUCCESS
        child = os.fork()
        if child == 0:
            status, info = util.getDeviceInfo(2)
            os._exit(0 if (status, info.qid) == (QStatus.QS_SUCCESS, 2) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_lost_device_says_so(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "5")
    control = _core.NoopControl(4)
    control.lose()
    try:
        status, info = Util().getDeviceInfo(4)
        assert (status, info.devStatus) == (QStatus.QS_SUCCESS, qaicrt.QDevStatus.QDS_ERROR)
        assert Util().getResourceInfo(4) == (QStatus.QS_DEV_ERROR, qaicrt.QResourceInfo())
        assert Util().getPerformanceInfo(4)[0] == QStatus.QS_DEV_ERROR
        assert Util().getDeviceInfo(3)[1].devStatus == qaicrt.QDevStatus.QDS_READY
    finally:
        control.recover()
    assert Util().getDeviceInfo(4)[1].devStatus == qaicrt.QDevStatus.QDS_READY


def test_an_environment_without_devices(monkeypatch, capfd):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "many")
    assert Util().getDeviceIds() == (QStatus.QS_ERROR, [])
    assert Util().getDeviceInfo(0)[0] == QStatus.QS_ERROR
    assert capfd.readouterr().err.count("QAIC_CPU_DEVICES") == 2


class TestVersion:
    def test_is_that_of_the_package(self):
        status, major, minor, patch, variant = Util().getAicVersion()
        assert status == QStatus.QS_SUCCESS
        assert f"{major}.{minor}.{patch}" == qaic.__version__
        assert (type(major), type(minor), type(patch)) == (int, int, str)
        assert variant == "OPENQAIC"

    def test_the_library_belongs_to_the_package(self):
        assert Util().checkLibraryVersion() == QStatus.QS_SUCCESS

    @pytest.mark.parametrize(
        ("installed", "fits"),
        [
            ("9.0.0", False),
            ("0.1.9", False),
            ("0.999.0", True),
            (qaic.__version__, True),
            (f"{qaic.__version__}rc1", True),
        ],
    )
    def test_a_library_of_another_version_is_noticed(self, monkeypatch, capfd, installed, fits):
        monkeypatch.setattr("importlib.metadata.version", lambda _: installed)
        status = Util().checkLibraryVersion()
        assert (status == QStatus.QS_SUCCESS) == fits
        assert (installed in capfd.readouterr().err) != fits


HOLDER = """
import sys
from qaic import _core
from qaicrt import QStatus, Util
usual = _core.open_user_directory
_core.open_user_directory = lambda: usual(sys.argv[1])
assert Util().lockDevice(0, True, False) == QStatus.QS_SUCCESS
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def _serialized(monkeypatch, tmp_path):
    """Locks for the processes of this test only, not for all processes of the user."""
    usual = _core.open_user_directory
    monkeypatch.setattr(_core, "open_user_directory", lambda path=tmp_path / "locks": usual(path))
    monkeypatch.setenv("QAIC_SERIALIZE_DEVICE", "1")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")
    yield
    for number in range(2):
        Util().lockDevice(number, False, False)


@pytest.fixture
def holder(_serialized, tmp_path):
    """Another process that locks device 0."""
    with started(
        [sys.executable, "-c", HOLDER, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process


class TestLock:
    @pytest.mark.parametrize("value", [None, "0", ""])
    def test_needs_the_environment(self, monkeypatch, value):
        monkeypatch.delenv("QAIC_SERIALIZE_DEVICE", raising=False)
        if value is not None:
            monkeypatch.setenv("QAIC_SERIALIZE_DEVICE", value)
        assert Util().lockDevice(0, True, False) == QStatus.QS_UNSUPPORTED

    @pytest.mark.usefixtures("_serialized")
    def test_is_taken_once_and_given_back(self):
        util = Util()
        assert util.lockDevice(0, True, True) == QStatus.QS_SUCCESS
        assert util.lockDevice(0, True, False) == QStatus.QS_BUSY
        assert util.lockDevice(1, True, False) == QStatus.QS_SUCCESS
        assert util.lockDevice(devID=0, lock=False, block=False) == QStatus.QS_SUCCESS
        assert util.lockDevice(0, True, False) == QStatus.QS_SUCCESS

    @pytest.mark.usefixtures("_serialized")
    def test_what_is_not_held_cannot_be_given_back(self):
        assert Util().lockDevice(0, False, False) == QStatus.QS_INVAL

    @pytest.mark.usefixtures("_serialized")
    def test_a_device_that_does_not_exist(self):
        assert Util().lockDevice(2, True, False) == QStatus.QS_NODEV

    @pytest.mark.usefixtures("_serialized")
    def test_a_thread_waits_for_another(self):
        util, order = Util(), []
        assert util.lockDevice(0, True, False) == QStatus.QS_SUCCESS

        def wait():
            order.append(util.lockDevice(0, True, True))

        thread = threading.Thread(target=wait)
        thread.start()
        assert order == []
        assert util.lockDevice(0, False, False) == QStatus.QS_SUCCESS
        thread.join(WATCHDOG_S)
        assert order == [QStatus.QS_SUCCESS]

    def test_another_process_excludes_this_one_until_it_dies(self, holder):
        assert Util().lockDevice(0, True, False) == QStatus.QS_BUSY
        assert Util().lockDevice(1, True, False) == QStatus.QS_SUCCESS
        holder.kill()
        holder.wait()
        assert Util().lockDevice(0, True, False) == QStatus.QS_SUCCESS

    # Python 3.12 and newer warn if a process with threads forks.
    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
    @pytest.mark.usefixtures("_serialized")
    def test_a_forked_child_does_not_keep_the_lock(self):
        util = Util()
        assert util.lockDevice(0, True, False) == QStatus.QS_SUCCESS
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b".")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        # The parent releases the lock while the child is running.
        assert util.lockDevice(0, False, False) == QStatus.QS_SUCCESS
        assert util.lockDevice(0, True, False) == QStatus.QS_SUCCESS
        os.write(go[1], b".")
        assert os.waitpid(child, 0)[1] == 0
        for end in (*ready, *go):
            os.close(end)

    @pytest.mark.usefixtures("_serialized")
    def test_directory_of_another_user_is_refused(self, monkeypatch, tmp_path, capfd):
        open_to_all = tmp_path / "shared"
        open_to_all.mkdir(mode=0o777)
        open_to_all.chmod(0o777)
        usual = _core.open_user_directory
        monkeypatch.setattr(_core, "open_user_directory", lambda: usual(open_to_all))
        assert Util().lockDevice(0, True, False) == QStatus.QS_ERROR
        assert str(open_to_all) in capfd.readouterr().err
