"""Latencies in JSON files of ``openqaic bench``, ``qaic-runner --json`` and ``Session.get_metrics``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from qaic.errors import InputError
from qaic.page.latency import Distribution
from qaic.report import Cell, Report, Table, columns_of
from qaic.support.open_regular import read_regular
from qaic.support.text import counted, format_value

#: larger files are not read into memory
_LARGEST_BYTES: Final = 64 << 20
_LARGEST: Final = 1e300
#: names that begin a file of each kind
_MARKS: Final = (b'"samples_us"', b'"avg_latency"')
_COLUMNS: Final = columns_of(
    "measurement | inferences per second:float | count:int | min:float us | P50:float us | P90:float us | "
    "P99:float us | max:float us"
)


@dataclass(frozen=True)
class Results:
    """Latencies of measurements by their names, and a report that compares them."""

    latencies: Mapping[str, Distribution]
    reports: tuple[Report, ...] = ()


def read_results(path: Path, head: bytes) -> Results | None:
    """Read a file that begins with `head`; None if it has other content. Blocking.

    Raises InputError if a value is missing or wrong.
    """
    if not any(mark in head for mark in _MARKS) or path.stat().st_size > _LARGEST_BYTES:
        return None
    try:
        value = json.loads(read_regular(path, _LARGEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise _foreign(path, f"other text ({error})") from error
    if not isinstance(value, dict) or "traceEvents" in value:
        return None
    if "avg_latency" in value:
        return Results({"": Distribution.of_metrics(value)})
    try:
        return _results(value.get("measurements", [value]))
    except InputError:
        raise
    except KeyError as error:
        raise _foreign(path, f"no {error}") from error
    except (TypeError, ValueError) as error:
        raise _foreign(path, "other values") from error


def _foreign(path: Path, found: str) -> InputError:
    return InputError(
        f"{path}: found {found}, expected the result of openqaic bench, qaic-runner or get_metrics()",
        code="plot.result",
    )


def _results(items: list[dict[str, Any]]) -> Results:
    """Read the measurements of a file. Raises InputError, KeyError, TypeError or ValueError for others."""
    latencies: dict[str, Distribution] = {}
    rows: list[tuple[Cell, ...]] = []
    for number, item in enumerate(items, 1):
        name = _name(item)
        if name in latencies:
            name += f" ({number})"
        samples_us = item["latency"]["samples_us"]
        rate = item["inferences_per_s"] if "runtime" in item else item["inferences_per_second"]
        wrong = [value for value in (*samples_us, rate) if not _is_amount(value)]
        if wrong:
            raise InputError(
                f"{name}: found {format_value(wrong[0])}, expected a number of at least 0", code="plot.result"
            )
        one = latencies[name] = Distribution.of(np.array(samples_us) / 1e6, what="inference")
        known = [1e6 * one.percentiles[rank] for rank in ("P50", "P90", "P99")]
        rows.append((name, float(rate), one.count, 1e6 * one.minimum, *known, 1e6 * one.maximum))
    table = Table("measurements", "Rates and latencies", _COLUMNS, rows)
    return Results(latencies, (Report("measurements", "Measurements", [], [table]),))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _name(item: dict[str, Any]) -> str:
    """Return the name of a measurement, of `openqaic bench` or of `qaic-runner`."""
    if "runtime" in item:
        return f"{item['runtime']}, {counted(item['streams'], 'stream')}"
    return f"{counted(item['activations'], 'activation')}, {item['in_flight']} in flight"
