"""Scripts that tests run in a process of their own, and Ctrl-C that surely meets a blocking call in them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_HERE = Path(__file__).parent


def run_script(source, *arguments, device=None, limit=60):
    """Run Python source in a new process, which can import what tests can; it must end well."""
    environment = {**os.environ, "PYTHONPATH": f"{_HERE}:{_HERE / 'models'}:{_HERE / 'oracles'}"}
    if device is not None:
        environment["QAIC_DEVICE"] = device
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done


def interrupted(call):
    """Call on the main thread while a second one sends SIGINT; how that ended, and the seconds it took.

    The second thread gets the GIL only when the main thread waits inside the call, for nothing takes the GIL
    away; so the signal always meets the call.
    """
    sent = []
    go = threading.Event()

    def interrupt():
        go.wait()
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sys.setswitchinterval(1000)
    killer = threading.Thread(target=interrupt)
    killer.start()
    result, took_s = "returned", None
    try:
        go.set()
        call()
    except KeyboardInterrupt:
        result, took_s = "interrupted", time.monotonic() - sent[0]
    except Exception as error:  # noqa: BLE001 (the test judges it)
        result = repr(error)
    killer.join()
    return {"result": result, "took": took_s}


def assert_prompt(outcome):
    """A call that ``interrupted`` met ended soon: promised are 200 ms, the rest is for a busy machine."""
    assert outcome["result"] == "interrupted"
    assert outcome["took"] < 2
