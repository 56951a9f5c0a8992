"""Virtual cards: programs on several cards, cores that are shared by name, and the resulting figures."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import qaic
import session_models
from child_process import WATCHDOG_S
from qaic import _core
from qaic.errors import (
    DeviceBusyError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceNotFoundError,
    InferenceError,
    OptionError,
)

CONTAINER = Path(__file__).parents[1] / "data" / "qpc" / "s01_simple_f32_file.qpc"
X = np.arange(8, dtype=np.float32).reshape(2, 4)
IMAGE = np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8)


@pytest.fixture
def cards(monkeypatch):
    """Four virtual cards; returns the free cores of each."""
    monkeypatch.setenv("QAIC_CPU_DEVICES", "4")
    return lambda: [card["nsp_free"] for card in _core.Context().devices()]


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


def partitions(tmp_path, count):
    """Write a partition file for this number of cards."""
    devices = [{"deviceId": number, "numCores": 4} for number in range(count)]
    config = tmp_path / "partitions.json"
    connections = [{"devices": list(range(count)), "type": "p2p"}]
    text = {"connections": connections, "partitions": [{"name": "Partition0", "devices": devices}]}
    config.write_text(str(text).replace("'", '"'))
    return config


@pytest.mark.virtual_card("cards run only programs for one device")
def test_one_program_on_several_cards_computes_what_it_does_on_one(cards, path):
    with qaic.Session(path, aic_num_cores=4) as alone:
        expected = alone.run({"x": X})["y"]
        assert cards() == [12, 16, 16, 16]
    with qaic.Session(path, aic_num_cores=4, dev_id=[3, 1]) as spread:
        np.testing.assert_array_equal(spread.run({"x": X})["y"], expected)
        assert cards() == [16, 12, 16, 12]
    assert cards() == [16, 16, 16, 16]


@pytest.mark.virtual_card("cards run only programs for one device")
def test_a_partitioned_program_needs_exactly_its_number_of_cards(cards, path, tmp_path):
    config = partitions(tmp_path, 2)
    options = {"aic_num_cores": 4, "mdp_load_partition_config": str(config)}
    for dev_id, count in [(0, 1), ([0, 1, 2], 3)]:
        with pytest.raises(OptionError, match=f"partitioned for 2 devices; the mapping .* names {count}"):
            qaic.Session(path, dev_id=dev_id, **options).setup()
    with qaic.Session(path, aic_num_cores=4) as whole:
        expected = whole.run({"x": X})["y"]
    with qaic.Session(path, dev_id=[2, 3], **options) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], expected)
        assert cards() == [16, 16, 12, 12]


@pytest.mark.virtual_card("cards run only programs for one device")
def test_cards_are_taken_together_or_not_at_all(cards, path):
    with qaic.Session(path, aic_num_cores=14, dev_id=1) as first:
        first.setup()
        with pytest.raises(DeviceBusyError) as caught:
            qaic.Session(path, aic_num_cores=4, dev_id=[0, 1]).setup()
        assert {"device": 1, "needed": 4, "free": 2}.items() <= caught.value.context.items()
        assert cards() == [16, 2, 16, 16]
        with pytest.raises(DeviceNotFoundError):
            qaic.Session(path, dev_id=[0, 4]).setup()


@pytest.mark.virtual_card("cards do not share cores by name")
def test_sessions_of_one_name_share_cores(cards, path):
    def session(cores, name="group1", **options):
        made = qaic.Session(path, aic_num_cores=cores, oversubscription_name=name, **options)
        made.setup()
        return made

    first, second = session(10), session(14)
    assert cards()[0] == 2
    third = session(5, num_activations=3)
    assert cards()[0] == 1
    expected = first.run({"x": X})["y"]
    for other in (second, third):
        np.testing.assert_array_equal(other.run({"x": X})["y"], expected)
    with pytest.raises(DeviceBusyError):
        session(2, "group2")
    elsewhere = session(16, "group2", dev_id=1)
    assert cards() == [1, 0, 16, 16]
    for one in (second, third):
        one.reset()
    assert cards()[0] == 6
    first.reset()
    elsewhere.reset()
    assert cards() == [16, 16, 16, 16]


@pytest.fixture
def noop(monkeypatch, tmp_path):
    """Select the noop device; return the path of a container for a card, which this device runs."""
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    path = tmp_path / "programqpc.bin"
    shutil.copy(CONTAINER, path)
    _core.NoopControl().plan("")
    return path


def test_figures_follow_the_life_of_a_program(noop):
    context = _core.Context()
    unused = context.resources(0)
    assert unused == context.devices()[0]
    assert (unused["status"], unused["kind"], unused["programs_loaded"]) == ("ready", "noop", 0)
    with qaic.Session(noop, num_activations=2) as session:
        session.setup()
        used = context.resources(0)
        changed = {key: value for key, value in used.items() if value != unused[key]}
        # The descriptors require four cores, two semaphores and one multicast id; the program has constants.
        assert changed == {
            "nsp_free": 8,
            "dram_free_mb": unused["dram_free_mb"] - 1,
            "vc_free": 14,
            "mcid_free": 3070,
            "semaphore_free": 28,
            "programs_loaded": 1,
            "programs_active": 2,
            "constants_loaded": 1,
            "constants_in_use": 1,
        }
    assert context.resources(0) == unused
    with pytest.raises(DeviceNotFoundError):
        context.resources(1)


def test_faults_reach_the_caller_as_what_they_are(noop):
    control = _core.NoopControl()
    control.plan(
        "load@1=no_memory; activate@1=no_cores; activate@2=no_memory; exec@1=no_memory;"
        "execute@2=fail; execute@4=lost"
    )
    session = qaic.Session(noop, set_size=1)
    for error in (DeviceMemoryError, DeviceBusyError, DeviceMemoryError, DeviceMemoryError):
        # The call is repeated if it finds a busy device and an object was released since.
        assert _core.await_teardown(WATCHDOG_S)
        with pytest.raises(error):
            session.setup()
        assert _core.Context().resources(0)["nsp_free"] == 16
    outcomes = []
    for _ in range(6):
        try:
            outcomes.append(session.run({"image": IMAGE})["logits"].reshape(-1)[1].item())
        except (InferenceError, DeviceLostError) as error:
            outcomes.append(type(error))
    assert outcomes == [1.0, InferenceError, 1.0, DeviceLostError, DeviceLostError, DeviceLostError]
    session.reset()
    assert session.run({"image": IMAGE})["logits"].reshape(-1)[1] == 1
    assert control.calls()["execute"] == 7
    session.reset()


def test_a_lost_device_says_so_and_comes_back(noop):
    control = _core.NoopControl()
    session = qaic.Session(noop, set_size=2)
    session.setup()
    control.hold()
    outcomes = []

    def run():
        try:
            session.run({"image": IMAGE})
        except DeviceLostError as error:
            outcomes.append(error.context["device"])

    inside = [threading.Thread(target=run) for _ in range(2)]
    for thread in inside:
        thread.start()
    assert control.wait_executing(2)
    control.lose()
    for thread in inside:
        thread.join()
    assert outcomes == [0, 0]
    assert _core.Context().resources(0)["status"] == "error"
    control.release()
    session.reset()
    with pytest.raises(DeviceLostError):
        session.setup()
    control.recover()
    assert _core.Context().resources(0)["status"] == "ready"
    assert session.run({"image": IMAGE})["logits"].reshape(-1)[1] == 1
    session.reset()


def test_only_noop_devices_are_controlled(monkeypatch, noop):
    with pytest.raises(OptionError, match="fault rule"):
        _core.NoopControl().plan("execute=fail")
    with pytest.raises(DeviceNotFoundError):
        _core.NoopControl(1)
    monkeypatch.setenv("QAIC_NOOP_FAULTS", "run@1=fail")
    with pytest.raises(OptionError, match='QAIC_NOOP_FAULTS: fault rule "run@1=fail"'):
        _core.Context()
    monkeypatch.setenv("QAIC_NOOP_FAULTS", "execute@1=fail")
    with qaic.Session(noop, set_size=1) as session, pytest.raises(InferenceError):
        session.run({"image": IMAGE})
    monkeypatch.setenv("QAIC_DEVICE", "cpu")
    with pytest.raises(OptionError, match="only `noop` devices"):
        _core.NoopControl()
