"""Memory: growth of a process after opening, activating and running."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import models
from .harness.row import Row, at_most
from .harness.spread import Spread, ratios
from .harness.worker import measure, status_bytes
from .opening import LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .harness.effort import Effort

_OPEN_LIMIT, _LEAK_LIMIT, _ACTIVATIONS, _ACTIVATIONS_LIMIT = 5e6, 1e6, 8, 1.3


def open_memory(folder: str, how: str) -> int:
    """Return the growth by opening the large container (in a worker); all code ran before."""
    import qaic
    from qaic import _core

    opens: Callable[[Path], object] = _core.Qpc if how == "Qpc" else qaic.Session
    small = opens(Path(folder, "tiny-program", "programqpc.bin"))
    before = status_bytes("VmRSS")
    large = opens(Path(folder, LARGE))
    growth = status_bytes("VmRSS") - before
    del small, large
    return growth


def activation_memory(folder: str, name: str, activations: int, *, together: bool) -> int:
    """Return the memory of a loaded program after its activations ran (in a worker).

    The activations run one after another, or all at the same time.
    """
    import qaic

    tiny = models.load("tiny", Path(folder))
    with qaic.Session(tiny.path) as session:
        session.run(tiny.feeds)
    model = models.load(name, Path(folder))
    path = Path(folder, f"{name}-program", "programqpc.bin")
    before = status_bytes("VmRSS")
    session = qaic.Session(path, num_activations=activations, set_size=1)
    session.setup()
    _call(partial(session.run, model.feeds), activations, together=together)
    return status_bytes("VmRSS") - before


def onnxruntime_memory(folder: str, name: str, threads: int) -> int:
    """Return the memory of onnxruntime's session after `threads` threads used it at once (in a worker)."""
    from .harness import sessions

    tiny = models.load("tiny", Path(folder))
    sessions.theirs(tiny, 1).run(None, tiny.feeds)
    model = models.load(name, Path(folder))
    before = status_bytes("VmRSS")
    session = sessions.theirs(model, 1)
    _call(partial(session.run, None, model.feeds), threads, together=True)
    return status_bytes("VmRSS") - before


def _call(call: Callable[[], object], threads: int, *, together: bool) -> None:
    barrier = threading.Barrier(threads)

    def work() -> None:
        if together:
            barrier.wait()
        for _ in range(3):
            call()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
        if not together:
            worker.join()
    for worker in workers:
        worker.join()


def run_growth(folder: str, name: str, runs: int) -> int:
    """Return the growth by many runs, after a warm-up of a tenth of them (in a worker)."""
    import qaic

    model = models.load(name, Path(folder))
    session = qaic.Session(Path(folder, f"{name}-program", "programqpc.bin"))
    for _ in range(runs // 10):
        session.run(model.feeds)
    before = status_bytes("VmRSS")
    for _ in range(runs):
        session.run(model.feeds)
    return status_bytes("VmRSS") - before


def reload_growth(folder: str, times: int) -> int:
    """Return the growth by opening, loading, running and releasing many times (in a worker)."""
    import qaic

    model = models.load("magika", Path(folder))

    def once() -> None:
        with qaic.Session(Path(folder, "magika-program", "programqpc.bin")) as session:
            session.run(model.feeds)

    for _ in range(times // 2):
        once()
    before = status_bytes("VmRSS")
    for _ in range(times):
        once()
    return status_bytes("VmRSS") - before


def memory_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `memory`."""
    for name in models.NAMES:
        measure("compiled", folder=folder, name=name)
    for how in ("Qpc", "Session"):
        values = [measure("open_memory", folder=folder, how=how) for _ in range(effort.processes)]
        growth = Spread.of(values, "B")
        yield Row(f"`{how}(path)` of 1 GiB", growth, budget="< 5 MB", met=growth.median < _OPEN_LIMIT)
    for name in models.NAMES[1:]:
        yield from _activation_rows(folder, name, effort)
    runs = {"tiny": effort.tiny_runs, "magika": effort.tiny_runs // 10 if effort.quick else effort.tiny_runs}
    for name, count in runs.items():
        growth = Spread.of([measure("run_growth", folder=folder, name=name, runs=count)], "B")
        title = f"growth after {count:,} runs of {models.TITLES[name]}"
        yield Row(title, growth, budget="< 1 MB", met=growth.median < _LEAK_LIMIT)
    times = 20 if effort.quick else 200
    growth = Spread.of([measure("reload_growth", folder=folder, times=times)], "B")
    yield Row(f"growth by {times} times open, load, run, release of Magika", growth)


def _activation_rows(folder: str, name: str, effort: Effort) -> Iterator[Row]:
    """One program with one and with many activations."""
    figures: dict[str, list[float]] = {"one": [], "in turn": [], "at once": [], "theirs": []}
    for _ in range(effort.processes):
        for key, count, together in (
            ("one", 1, False),
            ("in turn", _ACTIVATIONS, False),
            ("at once", _ACTIVATIONS, True),
        ):
            taken = measure(
                "activation_memory", folder=folder, name=name, activations=count, together=together
            )
            figures[key].append(taken)
        figures["theirs"].append(
            measure("onnxruntime_memory", folder=folder, name=name, threads=_ACTIVATIONS)
        )
    spreads = {key: Spread.of(values, "B") for key, values in figures.items()}
    title, one = f"{_ACTIVATIONS} activations of {models.TITLES[name]}", ("1 activation", spreads["one"])
    ratio = ratios(figures["in turn"], figures["one"])
    yield Row(
        f"{title}, run one after the other", spreads["in turn"], (one,), **at_most(ratio, _ACTIVATIONS_LIMIT)
    )
    theirs = (f"onnxruntime, {_ACTIVATIONS} threads at the same time", spreads["theirs"])
    yield Row(
        f"{title}, run at the same time",
        spreads["at once"],
        (one, theirs),
        ratios(figures["at once"], figures["one"]),
    )
