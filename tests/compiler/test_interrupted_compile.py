"""An interrupted compilation leaves no thread that could run onnx code while the process exits.

At exit, a process destroys data that the libraries of onnx and its engine share between threads. A thread
that still uses this data crashes, and the exit code is that of a signal instead of 130.
"""

import json
import os
import subprocess
import sys

import sampling
from session_models import affine, save

CHILD = """
import json, os, signal, sys, threading
from pathlib import Path

import onnx.shape_inference, onnx.checker, onnxruntime
from qaic import _core
from qaic.cli.compile import main

at = int(sys.argv[1])
calls, strangers = 0, []


def spied(module, name):
    original = getattr(module, name)

    def call(*arguments, **named):
        global calls
        calls += 1
        if threading.current_thread() is not threading.main_thread():
            strangers.append(f"{name} in {threading.current_thread().name}")
        if calls == at:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **named)

    setattr(module, name, call)


spied(onnx.shape_inference, "infer_shapes")
spied(onnx.checker, "check_model")
spied(_core, "save_optimized_graph")
code = main(sys.argv[2:])
_core.await_teardown(600)
others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
states = {Path(task, "stat").read_text().rpartition(")")[2].split()[0] for task in others}
print(json.dumps({"calls": calls, "strangers": strangers, "states": sorted(states)}))
sys.exit(code)
"""


def compiled(path, at):
    """Compile in a separate process that receives SIGINT at a call of onnx; 0 means no signal."""
    command = [sys.executable, "-c", CHILD, str(at), f"-m={path}", "-stats-level=70"]
    out = path.parent / f"program-{at}"
    done = subprocess.run(
        [*command, "-convert-to-fp16", f"-aic-binary-dir={out}"],
        capture_output=True, text=True, check=False,
        # The cache is empty, and numpy has no separate threads.
        env={**os.environ, "QAIC_CACHE_DIR": str(path.parent / f"cache-{at}"), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    return done, out


def said_by(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_onnx_runs_on_the_main_thread_and_no_thread_works_after_an_interrupt(tmp_path, request):
    path = save(tmp_path, affine())
    whole, _ = compiled(path, 0)
    assert whole.returncode == 0, whole.stderr
    calls = said_by(whole)["calls"]
    assert calls >= 2
    interrupted = {1, calls // 2, calls} if sampling.is_sampled(request.node) else range(1, calls + 1)
    for at in interrupted:
        done, out = compiled(path, at)
        assert done.returncode == 130, done.stderr
        said = said_by(done)
        assert said["strangers"] == []
        # Threads of the engine's pools and of the reaper sleep, because they have no work.
        assert said["states"] in ([], ["S"])
        assert not out.exists()
