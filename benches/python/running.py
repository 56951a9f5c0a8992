"""Latency of a call and throughput of many calls, compared with onnxruntime."""

from __future__ import annotations

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
    from typing import Any

    from numpy.typing import NDArray

    import qaic

    from .harness.effort import Effort

_OURS, _OUT, _THEIRS, _BOUND = "ours", "ours, out=", "onnxruntime", "onnxruntime, pre-bound"
_MAP = "map"


def latency(folder: str, name: str, threads: int, batches: int, seconds: float) -> dict[str, list[float]]:
    """Measure calls of both sides from one thread (in a worker)."""
    from .harness import sessions
    from .harness.timing import in_turns

    model = models.load(name, Path(folder))
    ours, theirs = sessions.ours(model, aic_num_cores=threads), sessions.theirs(model, threads)
    sessions.check_equal(ours, theirs, model)
    out = {key: np.empty_like(value) for key, value in ours.run(model.feeds).items()}
    bound = theirs.io_binding()
    for key, value in model.feeds.items():
        bound.bind_cpu_input(key, value)
    keep = [np.empty_like(value) for value in out.values()]
    for (key, value), memory in zip(out.items(), keep, strict=True):
        bound.bind_output(key, "cpu", 0, value.dtype, value.shape, memory.ctypes.data)
    subjects = {
        _OURS: partial(ours.run, model.feeds),
        _THEIRS: partial(theirs.run, None, model.feeds),
        _OUT: partial(ours.run, model.feeds, out=out),
        _BOUND: partial(theirs.run_with_iobinding, bound),
    }
    return in_turns(subjects, batches, seconds)


def latency_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `run`."""
    for name in models.NAMES:
        for threads in (1,) if name == "tiny" else (1, 2):
            measured = measure(
                "latency",
                folder=folder,
                name=name,
                threads=threads,
                batches=effort.batches,
                seconds=effort.batch_s,
            )
            limit = 0.45 if name == "tiny" else 1.0
            title = f"{models.TITLES[name]}, {threads} thread{'s' if threads > 1 else ''}"
            ratio = ratios(measured[_OURS], measured[_THEIRS])
            beside = (("run", Spread.of(measured[_THEIRS], "s")),)
            yield Row(title, Spread.of(measured[_OURS], "s"), beside, **at_most(ratio, limit))
            beside = (("pre-bound IOBinding", Spread.of(measured[_BOUND], "s")),)
            ratio = ratios(measured[_OUT], measured[_BOUND])
            yield Row(f"{title}, out=", Spread.of(measured[_OUT], "s"), beside, ratio)


def throughput(folder: str, name: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measure inferences per second on all cores of this machine (in a worker)."""
    from .harness import sessions
    from .harness.timing import REST_S

    model = models.load(name, Path(folder))
    ours = sessions.ours(model, aic_num_cores=1, num_activations=2, set_size=2)
    narrow, wide = sessions.theirs(model, 1), sessions.theirs(model, 2)
    sessions.check_equal(ours, narrow, model)
    subjects: dict[str, Callable[[], float]] = {
        _MAP: lambda: _mapped(ours, model, seconds),
        _OURS: lambda: ours.run_benchmark(inf_time=seconds, input_dict=model.feeds)[1],
        "2 threads call, intra_op 1": lambda: _rate(partial(narrow.run, None, model.feeds), 2, seconds),
        "1 thread calls, intra_op 2": lambda: _rate(partial(wide.run, None, model.feeds), 1, seconds),
        "2 threads call, intra_op 2": lambda: _rate(partial(wide.run, None, model.feeds), 2, seconds),
    }
    subjects |= _openvino(model, seconds)
    results: dict[str, list[float]] = {key: [] for key in subjects}
    for turn in range(rounds + 1):
        for key, rate in subjects.items():
            value = rate()
            if turn:  # the first round is a warm-up
                results[key].append(value)
            time.sleep(REST_S)
    return results


def _mapped(session: qaic.Session, model: models.Model, seconds: float) -> float:
    """Count results of a map over inputs that end with the time."""
    started = time.perf_counter()

    def inputs() -> Iterator[dict[str, NDArray[Any]]]:
        while time.perf_counter() - started < seconds:
            yield model.feeds

    count = sum(1 for _ in session.map(inputs()))
    return count / (time.perf_counter() - started)


def _rate(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Count calls of `threads` threads until the time is over, including those in progress at the end."""
    counts = [0] * threads
    started = time.perf_counter()

    def work(index: int) -> None:
        while time.perf_counter() - started < seconds:
            call()
            counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def _openvino(model: models.Model, seconds: float) -> dict[str, Callable[[], float]]:
    """Return OpenVINO's queue of requests with the same precision, if OpenVINO is installed."""
    try:
        import openvino
    except ImportError:
        return {}
    core = openvino.Core()
    loaded = core.read_model(model.path)
    loaded.reshape({key: list(value.shape) for key, value in model.feeds.items()})
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    queue = openvino.AsyncInferQueue(core.compile_model(loaded, "CPU", hints))

    def rate() -> float:
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            queue.start_async(model.feeds)
            count += 1
        queue.wait_all()
        return count / (time.perf_counter() - started)

    return {"OpenVINO AsyncInferQueue, f32": rate}


def throughput_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `throughput`."""
    for name in models.NAMES[1:]:
        measured = measure(
            "throughput", folder=folder, name=name, rounds=effort.batches, seconds=effort.throughput_s
        )
        ours, mapped = measured.pop(_OURS), measured.pop(_MAP)
        spreads = {key: Spread.of(values, "/s") for key, values in measured.items()}
        rivals = [key for key in measured if not key.startswith("OpenVINO")]
        best = max(rivals, key=lambda key: spreads[key].median)
        ratio = ratios(ours, measured[best])
        title = models.TITLES[name]
        yield Row(title, Spread.of(ours, "/s"), tuple(spreads.items()), **at_least(ratio, 1.0))
        ratio = ratios(mapped, measured[best])
        beside = ((best, spreads[best]),)
        yield Row(f"{title}, `Session.map`", Spread.of(mapped, "/s"), beside, **at_least(ratio, 1.0))
