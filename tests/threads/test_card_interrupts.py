"""Ctrl-C while the firmware of a card does not answer, on emulated cards."""

import json

import pytest

import rt_programs
from child_process import run_script

SCRIPT = """
import json, os, signal, sys, threading
import qaicrt
from qaic import _core
from rt_programs import Client, S

path, scene, faults = sys.argv[1:]
program = Client(path).program
control = _core.EmuControl(0)
if scene == "activate":
    assert program.load() == S.QS_SUCCESS
call = {
    "load": program.load,
    "activate": program.activate,
    "facts": lambda: qaicrt.Util().getResourceInfo(0),
}[scene]
control.set_faults(faults)
before = control.calls("manage")
ended = []


def interrupt():
    # A message that is not answered is waited for; one that is refused was at least sent.
    while not (control.waiters() if "hang" in faults else control.calls("manage") > before):
        if ended:
            return
    os.kill(os.getpid(), signal.SIGINT)


killer = threading.Thread(target=interrupt)
killer.start()
result = "returned"
try:
    result = repr(call())
except KeyboardInterrupt:
    result = "interrupted"
ended.append(result)
killer.join()
control.set_faults("")
after = [step().name for step in (program.activate, program.deactivate, program.unload)]
print(json.dumps({"result": result, "after": after, "left": control.invariants()}))
"""


@pytest.mark.parametrize(
    ("scene", "faults"),
    [
        ("load", "command(load_elf)@1=hang"),
        ("activate", "command(activate)@1=hang"),
        ("activate", "command(activate)@1=nack(-36)*all"),
        ("facts", "manage@1=hang*all"),
    ],
)
def test_ctrl_c_ends_what_the_firmware_does_not_answer(tmp_path, monkeypatch, scene, faults):
    path = rt_programs.compiled(tmp_path, rt_programs.affine())
    monkeypatch.setenv("QAIC_KMD", "emu")
    outcome = json.loads(run_script(SCRIPT, path, scene, faults, device="kmd").stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"] == ["QS_SUCCESS"] * 3
    assert outcome["left"] == ["accel0: open files: 1"]
