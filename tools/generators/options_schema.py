"""The JSON Schema of an options file, with which editors complete keys and check values.

The schema is committed as ``docs/reference/options.schema.json``; a test compares the two. It contains every
spelling of a key that people use, and values as YAML types or as text; words have their documented case.
"""

from __future__ import annotations

import json
import sys
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from qaic.options.codecs.enumerations import (
    CompilationTarget,
    HardwareVersion,
    HexCodes,
    MostCores,
    RandomInputData,
)
from qaic.options.codecs.scalars import Bool, Codec, Enum, Float, Int, ListOf
from qaic.options.codecs.structures import DeviceIds, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.custom_io import CustomIoList
from qaic.options.files.node_precision import NodePrecisionLists
from qaic.options.files.parsed_file import JsonFile
from qaic.options.names import normalize
from qaic.options.table import SPECS

if TYPE_CHECKING:
    from qaic.options.spec import OptionSpec

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}

#: Texts of the two truth values, in addition to the YAML values.
_SWITCH_TEXT = "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Yy][Ee][Ss]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|[01])$"


def render() -> str:
    """Return the schema as JSON text."""
    # A file cannot refer to another options file, and samples exist only in Python.
    options = [spec for spec in SPECS if spec.name not in {"options_path", "calibration_data"}]
    properties: dict[str, Schema] = {}
    for spec in options:
        for key in _spellings(spec):
            properties[key] = {"$ref": f"#/$defs/{spec.name}"}
    properties["relative-path"] = {
        "description": "Whether the paths in this file start from its directory.",
        **schema(Bool()),
    }
    root = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Options of qaic.Session and qaic.compile",
        "type": ["object", "null"],
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        "$defs": {spec.name: _definition(spec) for spec in options},
    }
    return json.dumps(root, indent=1) + "\n"


def _spellings(spec: OptionSpec) -> set[str]:
    """Return keys with underscores, with hyphens, and as the flag or the JSON key is written."""
    keys = {spelling for key in spec.keys for spelling in (key, key.replace("_", "-"))}
    if spec.flag is not None:
        keys.update(text for text in spec.flag.texts if normalize(text) in keys)
    if spec.aic is not None:
        keys.add(spec.aic.json_key)
    return keys


def _definition(spec: OptionSpec) -> Schema:
    made: Schema = {"description": spec.summary}
    if spec.default not in (None, (), {}):
        made["default"] = spec.codec.to_json(spec.default)
    return {**made, "anyOf": [schema(spec.codec), {"type": "null"}]}


@singledispatch
def schema(codec: Codec[Any]) -> Schema:
    """Return the schema of the values that a codec accepts from YAML; paths and names are text."""
    del codec
    return _TEXT


@schema.register
def _(codec: Bool) -> Schema:
    del codec
    return {"type": ["boolean", "string", "integer"], "pattern": _SWITCH_TEXT, "minimum": 0, "maximum": 1}


@schema.register
def _(codec: CompilationTarget) -> Schema:
    del codec
    return {"anyOf": [schema(Bool()), {"const": "hardware"}]}


@schema.register
def _(codec: Int) -> Schema:
    made: Schema = {"type": ["integer", "string"], "pattern": "^[+-]?[0-9]+(_[0-9]+)*$"}
    return made | _limits(codec)


@schema.register
def _(codec: Float) -> Schema:
    text = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
    made: Schema = {"type": ["number", "string"], "pattern": text}
    return made | _limits(codec)


def _limits(codec: Int | Float) -> Schema:
    made: Schema = {}
    if codec.ge is not None:
        made["minimum"] = codec.ge
    if codec.le is not None:
        made["maximum"] = codec.le
    return made


@schema.register
def _(codec: Enum) -> Schema:
    return {"enum": list(codec.values)}


@schema.register
def _(codec: HardwareVersion) -> Schema:
    return {"enum": [*codec.values, 2.0]}


@schema.register
def _(codec: RandomInputData) -> Schema:
    return {"anyOf": [schema(Bool()), schema(codec.kinds)]}


@schema.register
def _(codec: ListOf) -> Schema:  # type: ignore[type-arg]  # singledispatch needs the bare class
    listed: Schema = {"type": "array", "items": schema(codec.item)}
    if codec.most is not None:
        listed["maxItems"] = codec.most
    return {"anyOf": [listed, _TEXT, *([schema(codec.item)] if isinstance(codec.item, Int) else [])]}


@schema.register
def _(codec: MostCores) -> Schema:
    del codec
    return {"anyOf": [{"type": "integer"}, _TEXT, {"type": "array", "items": schema(Int()), "maxItems": 4}]}


@schema.register
def _(codec: HexCodes) -> Schema:
    # YAML reads digits as an integer; the option reads them as hexadecimal text.
    return {
        "anyOf": [
            {"type": ["string", "integer"]},
            {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": codec.most},
        ]
    }


@schema.register
def _(codec: DeviceIds) -> Schema:
    del codec
    one = {"type": "integer", "minimum": 0}
    return {"anyOf": [one, _TEXT, {"type": "array", "items": schema(Int(ge=0)), "uniqueItems": True}]}


@schema.register
def _(codec: OutputShapes) -> Schema:
    del codec
    dims = {"type": "array", "items": {"anyOf": [schema(Int(ge=0)), _TEXT]}}
    return {
        "anyOf": [
            {"type": "object", "additionalProperties": dims},
            {"type": "array", "items": _TEXT},
            _TEXT,
        ]
    }


@schema.register
def _(codec: SymbolMap) -> Schema:
    del codec
    size = schema(Int(ge=1))
    pair = {"type": "array", "prefixItems": [_TEXT, size], "items": False, "minItems": 2}
    return {
        "anyOf": [
            {"type": "object", "additionalProperties": size},
            {"type": "array", "items": {"anyOf": [_TEXT, pair]}},
            _TEXT,
        ]
    }


@schema.register
def _(codec: ModelInputs) -> Schema:
    del codec
    described = {
        "type": "object",
        "properties": {
            "input_name": _TEXT,
            "input_type": _TEXT,
            "input_shape": {"anyOf": [{"type": "array", "items": schema(Int(ge=0))}, _TEXT]},
        },
        "required": ["input_name", "input_type", "input_shape"],
        "additionalProperties": False,
    }
    one: list[Schema] = [described, _TEXT]
    return {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}}]}


@schema.register(CustomIoList)
@schema.register(NodePrecisionLists)
@schema.register(JsonFile)
def _(codec: Codec[Any]) -> Schema:
    # The path, or the content itself, which has its own description.
    del codec
    return {"type": ["string", "array", "object"]}


if __name__ == "__main__":
    sys.stdout.write(render())
