"""Run mixed calls on many threads, with resets, forks and faults; report hangs and wrong results.

python benches/soak.py                               30 minutes on virtual cards, 64 threads
python benches/soak.py --device emu                  the same on emulated cards, with random faults
python benches/soak.py --minutes 1 --threads 8       a short run

The exit code is 0 if every call ended, every result was right, every error was one that the calls or the
faults may cause, and the emulated cards were empty at the end, after QUIET_S without faults. The script
prints the resident memory once a minute; a reader judges its growth. Calls: run, submit, run_async, map, exec
objects with a queue, and sets.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qaic
import qaicrt
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.errors import QaicError
from qaic.options.table import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

S = qaicrt.QStatus
ROWS, WIDTH = 2, 64
#: Seconds without progress of a thread, and of a child, after which the soak test checks it again.
STALL_S, FORK_S = 180, 120
#: Processor seconds of the second check.
LOOK_S = 10.0
#: Seconds at the end without faults and resets of the card, so that a leak remains visible.
QUIET_S = 20.0
#: Largest duration of an explicit teardown, in seconds.
TEARDOWN_S = 3600
#: Seconds between two resets, forks and faults.
RESET_S, FORK_PERIOD_S, FAULT_PERIOD_S, FAULT_S = 1.0, 10.0, 3.0, 1.0

#: Codes of errors that an expired deadline can cause.
DEADLINE = {"device.timeout"}
#: Codes of errors that faults of a card can cause.
FAULTS = {
    *("device.lost", "device.channel_lost", "device.unavailable", "device.permission", "device.firmware"),
    *("device.firmware_protocol", "device.firmware_version", "device.driver", "device.ring_full"),
    *("device.memory", "device.timeout"),
    # A program that a fault ended keeps its cores until no thread uses it.
    "device.busy",
}
#: Statuses of these errors in the low-level interface.
STATUSES = {
    *("QS_DEV_ERROR", "QS_PERM", "QS_NOMEM", "QS_BUSY", "QS_NODEV", "QS_INVAL", "QS_NOSPC", "QS_BADFD"),
    *("QS_TIMEDOUT", "QS_PROTOCOL", "QS_UNSUPPORTED", "QS_DATA_CRC_ERROR", "QS_AGAIN", "QS_ERROR"),
}
CALLS = ("manage", "create_bo", "mmap_bo", "mmap", "attach", "execute", "wait", "perf_stats", "detach")
CALL_ERRORS = ("EINTR", "EIO", "ENOMEM", "EAGAIN", "ENODEV", "EINVAL", "reset", "dead", "ssr(0)")
COMMAND_ERRORS = ("nack(-12)", "nack(-5)", "crc", "wrong_type", "truncated", "count(5)", "hang", "reset")
INFERENCE_ERRORS = ("lost_completion", "dma_status(7)", "hang", "ssr(0)", "ssr_without_power_up(0)")


class WrongResultError(Exception):
    """A result that differs from numpy's."""


class RefusedError(Exception):
    """A status of the low-level interface other than success."""


def must(status: qaicrt.QStatus) -> None:
    """Raise an exception unless a call succeeded."""
    if status != S.QS_SUCCESS:
        raise RefusedError(status.name)


def model() -> onnx.ModelProto:
    """Build ``y = relu(x @ w)`` with known weights."""
    edges = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [ROWS, WIDTH]) for n in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = helper.make_graph(nodes, "net", edges[:1], edges[1:], [numpy_helper.from_array(weights(), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights() -> NDArray[np.float32]:
    """Return small integers, so that every order of summation gives the same result."""
    return (np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH) % 7) - 3


def check(x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
    """Compare a result with numpy's, exactly."""
    if not np.array_equal(np.maximum(x @ weights(), 0), y.reshape(ROWS, WIDTH)):
        raise WrongResultError


class LowLevel:
    """A program with a queue and exec objects, and an inference set, which threads share until one fails."""

    def __init__(self, path: str) -> None:
        self.context, qpc = qaicrt.Context(), qaicrt.Qpc(path)
        self.program = qaicrt.Program(self.context, 0, qpc)
        self.queue = qaicrt.Queue(self.context, 0)
        self.set = qaicrt.InferenceSet(self.context, qpc, 0, 4, 1)
        self.exec_objs = threading.local()

    def enqueue(self, rng: random.Random, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        """Run one inference on an exec object of this thread."""
        if not hasattr(self.exec_objs, "mine"):
            self.exec_objs.mine = qaicrt.ExecObj(self.context, self.program)
        mine = self.exec_objs.mine
        must(mine.setData([qaicrt.QBuffer(x), qaicrt.QBuffer(y)]))
        if rng.random() < 0.5:
            must(mine.run())
        else:
            must(self.queue.enqueue(mine))
            must(mine.waitForCompletion())

    def collect(self, rng: random.Random, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        """Run one inference of the set, under an id of this thread."""
        status, handle = self.set.getAvailable()
        must(status)
        number = threading.get_ident() * 8 + rng.randrange(8)
        try:
            must(handle.setBuffers([qaicrt.QBuffer(x), qaicrt.QBuffer(y)]))
            must(self.set.submit(handle, number))
            must(self.set.getCompletedId(number)[0])
        finally:
            self.set.putCompleted(handle)


def persists(is_so: Callable[[], bool]) -> bool:
    """Return True if a condition persists while this thread computes for ``LOOK_S`` of its processor time.

    A thread or child that only waits for a processor gets a similar share in this time, even on a busy
    machine.
    """
    end = time.thread_time() + LOOK_S
    while time.thread_time() < end:
        if not is_so():
            return False
    return True


class Soak:
    """The calls, their outcomes, and the objects that they share."""

    def __init__(self, path: str, *, has_faults: bool, threads: int, seed: int) -> None:
        self.path, self.has_faults, self.threads, self.seed = path, has_faults, threads, seed
        self.sessions = [qaic.Session(path, num_activations=2, set_size=size) for size in (1, 4)]
        self.low = LowLevel(path)
        self.making = threading.Lock()
        self.ends_at = 0.0
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        # One entry for each calling thread, and for the threads of resets, faults and forks.
        self.last_end = [time.monotonic()] * (threads + 3)
        self.control = _core.EmuControl(0) if has_faults else None
        self.ways: tuple[Callable[[random.Random], None], ...] = (
            *(self.run, self.submit, self.run_async, self.map, self.enqueue, self.collect, self.deadline),
            self.cancel,
        )

    # --- calls ----------------------------------------------------------------------------------------------

    def x(self, rng: random.Random) -> NDArray[np.float32]:
        """Draw an input of small integers."""
        return np.random.default_rng(rng.getrandbits(32)).integers(-8, 8, (ROWS, WIDTH)).astype(np.float32)

    def run(self, rng: random.Random) -> None:
        """Run an inference."""
        x = self.x(rng)
        check(x, rng.choice(self.sessions).run({"x": x})["y"])

    def submit(self, rng: random.Random) -> None:
        """Start inferences and wait for their futures in another order."""
        started = [(x, rng.choice(self.sessions).submit({"x": x})) for x in (self.x(rng), self.x(rng))]
        rng.shuffle(started)
        for x, future in started:
            check(x, future.result()["y"])

    def run_async(self, rng: random.Random) -> None:
        """Run inferences in an event loop."""
        xs = [self.x(rng) for _ in range(3)]

        async def gathered() -> list[dict[str, NDArray[np.float32]]]:
            session = rng.choice(self.sessions)
            return await asyncio.gather(*(session.run_async({"x": x}) for x in xs))

        for x, outputs in zip(xs, asyncio.run(gathered()), strict=True):
            check(x, outputs["y"])

    def map(self, rng: random.Random) -> None:
        """Map inputs, and sometimes leave the map early."""
        xs = [self.x(rng) for _ in range(6)]
        results = rng.choice(self.sessions).map([{"x": x} for x in xs])
        for x in xs[: rng.choice((2, 6))]:
            check(x, next(results)["y"])

    def enqueue(self, rng: random.Random) -> None:
        """Run an inference on an exec object."""
        self._with_low(lambda low, x, y: low.enqueue(rng, x, y), rng)

    def collect(self, rng: random.Random) -> None:
        """Run an inference of an inference set."""
        self._with_low(lambda low, x, y: low.collect(rng, x, y), rng)

    def _with_low(
        self,
        work: Callable[[LowLevel, NDArray[np.float32], NDArray[np.float32]], None],
        rng: random.Random,
    ) -> None:
        low, x, y = self.low, self.x(rng), np.full((ROWS, WIDTH), -1, np.float32)
        try:
            work(low, x, y)
        except (RefusedError, QaicError):
            with self.making:
                if self.low is low:
                    self.low = LowLevel(self.path)
            raise
        check(x, y)

    def deadline(self, rng: random.Random) -> None:
        """Run an inference whose deadline can expire in any of its phases."""
        x = self.x(rng)
        try:
            check(x, rng.choice(self.sessions).run({"x": x}, timeout=10 ** rng.uniform(-6, -1))["y"])
        except QaicError as error:
            if error.code not in DEADLINE:
                raise
            self.counts["deadlines"] += 1

    def cancel(self, rng: random.Random) -> None:
        """Start an inference and cancel its future."""
        x = self.x(rng)
        future = rng.choice(self.sessions).submit({"x": x})
        future.cancel()
        try:
            check(x, future.result()["y"])
        except CancelledError:
            self.counts["cancelled"] += 1

    # --- threads --------------------------------------------------------------------------------------------

    def problem(self, text: str) -> None:
        """Record and print a problem."""
        self.problems.append(text)
        print(f"PROBLEM {text}", flush=True)

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Run a function and judge its exception."""
        try:
            work()
            self.counts[name] += 1
        except WrongResultError:
            self.problem(f"{name}: wrong result")
        except (QaicError, RefusedError) as error:
            code = error.code if isinstance(error, QaicError) else f"status {error}"
            self.counts[f"{name}: {code}"] += 1
            is_known = error.code in FAULTS if isinstance(error, QaicError) else str(error) in STATUSES
            if not (self.has_faults and is_known):
                self.problem(f"{name}: {error!r}")
        except Exception as error:  # noqa: BLE001 - a soak reports everything
            self.problem(f"{name}: {error!r}")

    def call(self, number: int) -> None:
        """Call at random until the end."""
        rng = random.Random(self.seed * 1000 + number)
        while time.monotonic() < self.ends_at:
            way = rng.choice(self.ways)
            self.attempt(way.__name__, lambda way=way: way(rng))
            self.last_end[number] = time.monotonic()

    def turns(self, number: int, period: float, until: float) -> Iterator[None]:
        """Yield once per period until a point in time; ``number`` is that of the thread."""
        while time.monotonic() < until:
            self.last_end[number] = time.monotonic()
            time.sleep(period)
            yield

    def reset(self) -> None:
        """Reset the sessions in turn."""
        for _ in self.turns(self.threads, RESET_S, self.ends_at):
            for session in self.sessions:
                self.attempt("reset", lambda session=session: session.reset(timeout=TEARDOWN_S))

    def fail(self) -> None:
        """Plan random faults of the card for a second, then recover the card."""
        rng = random.Random(self.seed)
        assert self.control is not None
        for _ in self.turns(self.threads + 1, FAULT_PERIOD_S, self.ends_at - QUIET_S):
            which = rng.randint(1, 40)
            plan = rng.choice(
                (
                    f"{rng.choice(CALLS)}@{which}={rng.choice(CALL_ERRORS)}",
                    f"command(activate)@1={rng.choice(COMMAND_ERRORS)}",
                    f"inference@{which}={rng.choice(INFERENCE_ERRORS)}",
                )
            )
            self.control.set_faults(plan)
            time.sleep(FAULT_S)
            self.recover()
            self.counts["faults"] += 1

    def recover(self) -> None:
        """End all faults and their consequences."""
        assert self.control is not None
        self.control.set_faults("")
        self.control.reset()
        self.control.hurry()

    def fork(self) -> None:
        """Run an inference in children of this process, each with a new session."""
        rng = random.Random(self.seed)
        for _ in self.turns(self.threads + 2, FORK_PERIOD_S, self.ends_at):
            x = self.x(rng)
            child = os.fork()
            if child == 0:
                try:
                    with qaic.Session(self.path) as session:
                        check(x, session.run({"x": x})["y"])
                    os._exit(0)
                except BaseException as error:  # noqa: BLE001 - the child must not return
                    print(f"child: {error!r}", flush=True)
                    os._exit(1)
            self._reap(child)

    def _reap(self, child: int) -> None:
        def runs() -> bool:
            return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

        end = time.monotonic() + FORK_S
        while time.monotonic() < end and runs():
            time.sleep(0.05)
        if runs() and persists(runs):
            self.problem("child: did not end")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif os.waitpid(child, 0)[1]:
            self.problem("child: failed")
        self.counts["forks"] += 1

    def soak(self, minutes: float) -> bool:
        """Run all threads for some time and print the memory every minute; return true if all calls ended."""
        self.ends_at = time.monotonic() + 60 * minutes
        work = [self.reset, *([self.fail] if self.has_faults else [lambda: None]), self.fork]
        threads = [threading.Thread(target=self.call, args=(number,)) for number in range(self.threads)]
        threads += [threading.Thread(target=self.attempt, args=("thread", one)) for one in work]
        for thread in threads:
            thread.daemon = True  # a hang must not keep the process alive
            thread.start()
        said = 0.0
        while any(thread.is_alive() for thread in threads):
            time.sleep(1)
            for number, thread in enumerate(threads):
                seen = self.last_end[number]

                def stays(
                    number: int = number, seen: float = seen, thread: threading.Thread = thread
                ) -> bool:
                    return thread.is_alive() and self.last_end[number] == seen

                if time.monotonic() - seen > STALL_S and stays() and persists(stays):
                    faulthandler.dump_traceback(all_threads=True)
                    self.problem(f"{thread.name}: a call did not end")
                    return False
            if time.monotonic() - said > 60:
                said = time.monotonic()
                print(f"{resident() / 1e6:.0f} MB, {sum(self.counts.values())} calls", flush=True)
        return True

    def finish(self) -> None:
        """Release everything and check that the emulated cards are empty."""
        faulthandler.dump_traceback_later(TEARDOWN_S, exit=True)
        for session in self.sessions:
            self.attempt("close", lambda session=session: session.reset(timeout=TEARDOWN_S))
            session.close()
        del self.low
        for line in remains() if self.control is not None else ():
            self.problem(f"left: {line}")
        faulthandler.cancel_dump_traceback_later()


def remains() -> list[str]:
    """Return the resources that remain allocated on the emulated cards."""
    found = left()
    while found and not persists(lambda before=found: left() == before):
        found = left()
    return found


def left() -> list[str]:
    """Return the current state of the emulated cards, without the file that the process keeps open."""
    gc.collect()
    _core.await_teardown(1)
    found = [line for card in _core.EmuControl.every() for line in card.invariants()]
    return [line for line in found if not line.endswith(": 1 open files")]


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def lines(soak: Soak) -> Iterator[str]:
    """Yield how often each call ended in each way."""
    for name, count in sorted(soak.counts.items()):
        yield f"{name}: {count}"


def main() -> int:
    """Run the command."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "emu"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["QAIC_DEVICE"] = "cpu" if given.device == "cpu" else "kmd"
    if given.device == "emu":
        os.environ["QAIC_KMD"] = "emu"
    with tempfile.TemporaryDirectory(prefix="openqaic-soak-") as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "qpc"
        onnx.save(model(), source)
        compile_model(source, CompileOptions(), {}, output_dir=target)
        soak = Soak(str(target), has_faults=given.device == "emu", threads=given.threads, seed=given.seed)
        if soak.soak(given.minutes):
            soak.finish()
    print(*lines(soak), f"{resident() / 1e6:.0f} MB, {len(soak.problems)} problems", sep="\n", flush=True)
    if soak.problems:
        os._exit(1)  # hanging threads do not keep the process alive
    return 0


if __name__ == "__main__":
    sys.exit(main())
