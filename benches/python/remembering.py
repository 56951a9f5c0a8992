"""Memory: what opening, activating and running leave in the process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from . import models
from .opening import LARGE
from .row import Row, at_most
from .spread import Spread, ratios
from .worker import measure, status_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .effort import Effort

_OPEN_LIMIT, _LEAK_LIMIT, _ACTIVATIONS, _ACTIVATIONS_LIMIT = 5e6, 1e6, 8, 1.3


def open_memory(folder: str, how: str) -> int:
    """Return the growth by opening the large container (in a worker); all code has run before."""
    import qaic
    from qaic import _core

    opens: Callable[[Path], object] = _core.Qpc if how == "Qpc" else qaic.Session
    small = opens(Path(folder, "tiny-program", "programqpc.bin"))
    before = status_bytes("VmRSS")
    large = opens(Path(folder, LARGE))
    growth = status_bytes("VmRSS") - before
    del small, large
    return growth


def activation_memory(folder: str, name: str, activations: int) -> int:
    """Return what a loaded program takes after all its activations ran at the same time (in a worker)."""
    import qaic

    tiny = models.load("tiny", Path(folder))
    with qaic.Session(tiny.path) as session:
        session.run(tiny.feeds)
    model = models.load(name, Path(folder))
    path = Path(folder, f"{name}-program", "programqpc.bin")
    before = status_bytes("VmRSS")
    session = qaic.Session(path, num_activations=activations, set_size=1)
    session.setup()
    together = threading.Barrier(activations)

    def work() -> None:
        together.wait()
        for _ in range(3):
            session.run(model.feeds)

    workers = [threading.Thread(target=work) for _ in range(activations)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return status_bytes("VmRSS") - before


def run_growth(folder: str, name: str, runs: int) -> int:
    """Return the growth by many runs, after a tenth of them to warm up (in a worker)."""
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
        sides: dict[int, list[float]] = {1: [], _ACTIVATIONS: []}
        for _ in range(effort.processes):
            for count, values in sides.items():
                values.append(measure("activation_memory", folder=folder, name=name, activations=count))
        ratio = ratios(sides[_ACTIVATIONS], sides[1])
        yield Row(
            f"{_ACTIVATIONS} activations of {models.TITLES[name]}, all run at once",
            Spread.of(sides[_ACTIVATIONS], "B"),
            (("1 activation", Spread.of(sides[1], "B")),),
            **at_most(ratio, _ACTIVATIONS_LIMIT),
        )
    runs = {"tiny": effort.tiny_runs, "magika": effort.tiny_runs // 10 if effort.quick else effort.tiny_runs}
    for name, count in runs.items():
        growth = Spread.of([measure("run_growth", folder=folder, name=name, runs=count)], "B")
        title = f"growth by {count:,} runs of {models.TITLES[name]}"
        yield Row(title, growth, budget="< 1 MB", met=growth.median < _LEAK_LIMIT)
    times = 20 if effort.quick else 200
    growth = Spread.of([measure("reload_growth", folder=folder, times=times)], "B")
    yield Row(f"growth by {times} times open, load, run, release of Magika", growth)
