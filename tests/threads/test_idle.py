"""A process that has loaded a program and runs nothing: none of its threads wakes."""

import json
from concurrent.futures import ThreadPoolExecutor

import session_models
from child_process import run_script

#: Context switches of each thread except the main one, before and after the main one waits, after inferences.
IDLE = """
import json, sys, threading
from pathlib import Path
import numpy as np
import qaic

def switches():
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.main_thread().native_id:
            lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            counts = lines["voluntary_ctxt_switches"], lines["nonvoluntary_ctxt_switches"]
            found[f"{task.name} {lines['Name'].strip()}"] = sum(map(int, counts))
    return found

with qaic.Session(sys.argv[1], num_activations=2, set_size=4) as session:
    feed = {"x": np.ones((2, 4), np.float32)}
    for _ in range(50):
        session.run(feed)
        session.run(feed, timeout=30)
    for future in [session.submit(feed) for _ in range(50)]:
        future.result()
    # Threads that have nothing left to do end within two seconds.
    for _ in range(100):
        before = switches()
        threading.Event().wait(2)
        after = switches()
        if before == after:
            break
    print(json.dumps([before, after]))
"""


def test_session_that_runs_nothing_wakes_no_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_KMD", "emu")
    program = session_models.save(tmp_path, session_models.affine())
    # Both processes wait most of the time.
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda device: run_script(IDLE, program, device=device), ("cpu", "kmd")))
    for done in found:
        before, after = json.loads(done.stdout)
        assert before
        assert after == before
