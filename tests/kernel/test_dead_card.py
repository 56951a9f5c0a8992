"""A card that disappears from the bus: the last test in a guest, which has no card afterwards."""

from __future__ import annotations

import pytest
from mainline_guest import MAINLINE, compiled, in_guest, random, set_faults, two_outputs

import qaic
from kmd_sessions import device
from qaic.errors import DeviceError

pytestmark = in_guest


def test_a_card_that_falls_off_the_bus_is_lost_and_nothing_hangs(tmp_path):
    """The card does not answer, and reads return ones; here, the driver waits three seconds for messages."""
    program = compiled(tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}])
    feed = random(2, 3, 8)
    with device(**MAINLINE):
        session = qaic.Session(program)
        session.run(feed)
        set_faults("inference@1=dead")
        for _ in range(2):
            with pytest.raises(DeviceError):
                session.run(feed, timeout=2)
        session.close()
        with pytest.raises(DeviceError):
            qaic.Session(program).run(feed)
