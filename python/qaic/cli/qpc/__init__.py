"""``qaic-qpc info | list | extract | validate | diff``: inspects program containers."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qaic.cli import console
from qaic.cli.console import FAILURE, SUCCESS, USAGE, print_json, print_line, print_text
from qaic.errors import QaicError, QpcError
from qaic.report.text import rows_text
from qaic.support.text import escape_unprintable

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
    from qaic.cli.qpc.facts import facts
    from qaic.cli.qpc.text import info_text

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
        from qaic.cli.qpc.text import segments_text

        print_text(segments_text(rows))
    return SUCCESS


def _walk(qpc: Qpc, prefix: str = "", base: int = 0) -> list[dict[str, Any]]:
    """List segments with their positions in the file; nested segments have a path."""
    from qaic.cli.qpc.facts import segments

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
        hint = "--force overwrites it; another --output-dir keeps both"
        console.print_message("error", f"{error.filename}: {error.strerror}", hint)
        return FAILURE
    if arguments.json:
        print_json([str(path) for path in written])
    elif written:
        print_text(rows_text("bytes:int | file", [[path.stat().st_size, path] for path in written]))
    if not written:
        hint = "a pattern matches a whole path, such as *networkdesc.json; omit -s to write all files"
        console.print_message("error", f"no file matches {arguments.pattern!r}", hint)
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
        from qaic.cli.qpc.text import summary_text

        print_text(summary_text(described))
        for label, cores in _programs(described):
            print_line(f"Number of NSP required{label}: {cores}")
        print_line()
    for finding in findings:
        print_line(_finding_line(finding))
    print_line("valid" if valid else "not valid")
    return SUCCESS if valid else FAILURE


def _facts_of_readable(path: str) -> dict[str, Any] | None:
    """Describe a container that opens; the findings contain the reasons if it does not."""
    from qaic.cli.qpc.facts import facts
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
    """Show the differences between two containers, from the first to the second.

    Returns the exit code: 0 if nothing differs, 1 if something differs, 2 if a container cannot be read.
    """
    from qaic.cli.qpc.diff import diff_text, differences
    from qaic.qpc import Qpc

    opened = []
    for path in (a, b):
        try:
            opened.append(Qpc(path))
        except (QaicError, OSError) as error:
            # An exit code of 1 would mean that they differ.
            said = error.message if isinstance(error, QaicError) else str(error.strerror)
            hints = error.hints if isinstance(error, QaicError) else ()
            code = error.code if isinstance(error, QaicError) else ""
            # The error of a damaged container names its file.
            text = said if said.startswith(path) else f"{path}: {said}"
            console.print_message("error", text, *hints, code=code)
            return USAGE
    found = differences(opened[0], opened[1])
    if as_json:
        print_json(found)
    else:
        print_text(diff_text(found))
    return SUCCESS if found["same"] else FAILURE


def _finding_line(finding: Finding) -> str:
    where = f"{escape_unprintable(finding.segment)}: " if finding.segment else ""
    return console.with_code(
        f"{finding.severity}: {where}{escape_unprintable(finding.message)}", finding.code
    )
