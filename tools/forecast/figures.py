"""Figures of the forecast for models that the fit did not use: errors, intervals, ranks, and a baseline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qaic.forecast.configurations import Correction, Fixed, Ranking, candidates
from qaic.forecast.speed import CARDS, Parameters, Settings, forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forecast.measured import Measured

Array = NDArray[np.float64]

#: Share of the rows that an interval should contain.
LEVEL = 0.9
QUANTITIES = ("samples_per_s", "latency_s")
_DIGITS = 4


def held_out(data: Measured, left_out: Mapping[str, Mapping[str, float]]) -> Array:
    """Return forecasts of each row, in logarithms, with parameters that were fitted without its model."""
    found = np.zeros((len(data.rows), 2))
    models = data.texts("model")
    for model, parameters in left_out.items():
        rows = np.flatnonzero(models == model)
        found[rows] = data.forecast(Parameters.from_json(parameters), rows)
    return found


def twins(data: Measured) -> NDArray[np.int64]:
    """Return the group of each row: models with equal multiply-accumulates and vector work within 5 %.

    The head of a task is ignored: for a model with several tasks, the smallest table decides.
    """
    models = data.texts("model")
    work: dict[str, tuple[float, float]] = {}
    for model, key in zip(models, data.keys, strict=True):
        table = data.tables[key]
        found = (table.total("macs"), table.total("steps"))
        work[model] = min(work.get(model, found), found)
    groups: list[tuple[float, float]] = []
    numbers = {}
    for model, found in sorted(work.items(), key=lambda item: item[1]):
        near = [at for at, other in enumerate(groups) if np.allclose(found, other, rtol=0.05)]
        if not near:
            groups.append(found)
        numbers[model] = near[0] if near else len(groups) - 1
    return np.array([numbers[model] for model in models])


def held_out_twins(data: Measured, left_out: Mapping[str, Mapping[str, float]]) -> Array:
    """Return forecasts of each row, with parameters that were fitted without the models of its group."""
    found = np.zeros((len(data.rows), 2))
    groups = twins(data)
    for group, parameters in left_out.items():
        rows = np.flatnonzero(groups == int(group))
        found[rows] = data.forecast(Parameters.from_json(parameters), rows)
    return found


def noise(data: Measured) -> tuple[float, float, int]:
    """Return the median difference in percent of equal configurations in two tables, and their number."""
    known: dict[tuple[str, ...], NDArray[np.float64]] = {}
    apart = []
    names = ("model", "task", "batch", "cores", "instances", "set_size", "ols", "mos", "extra")
    for row, values, agrees in zip(data.rows, data.measured, data.agrees, strict=True):
        key = tuple(row[name] for name in names)
        if not agrees or not row["table"].startswith("cv"):
            continue
        if key in known:
            apart.append(np.abs(np.expm1(values - known[key])))
        known[key] = values
    speed, delay = 100 * np.median(np.array(apart), axis=0)
    return float(speed), float(delay), len(apart)


def baseline(data: Measured) -> Array:
    """Return forecasts of each row by a linear fit of eight logarithms, without the rows of its model.

    The quantities are multiply-accumulates, weights, vector work, bytes of inputs and outputs, and the batch,
    cores, instances and set size.
    """
    work = {
        key: (
            table.total("macs"),
            table.total("weights"),
            table.total("steps") + table.total("functions"),
            table.input_bytes + table.output_bytes,
        )
        for key, table in data.tables.items()
    }
    columns = np.log(
        np.concatenate([[work[key] for key in data.keys], np.stack(data.settings, axis=1)], axis=1)
    )
    columns = np.concatenate([columns, np.ones((len(columns), 1))], axis=1)
    models = data.texts("model")
    found = np.zeros((len(columns), 2))
    for model in set(models):
        own = models == model
        found[own] = columns[own] @ np.linalg.lstsq(columns[~own], data.measured[~own], rcond=None)[0]
    return found


def errors(data: Measured, forecasts: Array) -> Array:
    """Return absolute relative errors of forecasts."""
    return np.abs(np.expm1(forecasts - data.measured))


def half_widths(data: Measured, forecasts: Array, rows: NDArray[np.bool_]) -> Array:
    """Return half of the interval of each row, in logarithms, from the residuals of some rows.

    Each kind of model has its own scale: the quantile of its rows whose latency and throughput agree. A
    common factor extends the intervals until they contain the desired share of all rows, including those that
    do not agree.
    """
    apart = np.abs(data.measured - forecasts)
    widths = np.zeros_like(apart)
    for is_kind in (data.is_language, ~data.is_language):
        known = rows & is_kind & data.agrees
        widths[is_kind] = [_conformal(apart[known, quantity]) for quantity in range(2)]
    factors = [_conformal(apart[rows, quantity] / widths[rows, quantity]) for quantity in range(2)]
    return widths * factors


def _conformal(scores: Array) -> float:
    """Return the score that a new score exceeds with a probability of at most 1 - `LEVEL`."""
    rank = math.ceil(LEVEL * (len(scores) + 1))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def is_covered(data: Measured, forecasts: Array) -> NDArray[np.bool_]:
    """Return true for the figures within the intervals that follow from the rows of the other models."""
    models = data.texts("model")
    covered = np.zeros(data.measured.shape, np.bool_)
    for model in set(models):
        own = models == model
        widths = half_widths(data, forecasts, ~own)
        covered[own] = np.abs(data.measured - forecasts)[own] <= widths[own]
    return covered


def rank_correlations(data: Measured, forecasts: Array, quantity: int) -> Array:
    """Return Spearman's correlation for each model with at least three different configurations."""
    found = []
    for rows in _of_models(data):
        if len({tuple(row) for row in np.stack(data.settings, axis=1)[rows]}) >= 3:
            first, second = (_ranks(values[rows, quantity]) for values in (data.measured, forecasts))
            found.append(float(np.corrcoef(first, second)[0][1]))
    return np.array(found)


def best_in_three(data: Measured, forecasts: Array, least: int) -> tuple[int, int]:
    """Count tasks with at least this number of rows, and those whose fastest row is in the best three."""
    hits = total = 0
    for rows in _of_models(data):
        for key in set(data.keys[rows]):
            own = rows[data.keys[rows] == key]
            if len(own) >= least:
                total += 1
                hits += data.measured[own, 0].argmax() in np.argsort(-forecasts[own, 0])[:3]
    return hits, total


def published_among_all(
    data: Measured, left_out: Mapping[str, Mapping[str, float]]
) -> tuple[int, int, int, float]:
    """Compare published best configurations with our first three of all configurations.

    Returns
    -------
    tuple
        Rows that are published as best for throughput; those whose cores, and whose cores and batch, are
        among our first three; and the median of their forecast over that of our first.
    """
    card = CARDS["standard"]
    rows = np.flatnonzero(data.texts("objective") == "best-throughput")
    models = data.texts("model")
    cores = pairs = 0
    shares = []
    for row in rows:
        table = data.tables[str(data.keys[row])]
        parameters = Parameters.from_json(left_out[str(models[row])])
        unchanged = Correction(1.0, 1.0, 0.0, 0.0)
        ranking = Ranking(
            table, candidates(card, Fixed()), parameters, card, precision="fp16", correction=unchanged
        )
        first = ranking.best("throughput")
        own = tuple(int(values[row]) for values in data.settings)
        cores += own[0] in {one.cores for one in first}
        pairs += (own[0], own[2]) in {(one.cores, one.batch) for one in first}
        made = forecast(table, Settings(*(values[[row]] for values in data.settings)), parameters, card)
        shares.append(float(made.samples_per_s[0]) / max(one.samples_per_s[1] for one in first))
    return len(rows), cores, pairs, float(np.median(shares))


def _of_models(data: Measured) -> list[NDArray[np.int64]]:
    models = data.texts("model")
    return [np.flatnonzero(models == model) for model in sorted(set(models))]


def _ranks(values: Array) -> Array:
    """Return ranks; equal values share their mean rank."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[at]


def option_effects(data: Measured, forecasts: Array) -> list[tuple[str, int, float, float]]:
    """Compare residuals of throughput with and without a compile option.

    Returns
    -------
    list of tuple
        Option, rows with it, the mean ratio of measured to forecast with it over that without it, and the
        standard error of that ratio's logarithm. Rows are compared with those of their kind of model and aim.
    """
    apart: Array = (data.measured - forecasts)[:, 0]
    groups = np.char.add(data.texts("table"), data.texts("objective"))
    for group in set(groups):
        apart[groups == group] -= np.median(apart[groups == group])
    cores = data.texts("cores")
    mos, extra = data.texts("mos"), data.texts("extra")
    tests: dict[str, Callable[[], NDArray[np.bool_]]] = {
        "ols=1": lambda: data.texts("ols") == "1",
        "ols=4": lambda: data.texts("ols") == "4",
        "mos=1": lambda: mos == "1",
        "mos equal to aic_num_cores": lambda: (mos == cores) & (cores != "1"),
        "multicast_weights=false": lambda: np.char.find(extra, "-multicast-weights") >= 0,
        "aic_enable_depth_first": lambda: np.char.find(extra, "-aic-enable-depth-first") >= 0,
        "use_producer_dma": lambda: np.char.find(extra, "-use-producer-dma") >= 0,
        "aic_depth_first_mem=16": lambda: np.char.find(extra, "-aic-depth-first-mem=16") >= 0,
    }
    found = []
    for name, test in tests.items():
        has = test()
        noise = math.sqrt(apart[has].var() / max(has.sum(), 1) + apart[~has].var() / max((~has).sum(), 1))
        found.append((name, int(has.sum()), float(np.exp(apart[has].mean() - apart[~has].mean())), noise))
    return found


def shipped(data: Measured, parameters: Mapping[str, float], forecasts: Array) -> dict[str, Any]:
    """Return the parameters of the package: the fit, half widths of the intervals, and ranges of the rows."""
    widths = half_widths(data, forecasts, np.ones(len(data.rows), np.bool_))
    kinds = {"products": data.is_language, "convolutions": ~data.is_language}
    tables = data.tables.values()
    settings = zip(data.settings._fields, data.settings, strict=True)
    return {
        "parameters": dict(parameters),
        "intervals": {
            kind: {name: round(float(widths[rows, at][0]), _DIGITS) for at, name in enumerate(QUANTITIES)}
            for kind, rows in kinds.items()
        },
        "within": {kind: round(_within(data, forecasts, rows), _DIGITS) for kind, rows in kinds.items()},
        "range": {
            "macs": _range(table.total("macs") for table in tables),
            "weights": _range(table.total("weights") for table in tables),
            "operations": _range(table.rows["count"].sum() for table in tables),
            "input_bytes": _range(table.input_bytes for table in tables),
            "output_bytes": _range(table.output_bytes for table in tables),
            **{name: _range(values) for name, values in settings},
        },
        "rows": len(data.rows),
        "models": len(set(data.texts("model"))),
    }


def _within(data: Measured, forecasts: Array, rows: NDArray[np.bool_]) -> float:
    """Return the share of the variance of throughput residuals that is within models."""
    apart = (data.measured - forecasts)[:, 0]
    models = data.texts("model")
    inside = [apart[rows & (models == model)] for model in set(models[rows])]
    degrees = sum(len(values) - 1 for values in inside)
    within = sum(float(((values - values.mean()) ** 2).sum()) for values in inside) / max(degrees, 1)
    return min(within / float((apart[rows] ** 2).mean()), 1.0)


def _range(values: Any) -> list[int]:
    found = [int(value) for value in values]
    return [min(found), max(found)]
