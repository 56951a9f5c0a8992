"""Layers of the model: nodes whose paths differ only in a number, as ``/layers.3`` and ``/layers.4``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from qaic.stats.reports.capture.op_info import Coded
from qaic.stats.reports.operations.nodes import split_by
from qaic.stats.reports.render.table import Column, Report, Table
from qaic.support.text import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import OpInfo
    from qaic.stats.reports.render.table import Cell

OUTSIDE: Final = "(outside of layers)"
#: a number that ends a part of a path, as in `layers.3`, `h_11`, `block4` or a part `7` of its own
_NUMBERED: Final = re.compile(r"(?<![0-9])([0-9]{1,6})(?=$|[/.])")

_FAMILY = (
    Column("family"),
    Column("layers", kind="int"),
    Column("time", "us", "float"),
    Column("share", kind="percent"),
    Column("median layer", "us", "float"),
    Column("fastest", "us", "float"),
    Column("slowest", "us", "float"),
    Column("slowest layer"),
)


def layers(capture: Capture) -> Report:
    """Time by layer, and families of layers with their median and slowest member."""
    every = [path for readers in capture.by_device() for path in readers[0].facts.nodes.values]
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
            f" {duration(float(first[4] or 0))} each in the median"
        )
    elif table.rows:
        verdict.append("no part of the nodes' paths repeats with numbers, so there are no layers to compare")
    return Report("layers", "Layers", verdict, [families, table])


def layer_names(paths: Iterable[str]) -> dict[str, str]:
    """Layer of each path: up to the first number that others have too, with another value."""
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
    """Family, number and layer for each number in a path that more follows."""
    # Several nodes made one: the first decides.
    path = path.split(" + ", maxsplit=1)[0]
    for match in _NUMBERED.finditer(path):
        if match.end() < len(path):
            yield f"{path[: match.start()]}*", match.group(1), path[: match.end()]


def family_of(layer: str) -> str:
    """Family of a layer."""
    return re.sub(r"[0-9]+$", "*", layer)


def _families(table: Table) -> Table:
    places = [column.name for column in table.columns]
    time, part = places.index("time"), places.index("share")
    members: dict[str, list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        if row[0] != OUTSIDE:
            members.setdefault(family_of(str(row[0])), []).append(row)
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
