"""``openqaic completion SHELL``: prints a script that completes all tools in a shell."""

import argparse
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from qaic.cli import opstats, qpc, util
from qaic.cli.console import SUCCESS, Parser, print_text
from qaic.cli.openqaic import SUBCOMMANDS, parser
from qaic.cli.openqaic.arguments import set_examples
from qaic.cli.opstats.report import tool_parser as report_parser
from qaic.cli.runner import command_line
from qaic.errors import StateError
from qaic.options.spec import FlagForm
from qaic.options.table import SPECS

#: placeholders of values that are not files
_NUMBERS: Final = frozenset({"N", "N,...", "X", "HEX,..."})


def _end(shell: str) -> str:
    """Return the end of the script for a shell."""
    return (files(__package__) / f"completion.{shell}").read_text(encoding="utf-8")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=sorted(_JOINED), metavar="|".join(sorted(_JOINED)))
    set_examples(
        parser,
        'eval "$(openqaic completion bash)"     (in ~/.bashrc)',
        "openqaic completion zsh > ~/.zfunc/_openqaic",
        "openqaic completion fish > ~/.config/fish/conf.d/openqaic.fish",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise StateError(
            "completion needs the package shtab, which is not installed",
            code="completion.shtab",
            hints=("pip install 'openqaic[completion]'",),
        ) from error
    parsers = _parsers()
    for completed in parsers:
        _complete_values(completed, shtab.FILE, shtab.DIRECTORY)
        if arguments.shell == "zsh":
            _take_assigned(completed)
    scripts = {completed.prog: shtab.complete(completed, arguments.shell) for completed in parsers}
    print_text(_JOINED[arguments.shell](scripts))
    return SUCCESS


def _parsers() -> list[argparse.ArgumentParser]:
    """Build the parsers of all tools, with every spelling of their options."""
    runner = command_line.parser()
    for action in runner._actions:  # noqa: SLF001 (argparse offers no other way)
        # Long options have one dash in the vendor's spelling.
        action.option_strings = [
            *action.option_strings,
            *(name[1:] for name in action.option_strings if name[:2] == "--"),
        ]
    stats = opstats.tool_parser()
    stats.add_subparsers(metavar="report").add_parser(
        "report",
        parents=[report_parser()],
        add_help=False,
        help="report what limits the inferences",
    )
    return [
        parser(frozenset(subcommand.name for subcommand in SUBCOMMANDS)),
        _compiler("qaic-compile"),
        _compiler("qaic-exec"),
        runner,
        stats,
        qpc.tool_parser(),
        util.tool_parser(),
    ]


def _compiler(tool: str) -> argparse.ArgumentParser:
    """Build a parser with the options of the vendor's compiler, which `qaic.options.argv` parses."""
    made = argparse.ArgumentParser(tool, description="Compile an ONNX model.", add_help=False)
    for spec in SPECS:
        if spec.flag is None:
            continue
        names = [f"-{text}" for text in spec.flag.texts]
        about = spec.summary.replace("`", "").replace("%", "%%")
        if spec.flag.form in {FlagForm.SWITCH, FlagForm.ACTION, FlagForm.COUNT}:
            made.add_argument(*names, dest=spec.name, action="store_true", help=about)
        else:
            made.add_argument(*names, dest=spec.name, metavar=spec.codec.placeholder, help=about)
    return made


def _complete_values(of: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Complete the words of a list, and complete other values as files, like shells without a rule."""
    for action in of._actions:  # noqa: SLF001 (argparse offers no other way)
        # shtab reads the attribute.
        free: Any = action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_values(command, file, folder)
        elif action.nargs == 0 or action.choices is not None:
            continue
        elif isinstance(action.metavar, str) and "|" in action.metavar and action.option_strings:
            action.choices = action.metavar.removesuffix(",...").split("|")
        elif action.metavar == "DIR":
            free.complete = folder
        elif action.metavar == "FILE" or (action.type in {None, Path} and action.metavar not in _NUMBERS):
            free.complete = file


def _take_assigned(of: argparse.ArgumentParser) -> None:
    """Complete values after ``=`` in zsh as well."""
    for action in of._actions:  # noqa: SLF001 (argparse offers no other way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _take_assigned(command)
        elif action.nargs != 0:
            action.option_strings = [f"{name}=" for name in action.option_strings]


def _bash(scripts: dict[str, str]) -> str:
    parts = [re.sub(r"\ncomplete .*$", "", script) for script in scripts.values()]
    return "\n".join([*parts, _end("bash").replace("TOOLS", " ".join(scripts))])


def _zsh(scripts: dict[str, str]) -> str:
    tools = " ".join(scripts)
    bodies = []
    for tool, script in scripts.items():
        # Options of the tool itself come before the name of a subcommand.
        own = f"$_shtab_{tool.replace('-', '_')}_options\n"
        body = script.partition("\n")[2].partition("\ntypeset -A opt_args")[0]
        bodies.append(body.replace(f"_arguments -C -s {own}", f"_arguments -C -s -A '-*' {own}"))
    registered = "\n".join(f"  compdef _shtab_{tool.replace('-', '_')} {tool}" for tool in scripts)
    return "\n".join([f"#compdef {tools}", *bodies, _end("zsh").replace("REGISTERED", registered)])


def _fish(scripts: dict[str, str]) -> str:
    lines = "\n".join(scripts.values()).split("\n")
    for place, line in enumerate(lines):
        declared, about, text = line.partition(" -d ")
        if re.search(r" -[sl] \S", declared):
            # fish has letters, words with one dash and words with two; shtab does not support words with one.
            declared = declared.replace(" -s ", " -o ")
            # The completion of files in fish also works after `=`.
            declared = declared.replace('-xka "(__fish_complete_path (commandline -ct))"', "-rF")
            lines[place] = declared + about + text
    return "\n".join(lines).replace("case '--*=*'", "case '-*=*'")


_JOINED: Final[dict[str, Callable[[dict[str, str]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
    "tcsh": lambda scripts: "\n".join(scripts.values()),
}
