"""Text of the facts about a container."""

from collections.abc import Iterator, Sequence
from typing import Any

from qaic.cli.qpc.facts import value_text
from qaic.report.text import facts_text, rows_text
from qaic.support.text import bytes_text, counted, escape_unprintable, shape_text, three_digits

_Json = dict[str, Any]


def info_text(facts: _Json) -> str:
    """Return the text that ``qaic-qpc info`` shows."""
    return "\n".join(_info_lines(facts))


def segments_text(segments: Sequence[_Json]) -> str:
    """Return a table of payloads."""
    rows = [[one["name"], one["bytes"], one["start"], _segment_note(one)] for one in segments]
    return rows_text("segment | bytes:int | start:int | ", rows)


def summary_text(facts: _Json) -> str:
    """Return the facts, one in each line."""
    return facts_text(_summary(facts))


def _info_lines(facts: _Json) -> Iterator[str]:
    yield summary_text(facts)
    yield from (f"warning: {escape_unprintable(text)}" for text in facts["warnings"])
    for item in facts["diagnostics"]:
        yield f"compiler {item['severity']}: {escape_unprintable(item['message'])}"
    yield from (f"problem: {escape_unprintable(text)}" for text in facts["problems"])
    if facts["kind"] == "program":
        for side in ("inputs", "outputs"):
            yield from _section(side, _bindings_text(facts[side]))
        yield from _section("allowed shapes", _shapes_text(facts["shapes"]))
        yield from _section("DMA buffers", _dma_text(facts["dma_buffers"]))
        yield from _section("options", _options_text(facts["options"] or {}, facts["without_effect"]))
    yield from _section("segments", segments_text(facts["segments"]))
    for name, inner in facts.get("slices", {}).items():
        yield ""
        yield f"--- {escape_unprintable(name)}"
        yield from _info_lines(inner)


def _section(title: str, text: str) -> Iterator[str]:
    if text:
        yield ""
        yield title
        yield from (f"  {line}" for line in text.splitlines())


def _summary(facts: _Json) -> Iterator[tuple[str, str]]:
    if facts["file"]:
        yield "file", facts["file"]
    size = bytes_text(facts["bytes"])
    yield "size", f"{size}, {counted(len(facts['segments']), 'segment')}"
    if facts["kind"] == "slices":
        yield "kind", f"container of {len(facts['slices'])} containers, one per device"
        return
    yield "target", _target(facts)
    yield "program", facts["name"] or "(no name)"
    yield "cores", str(facts["cores"])
    if facts["devices"] > 1:
        yield "devices", f"{facts['devices']}, used as one"
    yield "batch", str(facts["batch"])
    if facts["memory_bytes"]:
        yield "memory", f"{bytes_text(facts['memory_bytes'])} on the device per activation"
    if facts["constants"] is not None:
        yield "constants", _constants_text(facts["constants"])
    if facts["weights"]:
        formats = (f"{kind} {bytes_text(size)}" for kind, size in sorted(facts["weights"].items()))
        yield "weights", ", ".join(formats)
    if (stored := facts["stored_weights"]) is not None:
        yield "", f"used in the container: {stored_weights_text(stored)}"
    if facts["precision"]:
        yield "precision", facts["precision"]
    metadata = facts["metadata"]
    if metadata is not None:
        yield (
            "metadata",
            f"{metadata['encoding']} in {metadata['section']}, hardware version {metadata['hardware']}, "
            f"{metadata['semaphores']} semaphores",
        )
    elif not any(problem.startswith("metadata:") for problem in facts["problems"]):
        yield "metadata", "none"
    yield "stats", _stats_text(facts["stats"])


def stored_weights_text(stored: _Json) -> str:
    """Write the sizes of :func:`~qaic.cli.stored_weights.stored_weights`."""
    size, each = bytes_text(stored["bytes"]), three_digits(stored["bytes_per_weight"] or 0)
    return f"{size}, {each} bytes per weight; an inference reads {bytes_text(stored['read_bytes'])}"


def _target(facts: _Json) -> str:
    target = facts["target"]
    if target is None:
        return "unknown"
    producer = f", compiled by {facts['producer']}" if facts["producer"] else ""
    return f"{target}{producer}"


def _constants_text(constants: _Json) -> str:
    parts = [
        f"{bytes_text(constants[f'{kind}_bytes'])} {kind}"
        for kind in ("static", "dynamic")
        if constants[f"{kind}_bytes"]
    ]
    if not parts:
        return "none"
    count = constants["initializers"]
    weights = f" in {counted(count, 'initializer')}" if count else ""
    return ", ".join(parts) + weights


def _stats_text(stats: _Json | None) -> str:
    if stats is None:
        return "none"
    parts = [f"level {stats['level']}"]
    if stats["operations"]:
        parts.append(counted(stats["operations"], "operation"))
    if stats["ddr"]:
        parts.append("DDR traffic")
    if stats["pmu_events"]:
        parts.append(f"PMU events {','.join(stats['pmu_events'])}")
    parts.append(f"{bytes_text(stats['bytes'])} in DMA buffer {stats['dma_buffer']}")
    parts.append("no separate output" if stats["output"] is None else f"output {stats['output']}")
    return ", ".join(parts)


def _bindings_text(bindings: Sequence[_Json]) -> str:
    if not bindings:
        return ""
    rows = [
        [
            binding["name"] or "(no name)",
            binding["dtype"],
            shape_text(binding["shape"]),
            binding["bytes"],
            _place(binding),
            ", ".join(_notes(binding)),
        ]
        for binding in bindings
    ]
    return rows_text("name | dtype | shape | bytes:int | DMA buffer | ", rows)


def _place(binding: _Json) -> str:
    dma = binding["dma"]
    return "none" if dma is None else f"{dma['buffer']} at {dma['offset']}"


def _notes(binding: _Json) -> Iterator[str]:
    if binding["partial"]:
        yield "partial allowed"
    if not binding["stages"]:
        yield "optimized away"
    for stage in binding["stages"]:
        if stage["kind"] == "copy":
            continue
        text = f"{stage['kind']} to {stage['dtype']}" if stage["kind"] != "transpose" else "transpose"
        if stage["kind"] == "quantize":
            text += f" (scale {_number(stage['scale'])}, offset {stage['offset']})"
        yield text


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:g}"


def _shapes_text(shapes: Sequence[_Json]) -> str:
    if not shapes:
        return ""
    # Bindings that are the same in all combinations are in the tables above.
    rows = []
    for name in shapes[0]:
        cells = [shape_text(shape[name]) if name in shape else "-" for shape in shapes]
        if len(set(cells)) > 1:
            rows.append([name, *cells])
    columns = " | ".join(["binding", *(f"#{number}" for number in range(1, len(shapes) + 1))])
    return rows_text(columns, rows) if rows else ""


def _dma_text(buffers: Sequence[_Json]) -> str:
    if not buffers:
        return ""
    rows = [
        [one["index"], one["direction"], one["bytes"], one["holds"] if one["holds"] != "tensors" else ""]
        for one in buffers
    ]
    return rows_text("buffer:int | dir | bytes:int | ", rows)


def _options_text(options: _Json, without_effect: Sequence[str]) -> str:
    if not options:
        return ""
    rows = [
        [key, value_text(value), "no effect on the cpu target" if key in without_effect else ""]
        for key, value in options.items()
    ]
    return rows_text("option | value | ", rows)


def _segment_note(segment: _Json) -> str:
    if segment["name"] != "constants.bin" or segment["offset"] == segment["bytes"]:
        return ""
    return f"dynamic from {segment['offset']}"
