"""Sections of a check: operators, memory, precision, speed, and changes that help."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from qaic.forecast.analysis import ShapeSet
from qaic.forecast.checked import Checked
from qaic.forecast.configurations import OBJECTIVES, Configuration, Fixed
from qaic.forecast.memory import ASSUMPTION
from qaic.options.argv import names_in
from qaic.report import Prose, Report, Table, columns_of
from qaic.support.text import bytes_text, counted, duration, shortened

_SHOWN_NODES: Final = 3
#: smallest gain that is larger than the uncertainty of a forecast
_LEAST_GAIN: Final = 1.05
#: ratio of the ends of an interval from which the order of configurations has no meaning
_UNCERTAIN: Final = 100
#: verdict of `qaic.accuracy` -> that of the section
_VERDICTS: Final = {"equal": "yes", "good": "yes", "fair": "perhaps", "wrong": "no"}
#: title of a section -> the word that its verdict answers
_ASKED: Final = {"Operators": " supported", "Memory": " sufficient", "Precision": " sufficient"}
#: objective -> the purpose of its lines, if that is another word
_PURPOSES: Final = {"balanced": "a balance"}
#: number of samples of one inference above which none are proposed
_MANY: Final = 1000


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report of a check."""

    #: Sentences, tables, and the command lines to paste next.
    report: Report
    #: ``yes``, ``no``, ``perhaps``, ``forecast`` or ``unknown``.
    verdict: str
    #: Values that JSON has in addition to the sentences.
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the section as JSON values."""
        return {
            "verdict": self.verdict,
            "sentences": list(self.report.verdict),
            "next": dict(self.report.next_steps),
            **self.data,
        }


def _section(
    title: str,
    verdict: str,
    sentences: list[str],
    tables: list[Table],
    *,
    lines: Mapping[str, str],
    data: Mapping[str, Any],
    name: str = "",
) -> Section:
    heading = f"{title}{_ASKED.get(title, '')}: {verdict}"
    return Section(Report(name or title.lower(), heading, sentences, tables, lines), verdict, data)


def sections_of(one: Checked) -> list[Section]:
    """Return the sections in their order; only the first for a model with unknown shapes."""
    found = [_operators(one)]
    if one.memory is not None:
        found.append(_memory(one))
    if one.failure is None:
        found += [_precision(one), _speed(one), _help(one)]
    return found


def _operators(one: Checked) -> Section:
    unlikely = dict(one.analysis.unlikely) if one.analysis is not None else {}
    refused = dict(one.analysis.refused) if one.analysis is not None else {}
    rows = [
        (verdict, what, len(nodes), ", ".join(shortened(node, 40) for node in nodes[:_SHOWN_NODES]))
        for verdict, found in (("refused", refused), ("unlikely", unlikely))
        for what, nodes in sorted(found.items())
    ]
    columns = columns_of("verdict | finding | nodes:int | for example")
    tables = [Table("findings", "Findings", columns, rows)] if rows else []
    data: dict[str, Any] = {"refused": refused, "unlikely": unlikely, "reason": None}
    if one.failure is not None:
        message = str(one.failure.args[0])
        data["reason"] = {"code": one.failure.code, "message": message, "hints": list(one.failure.hints)}
        sentences: list[str] = [Prose(f"The model does not compile: {message}.", names=names_in(one.failure))]
        is_open = not one.failure.context.keys().isdisjoint({"shapes", "example"})
        if is_open:
            sentences.append("The sizes in the next line are examples. Replace them with your sizes.")
        else:
            sentences += [Prose(f"Fix: {hint}.", names=names_in(one.failure)) for hint in one.failure.hints]
        verdict = "unknown" if is_open else "no"
        return _section("Operators", verdict, sentences, tables, lines={"": _fix(one)}, data=data)
    assert one.analysis is not None  # noqa: S101  # it compiled
    kinds = one.analysis.operators
    data["operators"] = dict(sorted(kinds.items()))
    sentences = [
        f"The model compiles: {counted(sum(kinds.values()), 'node')} of {counted(len(kinds), 'operator')}."
    ]
    verdict = "no" if refused else "perhaps" if unlikely else "yes"
    if rows:
        sentences.append(
            Prose(
                "A compiler for the card may refuse the nodes in the table. The list of operators is an "
                "estimate, because the vendor publishes none; aic_operator_list selects another list."
            )
        )
    else:
        sentences.append("All operators are on the list of operators, which is an estimate.")
    return _section("Operators", verdict, sentences, tables, lines={"": one.compile_line()}, data=data)


def _fix(one: Checked) -> str:
    """Return the line that fixes open shapes, with sizes that are examples; else the explanation."""
    assert one.failure is not None  # noqa: S101  # the caller has looked
    shapes, symbols = (one.failure.context.get(name) for name in ("shapes", "example"))
    if isinstance(shapes, dict):
        return one.line_with_shapes({name: tuple(shape) for name, shape in shapes.items()})
    if isinstance(symbols, dict):
        return one.check_line(onnx_define_symbol={**one.symbols, **symbols})
    return f"openqaic explain {one.failure.code}"


def _memory(one: Checked) -> Section:
    memory = one.memory
    assert memory is not None  # noqa: S101  # the caller has looked
    parts = {
        f"weights in {one.types}": memory.weight_bytes,
        "state between inferences": memory.state_bytes,
        "activations": memory.activation_bytes,
        "inputs and outputs": memory.transfer_bytes,
        "program (assumed)": memory.added_bytes,
        "one instance": memory.needed_bytes,
        "DDR of a device": memory.device_bytes,
    }
    if memory.devices is None:
        fits, sentence = False, "The model does not fit on 64 devices."
    else:
        fits = memory.devices <= one.devices
        sentence = (
            f"One instance needs {bytes_text(memory.needed_bytes)}; a device of the {one.card.name} card has "
            f"{bytes_text(memory.device_bytes)}."
        )
        if memory.devices > 1:
            cards = math.ceil(memory.devices / one.card.devices)
            sentence += (
                f" It must be split over {memory.devices} devices ({counted(cards, 'card')}), with "
                "mdp_load_partition_config."
            )
    sentences: list[str] = [Prose(sentence)]
    if memory.largest_batch and one.has_batches:
        samples = (
            f"{'more than' if memory.largest_batch > _MANY else 'up to'} {min(memory.largest_batch, _MANY):,}"
        )
        sentences.append(f"Samples of one inference that fit on a device: {samples}.")
    if memory.longest_context is not None:
        sentences.append(
            f"Caches of up to {memory.longest_context:,} tokens for each sequence fit on "
            f"{counted(one.devices, 'device')}."
        )
    table = Table("parts", "Parts", columns_of("part | size:bytes"), list(parts.items()), ASSUMPTION)
    needed = math.ceil((memory.devices or 1) / one.card.devices)
    lines = {} if fits or memory.devices is None else {"": one.check_line(cards=needed)}
    return _section("Memory", "yes" if fits else "no", sentences, [table], lines=lines, data=memory.to_json())


def _precision(one: Checked) -> Section:
    if one.accuracy is not None:
        verdicts = {item.to: item.verdict for item in one.accuracy.precisions}
        verdict = _VERDICTS[next(iter(verdicts.values()))]
        if one.samples == "random" and verdict == "yes":
            # Random samples can show a loss, but cannot prove that there is none.
            verdict = "unknown"
        lines, said = {"": one.accuracy_line()}, one.accuracy.sentences()
        return _section("Precision", verdict, said, [], lines=lines, data={"measured": True})
    losses = [item for item in one.warnings if item.code.startswith("float16.")]
    sentences: list[str] = [Prose(f"Weights: {item.message}.", names=item.nodes) for item in losses]
    if not losses and "fp16" in one.precision:
        sentences = ["All weights are in the range of float16."]
    sentences.append(Prose("An assessment of activations needs samples of real data.", options=("samples",)))
    sentences.append("Replace FILE in the next line with the path of these samples.")
    data = {"measured": False, "findings": [item.message for item in losses]}
    verdict = "perhaps" if losses else "unknown"
    return _section("Precision", verdict, sentences, [], lines={"": one.accuracy_line()}, data=data)


def _speed(one: Checked) -> Section:
    assert one.analysis is not None  # noqa: S101  # it compiled
    reasons = one.reasons(one.analysis.sets[0])
    sentences = [f"Forecast, not measured: {one.fitted.source}. Each figure has a 90 % interval."]
    if reasons:
        sentences.append(
            f"Intervals are wider, because the forecast is an extrapolation: {'; '.join(reasons)}."
        )
    if one.has_sample_batch:
        sentences.append("The batch is that of the samples, because they calibrate the integers.")
    if one.precision == "fp32":
        sentences.append("No measurements of float32 on a card exist; the figures are for float16.")
    if one.measurements is not None:
        correction = one.correction(one.analysis.sets[0])
        sentences.append(
            f"Corrected by {counted(correction.runs, 'measured run')}: throughput x "
            f"{correction.samples_per_s:.3g}, latency x {correction.latency_s:.3g}."
        )
    tables: list[Table] = []
    data: dict[str, Any] = {"reasons": reasons, "fitted_on": one.fitted.source}
    chosen: dict[str, list[Configuration]] = {}
    has_state = one.analysis.sets[0].table.state_bytes > 0
    if has_state or len(one.analysis.sets) > 1:
        # Forecasts of sets are on all cores of a device.
        fixed = Fixed(one.fixed.cores or one.card.cores, 1, None, 1)
        every = [(shapes, one.ranking(shapes, fixed=fixed).at(0)) for shapes in one.analysis.sets]
        tables.append(_sets_table(every))
        data["sets"] = [
            {"name": shapes.name, "tokens": _tokens(shapes), **_configuration_json(one, found)}
            for shapes, found in every
        ]
    if not has_state:
        ranking = one.ranking(one.analysis.sets[0])
        chosen = {objective: ranking.best(objective) for objective in OBJECTIVES}
        data["candidates"] = len(ranking)
        rates = [found.samples_per_s for several in chosen.values() for found in several]
        if any(high > _UNCERTAIN * low for low, _, high in rates):
            sentences.append("The intervals are too wide to choose a configuration; measure on a card.")
        tables.append(_best_table(chosen))
    data |= {objective: [_configuration_json(one, c) for c in found] for objective, found in chosen.items()}
    lines = _best_lines(one, {objective: found[0] for objective, found in chosen.items() if found})
    return _section(
        "Speed", "forecast", sentences, tables, lines=lines or {"": one.compile_line()}, data=data
    )


def _best_lines(one: Checked, best: Mapping[str, Configuration]) -> dict[str, str]:
    """Return the lines that compile and run the best configurations, once for equal ones."""
    purposes: dict[Configuration, list[str]] = {}
    for objective, found in best.items():
        purposes.setdefault(found, []).append(objective)
    lines = {}
    for found, objectives in purposes.items():
        purpose = f"for {' and '.join(_PURPOSES.get(name, name) for name in objectives)}"
        settings = ["-a", str(found.instances), "-S", str(found.set_size)]
        lines[purpose] = _compile_line(one, found, objectives[0])
        lines[f"to run it {purpose}"] = shlex.join(["qaic-runner", "-t", objectives[0], *settings])
    return lines


def _best_table(chosen: dict[str, list[Configuration]]) -> Table:
    columns = columns_of(
        "best for | cores:int | instances:int | batch:int | set size:int | samples per second | latency | "
        "limit"
    )
    rows = [
        (
            objective,
            one.cores,
            one.instances,
            one.batch,
            one.set_size,
            _interval(one.samples_per_s, _rate),
            _interval(one.latency_s, lambda value: duration(value * 1e6)),
            one.limit,
        )
        for objective, found in chosen.items()
        for one in found
    ]
    note = (
        "All instances of one device together; with several devices, each runs the same number. Of nearly "
        "equal forecasts, the one with the shorter latency is first, and for latency the one with the higher "
        "throughput. Balanced is the largest throughput divided by the square root of the latency."
    )
    return Table("best", "Best configurations", columns, rows, note)


def _sets_table(every: list[tuple[ShapeSet, Configuration]]) -> Table:
    """Return a row for each set of shapes: prefill and decode of a decoder."""
    columns = columns_of("shapes | cores:int | latency | tokens per second | limit")
    rows = []
    for shapes, found in every:
        tokens = _tokens(shapes)
        rows.append(
            (
                shapes.name or "all",
                found.cores,
                _interval(found.latency_s, lambda value: duration(value * 1e6)),
                _interval(tuple(tokens / value for value in reversed(found.latency_s)), _rate),
                found.limit,
            )
        )
    note = "For one device. If the model is split over several, communication is not counted."
    return Table("sets", "Sets of shapes", columns, rows, note)


def _tokens(shapes: ShapeSet) -> int:
    """Return the tokens of one inference: the elements of ``input_ids``, else the samples."""
    return math.prod(shapes.inputs.get("input_ids", (shapes.table.samples,)))


def _configuration_json(one: Checked, found: Configuration) -> dict[str, Any]:
    low, value, high = found.samples_per_s
    fastest, latency, slowest = found.latency_s
    return {
        **{name: getattr(found, name) for name in ("cores", "instances", "batch", "set_size", "limit")},
        "samples_per_s": value,
        "samples_per_s_90": [low, high],
        "latency_s": latency,
        "latency_s_90": [fastest, slowest],
        "compile": _compile_line(one, found),
    }


def _compile_line(one: Checked, found: Configuration, folder: str = "program") -> str:
    options: dict[str, object] = {"aic_num_cores": found.cores}
    if found.batch > 1 or one.fixed.batch:
        options["batchsize"] = found.batch
    return one.compile_line(folder, **options)


def _help(one: Checked) -> Section:
    rows = sorted(_gains(one), key=lambda row: -row[1])
    sentences = (
        ["Ordered by the forecast of the best throughput; gains only partly add up."]
        if rows
        else ["None of the tested changes has a forecast above 1.05 x."]
    )
    columns = columns_of("change | throughput:float x")
    table = [Table("changes", "Changes", columns, [row[:2] for row in rows])] if rows else []
    data = {"changes": [{"change": what, "factor": factor, "line": line} for what, factor, line in rows]}
    lines = {what: line for what, _, line in rows}
    return _section("Suggested changes", "forecast", sentences, table, lines=lines, data=data, name="help")


def _gains(one: Checked) -> Iterator[tuple[str, float, str]]:
    """Yield changes, the factor on the best throughput, and a line."""
    assert one.analysis is not None  # noqa: S101  # it compiled
    shapes = one.analysis.sets[-1]
    now = one.ranking(shapes).best("throughput", 1)
    if not now:
        return
    base = now[0].samples_per_s[1]
    stored = one.analysis.weights.stored_bytes
    is_quantized = 2 * sum(stored.get(name, 0) for name in ("int8", "uint8")) > sum(stored.values())
    for precision in ("fp16", "mxfp6+fp16", "int8"):
        if is_quantized or precision == one.precision or "int8" in one.precision.split("+"):
            continue
        found = one.ranking(shapes, precision=precision).best("throughput", 1)[0].samples_per_s[1]
        if found > base * _LEAST_GAIN:
            yield f"{precision} (check its accuracy)", found / base, one.check_line(precision)
    for name, what in (
        ("batch", "a larger batch"),
        ("cores", "other cores"),
        ("set_size", "a larger set size"),
    ):
        if getattr(one.fixed, name) is None:
            continue
        open_ = replace(one.fixed, **{name: None})
        best = one.ranking(shapes, fixed=open_).best("throughput", 1)[0]
        if best.samples_per_s[1] > base * _LEAST_GAIN:
            changed = replace(one.fixed, **{name: getattr(best, name)})
            line = one.check_line(fixed=changed)
            yield f"{what} ({getattr(best, name)})", best.samples_per_s[1] / base, line
    half = replace(
        shapes.table, input_bytes=shapes.table.input_bytes // 2, output_bytes=shapes.table.output_bytes // 2
    )
    best = one.ranking(replace(shapes, table=half)).best("throughput", 1)[0]
    if best.samples_per_s[1] > base * _LEAST_GAIN:
        what = Prose("float16 inputs and outputs, with custom_io_list_file")
        yield what, best.samples_per_s[1] / base, one.template_line("io.yaml")


def _rate(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def _interval(values: tuple[float, ...], write: Any) -> str:
    low, value, high = values
    return f"{write(value)} ({write(low)}-{write(high)})"
