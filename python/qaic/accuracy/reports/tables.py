"""A comparison as reports: sentences, then the tables that text and pages show."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from qaic.accuracy.decoding import DecodingAccuracy
from qaic.accuracy.metrics import OutputAccuracy
from qaic.accuracy.reasons import Reason
from qaic.accuracy.reports.precision_accuracy import TYPES, PrecisionAccuracy
from qaic.report import Cell, Column, Report, Table, columns_of

#: nodes that are shown first
WORST_NODES: Final = 10
_OF_WORST: Final = ("node", "reason", "operator", "computes in", "own", "inherited", "own name")

_HOW_TO_READ = (
    "SQNR is the ratio of the power of the float32 values to that of the difference; N/A if there is no "
    "difference, or if the square of a value exceeds float32. inherited: error of the result in the deployed "
    "program. own: error of the deployed node on the inputs of the float32 run. In large results, underflow "
    "and the quantile are computed from evenly spaced elements. A node has the name of its first output, as "
    "in node precision files; own name: the name of the node in profiles."
)


_MASKED = (
    "masked: the values contain large negative constants, which Softmax turns into 0, whatever their error."
)


def as_reports(title: str, precisions: Sequence[PrecisionAccuracy]) -> list[Report]:
    """Return one report with the verdict, and one for the nodes of each precision."""
    first = Report(
        "accuracy",
        f"Accuracy of {title}",
        [line for item in precisions for line in item.sentences()],
        [
            *(card_table(item) for item in precisions if item.card),
            *(worst_table(item) for item in precisions if item.worst(1)),
            outputs_table(precisions),
            *(
                make(item, item.decoding)
                for item in precisions
                if item.decoding is not None
                for make in (steps_table, caches_table)
            ),
        ],
    )
    return [
        first,
        *(
            Report(f"nodes-{at}", f"Nodes in {item.to}", [], [nodes_table(item)])
            for at, item in enumerate(precisions)
        ),
    ]


def outputs_table(precisions: Sequence[PrecisionAccuracy]) -> Table:
    """Return the errors of all outputs."""
    columns = columns_of(
        "precision | output | SQNR:float dB | cosine:float | same:percent | largest error:float | "
        "mean error:float | largest relative:float | mean relative:float | "
        "worst channel | of that channel:float dB | not finite from"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            item.to,
            output.name,
            _finite(output.sqnr_db),
            _finite(output.cosine),
            _finite(100 * output.same),
            _finite(output.largest_error),
            _finite(output.mean_error),
            _finite(output.largest_relative_error),
            _finite(output.mean_relative_error),
            *_worst_channel(output),
            None
            if output.first_not_finite is None
            else f"sample {output.first_not_finite[0] + 1}, element {output.first_not_finite[1]}",
        )
        for item in precisions
        for output in item.outputs
    ]
    return Table("outputs", "Outputs", columns, rows)


def _worst_channel(output: OutputAccuracy) -> tuple[Cell, Cell]:
    """Return the channel of an output that loses most, and its SQNR."""
    channel = output.worst_channel
    if channel is None:
        return None, None
    dead = ", constant" if channel.is_dead else ""
    return f"{channel.index} of dimension {channel.axis}{dead}", _decibels(channel.sqnr_db)


def card_table(item: PrecisionAccuracy) -> Table:
    """Return the outputs as computed in float32, with the expected rounding, and on the card."""
    columns = columns_of(
        "output | as it should round:float dB | card:float dB | card to rounding:float dB | "
        "same, rounding:percent | same, card:percent | largest error, rounding:float | "
        "largest error, card:float | more than it must"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            one.name,
            _finite(one.rounded.sqnr_db),
            _decibels(one.card.sqnr_db),
            _decibels(one.apart.sqnr_db),
            _finite(100 * one.rounded.same),
            _finite(100 * one.card.same),
            _finite(one.rounded.largest_error),
            _finite(one.card.largest_error),
            "yes" if one.is_more else "no",
        )
        for one in item.card
    ]
    note = (
        "The first two SQNRs compare with float32, the third compares the card with the expected rounding; "
        "N/A means equal. More than it must: the error has more than twice the power of the expected "
        "rounding, and fewer decisions are equal."
    )
    return Table("card", f"The card in {item.to}", columns, rows, note)


def steps_table(item: PrecisionAccuracy, decoding: DecodingAccuracy) -> Table:
    """Return the errors of the logits of every token."""
    columns = (
        *columns_of("prompt:int | token:int | float32:int"),
        Column(item.to, None, "int"),
        *columns_of("differs | SQNR:float dB | cosine:float | largest error:float"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            int(row["prompt"]) + 1,
            int(row["step"]) + 1,
            int(row["token"]),
            int(row["found"]),
            None if row["token"] == row["found"] else "differs",
            _decibels(row["sqnr_db"]),
            _finite(row["cosine"]),
            _finite(row["largest_error"]),
        )
        for row in decoding.steps
    ]
    note = "Both runs continue with the token of float32. Errors are those of the logits."
    return Table(f"steps-{item.to}", f"Tokens in {item.to}", columns, rows, note)


def caches_table(item: PrecisionAccuracy, decoding: DecodingAccuracy) -> Table:
    """Return the errors of the caches."""
    columns = (Column("cache"), Column("SQNR", "dB", "float"))
    rows: list[tuple[Cell, ...]] = [(cache.name, _decibels(cache.sqnr_db)) for cache in decoding.caches]
    note = "All rows of the cache, after the last token of each prompt."
    return Table(f"caches-{item.to}", f"Caches in {item.to}", columns, rows, note)


def nodes_table(item: PrecisionAccuracy) -> Table:
    """Return the errors of all nodes."""
    columns = columns_of(
        "node | reason | operator | computes in | inherited:float dB | own:float dB | of weights:percent | "
        "overflow:percent | underflow:percent | saturation:percent | smallest:float | "
        "largest:float | 99.9 % quantile:float | outlier ratio:float | "
        "channel ratio:float | own name"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            str(row["name"]),
            _reason(row),
            str(row["op_type"]),
            TYPES.get(str(row["precision"]), str(row["precision"])),
            _decibels(row["inherited_sqnr_db"]),
            _decibels(row["own_sqnr_db"]),
            100 * float(row["weights_share"]) or None,
            100 * float(row["overflow"]) or None,
            100 * float(row["underflow"]) or None,
            100 * float(row["saturation"]) or None,
            _finite(row["minimum"]),
            _finite(row["maximum"]),
            _finite(row["quantile_999"]),
            _finite(row["outlier_ratio"]),
            _finite(row["channel_ratio"]),
            own_name,
        )
        for row, own_name in zip(item.nodes, item.own_names, strict=True)
    ]
    is_masked = (item.nodes["reason"] == Reason.MASKED.value).any()
    note = f"{_HOW_TO_READ} {_MASKED}" if is_masked else _HOW_TO_READ
    return Table("nodes", "In the order of the graph", columns, rows, note)


def worst_table(item: PrecisionAccuracy) -> Table:
    """Return the nodes that lose the most precision, with some columns of all nodes."""
    every = nodes_table(item)
    names = [column.name for column in every.columns]
    places = [names.index(name) for name in _OF_WORST]
    rows = [tuple(every.rows[at][place] for place in places) for at in item.worst(WORST_NODES)]
    title = f"Nodes that lose the most precision in {item.to}"
    return Table(f"worst-{item.to}", title, tuple(every.columns[place] for place in places), rows)


def _reason(row: np.void) -> str | None:
    return None if row["reason"] == "none" else str(row["reason"])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _decibels(value: float) -> float | str | None:
    """Return a ratio; the text ``not finite`` if a result is not finite."""
    return "not finite" if value == -math.inf else _finite(value)


_LEAST, _MOST = 0.0, 80.0
#: largest value in dB -> color, with the limits of wrong, fair and good outputs
_THRESHOLDS: Final = ((20.0, "#e57368"), (40.0, "#f4d160"), (_MOST, "#7fc99a"))


def overlay(item: PrecisionAccuracy) -> dict[str, object]:
    """Return the inherited SQNR of every node, limited to 0 to 80 dB, by the first output of the node."""
    results = {
        str(row["name"]): {"value": round(min(max(float(row["inherited_sqnr_db"]), _LEAST), _MOST), 2)}
        for row in item.nodes
        if not math.isnan(row["inherited_sqnr_db"])
    }
    thresholds = [{"value": value, "bgColor": color} for value, color in _THRESHOLDS]
    return {"results": results, "thresholds": thresholds}
