"""``openqaic explain CODE``: explains an error code or an exception."""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from operator import attrgetter
from typing import Final

from qaic import errors
from qaic._core import error_catalogue
from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_text
from qaic.cli.openqaic.arguments import add_json, set_examples
from qaic.errors import OptionError
from qaic.report.text import rows_text
from qaic.support.text import format_value, nearest_name


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="an error code, its first part, or an exception (default: all)",
    )
    add_json(parser)
    set_examples(
        parser, "openqaic explain device.busy", "openqaic explain option", "openqaic explain DeviceError"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the matching codes."""
    known = sorted(error_codes(), key=attrgetter("code", "exception"))
    # Error lines end with their code in brackets.
    wanted = arguments.code and arguments.code.strip("[]")
    if wanted is None and not arguments.json:
        print_text(rows_text("code | exception", _exceptions_of_codes(known)))
        return SUCCESS
    found = [
        one
        for one in known
        if wanted in {None, one.code, one.exception} or one.code.startswith(f"{wanted.rstrip('.')}.")
    ]
    if not found:
        names = sorted({one.code for one in known} | set(errors.__all__))
        near = nearest_name(wanted, names)
        raise OptionError(
            f"there is no error code {format_value(wanted)}" + (f"; did you mean {near}?" if near else ""),
            code="explain.unknown",
            hints=("`openqaic explain` lists all codes",),
        )
    meanings = {
        name: meaning(name) if name in errors.__all__ else "" for name in {one.exception for one in found}
    }
    if arguments.json:
        print_json([asdict(one) | {"meaning": meanings[one.exception]} for one in found])
        return SUCCESS
    for one in found:
        print_line(f"{one.code}: {one.exception}" + (f", {one.status} in qaicrt" if one.status else ""))
        if meanings[one.exception]:
            print_line(f"  {meanings[one.exception]}")
        if one.message:
            print_line(f"  for example: {one.message}")
        for fix in one.advice:
            print_line(f"  fix: {fix}")
        print_line(f"  guide: {one.guide}")
    codes = {one.code for one in found}
    if len(codes) > 1:
        another = next(one.code for one in found if one.code != wanted)
        print_line(f"{len(codes)} codes; next: openqaic explain {another}")
    return SUCCESS


def _exceptions_of_codes(known: Iterable["ErrorCode"]) -> list[tuple[str, str]]:
    """Return each code once, in the order of the codes, with the exceptions that have it."""
    exceptions: dict[str, list[str]] = {}
    for one in known:
        exceptions.setdefault(one.code, []).append(one.exception)
    return [(code, ", ".join(names)) for code, names in exceptions.items()]


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code of `QaicError`."""

    code: str
    #: Name of the exception.
    exception: str
    #: Status that a call of ``qaicrt`` returns; empty if there is none.
    status: str
    #: An example, in which ``...`` represents a value; empty if the message has another source.
    message: str
    #: Advice for each cause, in which ``...`` represents a value.
    fixes: Sequence[str] = ()

    @property
    def guide(self) -> str:
        """The page of the repository about what causes the error."""
        return f"docs/guide/{self._area[0]}.md"

    @property
    def advice(self) -> Sequence[str]:
        """The fixes, or the fix that applies to all codes of this area."""
        return self.fixes or (self._area[1],)

    @property
    def _area(self) -> tuple[str, str]:
        return next((page, fix) for page, codes, fix in _GUIDES if re.fullmatch(codes, self.code))


#: guide, the pattern of its codes, and the fix of those without their own; the first match applies
_GUIDES: Final = (
    (
        "shapes-and-state",
        r"compile\.(dynamic_shape|not_batchable|retained_state|unbound_\w+|unknown_output|varying_rank)",
        "give all sizes, such as --shape 1x3x224x224 or --onnx-define-symbol N,1",
    ),
    (
        "calibration",
        r"compile\.(calibration_\w+|no_samples|samples_changed)",
        "give samples of the inputs of the model: --input-list-file samples.npz",
    ),
    (
        "compiling",
        r"(compile|option|cache)\..+",
        "`openqaic compile --help` lists the options and their values",
    ),
    ("command", r"plot\..+", "`openqaic plot --help` shows the files and options"),
    (
        "profiling",
        r"(profile|profiling|stats)\..+",
        "measure again: `openqaic profile model.onnx -o page.html`",
    ),
    ("devices", r"(device|devices|engine|process)\..+", "`openqaic info` shows the devices and the engine"),
    (
        "containers",
        r"(qpc|inspect|writer|program)\..+",
        "compile the model again; `qaic-qpc validate programqpc.bin` lists the defects of a container",
    ),
    ("tools", r"runner\..+", "`qaic-runner --help` lists the options and their values"),
    ("serving", r"serving\..+", "`openqaic serve --help` lists the options and their values"),
    ("precision", r"quant\..+", "give finite values, and scales and zero points that fit their type"),
    (
        "tools",
        r"internal.*",
        "report this bug of openqaic with the message and the output of `openqaic info`",
    ),
    ("running", r".+", "compare the call with the inputs and outputs in `openqaic inspect program`"),
)


def error_codes() -> list[ErrorCode]:
    """List all codes: those of the compiled module first, each once for an exception."""
    text = (files(__package__) / "error_codes.json").read_text(encoding="utf-8")
    examples = {(code, exception): rest for code, exception, *rest in json.loads(text)}
    found = [
        ErrorCode(code, exception, status, message or own_message, fixes)
        for code, exception, status, message in error_catalogue()
        for own_message, fixes in [examples.get((code, exception), ("", ()))]
    ]
    known = {(one.code, one.exception) for one in found}
    found += [ErrorCode(*key, "", *rest) for key, rest in examples.items() if key not in known]
    return found


def meaning(exception: str) -> str:
    """Return the first line of the documentation of an exception."""
    return str(getattr(errors, exception).__doc__).split("\n", maxsplit=1)[0]
