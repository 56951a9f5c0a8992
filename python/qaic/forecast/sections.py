"""Sections of a check: operators, memory, precision, speed, and what would help."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from qaic.forecast.configurations import OBJECTIVES, Fixed
from qaic.forecast.memory import ASSUMPTION
from qaic.stats.reports.render.table import Column, Report, Table
from qaic.support.text import counted, duration, escape_html, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qaic.forecast.analysis import ShapeSet
    from qaic.forecast.configurations import Configuration
    from qaic.forecast.report import Checked, CheckReport

_SHOWN_NODES: Final = 3
_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
#: gains below this are within what a forecast can tell
_LEAST_GAIN: Final = 1.05
_BATCHES: Final = tuple(1 << power for power in range(6))


@dataclass(frozen=True, slots=True)
class Section:
    """One section.

    Parameters
    ----------
    report
        Sentences and tables.
    verdict
        ``yes``, ``no``, ``perhaps``, ``forecast`` or ``unknown``.
    next_line
        Command line to paste next; empty where there is none.
    data
        Values that JSON has in addition to the sentences.
    """

    report: Report
    verdict: str
    next_line: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the section as text."""
        shown = replace(self.report, title=f"{self.report.title}: {self.verdict}")
        return str(shown) + (f"\n\nnext: {self.next_line}" if self.next_line else "")

    @property
    def verdict_html(self) -> str:
        """The verdict, and the next line, as HTML."""
        line = f"<p>next: <code>{escape_html(self.next_line)}</code></p>" if self.next_line else ""
        return f"<p><strong>{escape_html(self.verdict)}</strong></p>{line}"

    def to_json(self) -> dict[str, Any]:
        """Return the section as JSON values."""
        return {
            "verdict": self.verdict,
            "sentences": list(self.report.verdict),
            "next": self.next_line or None,
            **self.data,
        }


def sections_of(report: CheckReport) -> list[Section]:
    """Return the sections in their order; of a model whose shapes are not known only the first."""
    one = report.checked
    found = [_operators(one)]
    if one.memory is not None:
        found.append(_memory(one))
    if one.failure is None:
        found += [_precision(one), _speed(report), _help(report)]
    return found


def _operators(one: Checked) -> Section:
    unlikely = dict(one.analysis.unlikely) if one.analysis is not None else {}
    refused = dict(one.analysis.refused) if one.analysis is not None else {}
    rows = [
        (verdict, what, len(nodes), ", ".join(shortened(node, 40) for node in nodes[:_SHOWN_NODES]))
        for verdict, found in (("refused", refused), ("unlikely", unlikely))
        for what, nodes in sorted(found.items())
    ]
    columns = (Column("verdict"), Column("finding"), Column("nodes", kind="int"), Column("for example"))
    tables = [Table("findings", "Findings", columns, list(rows))] if rows else []
    data: dict[str, Any] = {"refused": refused, "unlikely": unlikely, "reason": None}
    if one.failure is not None:
        data["reason"] = {
            "code": one.failure.code,
            "message": str(one.failure),
            "hints": list(one.failure.hints),
        }
        sentences = [
            f"The model does not compile: {one.failure}",
            *(f"Fix: {hint}" for hint in one.failure.hints),
        ]
        return Section(
            Report("operators", "Operators", sentences, tables),
            "no",
            f"openqaic explain {one.failure.code}",
            data,
        )
    assert one.analysis is not None  # noqa: S101  # it compiled
    kinds = one.analysis.operators
    data["operators"] = dict(sorted(kinds.items()))
    sentences = [
        f"The model compiles: {counted(sum(kinds.values()), 'node')} of {counted(len(kinds), 'operator')}."
    ]
    verdict = "no" if refused else "perhaps" if unlikely else "yes"
    if rows:
        sentences.append(
            "A compiler for the card may refuse what the table lists. The list of operators is an estimate, "
            "because the vendor publishes none; aic_operator_list names another one."
        )
    else:
        sentences.append("All operators are on the list of operators, which is an estimate.")
    return Section(
        Report("operators", "Operators", sentences, tables),
        verdict,
        one.line("compile", "-o", "program"),
        data,
    )


def _memory(one: Checked) -> Section:
    memory = one.memory
    assert memory is not None  # noqa: S101  # the caller has looked
    rows: list[tuple[str, float, str]] = [
        (f"weights in {one.precision}", memory.weight_bytes, "bytes"),
        ("state between inferences", memory.state_bytes, "bytes"),
        ("activations", memory.activation_bytes, "bytes"),
        ("inputs and outputs", memory.transfer_bytes, "bytes"),
        ("program (assumed)", memory.added_bytes, "bytes"),
        ("one instance", memory.needed_bytes, "bytes"),
        ("DDR of a device", memory.device_bytes, "bytes"),
    ]
    if memory.devices is None:
        fits, sentence = False, "The model does not fit on 64 devices."
    else:
        fits = memory.devices <= one.devices
        sentence = (
            f"One instance needs {_size(memory.needed_bytes)}; a device of the card {one.card.name} has "
            f"{_size(memory.device_bytes)}."
        )
        if memory.devices > 1:
            cards = math.ceil(memory.devices / one.card.devices)
            sentence += (
                f" It has to be split over {memory.devices} devices ({counted(cards, 'card')}), with "
                "mdp_load_partition_config."
            )
    sentences = [sentence]
    if memory.largest_batch:
        sentences.append(f"Up to {memory.largest_batch:,} samples of one inference fit on a device.")
    if memory.longest_context is not None:
        sentences.append(
            f"Caches of up to {memory.longest_context:,} tokens for each sequence fit on "
            f"{counted(one.devices, 'device')}."
        )
    columns = (Column("part"), Column("size", None, "float"), Column("unit"))
    table = Table("parts", "Parts", columns, list(rows), ASSUMPTION)
    needed = math.ceil((memory.devices or 1) / one.card.devices)
    line = "" if fits or memory.devices is None else one.line("check", "--cards", str(needed))
    return Section(
        Report("memory", "Memory", sentences, [table]), "yes" if fits else "no", line, memory.to_json()
    )


def _precision(one: Checked) -> Section:
    if one.accuracy is not None:
        sentences = one.accuracy.sentences()
        verdicts = {item.to: item.verdict for item in one.accuracy.precisions}
        verdict = next(iter(verdicts.values()))
        line = one.line("accuracy", "--to", one.precision, "-o", "accuracy.html")
        return Section(Report("precision", "Precision", sentences), verdict, line, {"measured": True})
    losses = [item.message for item in one.warnings if item.code.startswith("float16.")]
    sentences = [f"Weights: {text}." for text in losses]
    if not losses and "fp16" in one.precision:
        sentences = ["All weights are in the range of float16."]
    sentences.append("Without samples nothing is known about activations.")
    return Section(
        Report("precision", "Precision", sentences),
        "no" if losses else "unknown",
        _accuracy_line(one),
        {"measured": False, "findings": losses},
    )


def _accuracy_line(one: Checked) -> str:
    import shlex

    name = "fp16" if one.precision == "fp32" else one.precision
    return shlex.join(["openqaic", "accuracy", one.path, "--to", name, "--samples", "samples.npz"])


def _speed(report: CheckReport) -> Section:
    one = report.checked
    assert one.analysis is not None  # noqa: S101  # it compiled
    reasons = report.reasons(one.analysis.sets[0])
    sentences = [f"Forecast, not measured: {one.fitted.source}. Each figure has a 90 % interval."]
    if reasons:
        sentences.append(f"Intervals are wider, for the forecast is an extrapolation: {'; '.join(reasons)}.")
    if one.precision == "fp32":
        sentences.append("Nothing is known about float32 on a card; the figures are of float16.")
    if one.measurements is not None:
        correction = report.correction(one.analysis.sets[0])
        sentences.append(
            f"Corrected by {counted(correction.runs, 'measured run')}: throughput x "
            f"{correction.samples_per_s:.3g}, latency x {correction.latency_s:.3g}."
        )
    tables: list[Table] = []
    data: dict[str, Any] = {"reasons": reasons, "fitted_on": one.fitted.source}
    chosen: dict[str, list[Configuration]] = {}
    if one.analysis.sets[0].table.state_bytes:
        tables.append(_sets_table(report))
    else:
        ranking = report.ranking(one.analysis.sets[0])
        chosen = {objective: ranking.best(objective) for objective in OBJECTIVES}
        data["candidates"] = len(ranking)
        tables.append(_best_table(chosen))
    data |= {objective: [_configuration_json(one, c) for c in found] for objective, found in chosen.items()}
    best = chosen.get("balanced", [])
    line = _compile_line(one, best[0]) if best else one.line("compile", "-o", "program")
    return Section(Report("speed", "Speed", sentences, tables), "forecast", line, data)


def _best_table(chosen: dict[str, list[Configuration]]) -> Table:
    columns = (
        Column("best for"),
        *(Column(name, kind="int") for name in ("cores", "instances", "batch", "set size")),
        Column("samples per second"),
        Column("latency"),
        Column("limit"),
    )
    rows = [
        (
            objective,
            one.cores,
            one.instances,
            one.batch,
            one.set_size,
            _interval(one.samples_per_s, lambda value: f"{float(f'{value:.3g}'):,.10g}"),
            _interval(one.latency_s, lambda value: duration(value * 1e6)),
            one.limit,
        )
        for objective, found in chosen.items()
        for one in found
    ]
    note = "all instances of one device together; with several devices, each runs as many"
    return Table("best", "Best configurations", columns, list(rows), note)


def _sets_table(report: CheckReport) -> Table:
    """Return a row for each set of shapes of a decoder, with all cores of a device."""
    one = report.checked
    assert one.analysis is not None  # noqa: S101  # the caller has looked
    columns = (
        Column("shapes"),
        Column("cores", kind="int"),
        Column("latency"),
        Column("tokens per second"),
        Column("limit"),
    )
    rows = []
    for shapes in one.analysis.sets:
        found = report.ranking(shapes, fixed=Fixed(one.fixed.cores or one.card.cores, 1, None, 1)).at(0)
        tokens = _tokens(shapes)
        rows.append(
            (
                shapes.name or "all",
                found.cores,
                _interval(found.latency_s, lambda value: duration(value * 1e6)),
                _interval(
                    tuple(tokens / value for value in reversed(found.latency_s)), lambda value: f"{value:.3g}"
                ),
                found.limit,
            )
        )
    note = "of one device; where the model is split over several, communication is not counted"
    return Table("sets", "Prefill and decode", columns, list(rows), note)


def _tokens(shapes: ShapeSet) -> int:
    """Return the tokens of one inference: the elements of ``input_ids``, else the samples."""
    return math.prod(shapes.inputs.get("input_ids", (shapes.table.samples,)))


def _configuration_json(one: Checked, found: Configuration) -> dict[str, Any]:
    low, value, high = found.samples_per_s
    fastest, latency, slowest = found.latency_s
    plain = asdict(found)
    return {
        **{name: plain[name] for name in ("cores", "instances", "batch", "set_size", "limit")},
        "samples_per_s": value,
        "samples_per_s_90": [low, high],
        "latency_s": latency,
        "latency_s_90": [fastest, slowest],
        "compile": _compile_line(one, found),
    }


def _compile_line(one: Checked, found: Configuration) -> str:
    options: dict[str, object] = {"aic_num_cores": found.cores}
    if found.batch > 1 or one.fixed.batch:
        options["batchsize"] = found.batch
    return one.line("compile", "-o", "program", **options)


def _help(report: CheckReport) -> Section:
    rows = sorted(_gains(report), key=lambda row: -row[1])
    columns = (Column("change"), Column("throughput", "x", "significant"), Column("line"))
    sentences = (
        ["Ordered by the forecast of the best throughput; gains add up only in part."]
        if rows
        else ["No change that was tried has a forecast above 1.05 x."]
    )
    table = [Table("changes", "Changes", columns, list(rows))] if rows else []
    data = {"changes": [{"change": what, "factor": factor, "line": line} for what, factor, line in rows]}
    return Section(
        Report("help", "What would help", sentences, table), "forecast", rows[0][2] if rows else "", data
    )


def _gains(report: CheckReport) -> Iterator[tuple[str, float, str]]:
    """Yield changes, the factor on the best throughput, and a line."""
    one = report.checked
    assert one.analysis is not None  # noqa: S101  # it compiled
    shapes = one.analysis.sets[-1]
    now = report.ranking(shapes).best("throughput", 1)
    if not now:
        return
    base = now[0].samples_per_s[1]
    import shlex

    for precision in ("fp16", "mxfp6+fp16", "int8"):
        if one.precision in (precision, "int8"):
            continue
        found = report.ranking(shapes, precision=precision).best("throughput", 1)[0].samples_per_s[1]
        if found > base * _LEAST_GAIN:
            line = shlex.join(["openqaic", "check", one.path, "--precision", precision])
            yield f"{precision} (extrapolated; check its accuracy)", found / base, line
    for name, what in (
        ("batch", "a larger batch"),
        ("cores", "other cores"),
        ("set_size", "a larger set size"),
    ):
        if getattr(one.fixed, name) is None:
            continue
        open_ = replace(one.fixed, **{name: None})
        best = report.ranking(shapes, fixed=open_).best("throughput", 1)[0]
        if best.samples_per_s[1] > base * _LEAST_GAIN:
            yield f"{what}: {getattr(best, name)}", best.samples_per_s[1] / base, _compile_line(one, best)
    if now[0].limit in {"inputs", "outputs"}:
        what = f"the {now[0].limit} are the limit: float16 or integers there, with custom_io_list_file"
        yield what, 2.0, one.line("compile", "-o", "program")


def _interval(values: tuple[float, ...], write: Any) -> str:
    low, value, high = values
    return f"{write(value)} ({write(low)} to {write(high)})"


def _size(size: float) -> str:
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
