"""``qaic-opstats report``: reports on measured inferences, as text, CSV, JSON or a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.cli import console
from qaic.cli.console import (
    FAILURE,
    SUCCESS,
    in_flags,
    print_line,
    print_message,
    print_reports,
    print_text,
    text_width,
    with_code,
)
from qaic.errors import QaicError, StatsError
from qaic.support.text import counted, nearest_name

if TYPE_CHECKING:
    from qaic.stats.descriptor import Descriptor
    from qaic.stats.reports import Capture, HostLatencies, Report

#: reports that are shown by default
_FIRST: Final = ("overview", "ops", "nodes")


def report(argv: Sequence[str]) -> int:
    """Run the sub-command with the arguments after its name; returns its exit code."""
    from qaic.stats.reports import REPORTS, diff

    parser = tool_parser()
    arguments = parser.parse_args(argv)
    names, files = _split(parser, arguments)
    capture, failed = _capture(arguments, files, arguments.input_dir, arguments.qpc)
    if capture is None:
        return FAILURE
    made: list[Report] = [REPORTS[name](capture) for name in names if name != "diff"]
    if arguments.against is not None:
        qpc = arguments.against_qpc or arguments.qpc
        other, other_failed = _capture(arguments, [], arguments.against, qpc, option="--against-qpc")
        failed |= other_failed
        if other is None:
            return FAILURE
        made.append(diff(other, capture))
    _put_out(arguments, capture, made)
    return FAILURE if failed else SUCCESS


def tool_parser() -> console.Parser:
    """Build the parser."""
    from qaic.stats.reports import REPORTS

    parser = console.Parser(
        prog="qaic-opstats report",
        description="Report the limiting factor of the measured inferences, and the slowest operations.",
        epilog=f"NAME is one of {', '.join(REPORTS)}, diff, or all; without one: {', '.join(_FIRST)}"
        " (all with --format json, csv or html)",
    )
    parser.add_argument("things", nargs="*", metavar="NAME|FILE", help="name of a report, or a stats buffer")
    parser.add_argument("-q", "--qpc", metavar="FILE", help="programqpc.bin, for the names of operations")
    parser.add_argument("-i", "--input-dir", metavar="DIR", help="read the stats buffers of this directory")
    parser.add_argument(
        "-a", "--against", metavar="PATH", help="baseline: a directory of buffers, or a buffer"
    )
    parser.add_argument("--against-qpc", metavar="FILE", help="program of --against, if it differs")
    parser.add_argument("--latency", metavar="FILE", help="latency report of qaic-runner, for host-latency")
    parser.add_argument(
        "--format",
        choices=["text", "csv", "json", "html"],
        default="text",
        help="form of the reports (default: text)",
    )
    parser.add_argument("-o", "--output-dir", metavar="DIR", help="folder for files, created if missing")
    parser.add_argument("--layout", metavar="NAME", help="layout of the buffers, if it cannot be detected")
    parser.add_argument("--force", action="store_true", help="also read buffers of another program")
    parser.add_argument("--opstats-schema", metavar="FILE", help="FileDescriptorSet of opstatsdesc.bin")
    return parser


def _split(parser: console.Parser, arguments: argparse.Namespace) -> tuple[list[str], list[Path]]:
    """Separate names of reports from files."""
    from qaic.stats.reports import REPORTS

    names: list[str] = []
    files: list[Path] = []
    known = [*REPORTS, "diff", "all"]
    for thing in arguments.things:
        if thing in known:
            names += list(REPORTS) if thing == "all" else [thing]
        elif Path(thing).exists() or "/" in thing or thing.endswith(".bin"):
            files.append(Path(thing))
        else:
            near = nearest_name(thing, known)
            hint = f"; did you mean {near}?" if near else ""
            parser.error(f"{thing} is neither a report nor a file{hint}")
    if not files and arguments.input_dir is None and (arguments.latency is None or arguments.against):
        parser.error("no stats buffer: give files, or a directory with --input-dir")
    if "diff" in names and arguments.against is None:
        parser.error("diff needs --against PATH")
    if arguments.format == "html" and arguments.output_dir is None:
        parser.error("--format html needs --output-dir")
    if not names and not arguments.against:
        names = list(REPORTS) if arguments.format != "text" else list(_FIRST)
    if not files and arguments.input_dir is None:
        names = ["host-latency"]
    return list(dict.fromkeys(names)), files


def _capture(
    arguments: argparse.Namespace,
    files: list[Path],
    place: str | None,
    qpc: str | None,
    *,
    option: str = "--qpc",
) -> tuple[Capture | None, bool]:
    """Open all buffers; print those that cannot be opened, and return True if there are any."""
    import qaic.stats
    from qaic.stats.reports import Capture

    paths = [*files, *(_found(Path(place)) if place is not None else [])]
    programs: list[Descriptor] | None = None
    if qpc is not None:
        programs = qaic.stats.descriptors(qpc, opstats_schema=arguments.opstats_schema)
    buffers = []
    refusals = Refusals(option)
    for path in paths:
        try:
            buffers.append(
                qaic.stats.open(
                    path, qpc=programs, layout=arguments.layout, force=arguments.force, check=True
                )
            )
        except (QaicError, OSError) as error:
            refusals.add(path, error)
    refusals.show()
    host = _latencies(arguments.latency, place)
    if not buffers and paths:
        print_message("error", f"found no valid stats buffer in {counted(len(paths), 'file')}")
        return None, True
    return Capture(buffers, host=host, name=str(place or files[0]) if paths else ""), bool(refusals.files)


def _found(place: Path) -> list[Path]:
    """Return the stats buffers of a directory by name, or the file itself."""
    from qaic.stats.opening import files_in

    return [place] if place.is_file() else [file.path for file in files_in(place)]


def _latencies(given: str | None, place: str | None) -> HostLatencies | None:
    """Read the given latency report, or the only one in the folder of the buffers."""
    from qaic.stats.reports import HostLatencies

    if given is not None:
        return HostLatencies.of_file(given)
    beside = sorted(Path(place).glob("*-latency.txt")) if place is not None and Path(place).is_dir() else []
    if len(beside) != 1:
        return None
    try:
        return HostLatencies.of_file(beside[0])
    except (StatsError, OSError) as error:
        # The user did not give this file, so its error is only a warning.
        print_message(
            "warning", error.message if isinstance(error, StatsError) else f"{beside[0]}: {error.strerror}"
        )
        return None


def _put_out(arguments: argparse.Namespace, capture: Capture, reports: list[Report]) -> None:
    from qaic.report.files import rendered, write_files

    if arguments.output_dir is None:
        if arguments.format == "text":
            print_reports(reports, whole="--format json")
        else:
            print_text(rendered(reports, arguments.format, width=text_width()))
        return
    folder = Path(arguments.output_dir)
    folder.mkdir(exist_ok=True)
    if arguments.format == "html":
        from qaic import page

        written = [page.write(capture, in_flags(reports), folder / "report.html")]
    else:
        written = write_files(reports, arguments.format, folder)
    print_line("Generated report outputs:")
    for path in written:
        print_line(f" {path}")


class Refusals:
    """Files that could not be read; files with the same defect, such as a wrong program, share one error."""

    def __init__(self, option: str = "--qpc") -> None:
        self._option = option
        self._hints: dict[str, None] = {}
        #: error, without the path of its file -> the files
        self.files: dict[str, list[Path]] = {}

    def add(self, path: Path, error: QaicError | OSError) -> None:
        """Note the error of a file."""
        if isinstance(error, QaicError):
            text = with_code(error.message.replace(f"{path}: ", ""), error.code)
            self._hints.update(dict.fromkeys(_hints_of(error, self._option)))
        else:
            text = error.strerror or str(error)
        self.files.setdefault(text, []).append(path)

    def show(self) -> None:
        """Print the errors, then their hints."""
        for text, (first, *others) in self.files.items():
            more = f" and {counted(len(others), 'other file')}" if others else ""
            print_message("error", f"{first}{more}: {text}", verbatim=True)
        for hint in self._hints:
            print_message("hint", hint)


def _hints_of(error: QaicError, option: str) -> tuple[str, ...]:
    """Return hints in terms of the command line.

    `error` is the defect of a buffer; `option` is the option that takes the container of the buffer.
    """
    if error.code == "stats.other_program":
        return (f"{option} expects the container of the buffers; --force reads the buffers anyway",)
    return tuple(error.hints)
