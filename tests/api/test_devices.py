"""``qaic.devices``: the devices of this process as values."""

import dataclasses
import pickle

import pytest

import child_process
import qaic
from qaic import _core


def test_devices_are_those_of_the_context():
    found = qaic.devices()
    assert [one.id for one in found] == _core.Context().ids()
    for device, facts in zip(found, _core.Context().devices(), strict=True):
        assert dataclasses.asdict(device) == {name: facts[name] for name in dataclasses.asdict(device)}
        assert device.is_ready
    assert pickle.loads(pickle.dumps(found)) == found


def test_texts_say_what_is_free():
    (device, *_) = found = qaic.devices()
    assert str(found).splitlines()[0] == str(device)
    assert f"{device.nsp_free} of {device.nsp_total} cores" in str(device)
    assert f">{device.nsp_free} of {device.nsp_total}</td>" in found._repr_html_()
    assert device._repr_html_().count("<tr>") == 2
    assert "no devices" in type(found)(())._repr_html_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.id = 5


def test_the_variables_decide_which_devices_there_are():
    program = (
        "import os; os.environ['QAIC_CPU_DEVICES'] = '3'; import qaic; "
        "print(len(qaic.devices()), qaic.devices()[-1].id)"
    )
    assert child_process.run_script(program, device="cpu").stdout == "3 2\n"


@pytest.mark.parametrize(
    ("active", "said"), [(0, "0 active programs"), (1, "1 active program"), (2, "2 active programs")]
)
def test_programs_are_counted_in_words(active, said):
    device = dataclasses.replace(qaic.devices()[0], programs_active=active)
    assert str(device).endswith(f", {said}")
