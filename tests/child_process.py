"""Processes that tests start: scripts, programs that end with their test, and Ctrl-C in a blocking call."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_HERE = Path(__file__).parent

#: Time limit, in seconds, of waits for an event of another thread or process. No test passes because of it.
WATCHDOG_S = 600


def restore_signals():
    """Give the signals that a shell or a CI runner ignores or blocks their default actions again.

    `make test &` and `nohup` ignore SIGINT and SIGHUP, and every process inherits that. The processes that
    tests start inherit the actions of the test process, so one call covers all of them.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignoring(number):
    """Return the first words of a command that starts a program with an ignored signal, like a background
    job.
    """
    return ["/bin/sh", "-c", f'trap "" {int(number)}; exec "$@"', "sh"]


@contextlib.contextmanager
def started(command, **options):
    """Start a program that is killed at the end of the block, so a failed expectation never waits for it."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def run_script(source, *arguments, device=None):
    """Run Python source, which can import what tests can, in a new process; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": f"{_HERE}:{_HERE / 'models'}:{_HERE / 'oracles'}"}
    if device is not None:
        environment["QAIC_DEVICE"] = device
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done


def interrupted(call, *, when=lambda: True):
    """Call on the main thread while a second thread sends SIGINT; return how the call ended.

    The second thread gets the GIL only when the main thread waits inside the call, because no thread preempts
    another. The signal therefore always comes during the call, but perhaps before the call reaches the
    device. If the device must have the call first, pass `when`, which returns true from then on. The call
    must not end without the signal.
    """
    go = threading.Event()

    def interrupt():
        go.wait()
        while not when():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    sys.setswitchinterval(1000)
    killer = threading.Thread(target=interrupt)
    killer.start()
    result = "returned"
    try:
        go.set()
        call()
    except KeyboardInterrupt:
        result = "interrupted"
    except Exception as error:  # noqa: BLE001 (the test judges it)
        result = repr(error)
    killer.join()
    return result
