"""Help texts of the command line tools: flags with their meaning, by section."""

import textwrap
from collections.abc import Collection
from functools import singledispatch
from typing import Any, Final

from qaic.options.codecs.enumerations import HexCodes, MostCores, RandomInputData
from qaic.options.codecs.scalars import Bool, Codec, Enum, FilePath, Float, Int, ListOf
from qaic.options.codecs.structures import DeviceIds, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.parsed_file import FileContent, ParsedFile
from qaic.options.spec import Effect, Flag, FlagForm, OptionSpec, Stage
from qaic.options.table import SPECS

_WIDTH = 100

#: Least bound that is left out, because it only means that numbers have 32 bits.
_LARGEST = 2**31 - 1

_INDENT = " " * 8

#: placeholders of values whose form depends on the codec alone
_FIXED: Final = (
    (Int, "N"),
    (Float, "X"),
    (Bool, "true|false"),
    (FileContent, "FILE"),
    (ParsedFile, "FILE"),
    (MostCores, "N,..."),
    (HexCodes, "HEX,..."),
    (SymbolMap, "SYMBOL,N"),
    (OutputShapes, "OUTPUT,[N,...]"),
    (ModelInputs, "INPUT,TYPE,[N,...]"),
    (DeviceIds, "N[:N...]"),
)


def render_help(stages: Collection[Stage]) -> str:
    """Return the flags of some stages, under the headings of their sections.

    Options without a flag are left out.
    """
    specs = [spec for spec in SPECS if spec.flag is not None and spec.stage in stages]
    parts = []
    for section in dict.fromkeys(spec.section for spec in specs):
        rows = [line for spec in specs if spec.section == section for line in _row(spec)]
        parts.append("\n".join([f"{section.replace('`', '')}:", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(spec: OptionSpec) -> list[str]:
    assert spec.flag is not None  # noqa: S101  # the caller has chosen those
    notes = []
    if isinstance(spec.codec, Int | Float) and spec.codec.ge is not None:
        bounded = spec.codec.le is not None and spec.codec.le < _LARGEST
        notes.append(f"{spec.codec.ge} to {spec.codec.le}" if bounded else f"at least {spec.codec.ge}")
    if spec.default not in (None, False, True, (), {}) and spec.flag.form is not FlagForm.COUNT:
        notes.append(f"default {spec.default}")
    if spec.effect is Effect.RECORDED:
        notes.append("no effect on the cpu target")
    if spec.ours or spec.flag.ours:
        notes.append("not in the vendor's tools")
    text = spec.summary.replace("`", "") + (f" [{'; '.join(notes)}]" if notes else "")
    return [
        f"  {flag_text(spec, spec.flag)}",
        *textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
    ]


def flag_text(spec: OptionSpec, flag: Flag) -> str:
    """Return a flag with the form of its value."""
    start = f"-{flag.text}"
    if flag.form is FlagForm.ACTION:
        return ", ".join(f"-{text}" for text in flag.texts)
    if flag.form is FlagForm.COUNT:
        return ", ".join(f"-{flag.text * count}" for count in (1, 2, 3))
    if flag.form is FlagForm.SWITCH:
        return start if spec.default is False else f"{start}[=true|false]"
    value = placeholder(spec.codec)
    if flag.form is FlagForm.OPTIONAL:
        return f"{start}[={value}]"
    if flag.form is FlagForm.REPEAT:
        return f"{start}={value.removesuffix(',...')} ..."
    return f"{start}={value}"


@singledispatch
def placeholder(codec: Codec[Any]) -> str:
    """Return the placeholder of a value in a line of help: ``NAME`` for text."""
    return next((text for kind, text in _FIXED if isinstance(codec, kind)), "NAME")


@placeholder.register
def _(codec: Enum) -> str:
    return "|".join(codec.values)


@placeholder.register
def _(codec: ListOf) -> str:  # type: ignore[type-arg]  # singledispatch wants the bare class
    item = placeholder(codec.item)
    return item if item in {"FILE", "DIR"} else f"{item},..."


@placeholder.register
def _(codec: FilePath) -> str:
    return "DIR" if codec.noun == "directory" else "FILE"


@placeholder.register
def _(codec: RandomInputData) -> str:
    return "|".join(codec.kinds.values)
