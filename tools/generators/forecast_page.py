"""The page of the forecast: the model, its parameters, its errors for unseen models, and every row.

The page is committed as ``docs/forecast.md``; a test compares the two.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import numpy as np

from forecast import figures, fit, measured
from qaic.forecast.speed import CARDS, shipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forecast.figures import Array
    from forecast.measured import Measured

_INTRODUCTION = """\
# Forecast of speed

<!-- Written by `make docs`. Edit the sources, not this page. -->

`openqaic check` and `qaic.check` forecast the throughput and latency of a model on a card. No card is
needed. The [guide](guide/check.md) shows how to use them. This page describes the forecast and its errors
for models that were not used to fit the forecast.

## Data

The {rows} measured rows of {models} models are from the lookup tables of the benchmarking samples in
`quic/cloud-ai-sdk`: text encoders with 128 tokens and image classifiers in float16, on cards with 14 cores.
They are in `tools/forecast/ai100_measurements.csv`. The lookup tables list the best configurations that
were found, so they contain few slow configurations. The operation tables of the models
(`tools/forecast/operation_tables.json`) come from networks that were written from public definitions.

In {contradicting} rows, latency and throughput contradict each other: their product is more than 4/3 or
less than 3/4 of the samples in flight (instances x batch x set size). {contradicting_aws} of them are image
classifiers in the table `cv-aws`. The fit does not use the latency of these {contradicting} rows. The
figures below include these rows unless stated otherwise.

## Model

The card fetches weights while the cores compute, so the time of an inference is the longer of two times:

* computing: multiply-accumulates, steps of the vector unit, and evaluations of functions (exp, erf,
  tanh), divided among the cores of the instance. A product with short sums or few columns uses only a part
  of the matrix unit.
* fetching: weights, and operands that do not fit into the on-chip memory, from the DDR that all instances
  share.

Each operation adds a fixed time. If an instance has more cores than samples, samples are split among cores,
and each additional part adds time. The host converts inputs and outputs and starts inferences; with a set
size above 1, this work overlaps with the work of the card. The link to the host has a fixed rate in each
direction. The latency is the time of this whole cycle, multiplied by the set size.

| parameter | meaning | value | unit | physical limit |
|---|---|---|---|---|
{parameters}

The physical limits come from the vendor's public pages: 110 TFLOPS in float16 for 14 cores, 137 GB/s of
LPDDR4x, PCIe Gen4 x8.

## Errors on unseen models

The forecast for each model uses a fit to the rows of all other models. Many text encoders have the same
layers, so the fit often contains a model with the same work. For this reason, the second table excludes all
models with the same work (within 5 %) together.

{errors}

The naive fit is linear in the logarithms of eight quantities: multiply-accumulates, weights, vector work,
bytes of inputs and outputs, batch, cores, instances, set size. Budgets: median {budget}.

| figure | forecast | naive fit | budget |
|---|---|---|---|
{other}

A task has at most {most} rows, so the last figure is not significant. The forecast also ranks all
configurations (cores 1 to 14, 11 batches, 3 set sizes). {published} rows are published as best for
throughput. Of these rows, {same_cores} have the same number of cores as one of the three best forecasts,
and {same_pairs} also have the same batch. The forecast for the published configuration is {share:.0f} %
(median) of the forecast for the best configuration. Many configurations near the best one differ only by a
few percent.

{coverage}

## Sources of the errors

* For the same configuration of an image classifier, the tables `cv` and `cv-aws` differ by
  {noise_speed:.0f} % in throughput and {noise_delay:.0f} % in latency. These are medians of {pairs} pairs
  of rows whose figures agree. No forecast can be closer to both tables.
* The time for outputs of several MB per inference (`fill-mask`) depends on how the host converts and copies
  them.
* The time of depthwise and grouped convolutions, and of channel shuffles, depends on the layout of channels
  that the compiler selects, which is not public.

## Effect of other options

The forecast ignores the options in this table. The table compares the residuals of rows with and without
each option, among rows of the same lookup table and aim. The options of a published row were chosen because
they were best for this row, so small effects cannot be separated from this choice.

| option | rows with it | throughput | standard error | finding |
|---|---|---|---|---|
{options}

No row contains `vtcm_working_set_limit_ratio`, `size_split_granularity`, `allocator_dealloc_delay` or
`sdp_cluster_sizes`, so their effect is unknown.

## Extrapolation

Each property outside the range of the measured rows doubles the width of the intervals, up to 8 x. This
factor is a convention, not a measurement. The forecast assumes {int8:.2f} x the rate of float16 for int8,
6.25 bits per weight for MXFP6, and these rates for other cards:

| card | devices | cores | DDR of a device | float16 of a device |
|---|---|---|---|---|
{cards}

## Rows

Each forecast uses the fit without the model of the row. The mark `!` shows that a latency contradicts the
throughput.

{table}
"""

#: Parameter -> meaning, unit, factor, and its physical limit.
_UNITS: Final = {
    "mac_rate": ("rate of the matrix unit of a core", "TMAC/s", 1e-12, "3.93, from 110 TFLOPS"),
    "depthwise_rate": ("rate of convolutions of single channels, of a core", "GMAC/s", 1e-9, ""),
    "depth_half": ("length of sums at which the matrix unit has half its rate", "", 1, ""),
    "width_half": ("columns of a product at which the matrix unit has half its rate", "", 1, ""),
    "step_rate": ("simple steps of the vector unit of a core", "10^9/s", 1e-9, ""),
    "function_rate": ("functions such as exp, of a core", "10^9/s", 1e-9, ""),
    "ddr_rate": ("rate of the DDR", "GB/s", 1e-9, "137"),
    "kept_bytes": ("operands that a core keeps on the chip", "MB", 1e-6, "9.4 on the chip"),
    "operation_s": ("time for each operation", "us", 1e6, ""),
    "cut_s": ("time for each additional part of a sample", "us", 1e6, ""),
    "cut_loss": ("fraction of the compute time that each additional part adds", "", 1, ""),
    "request_s": ("time of the host for each inference", "us", 1e6, ""),
    "input_rate": ("link to the card, for all instances", "GB/s", 1e-9, "15.8"),
    "output_rate": ("link from the card, for all instances", "GB/s", 1e-9, "15.8"),
    "host_input_rate": ("conversion of inputs on the host, of one inference", "GB/s", 1e-9, ""),
    "host_output_rate": ("conversion of outputs on the host, of one inference", "GB/s", 1e-9, ""),
}
_BUDGETS: Final = {"language": 12, "vision": 20}
_QUANTITIES: Final = ("throughput", "latency")
#: Number of standard errors above which an effect is reported.
_CLEAR: Final = 3.0


def render() -> str:
    """Write the page."""
    data = measured.read()
    left_out = json.loads(fit.LEFT_OUT.read_text())
    held_out = figures.held_out(data, left_out)
    published, same_cores, same_pairs, share = figures.published_among_all(data, left_out)
    twins = figures.held_out_twins(data, json.loads(fit.TWINS_LEFT_OUT.read_text()))
    naive = figures.baseline(data)
    fitted = shipped()
    speed, delay, pairs = figures.noise(data)
    tables = data.texts("table")
    return _INTRODUCTION.format(
        rows=len(data.rows),
        models=len(set(data.texts("model"))),
        contradicting=int((~data.agrees).sum()),
        contradicting_aws=int((~data.agrees & (tables == "cv-aws")).sum()),
        parameters="\n".join(_parameters(asdict(fitted.parameters))),
        errors="\n\n".join(
            f"{title}:\n\n" + "\n".join(_errors(data, forecasts))
            for title, forecasts in (
                ("One model left out", held_out),
                ("All models of the same work left out", twins),
                ("Naive fit, one model left out", naive),
            )
        ),
        budget=", ".join(f"{name} {most} %" for name, most in _BUDGETS.items()) + "; 90th percentile 40 %",
        other="\n".join(_others(data, held_out, naive)),
        most=max(np.unique(data.keys, return_counts=True)[1]),
        published=published,
        same_cores=same_cores,
        same_pairs=same_pairs,
        share=100 * share,
        coverage=_coverage(data, held_out),
        noise_speed=speed,
        noise_delay=delay,
        pairs=pairs,
        options="\n".join(_options(data, held_out)),
        int8=CARDS["standard"].mac_gain("int8"),
        cards="\n".join(
            f"| {card.name} | {card.devices} | {card.cores} | {card.memory_bytes >> 30} GiB | "
            f"{card.tflops:.4g} TFLOPS |"
            for card in CARDS.values()
        ),
        table="\n".join(_rows(data, held_out)),
    )


def _parameters(values: dict[str, float]) -> Iterable[str]:
    for name, value in values.items():
        meaning, unit, factor, limit = _UNITS[name]
        yield f"| `{name}` | {meaning} | {value * factor:.3g} | {unit} | {limit} |"


def _errors(data: Measured, forecasts: Array) -> Iterable[str]:
    yield "| models | rows | throughput, median | 90th percentile | latency, median | 90th percentile |"
    yield "|---|---|---|---|---|---|"
    apart = 100 * figures.errors(data, forecasts)
    for name, rows in (
        ("language", data.is_language),
        ("vision", ~data.is_language),
        ("vision, latencies that agree", ~data.is_language & data.agrees),
    ):
        cells = [
            f"{np.quantile(apart[rows, quantity], level):.1f} %"
            for quantity in range(2)
            for level in (0.5, 0.9)
        ]
        yield f"| {name} | {int(rows.sum())} | {' | '.join(cells)} |"


def _others(data: Measured, held_out: Array, naive: Array) -> Iterable[str]:
    for quantity, name in enumerate(_QUANTITIES):
        ours, other = (figures.rank_correlations(data, one, quantity) for one in (held_out, naive))
        yield (
            f"| rank correlation of the configurations of a model, {name}: median (mean) of {len(ours)} "
            f"models | "
            f"{np.median(ours):.2f} ({ours.mean():.2f}) | {np.median(other):.2f} ({other.mean():.2f}) | 0.8 |"
        )
    (hits, total), (others, _) = (figures.best_in_three(data, one, 4) for one in (held_out, naive))
    what = f"fastest row among the first three, of {total} tasks with 4 rows or more"
    yield f"| {what} | {hits} | {others} | 80 % |"


def _coverage(data: Measured, held_out: Array) -> str:
    covered = 100 * figures.is_covered(data, held_out)
    parts = []
    for name, rows in (
        ("all rows", np.ones(len(covered), np.bool_)),
        ("language", data.is_language),
        ("vision", ~data.is_language),
        ("vision, latencies that agree", ~data.is_language & data.agrees),
    ):
        speed, delay = covered[rows].mean(axis=0)
        parts.append(f"| {name} | {speed:.1f} % | {delay:.1f} % |")
    return (
        "The table shows the share of rows in the stated 90 % interval (budget: 88 % of all rows). The\n"
        "interval follows from the residuals of the other models. Because some published latencies\n"
        "contradict the throughput, intervals of latency are wider than they would be without these rows.\n\n"
        "| rows | throughput | latency |\n|---|---|---|\n" + "\n".join(parts)
    )


def _options(data: Measured, held_out: Array) -> Iterable[str]:
    for name, rows, factor, noise in figures.option_effects(data, held_out):
        finding = "none in these data"
        if rows < 20:
            finding = "too few rows"
        elif abs(np.log(factor)) > _CLEAR * noise:
            finding = "slower" if factor < 1 else "faster"
        yield f"| `{name}` | {rows} | x {factor:.3f} | {noise:.3f} | {finding} |"


def _rows(data: Measured, held_out: Array) -> Iterable[str]:
    heads = ("table", "model", "task", "batch", "cores", "instances", "set size")
    results = ("samples/s", "forecast", "error", "ms", "forecast", "error")
    yield f"| {' | '.join((*heads, *results))} |"
    yield "|---" * (len(heads) + len(results)) + "|"
    values, forecasts = np.exp(data.measured), np.exp(held_out)
    apart = 100 * np.expm1(held_out - data.measured)
    for at, row in enumerate(data.rows):
        fixed = [row[name] for name in ("table", "model", "task", "batch", "cores", "instances", "set_size")]
        mark = "" if data.agrees[at] else " !"
        cells = [
            *fixed,
            f"{values[at, 0]:.4g}",
            f"{forecasts[at, 0]:.4g}",
            f"{apart[at, 0]:+.0f} %",
            f"{values[at, 1] * 1e3:.4g}{mark}",
            f"{forecasts[at, 1] * 1e3:.4g}",
            f"{apart[at, 1]:+.0f} %",
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(render())
