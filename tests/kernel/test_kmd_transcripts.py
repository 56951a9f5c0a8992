"""The system calls of programs, with the emulated driver and with the mainline driver of Linux 6.12.

The calls of stored containers were recorded with the mainline driver
(``tests/kernel/record_transcripts.sh``), so every run compares with them. In the guest of ``make
test-kernel``, the other programs run with both drivers. :mod:`transcript_equality` defines equality.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import transcript_programs
from transcript_equality import differences

RECORDED = Path(__file__).parents[1] / "data" / "transcripts" / "mainline"
MAINLINE = {"QAIC_KMD": "sys"}
#: The profile of the guest's kernel.
EMULATED = {"QAIC_KMD": "emu", "QAIC_EMU_PROFILE": "new"}

IS_GUEST = "User Mode Linux" in Path("/proc/cpuinfo").read_text()


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("containers")
    transcript_programs.containers(folder)
    return folder


def recorded(name, folder, transcript, variables):
    """Run a program; return the path of its transcript, and its output."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("QAIC_EMU", "QAIC_KMD"))
    }
    environment = {
        **kept,
        **variables,
        "QAIC_DEVICE": "kmd",
        "QAIC_KMD_TRANSCRIPT": str(transcript),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    arguments = [sys.executable, transcript_programs.__file__, name, str(folder)]
    run = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return transcript, run.stdout


@pytest.mark.parametrize("name", transcript_programs.STORED)
def test_calls_of_stored_containers_are_those_that_the_mainline_driver_answered(name, tmp_path):
    """The calls to the emulated driver; in the guest, also those to the mainline driver."""
    found, _ = recorded(name, "none", tmp_path / "found.jsonl", MAINLINE if IS_GUEST else EMULATED)
    assert not (different := differences(RECORDED / f"{name}.jsonl", found)), "\n".join(different)


def test_every_recording_is_compared():
    assert {path.stem for path in RECORDED.glob("*.jsonl")} == set(transcript_programs.STORED)


@pytest.mark.skipif(not IS_GUEST, reason="no guest with the mainline driver: `make test-kernel` has one")
@pytest.mark.parametrize("name", transcript_programs.PROGRAMS)
def test_calls_of_a_program_are_the_same(name, containers, tmp_path):
    (mainline, printed), (emulated, printed_there) = (
        recorded(name, containers, tmp_path / f"{variables['QAIC_KMD']}.jsonl", variables)
        for variables in (MAINLINE, EMULATED)
    )
    found = differences(mainline, emulated)
    assert not found, "mainline | emulated\n" + "\n".join(found)
    assert printed == printed_there
