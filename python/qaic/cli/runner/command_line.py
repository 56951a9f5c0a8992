"""The command line of ``qaic-runner``: spellings, ranges, and what does not go together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qaic.cli import console
from qaic.cli.runner import profiling_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DEFAULT_ITERATIONS = 40
# Comparing is quadratic in the length; no option comes near this many characters.
_LONGEST_COMPARED = 80


def _spelled(made: console.Parser, argv: Sequence[str]) -> list[str]:
    """Give long options two dashes; the vendor's tool takes them with one as well."""
    known = {name.removeprefix("--") for name in made.long_options()}

    def spell(argument: str) -> str:
        word = argument[1:].partition("=")[0]
        if argument.startswith("--") or not argument.startswith("-") or len(word) < 2:
            return argument
        if word in known:
            return f"-{argument}"
        # `-num-itr 5` is a misspelt long option rather than `-n` with the value `um-itr`; `-t./dir` is not.
        is_word = word.replace("-", "").isalpha() and len(word) <= _LONGEST_COMPARED
        if not is_word:
            return argument
        from difflib import get_close_matches

        return f"-{argument}" if get_close_matches(word, known, 1, 0.75) else argument

    return [spell(argument) for argument in argv]


def _whole(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            message = f"{text!r} is not a whole number of at least {least}"
            raise argparse.ArgumentTypeError(message)
        return number

    return convert


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        message = f"{text!r} is not a number of seconds greater than 0"
        raise argparse.ArgumentTypeError(message)
    return seconds


def parser() -> console.Parser:
    """Build the parser; long options are shown with two dashes and taken with one too."""
    made = console.Parser(
        prog="qaic-runner",
        description="Run a compiled program container and measure it.",
        epilog="Long options may be given with one dash.",
    )
    _where_and_what(made)
    _how_much(made)
    _batches(made)
    _outputs(made)
    profiling_options.add_arguments(made, _whole)
    made.add_argument("--aic-lib-path", metavar="PATH", help="deprecated, without effect")
    return made


def _where_and_what(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-t", "--test-data", metavar="DIR", required=True, help="folder with programqpc.bin, or a container"
    )
    made.add_argument(
        "-d",
        "--aic-device-id",
        "--dev",
        type=_whole(0),
        metavar="ID",
        help="device (default: as many as the program was partitioned for; one is the first)",
    )
    made.add_argument(
        "-D",
        "--aic-device-map",
        "--dev-list",
        metavar="IDS",
        help="3:1:2 runs one program on these devices, in this order; 3,4,5 picks from these",
    )
    made.add_argument(
        "-i",
        "--input-file",
        action="append",
        metavar="FILE",
        help="raw input, once per input in their order (default bindings.json in -t, else random)",
    )
    made.add_argument(
        "--unbound-random", action="store_true", help="random bytes, whatever the type of an input"
    )
    made.add_argument(
        "-p",
        "--pre-post-processing",
        choices=("on", "off"),
        default="on",
        help="off: files hold what the device sees (default on)",
    )
    made.add_argument("-v", "--verbose", action="count", default=0, help="more messages; repeatable")


def _how_much(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-n",
        "--num-iter",
        type=_whole(1),
        metavar="N",
        help=f"inferences (default {_DEFAULT_ITERATIONS}; each input of a batch once)",
    )
    made.add_argument("--time", type=_seconds, metavar="SECONDS", help="run for this long instead")
    made.add_argument(
        "-a",
        "--aic-num-of-activations",
        type=_whole(1),
        default=1,
        metavar="N",
        help="instances of the program (default 1)",
    )
    made.add_argument(
        "-S",
        "--set-size",
        type=_whole(1),
        default=10,
        metavar="N",
        help="inferences in flight per activation (default 10)",
    )
    made.add_argument(
        "-T",
        "--aic-threads-per-queue",
        type=_whole(1),
        default=4,
        metavar="N",
        help="threads per queue (default 4)",
    )
    made.add_argument(
        "--submit-timeout",
        type=_whole(0),
        default=0,
        metavar="MS",
        help="longest wait for an inference per try (default 0: the device's)",
    )
    made.add_argument(
        "--submit-retry-count",
        type=_whole(0),
        default=5,
        metavar="N",
        help="further tries of that wait (default 5)",
    )
    made.add_argument("-l", "--live-reporting", action="store_true", help="report the rate while running")
    made.add_argument(
        "-r",
        "--live-reporting-period",
        type=_whole(1),
        default=1000,
        metavar="MS",
        help="period of -l (default 1000)",
    )
    made.add_argument("-s", "--stats", action="store_true", help="report latencies of inferences each second")


def _batches(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--aic-batch-input-directory",
        metavar="DIR",
        help="each file is one inference of a program with one input",
    )
    made.add_argument(
        "--aic-batch-input-file-list", metavar="FILE", help="each line: files of one inference, with commas"
    )
    made.add_argument(
        "--aic-batch-json-input", metavar="FILE", help="JSON with files and shapes of each inference"
    )
    made.add_argument(
        "--aic-batch-max-memory",
        type=_whole(1),
        default=1024,
        metavar="MB",
        help="input data held in memory at a time (default 1024)",
    )
    made.add_argument(
        "--auto-batch-input",
        action="store_true",
        help="combine files of batch 1 to the batch size of the program",
    )


def _outputs(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-o",
        "--output-file",
        action="append",
        metavar="FILE",
        help="expected output, once per output in their order; every inference is compared",
    )
    made.add_argument(
        "-c",
        "--compare-outputs",
        action="store_true",
        help="compare with the output files of --aic-batch-json-input",
    )
    made.add_argument(
        "--write-output-start-iter",
        type=_whole(0),
        metavar="N",
        help="first inference whose outputs are written (default 0)",
    )
    made.add_argument(
        "--write-output-num-samples",
        type=_whole(1),
        metavar="N",
        help="inferences whose outputs are written (default 1)",
    )
    made.add_argument("--write-output-dir", metavar="DIR", help="where to write; made if needed (default .)")
    made.add_argument(
        "--dump-input-buffers", action="store_true", help="write the inputs of the same inferences as well"
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check a command line; wrong usage ends the process with exit code 2.

    Returns
    -------
    argparse.Namespace
        The options. ``devices`` is what -d and -D say: (ids, none without them, and whether they are a
        map); ``writes`` whether outputs are written; ``profiling`` is what is recorded,
        ``unused_profiling`` the options about that without effect.
    """
    made = parser()
    options: argparse.Namespace = made.parse_args(_spelled(made, argv))
    _refuse_contradictions(made, options)
    options.profiling = profiling_options.profiling_of(options)
    options.unused_profiling = profiling_options.without_effect(options)
    options.devices = _devices(made, options)
    options.writes = any(
        value is not None
        for value in (
            options.write_output_start_iter,
            options.write_output_num_samples,
            options.write_output_dir,
        )
    )
    options.write_output_start_iter = options.write_output_start_iter or 0
    options.write_output_num_samples = options.write_output_num_samples or 1
    options.write_output_dir = options.write_output_dir or "."
    if options.num_iter is None and options.time is None and not options.batch:
        options.num_iter = _DEFAULT_ITERATIONS
    return options


def _refuse_contradictions(made: console.Parser, options: argparse.Namespace) -> None:
    if options.aic_device_id is not None and options.aic_device_map is not None:
        made.error("-d and -D both choose devices; give one of them")
    if options.num_iter is not None and options.time is not None:
        made.error("-n and --time both say how long to run; give one of them")
    if (message := profiling_options.contradiction(options)) is not None:
        made.error(message)
    sources = {
        "-i": options.input_file,
        "--aic-batch-input-directory": options.aic_batch_input_directory,
        "--aic-batch-input-file-list": options.aic_batch_input_file_list,
        "--aic-batch-json-input": options.aic_batch_json_input,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        made.error(f"{' and '.join(given)} are different sources of inputs; give one of them")
    options.batch = bool(given) and given[0] != "-i"
    if options.batch and options.output_file:
        made.error("-o expects the same outputs of every inference, and a batch has different inputs")
    if options.unbound_random and given:
        made.error(f"--unbound-random is about random inputs, and {given[0]} gives others")
    if options.auto_batch_input and given not in (
        ["--aic-batch-input-directory"],
        ["--aic-batch-input-file-list"],
    ):
        made.error(
            "--auto-batch-input combines files of --aic-batch-input-directory or --aic-batch-input-file-list"
        )


def _devices(made: console.Parser, options: argparse.Namespace) -> tuple[list[int], bool]:
    text = options.aic_device_map
    if text is None:
        return [] if options.aic_device_id is None else [options.aic_device_id], False
    separator = ":" if ":" in text else ","
    parts = text.split(separator)
    if not all(part.isascii() and part.isdigit() for part in parts):
        made.error(f"-D {text!r} is neither a map as 3:1:2 nor a list as 3,4,5 of device ids")
    ids = [int(part) for part in parts]
    if len(set(ids)) < len(ids):
        made.error(f"-D {text!r} names a device twice")
    return ids, separator == ":"
