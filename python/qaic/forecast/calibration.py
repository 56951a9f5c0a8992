"""Measurements of a user: read from a file, and used to correct the forecasts of a model."""

import csv
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qaic.errors import InputError, StatsError
from qaic.forecast.configurations import Correction, Fixed
from qaic.forecast.operations import OperationTable
from qaic.forecast.speed import Card, Fitted, Settings, forecast, kind_of
from qaic.stats.reports.time.host_latency import HostLatencies
from qaic.support.open_regular import read_text
from qaic.support.text import format_value, nearest_name

#: columns of the settings, and of the measurements
_SETTINGS: Final = ("cores", "instances", "batch", "set_size")
_MEASURED: Final = ("inferences_per_s", "latency_ms")
#: prefixes of columns with another unit or meaning
_MEASURED_OTHERWISE: Final = ("inferences", "latency", "throughput")
_TOTAL: Final = "totalRoundtripTimeUs"
_LARGEST_BYTES: Final = 4 << 20
_LARGEST: Final = 1e9
#: columns that an error lists
_SHOWN: Final = 5
#: how many times more or fewer inferences a row may have in flight than its settings allow
_IN_FLIGHT: Final = 20.0


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured configurations of one model."""

    #: Configurations.
    settings: Settings
    #: Measured values; NaN for missing values.
    samples_per_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]


def read(path: str | os.PathLike[str], fixed: Fixed, card: Card) -> Measurements:
    """Read a file of measurements.

    The file is a table with a header, separated by commas: ``cores``, ``instances``, ``batch``, ``set_size``,
    and ``inferences_per_s`` (samples per second), ``latency_ms`` or both; other columns are ignored. Or it is
    a latency report of ``qaic-runner``, measured with the settings `fixed`. `card` is the card of the runs.
    Raises InputError if the file has other columns, no rows or impossible values, and OSError if the file
    cannot be read.
    """
    file = Path(path)
    try:
        text = read_text(file, _LARGEST_BYTES)
    except ValueError as error:
        raise _wrong(file, f"{error}, expected a CSV table of measured runs") from error
    if text.lstrip().startswith(("{", "[")):
        raise _wrong(file, "found JSON, expected a CSV table of measured runs")
    return _of_report(file, text, fixed) if _TOTAL in text else _of_table(file, text, card)


def _of_table(file: Path, text: str, card: Card) -> Measurements:
    reader = csv.DictReader(io.StringIO(text))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise _wrong(file, f"found {error}, expected a CSV table") from error
    columns = [name for name in reader.fieldnames or () if name is not None]
    missing = [name for name in _SETTINGS if name not in columns]
    if not missing and not set(_MEASURED) & set(columns):
        missing = list(_MEASURED)
    if missing:
        near = [(name, match) for name in missing if (match := nearest_name(name, columns, 0.5))]
        hint = "".join(f"; is {format_value(match)} meant for {name!r}?" for name, match in near)
        found = ", ".join(map(format_value, columns[:_SHOWN])) or "of an empty file"
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        raise _wrong(
            file, f"found the columns {found}{more}, expected also {', '.join(map(repr, missing))}{hint}"
        )
    foreign = [name for name in columns if name.startswith(_MEASURED_OTHERWISE) and name not in _MEASURED]
    if foreign:
        raise _wrong(
            file,
            f"found the column {format_value(foreign[0])}, expected {' and '.join(map(repr, _MEASURED))}: "
            "samples per second, and milliseconds",
        )
    if not rows:
        raise _wrong(file, "found no rows, expected one for each measured run")
    settings = Settings(*(_numbers(file, rows, name) for name in _SETTINGS))
    cores = settings.cores * settings.instances
    if (cores > card.cores).any():
        at = int(np.argmax(cores > card.cores))
        raise _wrong(
            file,
            f"line {at + 2}, cores x instances: found {settings.cores[at]:.0f} x "
            f"{settings.instances[at]:.0f}, expected at most {card.cores}, the cores of a device of the "
            f"{card.name} card",
        )
    speed, delay = (
        _numbers(file, rows, name, may_miss=True) if name in columns else np.full(len(rows), math.nan)
        for name in _MEASURED
    )
    _check_units(file, settings, speed, delay)
    return Measurements(settings, speed, delay / 1e3)


def _of_report(file: Path, text: str, fixed: Fixed) -> Measurements:
    given = (fixed.cores, fixed.instances, fixed.batch, fixed.set_size)
    if None in given:
        raise InputError(
            f"{file} is a latency report, which does not name the configuration; expected aic_num_cores, "
            "num_activations, batchsize and set_size with it",
            code="check.measured",
            hints=("a CSV table with these columns names them for each run",),
        )
    try:
        total = HostLatencies.of_report(text, source=str(file)).columns[_TOTAL]
    except StatsError as error:
        raise _wrong(file, str(error)) from error
    known = total[np.isfinite(total) & (total > 0)]
    if not len(known):
        raise _wrong(file, f"found no time in {_TOTAL}, expected one for each inference")
    settings = Settings(*(np.array([value], np.float64) for value in given))
    return Measurements(settings, np.array([math.nan]), np.array([float(np.median(known)) / 1e6]))


def _numbers(
    file: Path, rows: list[dict[str, str]], name: str, *, may_miss: bool = False
) -> NDArray[np.float64]:
    found = []
    for number, row in enumerate(rows, 2):
        text = row.get(name) or ""
        try:
            value = math.nan if may_miss and not text.strip() else float(text)
        except ValueError:
            value = -1.0
        if not (may_miss and math.isnan(value) and not text.strip()) and not 0 < value <= _LARGEST:
            raise _wrong(
                file,
                f"found {format_value(text)} in line {number}, column {name!r}, expected a positive number",
            )
        found.append(value)
    return np.array(found, np.float64)


def _check_units(
    file: Path, settings: Settings, speed: NDArray[np.float64], delay: NDArray[np.float64]
) -> None:
    """Refuse rows whose throughput and latency contradict each other, usually because of a wrong unit."""
    in_flight = settings.instances * settings.batch * settings.set_size
    ratio = speed * delay / 1e3 / in_flight
    wrong = np.flatnonzero((ratio > _IN_FLIGHT) | (ratio < 1 / _IN_FLIGHT))
    if len(wrong):
        at = int(wrong[0])
        raise _wrong(
            file,
            f"line {at + 2}: {speed[at]:.4g} samples per second at {delay[at]:.4g} ms are "
            f"{ratio[at] * in_flight[at]:.3g} samples in flight, and 'instances' x 'batch' x 'set_size' are "
            f"{in_flight[at]:.0f}; expected 'latency_ms' in milliseconds and 'inferences_per_s' in samples "
            "per second of all instances",
        )


def correct(
    table: OperationTable,
    card: Card,
    precision: str,
    fitted: Fitted,
    *,
    widening: float = 1.0,
    measurements: Measurements | None = None,
) -> Correction:
    """Return the correction by measurements of a model; without measurements, the intervals of the fit.

    The mean of the residuals moves forecasts, less if there are few of them. Intervals keep the part that
    differs between configurations of one model and lose the part that the runs have in common.
    """
    kind = kind_of(table)
    widths = {name: width * widening for name, width in fitted.intervals[kind].items()}
    if measurements is None:
        return Correction(1.0, 1.0, widths["samples_per_s"], widths["latency_s"])
    made = forecast(table, measurements.settings, fitted.parameters, card, precision=precision)
    within = fitted.within[kind]
    factors, narrowed = [], []
    for measured, forecasts, name in (
        (measurements.samples_per_s, made.samples_per_s, "samples_per_s"),
        (measurements.latency_s, made.latency_s, "latency_s"),
    ):
        apart = np.log(measured / forecasts)
        apart = apart[np.isfinite(apart)]
        count = len(apart)
        # Variances within and between models, as shares: the usual weight of a group's mean.
        weight = count * (1 - within) / (within + count * (1 - within)) if count else 0.0
        factors.append(math.exp(weight * float(apart.mean())) if count else 1.0)
        narrowed.append(widths[name] * math.sqrt(within + (1 - within) * (1 - weight)))
    return Correction(factors[0], factors[1], narrowed[0], narrowed[1], len(measurements.latency_s))


def _wrong(file: Path, problem: str) -> InputError:
    return InputError(
        f"{file}: {problem}",
        code="check.measured",
        # Columns in quotes are not replaced by options of a tool.
        hints=(
            "the first line of the table is 'cores,instances,batch,set_size,inferences_per_s,latency_ms'",
        ),
    )
