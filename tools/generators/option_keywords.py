"""The keyword arguments of sessions as types, for editors and type checkers.

The types are committed as `qaic.options.keywords`; a test compares the two. Type checkers cannot follow the
option table itself.
"""

from __future__ import annotations

import json
import sys
from functools import singledispatch
from typing import Any

from qaic.options.codecs.enumerations import (
    CompilationTarget,
    HardwareVersion,
    HexCodes,
    MostCores,
    RandomInputData,
    Samples,
)
from qaic.options.codecs.scalars import Bool, Codec, Enum, FilePath, Float, Int, ListOf, Str
from qaic.options.codecs.structures import DeviceIds, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.custom_io import CustomIoList
from qaic.options.files.node_precision import NodePrecisionLists
from qaic.options.files.parsed_file import FileContent
from qaic.options.files.partitions import Partitions
from qaic.options.files.specializations import Specializations
from qaic.options.spec import OptionSpec, Stage
from qaic.options.table import SPECS

_HEAD = '''\
"""Types of the keyword arguments of `qaic.Session` and `qaic.compile`.

Written by ``make docs``: edit the option table, not this module. None means "not
given". At run time every option also takes the text that a YAML file would have.
"""

# Annotations are evaluated at once: one that is kept as text is compiled when the class is made, and
# a hundred of them were a tenth of what importing `qaic.Session` costs.
# ruff: noqa: E501
# fmt: off

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from qaic.options.codecs.structures import ModelInput

_Path: TypeAlias = str | os.PathLike[str]
_Names: TypeAlias = Sequence[str] | str


class SessionKeywords(TypedDict, total=False):
    """Options of `qaic.Session` apart from those in its signature."""

'''

_COMPILE = '''

class CompileKeywords(SessionKeywords, total=False):
    """Options of `qaic.compile` apart from those in its signature."""

'''

#: Separate parameters in the signature of Session; `compile` has the last two as keyword arguments.
_MODEL = "model_path"
_IN_SIGNATURE = ("options_path", "backend")

#: Names that do not exist at run time; annotations with them stay text.
_ONLY_FOR_CHECKERS = ("np.", "ModelInput")

#: A spelling that the documents use instead of the canonical one.
_DOCUMENTED_ALIASES = {"allocator_dealloc_delay": "allocator_dealloac_delay"}


def render() -> str:
    """Return the module."""
    keywords = [spec for spec in SPECS if spec.keyword and spec.stage is not Stage.CLI]
    session = [spec for spec in keywords if spec.name not in {_MODEL, *_IN_SIGNATURE}]
    compile_only = [spec for spec in keywords if spec.name in _IN_SIGNATURE]
    return "".join([_HEAD, *map(_lines, session), _COMPILE, *map(_lines, compile_only)])


def _lines(spec: OptionSpec) -> str:
    names = [spec.name, *(_DOCUMENTED_ALIASES[name] for name in [spec.name] if name in _DOCUMENTED_ALIASES)]
    type_text = f"{annotation(spec.codec)} | None"
    if any(name in type_text for name in _ONLY_FOR_CHECKERS):
        type_text = f"'{type_text}'" if '"' in type_text else f'"{type_text}"'
    return "".join(f"    {name}: {type_text}\n" for name in names)


def _literal(codec: Enum) -> str:
    values = ", ".join(json.dumps(value) for value in codec.values)
    return f"Literal[{values}]"


@singledispatch
def annotation(codec: Codec[Any]) -> str:
    """Return the Python type of the values that a codec accepts, without None and general text."""
    message = f"{type(codec).__name__} has no annotation"
    raise TypeError(message)


@annotation.register
def _(codec: Bool) -> str:
    del codec
    return "bool"


@annotation.register
def _(codec: CompilationTarget) -> str:
    del codec
    return 'bool | Literal["hardware"]'


@annotation.register
def _(codec: Int) -> str:
    del codec
    return "int"


@annotation.register
def _(codec: Float) -> str:
    del codec
    return "float"


@annotation.register
def _(codec: Str) -> str:
    del codec
    return "str"


@annotation.register
def _(codec: Enum) -> str:
    return _literal(codec)


@annotation.register
def _(codec: HardwareVersion) -> str:
    return f"{_literal(codec)} | float"


@annotation.register
def _(codec: NodePrecisionLists) -> str:
    del codec
    return "_Path | Mapping[str, Sequence[str]]"


@annotation.register(FilePath)
@annotation.register(FileContent)
def _(codec: Codec[Any]) -> str:
    del codec
    return "_Path"


@annotation.register
def _(codec: Partitions) -> str:
    del codec
    return "_Path | Mapping[str, Any]"


@annotation.register
def _(codec: Specializations) -> str:
    del codec
    return "_Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]"


@annotation.register
def _(codec: CustomIoList) -> str:
    del codec
    return "_Path | Sequence[Mapping[str, Any]]"


@annotation.register
def _(codec: ListOf) -> str:  # type: ignore[type-arg]  # singledispatch needs the bare class
    item = annotation(codec.item)
    return {"str": "_Names", "_Path": "Sequence[_Path] | str"}.get(item, f"Sequence[{item}] | str")


@annotation.register
def _(codec: SymbolMap) -> str:
    del codec
    return "Mapping[str, int] | Sequence[tuple[str, int]] | Sequence[str] | str"


@annotation.register
def _(codec: OutputShapes) -> str:
    del codec
    return "Mapping[str, Sequence[int | str]] | Sequence[str] | str"


@annotation.register
def _(codec: ModelInputs) -> str:
    del codec
    return "Sequence[Mapping[str, Any] | ModelInput | str] | Mapping[str, Any] | str"


@annotation.register
def _(codec: DeviceIds) -> str:
    del codec
    return "int | Sequence[int] | str"


@annotation.register
def _(codec: MostCores) -> str:
    del codec
    return "int | Sequence[int] | str"


@annotation.register
def _(codec: HexCodes) -> str:
    del codec
    return "Sequence[int | str] | str"


@annotation.register
def _(codec: RandomInputData) -> str:
    return f"bool | {_literal(codec.kinds)}"


@annotation.register
def _(codec: Samples) -> str:
    del codec
    return "Iterable[Mapping[str, np.ndarray[Any, Any]]]"


if __name__ == "__main__":
    sys.stdout.write(render())
