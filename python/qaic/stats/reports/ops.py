"""Kinds of operations, nodes and layers of a model by time, over all cores and devices."""

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qaic.report import NOT_MEASURED, Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums, spreads
from qaic.stats.reports.capture.op_info import CATEGORIES, Coded, OpInfo
from qaic.stats.reports.capture.trace_reader import TraceReader
from qaic.stats.reports.time.overhead import marked
from qaic.support.text import duration

#: kinds of nodes that a sentence names
_SERVED: Final = 3


def ops(capture: Capture) -> Report:
    """Report the time by kind, engine, memory and types of the operands, and by category."""
    capture = capture.typical

    def key(facts: OpInfo) -> Coded:
        return Coded.joined(facts.kinds, facts.engines, facts.memories, facts.types, facts.categories)

    sums = Sums(capture, key)
    columns, rows = sums.rows(
        "kind | engine | memory | types | category | count | time | share | PCycles | output | time per KB"
    )
    note = (
        None
        if rows
        else f"operations: {NOT_MEASURED}, or the program was compiled with a stats level below 70"
    )
    table = marked(capture, Table("kinds", "Kinds", columns, rows, note))
    verdict = []
    if rows:
        first, part, total = rows[0][0], table.column("share")[0] or 0.0, duration(sums.total())
        verdict = [f"{first} takes {part:.1f} % of the {total} that operations took"]
        by_node = Sums(capture, lambda facts: Coded.joined(facts.kinds, facts.node_kinds)).of()
        served = {node: time for (kind, node), time in by_node.items() if kind == first != node}
        if served:
            named = [
                f"{node} {duration(served[node])}" for node in sorted(served, key=lambda node: -served[node])
            ]
            verdict[0] += f"; it converts operands and results of {', '.join(named[:_SERVED])}"
    return Report("ops", "Operations by kind", verdict, [table])


_RANGE: Final = tuple(Column(name, "us", "float") for name in ("median", "min", "max"))
NO_OPERATIONS = f"operations: {NOT_MEASURED}, or the stats level is below 70"


def nodes(capture: Capture) -> Report:
    """Report the time by node of the user's model, split into categories."""
    table = split_by(capture, lambda facts: facts.nodes, "node")
    verdict = []
    ordinary = spreads(capture, lambda facts: facts.nodes)
    first = next((row for row in table.rows if ordinary[row[0]].holds(float(row[2] or 0))), None)
    if first is not None:
        verdict = [f"{first[0]} takes {first[3] or 0:.1f} % of the time of all operations"]
    return Report("nodes", "Nodes of the model", verdict, [table])


def split_by(capture: Capture, key: Callable[[OpInfo], Coded], name: str) -> Table:
    """Return the time by a column of texts, with a column for each category that occurs.

    The times are those of the typical inference. The median and range over all inferences follow them.
    """
    several = len(capture.samples) > 1
    ordinary = spreads(capture, key)
    capture = capture.typical
    sums = Sums(capture, key)
    of_category = Sums(capture, lambda facts: Coded.joined(key(facts), facts.categories)).of()
    occurring = {category for _, category in of_category}
    present = [category for category in CATEGORIES if category in occurring]
    spans, waited = wall_spans_us(capture, key), sums.of("sync")
    synced = bool(sums.total("synced"))
    columns, found = sums.rows(f"{name} | count | time | share | output")
    rows: list[tuple[Cell, ...]] = []
    for text, count, time, part, size in found:
        span = spans.get(str(text))
        rows.append(
            (
                *(text, count, time, part),
                *(astuple(ordinary[text]) if several else ()),
                span,
                float(time or 0) / span if span else None,
                waited[text] if synced else None,
                size,
                *(of_category.get((text, category), 0.0) for category in present),
            )
        )
    columns = (
        *columns[:-1],
        *(_RANGE if several else ()),
        *columns_of("wall span:float us | work per span:float | waited:float us"),
        columns[-1],
        *(Column(category, "us", "float") for category in present),
    )
    note = None if rows else NO_OPERATIONS
    return marked(capture, Table(f"{name}s", f"{name.capitalize()}s", columns, rows, note))


def wall_spans_us(capture: Capture, key: Callable[[OpInfo], Coded]) -> dict[str, float]:
    """Return the time from the first start to the last end for each key; the longest of the devices."""
    spans: dict[str, float] = {}
    for reader in capture.each():
        coded = key(reader.facts)
        for text, span in zip(coded.values, _spans(coded, reader), strict=True):
            spans[text] = max(spans.get(text, 0.0), float(span))
    return spans


def _spans(coded: Coded, reader: TraceReader) -> NDArray[np.float64]:
    first = np.full(len(coded.values), np.inf)
    last = np.full(len(coded.values), -np.inf)
    np.minimum.at(first, coded.codes, reader.ops.first_u)
    np.maximum.at(last, coded.codes, reader.ops.last_u)
    ran = np.isfinite(first) & np.isfinite(last)
    spans = np.zeros(len(first))
    spans[ran] = (last[ran] - first[ran]) * (1e6 / reader.hz)
    return spans


OUTSIDE: Final = "(outside layers)"
#: a number at the end of a part of a path, as in `layers.3`, `h_11`, `block4`, or the part `7`
_NUMBERED: Final = re.compile(r"(?<![0-9])([0-9]{1,6})(?=$|[/.])")

_FAMILY = columns_of(
    "family | layers:int | time:float us | share:percent | median layer:float us | fastest:float us | "
    "slowest:float us | slowest layer"
)


def layers(capture: Capture) -> Report:
    """Report the time by layer, and families of layers with their median and slowest layer."""
    every = [path for reader in capture.each() for path in reader.facts.nodes.values]
    known = layer_names(every)

    def key(facts: OpInfo) -> Coded:
        names = Coded.of(known[path] for path in facts.nodes.values)
        return Coded(names.codes[facts.nodes.codes], names.values)

    table = split_by(capture, key, "layer")
    families = _families(table)
    verdict = []
    if families.rows:
        first = families.rows[0]
        verdict.append(
            f"{first[1]} layers {first[0]} take {float(first[3] or 0):.1f} % of the time of all operations,"
            f" with a median of {duration(float(first[4] or 0))} each"
        )
    elif table.rows:
        verdict.append("no part of the node paths repeats with numbers, so there are no layers to compare")
    return Report("layers", "Layers", verdict, [families, table])


def layer_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the layer of each path: the path up to the first number that differs in other paths."""
    distinct = sorted(set(paths))
    prefixes = {path: list(_prefixes(path)) for path in distinct}
    numbers: dict[str, set[str]] = {}
    for found in prefixes.values():
        for family, number, _ in found:
            numbers.setdefault(family, set()).add(number)
    return {
        path: next((layer for family, _, layer in found if len(numbers[family]) > 1), OUTSIDE)
        for path, found in prefixes.items()
    }


def _prefixes(path: str) -> Iterable[tuple[str, str, str]]:
    """Yield family, number and layer for each number in a path except at its end."""
    # If several nodes were fused, the first one decides.
    path = path.split(" + ", maxsplit=1)[0]
    for match in _NUMBERED.finditer(path):
        if match.end() < len(path):
            yield f"{path[: match.start()]}*", match.group(1), path[: match.end()]


def _families(table: Table) -> Table:
    places = [column.name for column in table.columns]
    time, part = places.index("time"), places.index("share")
    members: dict[str, list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        if row[0] != OUTSIDE:
            members.setdefault(re.sub(r"[0-9]+$", "*", str(row[0])), []).append(row)
    rows: list[tuple[Cell, ...]] = []
    for family, layers_of in members.items():
        times = np.array([row[time] for row in layers_of], np.float64)
        slowest = layers_of[int(times.argmax())]
        rows.append(
            (
                family,
                len(layers_of),
                float(times.sum()),
                sum(float(row[part] or 0) for row in layers_of),
                float(np.median(times)),
                float(times.min()),
                float(times.max()),
                slowest[0],
            )
        )
    rows.sort(key=lambda row: (-float(row[2] or 0), str(row[0])))
    return Table("families", "Families of layers", _FAMILY, rows)
