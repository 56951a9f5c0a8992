"""``openqaic plot FILE``: draws measurements as a picture, or prints figures in the terminal."""

import argparse
import shlex
import shutil
from codecs import BOM_UTF8, getincrementaldecoder
from pathlib import Path
from typing import Final

import numpy as np

import qaic.stats
from qaic import page
from qaic.cli.console import Parser, in_flags, print_line, print_message, print_reports, print_text
from qaic.cli.latency_results import Results, read_results
from qaic.cli.openqaic.arguments import set_examples
from qaic.cli.openqaic.program import wrote
from qaic.errors import InputError
from qaic.model_path import QPC_MAGIC
from qaic.page.drawing import draw_latencies, draw_timeline, suffix_of
from qaic.page.latency import Distribution, latency_text
from qaic.page.timeline.capture_tracks import timeline_of
from qaic.page.timeline.trace_page import trace_figures
from qaic.page.timeline.trace_tracks import timeline_of_trace
from qaic.report import Report
from qaic.stats.reports import REPORTS, Capture, HostLatencies
from qaic.support.open_regular import NotRegularError, read_regular

_MAGIC: Final = b"OQSTATS1"
# Number of bytes that are read to detect the type of a file.
_HEAD_BYTES: Final = 1 << 16
_EXPECTED: Final = (
    "expected a latency report (.txt), a trace (.json), a stats buffer (.bin), or the JSON of "
    "openqaic bench, qaic-runner or get_metrics()"
)


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="latency report, JSON of `openqaic bench` or qaic-runner, trace, or stats buffer",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="picture, .html or .png (default: text on the terminal)"
    )
    parser.add_argument("-q", "--qpc", metavar="QPC", help="program of a stats buffer")
    set_examples(
        parser,
        "openqaic plot measured/aic-profiling-program-0-latency.txt",
        "openqaic plot trace.json -o trace.html",
        "openqaic plot bench.json -o bench.html",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw a file, or show its figures. Blocking."""
    path, qpc = Path(arguments.file), arguments.qpc
    target = None if arguments.output is None else Path(arguments.output)
    if target is not None:
        suffix_of(target)
    try:
        head = read_regular(path, _HEAD_BYTES)
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; {_EXPECTED}", code="plot.foreign") from None
    except NotRegularError:
        raise InputError(f"{path} is not a regular file; {_EXPECTED}", code="plot.foreign") from None
    if path.suffix.lower() == ".onnx" or head.startswith(QPC_MAGIC):
        raise InputError(
            f"{path} is a model or a program; {_EXPECTED}",
            code="plot.foreign",
            hints=(f"`openqaic inspect {shlex.quote(str(path))} graph -o graph.html` draws its graph",),
        )
    if head.startswith(_MAGIC) or (qpc is not None and b"\0" in head):
        return _plot_buffer(path, target, qpc)
    if head.lstrip()[:1] in {b"{", b"["}:
        results = read_results(path, head)
        return _plot_trace(path, head, target) if results is None else _plot_latencies(path, target, results)
    if b"totalRoundtripTimeUs" in head:
        latencies = HostLatencies.of_file(path)
        total = latencies.columns["totalRoundtripTimeUs"]
        distribution = Distribution.of(total[np.isfinite(total)] / 1e6, what="inference")
        report = REPORTS["host-latency"](Capture((), host=latencies))
        return _plot_latencies(path, target, Results({"": distribution}, (report,)))
    raise InputError(f"{path} {_found(head)}; {_EXPECTED}", code="plot.foreign")


def _found(head: bytes) -> str:
    begin = head.decode("utf-8-sig", "backslashreplace")[:16]
    if not all(letter.isprintable() or letter.isspace() for letter in begin):
        return "has binary data"
    try:
        # The last character of the head may be incomplete.
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    mark = "a byte order mark and " if head.startswith(BOM_UTF8) else ""
    return f"begins with {mark}{begin!r}" if head else "is empty"


def _plot_latencies(path: Path, target: Path | None, results: Results) -> int:
    if target is not None:
        return _say(draw_latencies(results.latencies, target, title=path.name, reports=results.reports))
    for name, distribution in results.latencies.items():
        if len(results.latencies) > 1:
            print_line(f"== {name} ==")
        print_text(latency_text(distribution, width=_width()))
        if results.reports:
            print_line()
    if results.reports:
        _show(*results.reports)
    return 0


def _plot_trace(path: Path, head: bytes, target: Path | None) -> int:
    try:
        timeline = timeline_of_trace(path)
    except InputError as error:
        if b'"traceEvents"' in head or head.lstrip().startswith(b"["):
            raise
        raise InputError(
            f"{path} is JSON without latencies or a trace; {_EXPECTED}", code="plot.foreign"
        ) from error
    if target is None:
        _show(trace_figures(timeline))
        for note in timeline.notes:
            print_line(note)
        return 0
    return _say(draw_timeline(timeline, target, title=path.name))


def _plot_buffer(path: Path, target: Path | None, qpc: str | None) -> int:
    buffer = qaic.stats.open(path, qpc=qpc, check=True)
    if qpc is None and buffer.has("OP"):
        print_message("hint", "--qpc takes the container of the buffer, which names the operations")
    capture: Capture = Capture([buffer], name=path.name)
    if target is None:
        _show(*(REPORTS[name](capture) for name in ("overview", "ops")))
        return 0
    if target.suffix.lower() == ".html":
        return _say(page.write(capture, in_flags(make(capture) for make in REPORTS.values()), target))

    return _say(draw_timeline(timeline_of(capture), target, title=path.name))


def _show(*reports: Report) -> None:
    print_reports(reports, _width(), "-o page.html")


def _width() -> int:
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def _say(written: Path) -> int:
    print_line(wrote(written))
    return 0
