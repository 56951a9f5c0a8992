"""``qaic.claim_devices``: a process has its claimed devices exclusively until it ends."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from child_process import started

CARDS = 3

#: Claims the devices that each line names, and prints the ids or the code of the error.
CLIENT = """
import os, sys
import qaic

for line in sys.stdin:
    count, seconds = map(float, line.split())
    try:
        ids = qaic.claim_devices(count, timeout_s=seconds)
        assert os.environ["QAIC_VISIBLE_DEVICES"] == ",".join(map(str, ids))
        assert [device.id for device in qaic.devices()] == list(ids)
        print(*ids, flush=True)
    except qaic.errors.QaicError as error:
        print(error.code, flush=True)
"""


class Client:
    """A process that claims."""

    def __init__(self, process):
        self.process = process

    def ask(self, count, seconds=0.0):
        self.process.stdin.write(f"{count} {seconds}\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline().strip()
        return tuple(map(int, line.split())) if line[:1].isdigit() else line

    def claim(self, count, seconds=0.0):
        self.ask(count, seconds)
        return self.answer()

    def end(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.process.communicate()


@contextlib.contextmanager
def client_of(folder, **variables):
    """Start a process that claims devices in a folder."""
    environment = {
        **os.environ,
        "QAIC_CPU_DEVICES": str(CARDS),
        "QAIC_CPU_SHARED": str(folder),
        **variables,
    }
    if "QAIC_VISIBLE_DEVICES" not in variables:
        environment.pop("QAIC_VISIBLE_DEVICES", None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started([sys.executable, "-c", CLIENT], text=True, env=environment, **pipes) as process:
        yield Client(process)


@pytest.fixture
def client(tmp_path):
    """Create processes that claim devices in one folder."""
    with contextlib.ExitStack() as stack:
        yield lambda **variables: stack.enter_context(client_of(tmp_path / "claims", **variables))


def test_each_process_gets_another_card_and_a_killed_one_frees_its_own(client):
    clients = [client() for _ in range(CARDS + 1)]
    assert [one.claim(1) for one in clients] == [(0,), (1,), (2,), "device.claims"]
    # A repeated claim takes no more devices, and a larger claim is refused.
    assert clients[1].claim(1) == (1,)
    assert clients[1].claim(2) == "device.claimed"
    clients[1].end()
    assert clients[3].claim(1, 30) == (1,)


def test_of_many_at_once_as_many_succeed_as_there_are_cards(client):
    clients = [client() for _ in range(2 * CARDS)]
    for one in clients:
        one.ask(1)
    answers = [one.answer() for one in clients]
    assert sorted(one for one in answers if isinstance(one, tuple)) == [(0,), (1,), (2,)]
    assert answers.count("device.claims") == CARDS


def test_several_cards_are_taken_together_or_none(client):
    first, second, third = client(), client(), client()
    assert first.claim(2) == (0, 1)
    assert second.claim(2) == "device.claims"
    assert third.claim(1) == (2,)


def test_shares_lie_on_one_card_beside_each_other(client):
    clients = [client() for _ in range(5)]
    assert [one.claim(0.25) for one in clients] == [(0,), (0,), (0,), (0,), (1,)]
    assert client().claim(2) == "device.claims"
    assert client().claim(1) == (2,)


def test_only_visible_cards_are_claimed(client):
    assert client(QAIC_VISIBLE_DEVICES="2").claim(1) == (2,)
    assert client(QAIC_VISIBLE_DEVICES="2").claim(1) == "device.claims"
    assert client().claim(1) == (0,)


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "0.00001"])
def test_what_is_no_number_of_devices_is_refused(client, count):
    assert client().claim(count) == "option.claim"


def test_a_folder_that_others_can_use_is_refused(client, tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims").chmod(0o755)
    assert client().claim(1) == "option.claim_folder"


@given(shares=st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=5))
@settings(max_examples=8)
def test_no_card_is_given_out_more_than_once(tmp_path_factory, shares):
    apart, folder = (tmp_path_factory.mktemp("claims") / "folder" for _ in range(2))
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(client_of(apart))
        clients = [stack.enter_context(client_of(folder)) for _ in shares]
        given_out = dict.fromkeys(range(CARDS), 0.0)
        for one, share in zip(clients, shares, strict=True):
            answer = one.claim(share)
            if isinstance(answer, tuple):
                given_out[answer[0]] += share
        assert max(given_out.values()) <= 1 + 1e-9
        # A process with another folder has separate claims.
        assert other.claim(1) == (0,)
