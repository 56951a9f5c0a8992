"""Names of precisions, and the compile options that select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from qaic.errors import OptionError
from qaic.options.conflicts import CALIBRATION_SAMPLES, QUANTIZATION_SETTINGS
from qaic.options.table import find

#: name -> the compile options behind it
PRECISIONS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "fp32": {},
        "fp16": {"convert_to_fp16": True},
        "int8": {"convert_to_quantize": True, "quantization_precision": "Int8"},
        "int16": {"convert_to_quantize": True, "quantization_precision": "Int16"},
        "mxfp6": {"mxfp6_matmul": True},
    }
)

_OF_INTEGERS: Final = frozenset((*QUANTIZATION_SETTINGS, *CALIBRATION_SAMPLES))


def named(to: object) -> tuple[str, ...]:
    """Return the precisions that are asked for: ``fp16``, ``fp16,int8``, or a list; a plus joins two.

    Raises
    ------
    OptionError
        One of them is none.
    """
    given = to.split(",") if isinstance(to, str) else to
    if not isinstance(given, Sequence) or not given or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"to: found {to!r}, expected names of precisions: {', '.join(PRECISIONS)}",
            code="option.to",
        )
    names = tuple(dict.fromkeys(name.strip().lower() for name in given))
    for name in names:
        for part in name.split("+"):
            if part not in PRECISIONS:
                near = get_close_matches(part, PRECISIONS, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise OptionError(
                    f"to: found {part!r}{hint}, expected {', '.join(PRECISIONS)}, or some joined by +",
                    code="option.to",
                )
    return names


def options_of(name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the compile options for a precision; those that the user gives win."""
    found: dict[str, object] = {}
    for part in name.split("+"):
        found |= PRECISIONS[part]
    return {**found, **given}


def options_among(names: Sequence[str], name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the compile options for one of several precisions: those of integers are meant for integers."""
    if _has_integers(name) or not any(map(_has_integers, names)):
        return dict(given)
    return {
        key: value
        for key, value in given.items()
        if (spec := find(key)) is None or spec.name not in _OF_INTEGERS
    }


def _has_integers(name: str) -> bool:
    return any("convert_to_quantize" in PRECISIONS[part] for part in name.split("+"))


def name_of(options: Mapping[str, object]) -> str | None:
    """Return what `named` takes for the precision that compile options ask for; None for that of the model.

    Quantizing without a precision is int8, the default of the options.
    """
    given = {"quantization_precision": "Int8", **options}
    names = [
        name
        for name, asked in PRECISIONS.items()
        if asked and all(given.get(key) == value for key, value in asked.items())
    ]
    return "+".join(names) or None
