"""Programs on a card with the mainline driver, in the guest of `make test-kernel`."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from mainline_guest import (
    MAINLINE,
    compiled,
    expected,
    held,
    in_guest,
    loaded,
    random,
    set_faults,
    two_outputs,
    without_constants,
)

import qaic
from kmd_sessions import assert_same, device
from qaic import _core

pytestmark = in_guest
SLOW = "; ".join(f"command({name})@1=slow(700ms)" for name in ("load_elf", "activate", "deactivate"))


@pytest.fixture
def faults():
    yield set_faults
    set_faults("")


def test_the_card_is_listed_with_what_its_firmware_says():
    with device(**MAINLINE):
        (card,) = _core.Context().devices()
        assert (_core.Context().kind(0), card["status"], card["nsp_total"]) == ("kmd", "ready", 16)


@pytest.mark.parametrize("combined", [True, False])
@pytest.mark.parametrize("level", [0, 40])
def test_sets_of_shapes_in_any_order(tmp_path, combined, level):
    sets = [{"batch": 1, "seq": 3}, {"batch": 4, "seq": 1}, {"batch": 2, "seq": 9}]
    program = compiled(
        tmp_path,
        two_outputs(),
        network_specialization_config=sets,
        combine_inputs=combined,
        combine_outputs=combined,
        stats_level=level,
    )
    feeds = [random(entry["batch"], entry["seq"], 8) for entry in (*sets, *reversed(sets), sets[1])]
    wanted = expected(program, feeds)
    with device(**MAINLINE), qaic.Session(program) as session:
        for feed, results in zip(feeds, wanted, strict=True):
            assert_same(session.run(feed), results)


def test_buffers_in_many_pieces_of_memory(tmp_path):
    """Buffers of megabytes, which the driver splits if their pages are not contiguous."""
    program = compiled(tmp_path, two_outputs(16), network_specialization_config=[{"batch": 16, "seq": 4096}])
    feeds = [random(16, 4096, 8) for _ in range(3)]
    wanted = expected(program, feeds)
    with device(**MAINLINE), qaic.Session(program, set_size=2) as session:
        found = [future.result(60) for future in [session.submit(feed) for feed in feeds]]
    for results, one in zip(found, wanted, strict=True):
        assert_same(results, one)


def test_inferences_in_flight_of_several_threads(tmp_path):
    program = compiled(
        tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}], aic_num_cores=2
    )
    feeds = [random(2, 3, 8) for _ in range(24)]
    wanted = expected(program, feeds)
    with (
        device(**MAINLINE),
        qaic.Session(program, set_size=4, num_activations=2) as session,
        ThreadPoolExecutor(4) as threads,
    ):
        found = list(threads.map(lambda feed: session.submit(feed).result(60), feeds))
    for results, one in zip(found, wanted, strict=True):
        assert_same(results, one)


def test_what_a_program_takes_comes_back(tmp_path):
    program = compiled(
        tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}], aic_num_cores=4
    )
    with device(**MAINLINE):
        for _ in range(3):
            with qaic.Session(program, num_activations=3) as session:
                session.run(random(2, 3, 8))
                assert held() == 12
            assert held() == 0


PROCESS = """
import sys
import numpy as np
import qaic

feed = {"x": np.load(sys.argv[2])}
with qaic.Session(sys.argv[1]) as session:
    session.run(feed)
    print("open", flush=True)
    sys.stdin.readline()
    results = [session.run(feed) for _ in range(5)]
    np.save(sys.argv[3], results[-1]["y"])
"""


def test_two_processes_share_the_card(tmp_path):
    program = compiled(
        tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}], aic_num_cores=8
    )
    feeds = [random(2, 3, 8) for _ in range(2)]
    wanted = expected(program, feeds)
    with device(**MAINLINE):
        processes = []
        for number, feed in enumerate(feeds):
            np.save(tmp_path / f"{number}.npy", feed["x"])
            files = [str(tmp_path / f"{number}.npy"), str(tmp_path / f"found{number}.npy")]
            arguments = [sys.executable, "-c", PROCESS, str(program), *files]
            processes.append(
                subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        assert [process.stdout.readline() for process in processes] == ["open\n"] * 2
        assert held() == 16
        for process in processes:
            process.communicate("go\n", timeout=60)
            assert process.returncode == 0
        # The driver makes the firmware free the resources of a process.
        assert held() == 0
    for number, results in enumerate(wanted):
        assert np.load(tmp_path / f"found{number}.npy").tobytes() == results["y"].tobytes()


def test_a_killed_process_leaves_nothing_on_the_card(tmp_path):
    program = compiled(tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}])
    np.save(tmp_path / "x.npy", random(2, 3, 8)["x"])
    with device(**MAINLINE):
        arguments = [sys.executable, "-c", PROCESS, str(program), str(tmp_path / "x.npy"), "none"]
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "open\n"
        assert held() > 0
        process.kill()
        process.communicate(timeout=60)
        assert held() == 0


def test_signals_during_control_messages_repeat_none(tmp_path, faults):
    """``msg_xfer`` stops waiting at a signal, but the firmware executes the message."""
    program = compiled(
        tmp_path, two_outputs(), network_specialization_config=[{"batch": 2, "seq": 3}], aic_num_cores=2
    )
    feed = random(2, 3, 8)
    (wanted,) = expected(program, [feed])
    found, seen = {}, []

    def work():
        with qaic.Session(program) as session:
            found["results"] = session.run(feed)
            found["held"], found["loaded"] = held(), loaded()

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(None))
    try:
        with device(**MAINLINE):
            faults(SLOW)
            worker = threading.Thread(target=work)
            worker.start()
            while worker.is_alive():
                signal.pthread_kill(worker.ident, signal.SIGUSR1)
                worker.join(0.02)
            assert (held(), loaded()) == (0, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen
    assert (found["held"], found["loaded"]) == (2, 1)
    assert_same(found["results"], wanted)


@pytest.mark.parametrize("command", ["load_elf", "activate", "deactivate"])
def test_a_process_that_is_stopped_in_a_control_message_goes_on(command, tmp_path, faults):
    """The kernel repeats the call; the resources of the first call are released when the process ends.

    Firmware refuses a part of constants that is sent again, so the program has no constants.
    """
    program = compiled(tmp_path, without_constants(), network_specialization_config=[{"batch": 2, "seq": 3}])
    feed = random(2, 3, 8)
    (wanted,) = expected(program, [feed])
    np.save(tmp_path / "x.npy", feed["x"])
    with device(**MAINLINE):
        faults(f"command({command})@1=slow(2s)")
        arguments = [sys.executable, "-c", PROCESS, str(program), str(tmp_path / "x.npy")]
        process = subprocess.Popen(
            [*arguments, str(tmp_path / "found.npy")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        process.stdin.write("go\n")
        process.stdin.flush()
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            while process.poll() is None and "State:\tT" not in status.read_text():
                time.sleep(0.01)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.3)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert (held(), loaded()) == (0, 0)
    assert np.load(tmp_path / "found.npy").tobytes() == wanted["y"].tobytes()
