"""Options of the compiler as arguments of subcommands: those of the option table, with two dashes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from qaic.options.argv import read_argv
from qaic.options.resolution import resolve
from qaic.options.spec import FlagForm, Stage
from qaic.options.table import SPECS

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from qaic.cli.console import Parser
    from qaic.options.resolution import ResolvedOptions
    from qaic.options.spec import OptionSpec

#: options that help shows; the others are in docs/reference/options.md
_SHOWN: Final = (
    "aic_num_cores",
    "convert_to_fp16",
    "convert_to_quantize",
    "batchsize",
    "onnx_define_symbol",
    "input_list_file",
    "load_profile",
    "mxfp6_matmul",
    "stats_level",
    "target",
    "verbose",
)
#: those that subcommands name in their own way, and those that write files and no program
_OWN: Final = frozenset(
    {
        "output_dir",
        "dump_custom_io_config_template_file",
        "dump_embedding_tables",
        "dump_profile",
        "mdp_dump_partition_config",
    }
)
_PREFIX: Final = "compile_option:"


def add_compile_options(parser: Parser, *, without: Collection[str] = ()) -> None:
    """Declare all options of the compiler, but for some by name; help shows the common ones."""
    group = parser.add_argument_group(
        "options of the compiler", "the common ones; docs/reference/options.md has all, which are taken too"
    )
    for spec in _specs():
        if spec.name not in without:
            _add(group, spec)
    group.add_argument("--options-path", metavar="FILE", help="YAML file with options")


def resolve_options(
    arguments: argparse.Namespace, *, output_folder: Path | None = None, model_is_container: bool = False
) -> ResolvedOptions:
    """Resolve the options that were given.

    Parameters
    ----------
    arguments
        What the parser read.
    output_folder
        Where the container is to be; None for the compile cache.
    model_is_container
        Whether nothing is compiled.

    Raises
    ------
    qaic.errors.OptionError
        A value is wrong, or options contradict each other.
    """
    place = [] if output_folder is None else [f"-aic-binary-dir={output_folder}"]
    return resolve(
        {},
        options_path=arguments.options_path,
        model_is_container=model_is_container,
        flags=read_argv([*given_options(arguments), *place]),
    )


def keyword_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options that were given as keyword arguments of `qaic.compile`, which checks them.

    Raises
    ------
    qaic.errors.OptionError
        An argument is no option, or its value is missing.
    """
    given = {item.name or item.key: item.value for item in read_argv(given_options(arguments))}
    return given if arguments.options_path is None else {**given, "options_path": arguments.options_path}


def set_stats_level(arguments: argparse.Namespace, level: int) -> None:
    """Have the program measure itself, unless the command line says what it is to measure."""
    dest = f"{_PREFIX}stats_level"
    if getattr(arguments, dest) is None:
        setattr(arguments, dest, str(level))


def given_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options that were given, as a command line of the compiler."""
    written = []
    given = vars(arguments)
    for spec in _specs():
        value = given.get(_PREFIX + spec.name)
        assert spec.flag is not None  # noqa: S101  # see `_specs`
        flag = f"--{spec.flag.text}" if len(spec.flag.text) > 1 else f"-{spec.flag.text}"
        if value is None:
            continue
        if spec.flag.form is FlagForm.COUNT:
            written += [flag] * value
        elif isinstance(value, list):
            written += [f"{flag}={text}" for text in value]
        elif isinstance(value, bool):
            written.append(flag if value else f"{flag}=false")
        else:
            written.append(f"{flag}={value}")
    return written


def _specs() -> list[OptionSpec]:
    return [
        spec
        for spec in SPECS
        if spec.stage is Stage.COMPILE and spec.flag is not None and spec.name not in _OWN
    ]


def _add(group: argparse._ArgumentGroup, spec: OptionSpec) -> None:
    assert spec.flag is not None  # noqa: S101  # see `_specs`
    names = [f"--{text}" if len(text) > 1 else f"-{text}" for text in spec.flag.texts]
    dest = _PREFIX + spec.name
    # Percent signs are argparse's own.
    summary = spec.summary.replace("%", "%%") if spec.name in _SHOWN else argparse.SUPPRESS
    match spec.flag.form:
        case FlagForm.SWITCH | FlagForm.ACTION:
            group.add_argument(*names, dest=dest, action="store_true", default=None, help=summary)
            group.add_argument(
                *(f"--no-{text}" for text in spec.flag.texts),
                dest=dest,
                action="store_false",
                default=None,
                help=argparse.SUPPRESS,
            )
        case FlagForm.COUNT:
            group.add_argument(*names, dest=dest, action="count", help=summary)
        case FlagForm.OPTIONAL:
            group.add_argument(*names, dest=dest, nargs="?", const=True, metavar="VALUE", help=summary)
        case FlagForm.REPEAT:
            group.add_argument(*names, dest=dest, action="append", metavar="VALUE", help=summary)
        case FlagForm.VALUE:
            group.add_argument(*names, dest=dest, metavar="VALUE", help=summary)
