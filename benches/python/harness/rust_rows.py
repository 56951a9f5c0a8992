"""Rows from the Rust benchmarks: opening, running and converting without Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .row import Row, at_most
from .spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .criterion import Figure
    from .effort import Effort

_SIZES = ("64 KiB", "1 MiB", "64 MiB")
_MIB = 1 << 20
#: Groups of the bench `quant`.
_NUMBERS, _CALIBRATIONS = "numbers, per byte of f32", "calibrate 512 bins"
#: GB/s at 1 MiB.
_RATE_LIMITS = {"float32 to float16": 30, "quantize int8": 80}
#: Budget of a run with three bindings, in addition to the bare call of the engine.
_OVER_BARE_S = 0.8e-6 + 3 * 0.08e-6
#: Budgets of an inference on a card, in addition to the system calls, and of each of its bindings.
_CARD_S, _PER_BINDING_S = 0.4e-6, 40e-9
_SUBMIT_AND_COLLECT_S = 150e-9
_OPEN_FIXED_S, _OPEN_PER_BINDING_S = 40e-6, 0.5e-6


def open_rows(groups: dict[str, list[Figure]]) -> Iterator[Row]:
    """Opening, by the number of bindings."""
    figures = groups["open"]
    named = {figure.function: figure.time for figure in figures}
    beside = {
        "small": (("read the file", named["read the small file"]),),
        "large": (
            ("map the file, touch 1 byte", named["map the 1 GiB file, touch 1 byte"]),
            ("read the file", named["read the 1 GiB file"]),
        ),
    }
    for figure in figures:
        if figure.function == "small file, 2 bindings":
            yield _open_row("small file, 2 bindings", figure, 2, beside["small"])
        elif figure.value:
            count = int(figure.value)
            yield _open_row(f"1 GiB file, {count} bindings", figure, count, beside["large"])


def _open_row(what: str, figure: Figure, bindings: int, beside: tuple[tuple[str, Spread], ...]) -> Row:
    limit = _OPEN_FIXED_S + _OPEN_PER_BINDING_S * bindings
    return Row(
        f"Rust, with all mappings: {what}",
        figure.time,
        beside,
        budget=f"<= {limit * 1e6:.1f} µs",
        met=figure.time.median <= limit,
    )


def parts_table(groups: dict[str, list[Figure]]) -> tuple[list[str], list[list[str]]]:
    """Parts of opening, in memory."""
    return _by_value(groups["open, in memory"], "bindings")


def overhead_rows(groups: dict[str, list[Figure]]) -> Iterator[Row]:
    """Yield the cost of a run, compared with a direct engine call and with a run with fewer exec objects."""
    for name, figures in groups.items():
        if not name.startswith("run on cpu"):
            continue
        bare = next(figure.time for figure in figures if figure.function.startswith("bare"))
        for figure in figures:
            if figure.time is not bare:
                yield Row(
                    f"{name.removeprefix('run on ')}: {figure.function}",
                    figure.time,
                    (("bare engine call", bare),),
                    _quotient(figure.time, bare),
                    f"<= bare + {_OVER_BARE_S * 1e6:.2f} µs",
                    figure.time.median - bare.median <= _OVER_BARE_S,
                )
    sizes = {
        figure.value: figure.time
        for figure in groups["run on noop"]
        if figure.function == "activations x set_size"
    }
    flat = _quotient(sizes["16 x 16"], sizes["1 x 1"])
    beside = (("1 x 1", sizes["1 x 1"]),)
    yield Row("noop: 16 activations x set_size 16", sizes["16 x 16"], beside, **at_most(flat, 1.1))


def card_rows(groups: dict[str, list[Figure]]) -> Iterator[Row]:
    """Yield the cost of a run on a card in addition to the two system calls."""
    figures = {(figure.function, int(figure.value)): figure.time for figure in groups["run on kmd"]}
    for (function, inputs), ours in figures.items():
        if function == "inputs":
            bare = figures["bare calls", inputs]
            # Including the output.
            yield _card_row(f"a run of {inputs} inputs", ours, bare, _CARD_S + (inputs + 1) * _PER_BINDING_S)
    flying = {figure.function: figure for figure in groups["run on kmd, in flight"]}
    ours, bare = flying["submit and collect"], flying["bare calls"]
    count = int(ours.value)
    limit = count * (_CARD_S + 2 * _PER_BINDING_S)
    yield _card_row(f"{count} in flight, total time", ours.time, bare.time, limit)


def _card_row(what: str, ours: Spread, bare: Spread, limit: float) -> Row:
    return Row(
        what,
        ours,
        (("bare calls", bare),),
        _quotient(ours, bare),
        f"<= bare + {limit * 1e6:.2f} µs",
        ours.median - bare.median <= limit,
    )


def _quotient(ours: Spread, other: Spread) -> Spread:
    """Divide medians; the ends are the extremes of the ranges, because the two sides did not run in turns."""
    return Spread(ours.median / other.median, ours.low / other.high, ours.high / other.low, "x")


_QUEUES_ONE, _QUEUES_TWO = "queues, one thread", "queues, between two threads, per item"
_IN_FLIGHT = "submit and collect on noop"
_YARDSTICK = "crossbeam ArrayQueue"
_PROFILED = "an inference on noop, profiled"
_PROFILE_S = 200e-9


def queue_rows(groups: dict[str, list[Figure]]) -> Iterator[Row]:
    """The ring compared with crossbeam's, and an inference submitted and collected."""
    one = {figure.function: figure.time for figure in groups[_QUEUES_ONE]}
    two = {figure.function: figure.time for figure in groups[_QUEUES_TWO]}
    step = "push and pop"
    for what, ours, theirs in (
        (f"ring: {step}", one[f"ring: {step}"], one[f"{_YARDSTICK}: {step}"]),
        ("ring: between two threads, per item", two["ring"], two[_YARDSTICK]),
    ):
        yield Row(what, ours, ((_YARDSTICK, theirs),), **at_most(_quotient(ours, theirs), 1.3))
    sets = {(figure.function, figure.value): figure.time for figure in groups[_IN_FLIGHT]}
    for function in ("one at a time", "one at a time, by id"):
        small, large = sets[function, "1 x 1"], sets[function, "16 x 16"]
        yield Row(
            f"submit and collect, {function}",
            small,
            ((f"{_YARDSTICK}: {step}", one[f"{_YARDSTICK}: {step}"]),),
            budget=f"<= {_SUBMIT_AND_COLLECT_S * 1e9:.0f} ns",
            met=small.median <= _SUBMIT_AND_COLLECT_S,
        )
        flat = _quotient(large, small)
        yield Row(
            f"submit and collect, {function}, 16 x 16", large, (("1 x 1", small),), **at_most(flat, 1.1)
        )
    profiled = {figure.function: figure.time for figure in groups[_PROFILED]}
    without = profiled["not at all"]
    yield Row(
        "submit and collect, profiled for latencies",
        profiled["latency"],
        (("not profiled", without),),
        budget=f"<= {_PROFILE_S * 1e9:.0f} ns more",
        met=profiled["latency"].median - without.median <= _PROFILE_S,
    )


def queues_table(groups: dict[str, list[Figure]]) -> tuple[list[str], list[list[str]]]:
    """All figures of the bench `queue`."""
    rows = [
        [f"{name}: {figure.function}{figure.value and ', '}{figure.value}", str(figure.time)]
        for name in (_QUEUES_ONE, _QUEUES_TWO, _IN_FLIGHT, _PROFILED)
        for figure in groups[name]
    ]
    return ["queues", "time"], rows


def noop_table(groups: dict[str, list[Figure]]) -> tuple[list[str], list[list[str]]]:
    """Cost of a run on `noop`."""
    rows = [[f"{figure.function}: {figure.value}", str(figure.time)] for figure in groups["run on noop"]]
    return ["run on `noop`", "time"], rows


def _by_value(figures: list[Figure], what: str) -> tuple[list[str], list[list[str]]]:
    functions = list(dict.fromkeys(figure.function for figure in figures))
    times = {(figure.function, figure.value): str(figure.time) for figure in figures}
    values = sorted({figure.value for figure in figures}, key=int)
    return [what, *functions], [
        [value, *(times[function, value] for function in functions)] for value in values
    ]


def convert_rows(groups: dict[str, list[Figure]], numpy: dict[str, list[float]]) -> Iterator[Row]:
    """Conversions with a budget."""
    copy = _best(groups["copy"], "1 MiB")
    for name, limit in _RATE_LIMITS.items():
        best = _best(groups[name], "1 MiB")
        yield Row(
            f"{name}, 1 MiB, {best.function}",
            best.rate,
            (
                ("numpy", Spread.of(numpy[name], "s").inverted(_MIB, "B/s")),
                ("memory copy", copy.rate),
            ),
            budget=f">= {limit} GB/s",
            met=best.rate.median >= limit * 1e9,
        )


def convert_table(groups: dict[str, list[Figure]]) -> tuple[list[str], list[list[str]]]:
    """All conversions with the fastest kernel family of each, by size."""
    rows = []
    for name, figures in groups.items():
        if not all(figure.bytes and figure.value in _SIZES for figure in figures):
            continue
        best = [_best(figures, size) for size in _SIZES]
        rows.append([name, best[1].function, *(str(figure.rate) for figure in best)])
    return ["conversion", "kernels", *_SIZES], rows


def number_rows(groups: dict[str, list[Figure]]) -> Iterator[Row]:
    """Reduced precision on one thread, per byte of float32."""
    for figure in groups[_NUMBERS]:
        limit = 2 if "quantize" in figure.function else 1
        yield Row(
            figure.function,
            figure.rate,
            budget=f">= {limit} GB/s",
            met=figure.rate.median >= limit * 1e9,
        )


def calibration_table(groups: dict[str, list[Figure]]) -> tuple[list[str], list[list[str]]]:
    """Return the cost of selecting a range for one tensor."""
    return ["range of a tensor, 512 bins", "time"], [
        [figure.function, str(figure.time)] for figure in groups[_CALIBRATIONS]
    ]


def _best(figures: list[Figure], size: str) -> Figure:
    return min((figure for figure in figures if figure.value == size), key=lambda figure: figure.time.median)


def numpy_conversions(batches: int, seconds: float) -> dict[str, list[float]]:
    """Convert 1 MiB of float32 with numpy into existing memory (in a worker)."""
    from .timing import in_turns

    source = np.linspace(-6, 6, _MIB // 4, dtype=np.float32)
    half, scratch, result = source.astype(np.float16), np.empty_like(source), np.empty(source.size, np.int8)

    def quantize() -> None:
        np.divide(source, np.float32(0.05), out=scratch)
        np.rint(scratch, out=scratch)
        np.clip(scratch, -128, 127, out=scratch)
        np.copyto(result, scratch, casting="unsafe")

    convert = partial(np.copyto, half, source, casting="same_kind")
    return in_turns({"float32 to float16": convert, "quantize int8": quantize}, batches, seconds)


def measure_numpy(effort: Effort) -> dict[str, list[float]]:
    """Run :func:`numpy_conversions` in a separate process."""
    from .worker import measure

    measured: dict[str, list[float]] = measure(
        "numpy_conversions", batches=effort.batches, seconds=effort.batch_s
    )
    return measured
