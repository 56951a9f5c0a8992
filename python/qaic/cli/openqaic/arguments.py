"""Arguments that several subcommands share."""

import argparse
import contextlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qaic.cli.console import Parser, print_message

if TYPE_CHECKING:
    from qaic.cli.openqaic.pictures import Pixels


def add_model(parser: Parser, *, may_be_container: bool = True) -> None:
    """Declare the model."""
    what = "an ONNX model, or a container" if may_be_container else "an ONNX model"
    parser.add_argument("model", metavar="MODEL", type=Path, help=what)


def add_device(parser: Parser) -> None:
    """Declare the device."""
    parser.add_argument(
        "-d",
        "--device-id",
        "--device",
        dest="device_id",
        metavar="ID",
        type=count_or_zero,
        help="id of the device, from `openqaic devices` (default: as many devices as the program needs)",
    )


def add_inputs(parser: Parser) -> None:
    """Declare the inputs of an inference."""
    parser.add_argument(
        "-i",
        "--input",
        dest="inputs",
        metavar="[NAME=]FILE",
        action="append",
        type=_named_file,
        default=[],
        help=".npy, .npz, a picture, or raw data; repeatable (default: random inputs)",
    )
    for name, read, default, work in (
        ("--mean", _channel_values, "0", "value to subtract from each pixel"),
        ("--scale", _divisors, "1", "value to divide each pixel by, after --mean"),
    ):
        text = f"for pictures: {work}; one, or one for each channel (default: {default})"
        parser.add_argument(name, metavar="X[,X,X]", type=read, default=default, help=text)
    # Without this pattern, argparse reads a list that begins with a minus as an option.
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # noqa: SLF001 (argparse offers no other way)


def _named_file(text: str) -> str:
    if text.startswith("=") or text.endswith("="):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected FILE or NAME=FILE")
    return text


def pixels_of(arguments: argparse.Namespace) -> "Pixels":
    """Return the conversion of pictures; print a warning if it has no effect."""
    from qaic.cli.openqaic.pictures import SUFFIXES, UNCHANGED, Pixels

    pixels = Pixels(arguments.mean, arguments.scale)
    if pixels != UNCHANGED and not any(text.lower().endswith(tuple(SUFFIXES)) for text in arguments.inputs):
        print_message("warning", "--mean and --scale have no effect without a picture")
    return pixels


def add_warm_up(parser: Parser, default: int) -> None:
    """Declare ``--warm-up``."""
    help_text = "inferences to run before the measurement (default: %(default)s)"
    parser.add_argument("--warm-up", type=count_or_zero, default=default, metavar="N", help=help_text)


def device_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a session that select the device."""
    return {} if arguments.device_id is None else {"dev_id": arguments.device_id}


def add_container(parser: Parser, name: str = "qpc") -> None:
    """Declare a container."""
    parser.add_argument(
        name, metavar=name.upper(), help="a container, a folder with programqpc.bin, or a glob"
    )


def add_json(parser: Parser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def set_examples(parser: Parser, *examples: str) -> None:
    """Add command lines as examples to the end of the help."""
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])


def count(text: str, *, least: int = 1) -> int:
    """Read a count of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


def count_or_zero(text: str) -> int:
    """Read a count of at least 0."""
    return count(text, least=0)


def _channel_values(text: str) -> tuple[float, ...]:
    """Read finite numbers, separated by commas."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(map(math.isfinite, values)):
        raise argparse.ArgumentTypeError(f"{text!r} is not one number, or numbers separated by commas")
    return values


def _divisors(text: str) -> tuple[float, ...]:
    """Read channel values other than 0."""
    values = _channel_values(text)
    if not all(values):
        raise argparse.ArgumentTypeError(
            f"{text!r}: found 0, expected other numbers, because pixels are divided by them"
        )
    return values


def tolerance(text: str) -> float:
    """Read a tolerance, a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # The comparison is false for NaN.
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def positive(text: str) -> float:
    """Read a positive number."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if number := tolerance(text):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
