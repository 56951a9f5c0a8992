"""Cores that are counted across processes with ``QAIC_CPU_SHARED``: exact, whichever process ends."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import qaic
from child_process import started
from qaic import _core
from qaic.errors import DeviceBusyError, OptionError

CONTAINER = Path(__file__).parents[1] / "data" / "qpc" / "s01_simple_f32_file.qpc"

#: Executes commands from its standard input, and answers each.
CLIENT = """
import os, sys
import qaic
from qaic import _core

sessions = []

def obey(verb, *arguments):
    if verb == "take":
        activations, *group = arguments
        session = qaic.Session(sys.argv[1], num_activations=int(activations))
        session.setup()
        sessions.append(session)
    elif verb == "drop":
        sessions.pop().reset()
    elif verb == "fork":
        child = os.fork()
        if child == 0:
            open(arguments[0]).close()  # until the test opens the other end
            os._exit(0)
        return child
    elif verb == "child":
        # The parent's cores stay allocated in a child, and dropping the sessions does not release them.
        reading, writing = os.pipe()
        if os.fork() == 0:
            before = _core.Context().resources(0)["nsp_free"]
            for session in sessions:
                session.reset()
            sessions.clear()
            after = _core.Context().resources(0)["nsp_free"]
            os.write(writing, f"{before} {after}".encode())
            os._exit(0)
        os.close(writing)
        os.wait()
        return os.read(reading, 100).decode()
    return _core.Context().resources(0)["nsp_free"]

for line in sys.stdin:
    try:
        print(obey(*line.split()), flush=True)
    except qaic.errors.DeviceBusyError as error:
        print("busy", error.context["needed"], error.context["free"], flush=True)
"""


class Client:
    """A process that uses the cards."""

    def __init__(self, process):
        self.process = process

    def send(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, command):
        self.send(command)
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def client(tmp_path):
    """Start clients that share the cards of one directory."""
    path = tmp_path / "programqpc.bin"
    shutil.copy(CONTAINER, path)
    with contextlib.ExitStack() as stack:

        def start(shared=tmp_path / "shared"):
            environment = os.environ | {"QAIC_DEVICE": "noop", "QAIC_CPU_SHARED": str(shared)}
            command = [sys.executable, "-c", CLIENT, str(path)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            return Client(stack.enter_context(started(command, env=environment, text=True, **pipes)))

        yield start


def cores_of_one():
    return qaic.Qpc(CONTAINER).program_info.num_cores


def test_cores_of_one_process_are_missing_in_the_others(client):
    each = cores_of_one()
    one, other = client(), client()
    assert one.ask("free") == other.ask("free") == "16"
    assert one.ask("take 2") == str(16 - 2 * each)
    assert other.ask("free") == str(16 - 2 * each)
    free = 16 - 2 * each
    too_many = free // each + 1
    assert other.ask(f"take {too_many}") == f"busy {too_many * each} {free}"
    assert other.ask(f"take {free // each}") == str(free % each)
    assert one.ask("take 1") == f"busy {each} {free % each}"
    assert one.ask("drop") == other.ask("free")
    assert other.ask("drop") == "16"


def test_a_killed_process_frees_its_cores_at_once(client):
    one, other = client(), client()
    most = 16 // cores_of_one()
    one.ask(f"take {most}")
    assert other.ask(f"take {most}").startswith("busy")
    one.kill()
    assert other.ask("free") == "16"
    assert other.ask(f"take {most}") == str(16 % cores_of_one())


def test_a_child_that_outlives_its_killed_parent_keeps_no_cores(client, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    parent, other = client(), client()
    parent.ask("take 1")
    child = int(parent.ask(f"fork {gate}"))
    assert parent.ask("take 1") == other.ask("free")
    parent.kill()
    assert other.ask("free") == "16"
    os.kill(child, 0)  # it still exists
    gate.open("w").close()


def test_a_child_neither_holds_nor_frees_what_its_parent_holds(client):
    parent, other = client(), client()
    taken = parent.ask("take 1")
    assert parent.ask("child") == f"{taken} {taken}"
    assert other.ask("free") == taken
    assert parent.ask("drop") == other.ask("free") == "16"


def test_of_many_that_want_the_last_cores_exactly_one_gets_them(client):
    most = 16 // cores_of_one()
    rivals = [client() for _ in range(4)]
    assert [rival.ask("free") for rival in rivals] == ["16"] * 4
    for _ in range(5):
        for rival in rivals:
            rival.send(f"take {most}")
        answers = [rival.answer() for rival in rivals]
        assert sum(answer.startswith("busy") for answer in answers) == 3, answers
        winner = next(
            rival for rival, answer in zip(rivals, answers, strict=True) if not answer.startswith("busy")
        )
        assert winner.ask("drop") == "16"


def test_a_stopped_process_does_not_stop_the_others(client):
    one, other = client(), client()
    taken = one.ask("take 1")
    one.process.send_signal(signal.SIGSTOP)
    assert other.ask("free") == taken
    one.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_variable_every_process_has_its_own_cores(client, value):
    one, other = client(value), client(value)
    assert int(one.ask("take 1")) < 16
    assert other.ask("free") == "16"


@pytest.mark.parametrize("value", ["yes", "relative/path", "2"])
def test_other_values_are_refused(monkeypatch, value):
    monkeypatch.setenv("QAIC_CPU_SHARED", value)
    with pytest.raises(OptionError, match=f'QAIC_CPU_SHARED is "{value}"'):
        _core.Context()


@pytest.mark.virtual_card("QAIC_CPU_SHARED applies only to virtual cards")
def test_a_directory_that_others_can_use_is_refused(monkeypatch, tmp_path):
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o755)
    monkeypatch.setenv("QAIC_CPU_SHARED", str(place))
    with pytest.raises(OptionError, match=r"mode 755; a directory of user .* with mode 700 is expected"):
        _core.Context()
    place.chmod(0o700)
    assert _core.Context().resources(0)["nsp_free"] == 16


def test_cores_are_counted_within_the_process_as_well(monkeypatch, tmp_path):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    monkeypatch.setenv("QAIC_CPU_SHARED", str(tmp_path / "shared"))
    path = tmp_path / "programqpc.bin"
    shutil.copy(CONTAINER, path)
    each = cores_of_one()
    with qaic.Session(path) as session:
        session.setup()
        assert _core.Context().resources(0)["nsp_free"] == 16 - each
        with pytest.raises(DeviceBusyError):
            qaic.Session(path, num_activations=16 // each).setup()
        assert _core.Context().resources(0)["nsp_free"] == 16 - each
    assert _core.Context().resources(0)["nsp_free"] == 16
