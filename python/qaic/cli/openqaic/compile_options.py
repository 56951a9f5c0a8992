"""Options of the compiler as arguments of subcommands, and in the command lines that they print next."""

import argparse
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from qaic.cli.console import VALUE_SUFFIX, Parser
from qaic.cli.log import logged
from qaic.errors import OptionConflictError
from qaic.options.argv import read_argv
from qaic.options.raw_option import OptionSource, Origin, RawOption
from qaic.options.resolution import ResolvedOptions, resolve
from qaic.options.spec import FlagForm, OptionSpec, Stage
from qaic.options.table import SPECS
from qaic.qpc import Qpc

#: options that help shows; the others are in docs/reference/options.md
_SHOWN: Final = (
    "aic_num_cores",
    "convert_to_fp16",
    "convert_to_quantize",
    "batchsize",
    "model_inputs",
    "onnx_define_symbol",
    "input_list_file",
    "load_profile",
    "mxfp6_matmul",
    "stats_level",
    "target",
    "verbose",
)
_GIVEN: Final = "given_compile_options"
_NO: Final = "--no-"


def add_compile_options(parser: Parser, *, without: Collection[str] = ()) -> None:
    """Declare all options of the compiler except those in `without`; help shows common options."""
    group = parser.add_argument_group(
        "compile options", "common options; `qaic-compile --help` lists all, and this command accepts all"
    )
    for spec in _specs():
        if spec.name not in without:
            _add(group, spec)
    group.add_argument("--options-path", metavar="FILE", help="YAML file with options")


def resolve_options(
    arguments: argparse.Namespace, *, output_folder: Path | None = None, model_is_container: bool = False
) -> ResolvedOptions:
    """Resolve the given options.

    The container will be in `output_folder`, or in the compile cache if that is None. With
    `model_is_container`, nothing is compiled. Raises OptionError if a value is wrong, or options contradict
    each other.
    """
    flags = read_argv(given_options(arguments))
    if output_folder is not None:
        flags.append(RawOption(Origin(OptionSource.ARGV, "-o"), str(output_folder), name="output_dir"))
    with logged():
        return resolve(
            {}, options_path=arguments.options_path, model_is_container=model_is_container, flags=flags
        )


def keyword_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the given options as keyword arguments of `qaic.compile`, which checks them.

    Raises OptionError if an argument is not an option, or its value is missing.
    """
    items = read_argv(given_options(arguments))
    given = {item.name or item.key: item.value for item in items}
    for item in items:
        if item.value != given[item.name or item.key]:
            raise OptionConflictError(f"{item.origin} has two values: give it once", code="option.duplicate")
    return given if arguments.options_path is None else {**given, "options_path": arguments.options_path}


def for_model(arguments: argparse.Namespace, model: Path) -> argparse.Namespace:
    """Copy the arguments for another model; a container gets no options of the compiler."""
    given = _given(arguments) if model.suffix.lower() == ".onnx" else []
    return argparse.Namespace(**{**vars(arguments), "model": model, _GIVEN: given})


def set_stats_level(arguments: argparse.Namespace, level: int) -> None:
    """Enable measurements in the program, unless the command line selects the measurements."""
    if all(name != "stats_level" for name, _, _ in _given(arguments)):
        setattr(arguments, _GIVEN, [*_given(arguments), ("stats_level", "--stats-level", str(level))])


def given_options(arguments: argparse.Namespace, *, without: Collection[str] = ()) -> list[str]:
    """Return the given options as typed, except those in `without`."""
    return [
        flag if value is None else f"{flag}={value}"
        for name, flag, value in _given(arguments)
        if name not in without
    ]


def _given(arguments: argparse.Namespace) -> list[tuple[str, str, str | None]]:
    """Return name, flag and value of each given option."""
    given: list[tuple[str, str, str | None]] = getattr(arguments, _GIVEN, [])
    return given


class _Note(argparse.Action):
    """Records an option as typed; `read_argv` interprets its values and its repetitions."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flag = (option_string or "").removesuffix(VALUE_SUFFIX)
        value = None if values in (None, []) else str(values)
        if flag.startswith(_NO):
            flag, value = f"--{flag.removeprefix(_NO)}", "false"
        setattr(namespace, _GIVEN, [*_given(namespace), (self.dest, flag, value)])


def _specs() -> list[OptionSpec]:
    return [
        spec
        for spec in SPECS
        if spec.stage is Stage.COMPILE
        and spec.flag is not None
        and spec.flag.of_openqaic is not None
        # Subcommands declare their own -o.
        and spec.name != "output_dir"
    ]


def _add(group: argparse._ArgumentGroup, spec: OptionSpec) -> None:
    assert spec.flag is not None  # noqa: S101  # see `_specs`
    # A percent sign has a meaning for argparse.
    text = spec.summary.replace("%", "%%").removesuffix(".")
    text = text if text[:2].isupper() else text[0].lower() + text[1:]
    summary = text if spec.name in _SHOWN else argparse.SUPPRESS

    def add(*names: str, shown: str = argparse.SUPPRESS, **more: Any) -> None:
        group.add_argument(
            *names, dest=spec.name, action=_Note, default=argparse.SUPPRESS, help=shown, **more
        )

    texts = spec.flag.texts
    names = [f"--{text}" if len(text) > 1 else f"-{text}" for text in texts]
    match spec.flag.form:
        case FlagForm.SWITCH | FlagForm.ACTION:
            add(*names, shown=summary, nargs=0)
            add(*(f"{_NO}{text}" for text in texts), nargs=0)
            add(*(f"--{text}{VALUE_SUFFIX}" for text in texts))
        case FlagForm.COUNT:
            add(*names, shown=summary, nargs=0)
        case FlagForm.OPTIONAL:
            add(*names, shown=summary, nargs="?", metavar=spec.codec.placeholder)
        case FlagForm.REPEAT | FlagForm.VALUE:
            # This form needs no quotes in a shell.
            form = "[INPUT:]NxN" if spec.name == "model_inputs" else spec.codec.placeholder
            add(*names, shown=summary, metavar=form)


def next_command(name: str, arguments: argparse.Namespace, *more: str, without: Collection[str] = ()) -> str:
    """Return the command line of another subcommand for the same model, inputs, device and compile options.

    `arguments` are those of the running subcommand, `more` are additional words, and `without` are names of
    compile options to omit.
    """
    words = ["openqaic", name, str(arguments.model)]
    for text in getattr(arguments, "inputs", ()):
        words += ["-i", text]
    for option, unchanged in (("mean", (0.0,)), ("scale", (1.0,))):
        if (values := getattr(arguments, option, unchanged)) != unchanged:
            words += [f"--{option}={','.join(f'{value:.17g}' for value in values)}"]
    if getattr(arguments, "device_id", None) is not None:
        words += ["-d", str(arguments.device_id)]
    if arguments.options_path is not None:
        words += ["--options-path", arguments.options_path]
    return shlex.join([*words, *given_options(arguments, without=without), *more])


def next_view(qpc: Qpc, path: str) -> str:
    """Return a command line that lists the nodes of a container, or its other contents if it has no nodes.

    `path` is the user's path of the container.
    """
    name = shlex.quote(path)
    if not qpc.is_program:
        return f"qaic-qpc list {name}"
    # A container for a card has no graph, so it has no nodes to list.
    return f"openqaic inspect {name} {'graph -o graph.html' if qpc.graph is None else 'nodes'}"
