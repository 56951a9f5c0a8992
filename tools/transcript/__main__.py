"""Lists and compares the system calls to cards that QAIC_KMD_TRANSCRIPT records.

``diff`` has the exit codes of the tool ``diff``: 0 for equal calls, 1 for differences, 2 if a file cannot be
compared.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from qaic.cli.console import FAILURE, SUCCESS, USAGE, Parser, print_line, print_message, run
from qaic.errors import InputError
from qaic.support.text import counted, escape_unprintable
from transcript.diff import Comparison, Difference, call_name, compare
from transcript.lines import VOLATILE, Line, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LONGEST_VALUE: Final = 60
#: Fields that other parts of a line already show, or that contain nothing.
_NOT_SHOWN: Final = frozenset({"type", "command", "pad"})


def tool(argv: Sequence[str]) -> int:
    """Parse the arguments and run the command; return the exit code."""
    parser = Parser(prog="transcript", description="List and compare recorded system calls of cards.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("show", help="list the calls")
    listed.add_argument("file", metavar="FILE", help="file that QAIC_KMD_TRANSCRIPT wrote")
    difference = actions.add_parser("diff", help="compare the calls; 0: same, 1: different, 2: error")
    difference.add_argument("a", metavar="A", help="a transcript")
    difference.add_argument("b", metavar="B", help="another transcript")
    difference.add_argument(
        "--lrt",
        action="store_true",
        help="B is from the open runtime: ignore its known differences",
    )
    arguments = parser.parse_args(argv)
    if arguments.action == "show":
        return show_calls(arguments.file)
    return diff(arguments.a, arguments.b, lrt=arguments.lrt)


def diff(a: str, b: str, *, lrt: bool) -> int:
    """Show the differences. Returns the exit code. Blocking."""
    sides: list[list[Line]] = []
    for path in (a, b):
        lines = _read(path)
        if lines is not None:
            sides.append(lines)
    if len(sides) < 2:
        return USAGE
    comparison = compare(*sides, lrt=lrt)
    for line in _report(comparison):
        print_line(escape_unprintable(line))
    return FAILURE if comparison.differences else SUCCESS


def show_calls(path: str) -> int:
    """List the calls, one per line. Returns the exit code. Blocking."""
    lines = _read(path)
    if lines is None:
        return USAGE
    width = len(str(lines[-1].seq))
    for line in lines:
        file = "" if line.file is None else f"#{line.file}"
        parts = [f"{line.seq:>{width}}", f"{file:>3}", call_name(line), _told(line.fields)]
        answer = _told(line.answer)
        if line.errno is not None:
            answer = f"{line.errno} {answer}".rstrip()
        if answer:
            parts += ["->", answer]
        print_line(escape_unprintable(" ".join(part for part in parts if part)))
    return SUCCESS


def _read(path: str) -> list[Line] | None:
    try:
        return read(path)
    except InputError as error:
        print_message("error", error.message)
    except OSError as error:
        print_message("error", f"{path}: {error.strerror or error}")
    return None


def _report(comparison: Comparison) -> Iterator[str]:
    differences = comparison.differences
    if not differences:
        yield f"no difference in {counted(comparison.calls_a, 'call')}"
    else:
        yield (
            f"{counted(len(differences), 'difference')} in {comparison.calls_a} and "
            f"{counted(comparison.calls_b, 'call')}; A | B"
        )
    file: int | str | None = "none yet"
    for difference in differences:
        if difference.file != file:
            file = difference.file
            yield "cards" if file is None else f"file {file}"
        yield f"  {_line(difference)}"
    known = {trap: count for trap, count in sorted(comparison.known.items()) if count}
    if known:
        shown = ", ".join(f"{trap} {count}" for trap, count in known.items())
        yield f"known differences of the open runtime left out: {shown}"


def _line(difference: Difference) -> str:
    seqs = " | ".join("-" if seq is None else str(seq) for seq in (difference.seq_a, difference.seq_b))
    if difference.field is None:
        side = "A" if difference.seq_b is None else "B"
        return f"{seqs}  {difference.name}: only in {side}"
    return f"{seqs}  {difference.name}, {difference.field}: {_cut(difference.a)} | {_cut(difference.b)}"


def _cut(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _told(fields: dict[str, Any]) -> str:
    """Fields in short form; lists by their items."""
    shown = []
    for name, value in fields.items():
        if name in _NOT_SHOWN or value == VOLATILE:
            continue
        if isinstance(value, dict):
            inner = _told(value)
            if inner and any(value.values()):
                shown.append(f"{name}({inner})")
        elif isinstance(value, list):
            items = [_told(item) if isinstance(item, dict) else _cut(item) for item in value]
            shown.append(f"{name}[{'; '.join(item for item in items if item)}]")
        else:
            shown.append(f"{name}={_cut(value)}")
    return " ".join(shown)


if __name__ == "__main__":
    sys.exit(run(tool, None))
