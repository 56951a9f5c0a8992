"""Advice about a profile: each rule names a hazard, its cause in this profile, and a remedy."""

from collections.abc import Callable, Iterator
from typing import Final

from qaic.report import Cell, Column, Prose, Table
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums, share, spreads
from qaic.stats.reports.capture.op_info import CONVERT, Coded, OpInfo
from qaic.stats.reports.time.bottleneck import Bottleneck
from qaic.support.text import duration

#: smallest percentages that are reported
_MUCH_CONVERTED: Final = 15.0
_ONE_NODE: Final = 25.0
_MUCH_OVERHEAD: Final = 30.0
_MOSTLY_FLOAT32: Final = 90.0

#: number of samples from which a long node is not a disturbance of one inference
_FEWEST_SAMPLES: Final = 3

NOT_KNOWN: Final = "unknown"
_COLUMNS: Final = (Column("hazard"), Column("reason"), Column("remedy"))
#: a share of the time, and a row of the table
_Advice = Iterator[tuple[float, tuple[Cell, ...]]]


def advice(capture: Capture, bottleneck: Bottleneck | None) -> Table:
    """Return the table of problems, reasons and remedies, the largest share of the time first."""
    found: list[tuple[float, tuple[Cell, ...]]] = []
    if bottleneck is None:
        if capture.samples:
            remedy = Prose("compile with stats_level=70, which measures operations")
            found.append((100.0, ("operations were not measured", "the stats level is below 70", remedy)))
    else:
        typical = capture.typical
        found += [*_converted(typical), *_one_node(capture), *_overhead(bottleneck), *_float32(typical)]
    found.sort(key=lambda pair: -pair[0])
    return Table("advice", "Advice", _COLUMNS, [row for _, row in found])


def _converted(capture: Capture) -> _Advice:
    sums = Sums(capture, lambda facts: Coded.joined(facts.categories, facts.kinds))
    total = sums.total()
    kinds = sorted(
        ((time, kind) for (category, kind), time in sums.of().items() if category == CONVERT), reverse=True
    )
    part = share(sum(time for time, _ in kinds), total)
    if part is None or part < _MUCH_CONVERTED:
        return
    named = ", ".join(f"{kind} {duration(time)}" for time, kind in kinds[:3])
    remedy = (
        "on the CPU device, these are layouts of the engine and rounding to the card's types; a card needs "
        "neither, so compare operations without them"
        if capture.is_cpu
        else Prose("give inputs and outputs the type and layout of the program: custom_io_list_file")
    )
    yield part, (f"{part:.0f} % of the work converts types and layouts", named, remedy)


def _one_node(capture: Capture) -> _Advice:
    if len(capture.samples) < _FEWEST_SAMPLES:
        return
    times = Sums(capture.typical, lambda facts: facts.nodes).of()
    ordinary = spreads(capture, lambda facts: facts.nodes)
    total = sum(times.values())
    candidates = [node for node in times if ordinary[node].holds(times[node])]
    first = max(candidates, key=times.__getitem__, default=None)
    if first is None or (part := share(times[first], total)) is None or part < _ONE_NODE or len(times) == 1:
        return
    yield (
        part,
        (
            f"one node takes {part:.0f} % of the work",
            f"{first}: {duration(times[first])}",
            "check its shape and precision first, and whether the model needs it",
        ),
    )


def _overhead(bottleneck: Bottleneck) -> _Advice:
    if bottleneck.overhead >= _MUCH_OVERHEAD:
        hazard = f"{bottleneck.overhead:.0f} % of the time no large operation runs"
        remedy = Prose("run several inferences at the same time: openqaic bench measures numbers of streams")
        yield bottleneck.overhead, (hazard, "operations are small, or wait for each other", remedy)


def _float32(capture: Capture) -> _Advice:
    if capture.is_cpu:
        # The engine computes in float32 for any precision of the card.
        return
    part = next((row[3] for row in types(capture).rows if row[0] == "float32"), None)
    if isinstance(part, float) and part >= _MOSTLY_FLOAT32:
        hazard = f"{part:.0f} % of the work computes in float32"
        remedy = Prose("compile with convert_to_fp16=True, and check the outputs with openqaic accuracy")
        # This share is lower than the share of any rule about a part of the time.
        yield 1.0, (hazard, "matrix units are faster in narrower types", remedy)


def precisions(capture: Capture) -> Table:
    """Return the time by precision on a card; no rows if the compiler does not record precisions."""
    table = _time_by(capture, lambda facts: facts.precisions, "precision")
    stated = [row for row in table.rows if row[0] != NOT_KNOWN]
    note = "of the results, as a card computes them; the CPU device computes float16 in float32 and rounds"
    return Table("precisions", "Precisions", table.columns, table.rows if stated else [], note)


def types(capture: Capture) -> Table:
    """Return the time by types of the operands."""
    table = _time_by(capture, lambda facts: facts.types, "types")
    return Table("types", "Types of the operands", table.columns, table.rows)


def _time_by(capture: Capture, key: Callable[[OpInfo], Coded], name: str) -> Table:
    columns, rows = Sums(capture, key).rows(f"{name} | count | time | share")
    return Table(name, name, columns, [(row[0] or NOT_KNOWN, *row[1:]) for row in rows])
