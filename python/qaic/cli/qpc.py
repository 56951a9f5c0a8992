"""``qaic-qpc info | list | extract | validate | diff``: look into a program container."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qaic.cli import console
from qaic.cli.console import FAILURE, SUCCESS, USAGE, print_json, print_line, print_text
from qaic.errors import QaicError, QpcError
from qaic.report.text import rows_text
from qaic.support.text import bytes_text, counted, escape_unprintable, three_digits

if TYPE_CHECKING:
    from qaic.qpc import Finding, Qpc


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(_tool, argv)


def tool_parser() -> console.Parser:
    """Build the parser."""
    parser = console.Parser(prog="qaic-qpc", description="Inspect program containers of Cloud AI 100.")
    parser.add_version()
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = {
        "info": "show target, options, inputs and outputs, constants",
        "list": "list the segments, including those of inner containers",
        "extract": "write segments to files, and their content as JSON and ONNX",
        "validate": "check everything, including checksums; exit code 1 if there is an error",
    }
    for name, text in about.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        file = command.add_mutually_exclusive_group(required=True)
        file.add_argument(
            "file", nargs="?", metavar="FILE", help="a container, a folder with programqpc.bin, or a glob"
        )
        file.add_argument("-i", "-q", "--qpc", dest="option_file", metavar="FILE", help="FILE as an option")
        command.add_argument("--json", action="store_true", help="print JSON")
        if name == "extract":
            command.add_argument("-o", "--output-dir", required=True, metavar="DIR", help="output folder")
            command.add_argument(
                "-s", dest="pattern", default="*", metavar="GLOB", help="only files whose path matches"
            )
            command.add_argument("--force", action="store_true", help="overwrite existing files")
    text = "compare two containers; exit code 1 if they differ, 2 if one cannot be read"
    diff = commands.add_parser("diff", help=text, description=text[0].upper() + text[1:] + ".")
    for name in ("a", "b"):
        diff.add_argument(
            name, metavar=name.upper(), help="a container, a folder with programqpc.bin, or a glob"
        )
    diff.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _tool(argv: Sequence[str]) -> int:
    arguments = tool_parser().parse_args(argv)
    commands = {"info": _info, "list": _list, "extract": _extract, "validate": _validate, "diff": _diff}
    return commands[arguments.command](arguments)


def _path(arguments: argparse.Namespace) -> str:
    path: str = arguments.file if arguments.option_file is None else arguments.option_file
    return path


def _open(arguments: argparse.Namespace) -> Qpc:
    from qaic.qpc import Qpc

    return Qpc(_path(arguments))


def _info(arguments: argparse.Namespace) -> int:
    from qaic.cli.qpc_info import facts

    described = facts(_open(arguments))
    if arguments.json:
        print_json(described)
    else:
        print_text(info_text(described))
    return SUCCESS


def _list(arguments: argparse.Namespace) -> int:
    rows = list(_walk(_open(arguments)))
    if arguments.json:
        print_json(rows)
    else:
        print_text(segments_text(rows))
    return SUCCESS


def _walk(qpc: Qpc, prefix: str = "", base: int = 0) -> list[dict[str, Any]]:
    """List segments with their positions in the file; nested segments have a path."""
    from qaic.cli.qpc_info import segments

    rows: list[dict[str, Any]] = []
    for segment in segments(qpc):
        name, start = segment["name"], base + segment["start"]
        rows.append({**segment, "name": prefix + name, "start": start})
        if name in qpc.slices:
            # `validate` reports the reasons that a container does not open.
            with contextlib.suppress(QpcError):
                rows += _walk(qpc.slices[name], f"{prefix}{name}/", start)
    return rows


def _extract(arguments: argparse.Namespace) -> int:
    qpc = _open(arguments)
    try:
        written = qpc.extract(arguments.output_dir, arguments.pattern, force=arguments.force)
    except FileExistsError as error:
        console.print_message("error", f"{error.filename}: {error.strerror}")
        console.print_message("hint", "--force overwrites it; another --output-dir keeps both")
        return FAILURE
    if arguments.json:
        print_json([str(path) for path in written])
    elif written:
        print_text(rows_text("bytes:int | file", [[path.stat().st_size, path] for path in written]))
    if not written:
        console.print_message("error", f"no file matches {arguments.pattern!r}")
        console.print_message(
            "hint", "a pattern matches a whole path, such as *networkdesc.json; omit -s to write all files"
        )
        return FAILURE
    return SUCCESS


def _validate(arguments: argparse.Namespace) -> int:
    from qaic.qpc import validate

    path = _path(arguments)
    findings = validate(path)
    valid = not any(finding.severity == "error" for finding in findings)
    described = _facts_of_readable(path)
    if arguments.json:
        print_json(
            {"valid": valid, "findings": [asdict(finding) for finding in findings], "facts": described}
        )
        return SUCCESS if valid else FAILURE
    if described is not None:
        for line in summary_lines(described):
            print_line(line)
        for label, cores in _programs(described):
            print_line(f"Number of NSP required{label}: {cores}")
        print_line()
    for finding in findings:
        print_line(_finding_line(finding))
    print_line("valid" if valid else "not valid")
    return SUCCESS if valid else FAILURE


def _facts_of_readable(path: str) -> dict[str, Any] | None:
    """Describe a container that opens; the findings contain the reasons if it does not."""
    from qaic.cli.qpc_info import facts
    from qaic.qpc import Qpc

    try:
        return facts(Qpc(path))
    except QpcError:
        return None


def _programs(facts: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Return the cores of each program, with a label if there are several."""
    if facts["kind"] == "program":
        yield "", facts["cores"]
    for name, inner in facts.get("slices", {}).items():
        yield from ((f" by {escape_unprintable(name)}{label}", cores) for label, cores in _programs(inner))


def _diff(arguments: argparse.Namespace) -> int:
    return show_differences(arguments.a, arguments.b, as_json=arguments.json)


def show_differences(a: str, b: str, *, as_json: bool) -> int:
    """Show what differs between two containers, from the first to the second.

    Returns the exit code: 0 nothing, 1 something, 2 one cannot be read.
    """
    from qaic.cli.qpc_diff import diff_text, differences
    from qaic.qpc import Qpc

    opened = []
    for path in (a, b):
        try:
            opened.append(Qpc(path))
        except (QaicError, OSError) as error:
            # An exit code of 1 would mean that they differ.
            said = error.message if isinstance(error, QaicError) else str(error.strerror)
            # The error of a damaged container names its file.
            console.print_message("error", said if said.startswith(path) else f"{path}: {said}")
            for hint in error.hints if isinstance(error, QaicError) else ():
                console.print_message("hint", hint)
            return USAGE
    found = differences(opened[0], opened[1])
    if as_json:
        print_json(found)
    else:
        print_text(diff_text(found))
    return SUCCESS if found["same"] else FAILURE


def _finding_line(finding: Finding) -> str:
    where = f"{escape_unprintable(finding.segment)}: " if finding.segment else ""
    return f"{finding.severity}: {where}{escape_unprintable(finding.message)} [{finding.code}]"


_Json = dict[str, Any]


def shape_text(dims: Sequence[int]) -> str:
    """Write dims as ``1x3x8x8``."""
    return "x".join(str(dim) for dim in dims) or "scalar"


def info_text(facts: _Json) -> str:
    """Everything ``qaic-qpc info`` shows."""
    return "\n".join(_info_lines(facts))


def segments_text(segments: Sequence[_Json]) -> str:
    """Table of payloads."""
    rows = [[one["name"], one["bytes"], one["start"], _segment_note(one)] for one in segments]
    return rows_text("segment | bytes:int | start:int | ", rows)


def summary_lines(facts: _Json) -> list[str]:
    """Facts of one line each, aligned."""
    pairs = list(_summary(facts))
    width = max(len(key) for key, _ in pairs)
    return [f"{key:<{width}}  {value}" for key, value in pairs]


def _info_lines(facts: _Json) -> Iterator[str]:
    yield from summary_lines(facts)
    for text in facts["warnings"]:
        yield f"warning: {escape_unprintable(text)}"
    for item in facts["diagnostics"]:
        yield f"compiler {item['severity']}: {escape_unprintable(item['message'])}"
    for text in facts["problems"]:
        yield f"problem: {escape_unprintable(text)}"
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
        yield "file", escape_unprintable(facts["file"])
    size = bytes_text(facts["bytes"])
    yield "size", f"{size}, {counted(len(facts['segments']), 'segment')}"
    if facts["kind"] == "slices":
        yield "kind", f"container of {len(facts['slices'])} containers, one per device"
        return
    yield "target", _target(facts)
    yield "program", escape_unprintable(facts["name"]) or "(no name)"
    yield "cores", str(facts["cores"])
    if facts["devices"] > 1:
        yield "devices", f"{facts['devices']}, used as one"
    yield "batch", str(facts["batch"])
    if facts["memory_bytes"]:
        yield "memory", f"{bytes_text(facts['memory_bytes'])} on the device per activation"
    if facts["constants"] is not None:
        yield "constants", _constants_text(facts["constants"])
    if facts["weights"]:
        formats = (
            f"{escape_unprintable(kind)} {bytes_text(size)}"
            for kind, size in sorted(facts["weights"].items())
        )
        yield "weights", ", ".join(formats)
    if (stored := facts["stored_weights"]) is not None:
        yield "", f"used in the container: {stored_weights_text(stored)}"
    if facts["precision"]:
        yield "precision", escape_unprintable(facts["precision"])
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
    producer = f", compiled by {escape_unprintable(str(facts['producer']))}" if facts["producer"] else ""
    return escape_unprintable(target) + producer


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
    parts.append(
        "no separate output" if stats["output"] is None else f"output {escape_unprintable(stats['output'])}"
    )
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
    from qaic.cli.qpc_info import value_text

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


if __name__ == "__main__":
    sys.exit(main())
