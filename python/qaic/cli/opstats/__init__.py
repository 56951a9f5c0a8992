"""``qaic-opstats``: writes stats buffers of devices as summaries and traces.

``qaic-opstats report`` explains them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic import _core
from qaic.cli import console
from qaic.cli.console import FAILURE, SUCCESS, USAGE, print_line, print_message
from qaic.cli.opstats.report import Refusals, report
from qaic.errors import QaicError
from qaic.support.open_regular import read_regular
from qaic.support.text import counted

if TYPE_CHECKING:
    from qaic.stats import Descriptor, StatsBuffer
    from qaic.stats.opening import StatsFile

#: lowest level with figures of operations
_OP_LEVEL: Final = 70
#: largest number of warnings about a file without --verbose
_SHOWN_WARNINGS: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(_tool, argv)


def _tool(argv: Sequence[str]) -> int:
    if argv and argv[0] == "report":
        return report(argv[1:])
    parser = tool_parser()
    arguments = parser.parse_args(argv)
    return _Run(arguments, shlex.join([parser.prog, *argv])).run()


def tool_parser() -> console.Parser:
    """Build the parser, without `report`."""
    parser = console.Parser(
        prog="qaic-opstats",
        description="Decode the stats buffers that devices wrote for inferences.",
        epilog="qaic-opstats report --help shows the reports.",
    )
    parser.add_version()
    parser.add_argument("-q", "--qpc", required=True, metavar="FILE", help="programqpc.bin of the buffers")
    parser.add_argument("-i", "--input-dir", required=True, metavar="DIR", help="folder with the buffers")
    parser.add_argument(
        "-o", "--output-dir", default=".", metavar="DIR", help="output folder (default: the current folder)"
    )
    parser.add_argument("--summary", action="store_true", help="write a text summary for each buffer")
    parser.add_argument("--trace", action="store_true", help="write a timeline for each inference")
    parser.add_argument(
        "--host-trace", metavar="FILE", help="Chrome trace of the host, added to the timelines"
    )
    parser.add_argument("-c", "--select-cores", type=_numbers, metavar="LIST", help="cores (default: all)")
    parser.add_argument(
        "-d", "--select-devices", type=_numbers, metavar="LIST", help="numbers of devices (default: all)"
    )
    for name, text in (
        ("--merge-mq-traces", "one trace for all devices of a program (default: true)"),
        ("--merge-thread-groups", "one track for all threads of a group (default: true)"),
    ):
        parser.add_argument(
            name, type=_truth, nargs="?", const=True, default=True, metavar="true|false", help=text
        )
    parser.add_argument(
        "--flow-events", choices=["none", "full"], default="none", help="draw dependencies (default: none)"
    )
    parser.add_argument(
        "--show-barrier-events", action="store_true", help="add tracks for the waits after operations"
    )
    parser.add_argument(
        "--format",
        choices=["json", "perfetto"],
        default="json",
        help="format of traces: Chrome or Perfetto (default: json)",
    )
    parser.add_argument("--layout", metavar="NAME", help="layout of the buffers, if it cannot be detected")
    parser.add_argument("--force", action="store_true", help="also decode buffers of another program")
    parser.add_argument("--opstats-schema", metavar="FILE", help="FileDescriptorSet of opstatsdesc.bin")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the names of files that are read")
    return parser


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list as `0,5,1`."""
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdigit() and int(part[:6]) < 1 << 16 for part in parts):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,5,1")
    return [int(part) for part in parts]


def _truth(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


class _Run:
    """One run of the tool."""

    def __init__(self, arguments: argparse.Namespace, command: str) -> None:
        self._arguments = arguments
        self._command = command
        self._output = Path(arguments.output_dir)
        self._refusals = Refusals()
        self._host_trace: bytes | None = None
        self._programs: list[Descriptor] = []
        self._has_noted_level = False
        # Missing cores of a buffer are reported once, not for every inference.
        self._noted_cores: set[tuple[int, ...]] = set()

    def run(self) -> int:
        """Decode all buffers; returns the exit code."""
        import qaic.stats
        from qaic.stats.opening import devices_of, samples_in

        arguments = self._arguments
        directory = Path(arguments.input_dir)
        samples = samples_in(directory)
        chosen = arguments.select_devices
        known = devices_of(file for files in samples for file in files)
        if chosen is not None and not set(chosen) & set(known):
            print_message(
                "error",
                f"{directory}: no buffer of {_some('device', chosen)}, only of {_some('device', known)}",
            )
            return FAILURE
        self._programs = qaic.stats.descriptors(arguments.qpc, opstats_schema=arguments.opstats_schema)
        if not self._programs and not arguments.force:
            hint = f"compile it with -stats-level={_OP_LEVEL}; --force decodes without names"
            print_message("error", f"{arguments.qpc}: the program was compiled without statistics", hint)
            return FAILURE
        if not (arguments.summary or arguments.trace):
            error = "nothing to do: give --summary, --trace or both"
            print_message("error", error, f"`{self._command} --summary` writes a summary for each buffer")
            return USAGE
        if arguments.trace and arguments.host_trace is not None:
            self._host_trace = read_regular(arguments.host_trace)
        self._output.mkdir(exist_ok=True)
        expected = [number for number in known if chosen is None or number in chosen]
        try:
            for files in samples:
                self._sample([one for one in files if chosen is None or (one.slice or 0) in chosen], expected)
        finally:
            self._refusals.show()
        return FAILURE if self._refusals.files else SUCCESS

    def _sample(self, files: list[StatsFile], expected: list[int]) -> None:
        """Decode the buffers of one inference."""
        from qaic.stats.opening import devices_of

        for number in sorted(set(expected) - set(devices_of(files))):
            where = files[0].path if files else "an inference"
            print_message(
                "warning", f"{where}: device {number} wrote no buffer for this inference", verbatim=True
            )
        opened = [(file, buffer) for file in files if (buffer := self._open(file)) is not None]
        if self._arguments.summary:
            paths = [path for file, buffer in opened if (path := self._summary(file, buffer)) is not None]
            _show_generated("summary", paths)
        if self._arguments.trace and opened:
            groups = [opened] if self._arguments.merge_mq_traces else [[one] for one in opened]
            paths = [path for group in groups if (path := self._trace(group)) is not None]
            _show_generated("trace", paths)

    def _open(self, file: StatsFile) -> StatsBuffer | None:
        """Open and check a buffer, and report its errors."""
        import qaic.stats

        arguments = self._arguments
        try:
            buffer = qaic.stats.open(
                file.path, qpc=self._programs, layout=arguments.layout, force=arguments.force, check=True
            )
        except (QaicError, OSError) as error:
            self._refusals.add(file.path, error)
            return None
        if arguments.verbose:
            run = buffer.run
            print_line(
                f"{file.path}: layout {buffer.layout}, {run.device_name}, level {run.stats_level}, "
                f"{counted(run.cores, 'core')}, {counted(len(buffer.ops), 'operation')}"
            )
        warnings = buffer.warnings if arguments.verbose else buffer.warnings[:_SHOWN_WARNINGS]
        for text in warnings:
            print_message("warning", f"{file.path}: {text}", verbatim=True)
        if len(warnings) < len(buffer.warnings):
            rest = len(buffer.warnings) - len(warnings)
            print_message(
                "warning", f"{file.path}: {rest} more like these; --verbose shows them", verbatim=True
            )
        self._note_missing(file, buffer)
        return buffer

    def _note_missing(self, file: StatsFile, buffer: StatsBuffer) -> None:
        if not buffer.has("OP") and not self._has_noted_level:
            self._has_noted_level = True
            level = buffer.run.stats_level
            print_message(
                "note", f"{file.path}: level {level} contains no operations; they need level {_OP_LEVEL}"
            )
        cores = self._arguments.select_cores
        missing = sorted(set(cores or ()) - {int(core) for core in buffer.cores["core"]})
        if missing and tuple(missing) not in self._noted_cores:
            self._noted_cores.add(tuple(missing))
            verb = "is" if len(missing) == 1 else "are"
            print_message("warning", f"{file.path}: there {verb} no {_some('core', missing)}", verbatim=True)

    def _summary(self, file: StatsFile, buffer: StatsBuffer) -> Path | None:
        path = self._output / summary_name(file)
        try:
            buffer.write_summary(path, cores=self._arguments.select_cores)
        except QaicError as error:
            self._refusals.add(file.path, error)
            return None
        return path

    def _trace(self, group: list[tuple[StatsFile, StatsBuffer]]) -> Path | None:
        from qaic.support.atomic_io import write_replacing

        arguments = self._arguments
        path = self._output / trace_name([file for file, _ in group], arguments.format)
        parts = [
            (
                buffer.compiled,
                None if buffer.descriptor is None else buffer.descriptor.compiled,
                file.network,
                file.slice,
            )
            for file, buffer in group
        ]
        try:
            write_replacing(
                path,
                lambda aside: _core.stats_trace(
                    parts,
                    path=aside,
                    format=arguments.format,
                    merge_thread_groups=arguments.merge_thread_groups,
                    flow_events=arguments.flow_events == "full",
                    barrier_events=arguments.show_barrier_events,
                    cores=arguments.select_cores,
                    host_trace=self._host_trace,
                ),
            )
        except QaicError as error:
            foreign = error.code == "stats.host_trace"
            self._refusals.add(Path(arguments.host_trace) if foreign else group[0][0].path, error)
            return None
        return path


def _show_generated(what: str, paths: list[Path]) -> None:
    if paths:
        print_line(f"Generated {what} outputs:")
        for path in paths:
            print_line(f" {path}")


def _some(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def summary_name(file: StatsFile) -> str:
    """Return the name of a summary."""
    return f"{file.buffer}.qaic-opstats.summary.txt"


def trace_name(files: list[StatsFile], form: str) -> str:
    """Return the name of a trace of one device, or of several in one file."""
    merged = "-merged" if len(files) > 1 else ""
    ending = {"json": "json", "perfetto": "pftrace"}[form]
    return f"{files[0].buffer}{merged}.qaic-opstats.trace.{ending}"
