"""Many inferences in flight from Python: their cost, and the cost of waiting threads for others."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .harness import models
from .harness.row import Row, at_least, at_most
from .harness.spread import Spread, ratios
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    import qaicrt

    from .harness.effort import Effort

#: Number of inferences that are submitted before the first one is collected.
BATCH = 8
_OURS = "ours"
_OPENVINO_JOBS = (1, 2, 4)
_LIMIT_S = 2e-6
_TIMES_OPENVINO = 8
#: Number of waiting threads, each for its own inference.
CROWD = 2000
_CROWD_STACK = 256 << 10
_QUIET_LOOKS, _QUIET_LOOK_S, _QUIET_SHARE = 50, 0.1, 0.1
_ALONE, _BESIDE = "alone", "beside"
_SIDES = (1, 16)


def _container(name: str, folder: str, **options: object) -> tuple[models.Model, str]:
    """Compile a model; return it and the folder of its container."""
    from qaic.compiler.driver import compile_model
    from qaic.options import resolve

    model = models.load(name, Path(folder))
    resolved = resolve({**model.options, **options}, options_path=None, model_is_container=False)
    return model, str(compile_model(model.path, resolved.compile, resolved.set_compile).parent)


def _inference_set(path: str, set_size: int, activations: int) -> tuple[qaicrt.InferenceSet, qaicrt.Qpc]:
    import qaicrt

    qpc = qaicrt.Qpc(path)
    return qaicrt.InferenceSet(qaicrt.Context(), qpc, 0, set_size, activations), qpc


def _vector(
    qpc: qaicrt.Qpc, arrays: list[NDArray[np.float32]]
) -> tuple[qaicrt.InferenceVector, NDArray[np.float32]]:
    """Return a vector of these inputs, and the array for its output."""
    import qaicrt

    output = np.zeros_like(arrays[0])
    vector = qaicrt.InferenceVector(qpc.getBufferMappings(), qaicrt.InferenceVector.ZERO_FILL)
    vector.getVector()[:] = [qaicrt.QBuffer(array) for array in (*arrays, output)]
    return vector, output


def _good(status: object) -> None:
    import qaicrt

    if status != qaicrt.QStatus.QS_SUCCESS:
        raise SystemExit(f"a call of qaicrt answered {status}")


def _batch(handles: qaicrt.InferenceSet, vectors: list[qaicrt.InferenceVector]) -> None:
    """Submit all inferences, then collect all by id; any failure ends the measurement."""
    for number, vector in enumerate(vectors):
        if handles.submit(vector, number).value:
            raise SystemExit("submit failed")
    for number in range(len(vectors)):
        status, handle = handles.getCompletedId(number)
        if status.value or handles.putCompleted(handle).value:
            raise SystemExit("collecting failed")


def tiny_batches(folder: str, batches: int, seconds: float) -> dict[str, list[float]]:
    """Measure batches of the tiny model, in seconds per inference (in a worker)."""
    from .harness.timing import in_turns

    model, path = _container("tiny", folder, aic_num_cores=1)
    arrays = list(model.feeds.values())
    handles, qpc = _inference_set(path, BATCH, 1)
    made = [_vector(qpc, arrays) for _ in range(BATCH)]
    call = partial(_batch, handles, [vector for vector, _ in made])
    call()
    for _, output in made:
        np.testing.assert_array_equal(output, arrays[0] + arrays[1])
    subjects: dict[str, Callable[[], object]] = {_OURS: call, **_openvino(model)}
    measured = in_turns(subjects, batches, seconds)
    return {key: [value / BATCH for value in values] for key, values in measured.items()}


def _openvino(model: models.Model) -> dict[str, Callable[[], object]]:
    """Return batches on OpenVINO's queue of requests, if it is installed, by number of requests."""
    try:
        import openvino
    except ImportError:
        return {}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def batch(queue: openvino.AsyncInferQueue) -> None:
        for _ in range(BATCH):
            queue.start_async(model.feeds)
        queue.wait_all()

    queues = {jobs: openvino.AsyncInferQueue(compiled, jobs) for jobs in _OPENVINO_JOBS}
    return {f"OpenVINO AsyncInferQueue({jobs}), f32": partial(batch, queue) for jobs, queue in queues.items()}


def one_by_one(folder: str, batches: int, seconds: float) -> dict[str, list[float]]:
    """Measure single inferences of the tiny model on sets of several sizes (in a worker)."""
    from .harness.timing import in_turns

    model, path = _container("tiny", folder, aic_num_cores=1)
    subjects: dict[str, Callable[[], object]] = {}
    for side in _SIDES:
        # Other settings use other cards: the larger set takes all cores of a card.
        os.environ["QAIC_CPU_DEVICES"] = str(side)
        handles, qpc = _inference_set(path, side, side)
        vector, _ = _vector(qpc, list(model.feeds.values()))
        subjects[str(side)] = partial(_batch, handles, [vector])
    return in_turns(subjects, batches, seconds)


def _wait_for_quiet() -> None:
    """Return when this process uses almost no CPU, so its threads are asleep, or after a time limit."""
    for _ in range(_QUIET_LOOKS):
        before = time.process_time()
        time.sleep(_QUIET_LOOK_S)
        if time.process_time() - before < _QUIET_SHARE * _QUIET_LOOK_S:
            return


class _Crowd:
    """Threads that wait for inferences which a `noop` device holds."""

    def __init__(self, path: str) -> None:
        from qaic import _core

        # A context reads the variable when it is created; the measured worker uses the real device.
        os.environ["QAIC_DEVICE"] = "noop"
        self._control = _core.NoopControl()
        self._handles, qpc = _inference_set(path, CROWD, 1)
        del os.environ["QAIC_DEVICE"]
        shape = (1, 16)
        self._vector, _ = _vector(qpc, [np.zeros(shape, np.float32) for _ in range(2)])
        self._threads: list[threading.Thread] = []
        self._right = 0

    def gather(self) -> None:
        """Start all threads, and return when they wait."""
        self._control.hold()
        self._right = 0
        waiting = threading.Semaphore(0)
        right = threading.Lock()

        def wait(number: int) -> None:
            waiting.release()
            status, handle = self._handles.getCompletedId(number)
            _good(status)
            _good(self._handles.putCompleted(handle))
            with right:
                self._right += 1

        for number in range(CROWD):
            _good(self._handles.submit(self._vector, number))
        self._threads = [threading.Thread(target=wait, args=(number,)) for number in range(CROWD)]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            waiting.acquire()
        _wait_for_quiet()

    def dismiss(self) -> None:
        """Let the inferences end; every thread receives its own."""
        self._control.release()
        for thread in self._threads:
            thread.join()
        if self._right != CROWD:
            raise SystemExit(f"{CROWD - self._right} of {CROWD} waiting threads lost their inference")


def crowded(folder: str, name: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measure a worker alone and next to waiting threads, in inferences per second (in a worker)."""
    from .harness import sessions
    from .harness.timing import REST_S

    threading.stack_size(_CROWD_STACK)
    crowd = _Crowd(_container("tiny", folder, aic_num_cores=1)[1])
    model = models.load(name, Path(folder))
    session = sessions.ours(model, aic_num_cores=1)

    def rate() -> float:
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            session.run(model.feeds)
            count += 1
        return count / (time.perf_counter() - started)

    results: dict[str, list[float]] = {_ALONE: [], _BESIDE: []}
    for turn in range(rounds + 1):
        time.sleep(REST_S)
        alone = rate()
        crowd.gather()
        beside = rate()
        crowd.dismiss()
        if turn:  # the first round is a warm-up
            results[_ALONE].append(alone)
            results[_BESIDE].append(beside)
    return results


def in_flight_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `in flight`."""
    repeats: dict[str, object] = {"batches": effort.batches, "seconds": effort.batch_s}
    measured = measure("tiny_batches", folder=folder, **repeats)
    ours = measured.pop(_OURS)
    spread = Spread.of(ours, "s")
    title = f"tiny model, one Python thread, batches of {BATCH}, per inference"
    yield Row(title, spread, budget=f"<= {_LIMIT_S * 1e6:g} µs", met=spread.median <= _LIMIT_S)
    if measured:
        spreads = {key: Spread.of(values, "s") for key, values in measured.items()}
        best = min(measured, key=lambda key: spreads[key].median)
        # A rate is the inverse of a time, so their ratio is inverted.
        ratio = ratios(measured[best], ours)
        title += ", compared with OpenVINO"
        yield Row(title, spread, tuple(spreads.items()), **at_least(ratio, _TIMES_OPENVINO))
    sides = measure("one_by_one", folder=folder, **repeats)
    small, large = (f"{side} x {side}" for side in _SIDES)
    ours, beside = (sides[str(side)] for side in reversed(_SIDES))
    yield Row(
        f"tiny model, one at a time, {large} handles, compared with {small}",
        Spread.of(ours, "s"),
        ((small, Spread.of(beside, "s")),),
        **at_most(ratios(ours, beside), 1.1),
    )
    for name in models.NAMES[:2]:
        rates = measure(
            "crowded", folder=folder, name=name, rounds=effort.batches, seconds=effort.throughput_s
        )
        yield Row(
            f"{models.TITLES[name]}, `run` while {CROWD:,} threads wait in `getCompletedId`",
            Spread.of(rates[_BESIDE], "/s"),
            (("no thread waits", Spread.of(rates[_ALONE], "/s")),),
            **at_least(ratios(rates[_BESIDE], rates[_ALONE]), 0.9),
        )
