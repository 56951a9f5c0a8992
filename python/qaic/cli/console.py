"""Output of all command line tools, their exit codes, and the format of errors.

No other module prints. Exit codes: 0 success, 1 invalid input, 2 usage error, 3 device error, 70 a bug. They
are 130 after Ctrl-C and 143 after SIGTERM, as shells expect.
"""

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TextIO

from qaic.cli import entry
from qaic.errors import DeviceError, InternalError, OptionError, QaicError, UnknownOptionError
from qaic.support.status_line import erase, exclusive
from qaic.support.text import escape_json, escape_lines, escape_unprintable, nearest_name

if TYPE_CHECKING:
    from qaic.report import Prose, Report

SUCCESS = 0
FAILURE = 1
USAGE = 2
DEVICE = 3
INTERNAL = 70
INTERRUPTED = 130
TERMINATED = 143

#: prefix of hidden options that take the value of a switch, as in ``--convert-to-fp16=false``
VALUE_SUFFIX = ":value"

#: bold red, bold yellow and cyan, by the first word of a message
_COLORS = {"error": "1;31", "warning": "1;33", "hint": "36", "note": "36"}


def print_line(text: str = "", *, flush: bool = False, to: TextIO | None = None) -> None:
    """Print one line of output, with names escaped; with ``flush``, readers of a pipe get it immediately."""
    print_text("\t".join(map(escape_unprintable, text.split("\t"))), to=to)
    if flush:
        sys.stdout.flush()


def print_text(text: str, *, to: TextIO | None = None, color: str = "") -> None:
    """Print lines with escaped names, which therefore cannot add lines.

    On a terminal with colors, the word before the first colon is colored.
    """
    stream, shown = to or sys.stdout, escape_lines(text.removesuffix("\n"))
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if color and not is_plain and stream.isatty():
        word, colon, rest = shown.partition(":")
        shown = f"\x1b[{color}m{word}\x1b[0m{colon}{rest}"
    with exclusive():
        erase()
        stream.write(shown + "\n")


def text_width() -> int:
    """Return the number of columns of the terminal; 120 for a file or a pipe."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 120


def print_json(value: object) -> None:
    """Print a value as JSON."""
    import json

    print_text(escape_json(json.dumps(value, indent=2, ensure_ascii=False)))


#: options of other servers, and the options with the same effect
_OF_SERVERS: Final = {"port": ("http",), "http-port": ("http",), "grpc-port": ("grpc",)}


class _Spelling(NamedTuple):
    """Spelling of options in the messages and reports of a tool."""

    #: dashes of compile options; tools without such options print the form of ``qaic-compile``
    dashes: str = "-"
    #: options of the command line as typed, without dashes
    typed: tuple[str, ...] = ()
    #: options of the tool or its subcommand
    parser: "Parser | None" = None
    #: names of the user: words of the command line, and names in the context of an error
    names: frozenset[str] = frozenset()


_spelling: ContextVar[_Spelling] = ContextVar("spelling")


def take_options_as_flags(dashes: str, argv: Sequence[str] = ()) -> None:
    """Show compile options, and options in ``argv``, as flags in messages of the running tool."""
    names = tuple(word.partition("=")[0].lstrip("-") for word in argv if word.startswith("-"))
    _spelling.set(_spelling.get(_Spelling())._replace(dashes=dashes, typed=names))


def _typed(keyword: str) -> str:
    """Return an option as the user typed it, such as ``--shape``; other keywords stay."""
    from qaic.options.table import find

    spelling = _spelling.get(_Spelling())
    for name in reversed(spelling.typed):
        option = find(name)
        if keyword == (option.name if option else name.replace("-", "_")):
            return f"{spelling.dashes}{name}"
    return keyword


def _spelled(text: str, names: Iterable[str] = ()) -> str:
    """Return a text with options in the form of the running tool; `names` in it do not change."""
    from qaic.options.argv import with_flags

    spelling = _spelling.get(_Spelling())
    own = spelling.parser.own_options() if spelling.parser else {}
    return with_flags(text, spelling.dashes, own, spelling.names.union(names))


def _shown(prose: "Prose") -> str:
    """Return a sentence of a report with options in the form of the running tool."""
    from qaic.report import Prose

    parser = _spelling.get(_Spelling()).parser
    flags = []
    for option in prose.options:
        flag = (parser.flag_of(option) if parser else None) or _spelled(option)
        flags += [flag] if flag != option else []
    return str(Prose(_spelled(prose.text, prose.names), options=flags))


def in_flags(reports: "Iterable[Report]") -> "list[Report]":
    """Return reports with options in the form of the running tool."""
    return [report.with_prose(_shown) for report in reports]


def print_reports(reports: "Sequence[Report]", width: int | None = None, whole: str = "") -> None:
    """Print reports as `in_flags`; `whole` is as for `to_text`."""
    from qaic.report.files import rendered

    print_text(rendered(in_flags(reports), "text", width=width or text_width(), whole=whole).rstrip("\n"))


def with_code(text: str, code: str) -> str:
    """Return a message whose first line ends with its error code, for ``openqaic explain CODE``."""
    first, line_end, more = text.partition("\n")
    return f"{first} [{code}]{line_end}{more}" if code else text


def print_message(kind: str, text: str, *hints: str, code: str = "", verbatim: bool = False) -> None:
    """Print an error and hints to stderr, with options in the form of the tool, unless ``verbatim``.

    The first line ends with `code`. The other lines are indented, so that a name with a line end cannot
    imitate another message.
    """
    text = with_code(text if verbatim else _spelled(text), code)
    first, *more = text.split("\n")
    lines = [f"{kind}: {first}", *(line if line.startswith(" ") else f"  {line}" for line in more)]
    print_text("\n".join(lines), to=sys.stderr, color=_COLORS.get(kind, ""))
    for hint in hints:
        print_message("hint", hint)


class HelpFormatter(argparse.HelpFormatter):
    """Writes help whose lines do not break inside an option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Store(argparse.Action):
    """Stores the value of an option, with a warning if the command line already has another."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest, None)
        if option_string and given not in (None, self.default, values):
            print_message("warning", f"{option_string} has two values: {values} replaces {given}")
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Argument parser with the exit codes and messages of this package."""

    _is_mixing = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **kwargs})
        self.register("action", None, _Store)

    def add_version(self) -> None:
        """Declare ``-V``, which shows the name of the tool and the version of the package."""
        from qaic import __version__

        version = f"{self.prog.split()[0]} {__version__}"
        self.add_argument("-V", "--version", action="version", version=version, help="show the version")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse all arguments; the error about an unknown option suggests the nearest option."""
        parsed, unknown = self.parse_known_args(args, namespace)
        command = self._of_command(parsed)
        if unknown:
            command.error(self.about_unknown(unknown))
        if (spelling := _spelling.get(None)) is not None:
            _spelling.set(spelling._replace(parser=command))
        return parsed

    def own_options(self) -> dict[str, str]:
        """Return the flags of options that are not compile options, by their keyword in messages."""
        from qaic.options.spec import Stage
        from qaic.options.table import find

        own = {}
        for action in self._actions:
            spec = next(filter(None, map(find, (action.dest, *action.option_strings))), None)
            if spec is not None and action.option_strings and spec.stage is not Stage.COMPILE:
                own[spec.name] = action.option_strings[0]
        return {name: flag for name, flag in own.items() if "_" in name}

    def flag_of(self, argument: str) -> str | None:
        """Return the option that sets an argument; None if there is none."""
        flags = (action.option_strings for action in self._actions if action.dest == argument)
        return next((texts[0] for texts in flags if texts), None)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse known arguments; positional arguments may be before, between and after options."""
        free = [action.nargs for action in self._actions if not action.option_strings]
        # argparse cannot intermix a positional argument that an option excludes.
        excluded = (action for group in self._mutually_exclusive_groups for action in group._group_actions)  # noqa: SLF001
        if (
            self._is_mixing
            or any(not action.option_strings for action in excluded)
            or not set(free) & {"*", "+", "?"}
            or {argparse.PARSER, argparse.REMAINDER} & set(free)
        ):
            return super().parse_known_args(args, namespace)
        # argparse calls this method again: for the options, then for the rest.
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is not a choice, and suggest the nearest choice."""
        choices = [str(choice) for choice in action.choices or (value,)]
        if str(value) not in choices:
            near = nearest_name(str(value), choices)
            meant = f"; did you mean {near}?" if near else ""
            # The choices identify a positional argument.
            raise argparse.ArgumentError(
                action if action.option_strings else None,
                f"found {str(value)!r}, expected one of {', '.join(choices)}{meant}",
            )

    def _of_command(self, parsed: argparse.Namespace) -> "Parser":
        """Return the parser of the given command, whose help lists its options."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 (argparse offers no other way)
                made: Parser = action.choices.get(getattr(parsed, action.dest, ""), self)
                return made
        return self

    def about_unknown(self, arguments: Sequence[str]) -> str:
        """Return the error about unknown arguments, with a suggestion for the first."""
        from qaic.options.names import nearest

        wrong = next((text for text in arguments if text.startswith("-")), None)
        if wrong is None:
            return f"unexpected argument {' '.join(arguments)}"
        word = wrong.split("=")[0].lstrip("-")
        names = {name.lstrip("-"): name for name in self.long_options() if not name.endswith(VALUE_SUFFIX)}
        if word in names:
            return f"{wrong} is an option of another command"
        near = self._meant(word, names) or [name for name in [nearest(word, names)] if name is not None]
        meant = " or ".join(names[name] for name in near)
        return f"unknown option {wrong}" + (f"; did you mean {meant}?" if near else "")

    @staticmethod
    def _meant(word: str, names: Container[str]) -> list[str]:
        """Return the options of the parser for an option of another runtime."""
        from qaic.options.table import flags_of_others

        return [flag for flag in flags_of_others(word) or _OF_SERVERS.get(word, ()) if flag in names]

    def long_options(self) -> list[str]:
        """Return the names of all long options, including those of commands."""
        options = [name for name in self._option_string_actions if name.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 (argparse offers no other way)
                options += [name for parser in action.choices.values() for name in parser.long_options()]
        return options

    def with_two_dashes(self, argv: Sequence[str]) -> list[str]:
        """Give long options two dashes; the vendor's tools also accept them with one dash."""
        known = {name.removeprefix("--") for name in self.long_options()}

        def spell(argument: str) -> str:
            flag, assigned, value = argument.partition("=")
            if assigned and f"{flag.lstrip('-')}{VALUE_SUFFIX}" in known:
                return f"--{flag.lstrip('-')}{VALUE_SUFFIX}={value}"
            word = flag[1:]
            if argument.startswith("--") or not argument.startswith("-") or len(word) < 2:
                return argument
            if word in known:
                return f"-{argument}"
            # `-num-itr 5` is probably a misspelled long option, not `-n` with the value `um-itr`.
            is_misspelled = word.replace("-", "").isalpha() and nearest_name(word, known, 0.75)
            return f"-{argument}" if is_misspelled else argument

        return [spell(argument) for argument in argv]

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        shows = "lists the commands" if self._subparsers else "shows the options"
        print_message("error", message, f"`{self.prog} --help` {shows}")
        raise SystemExit(USAGE)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an exception."""
    match error:
        case InternalError():
            return INTERNAL
        case UnknownOptionError() | OptionError():
            return USAGE
        case DeviceError():
            return DEVICE
        case QaicError() | OSError():
            return FAILURE
        case Terminated():
            return TERMINATED
        case KeyboardInterrupt():
            return INTERRUPTED
        case _:
            return INTERNAL


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 (open as long as the process)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; the tool cleans up as after Ctrl-C."""


#: received signals as exceptions; an import of a library may replace such an exception by its own
_received: Final[list[KeyboardInterrupt]] = []


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    _received.append(KeyboardInterrupt())
    raise _received[-1]


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second signal ends the process immediately.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _received.append(Terminated())
    raise _received[-1]


@contextlib.contextmanager
def _termination() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, unless the process has a handler for it; Ctrl-C raises again."""
    _received.clear()
    on_main_thread = threading.current_thread() is threading.main_thread()
    if on_main_thread and signal.getsignal(signal.SIGINT) is entry.interrupted:
        signal.signal(signal.SIGINT, _interrupt)
    if not on_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ended(error: KeyboardInterrupt) -> int:
    """Report the signal that ended the tool; returns the exit code."""
    print_message("error", "terminated" if isinstance(error, Terminated) else "interrupted")
    return exit_code(error)


def _words(argv: Sequence[str]) -> Iterator[str]:
    """Yield arguments, values of options, and the names of files without their folders."""
    for word in argv:
        for name in (word, *word.split("=")[word.startswith("-") :]):
            yield from (name, name.rpartition("/")[2])


def run(tool: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run a tool: exceptions become lines on stderr and an exit code."""
    # A stream that the parent process closed, as with `>&-`, is None; its output is dropped.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names come from files, so characters that the terminal cannot show are escaped.
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = lambda message, *_args, **_kwargs: print_message("warning", str(message))
    given = sys.argv[1:] if argv is None else argv
    token = _spelling.set(_Spelling(names=frozenset(_words(given))))
    try:
        with _termination():
            code = tool(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has ended, as in `| head`, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except KeyboardInterrupt as error:
        return _ended(error)
    except QaicError as error:
        from qaic.options.argv import names_in

        # A message about an option begins with its keyword.
        keyword = re.split(r"\W", error.message, maxsplit=1)[0] if isinstance(error, OptionError) else ""
        message = _typed(keyword) + error.message.removeprefix(keyword)
        # Names of the user may be names of options.
        spelling = _spelling.get(_Spelling())
        _spelling.set(spelling._replace(names=spelling.names.union(names_in(error))))
        print_message("error", message, *error.hints, code=error.code)
        return exit_code(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print_message("error", f"{where}{error.strerror or error}", verbatim=True)
        return exit_code(error)
    except MemoryError as error:
        print_message("error", f"out of memory ({error or 'no details are known'})")
        return FAILURE
    except Exception as error:  # noqa: BLE001  # another exception is a bug and is shown completely
        if _received:
            return _ended(_received[0])
        import traceback

        print_text(traceback.format_exc(), to=sys.stderr)
        print_message("error", "this is a bug of openqaic; please report it with the lines above")
        return exit_code(error)
    finally:
        _spelling.reset(token)
    return code
