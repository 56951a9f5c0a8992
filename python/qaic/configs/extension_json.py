"""Back-end extension files: how to read them safely, and their sections for back ends that are kept as data.

The tools read the options of a back end from one JSON object. It is flat for AIC, and has sections for HTP.
Another file may refer to it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qaic.configs import htp, htp_mcp
from qaic.configs.base import BackendType, ConfigModel, OpenModel
from qaic.errors import OptionError
from qaic.support.json import parse_json
from qaic.support.open_regular import read_regular

#: Limit for a file; real files have a few kilobytes.
_MOST_BYTES = 4 << 20

#: Sections that are one object and not a list of them.
_SINGLE = frozenset({"memory", "groupContext"})

#: Section -> field of `CompileConfig`.
FIELDS = {
    "context": "context_custom_configs",
    "graphs": "graph_custom_configs",
    "devices": "device_custom_configs",
    "memory": "memory_custom_config",
    "groupContext": "group_context_config",
}


def read_extension_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a back-end extension file, or the file that refers to it.

    The file contains the options of the back end, or an object ``backend_extensions`` with
    ``config_file_path`` (relative to the folder of the file) or ``config_dict``. Raises FileNotFoundError if
    one of the files does not exist, and OptionError if one is not a JSON object of at most 4 MiB.
    """
    file = Path(path)
    data = read_object(file)
    wrapper = data.get("backend_extensions")
    if set(data) != {"backend_extensions"} or not isinstance(wrapper, dict):
        return data
    inline = wrapper.get("config_dict")
    if isinstance(inline, dict):
        return inline
    named = wrapper.get("config_file_path")
    if not isinstance(named, str) or not named or "\0" in named:
        raise _bad_file(file, "backend_extensions has no text under config_file_path")
    return read_object(file.parent / named)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file with one object; errors as for `read_extension_file`."""
    file = Path(path)
    data = read_regular(file, _MOST_BYTES)
    if len(data) > _MOST_BYTES:
        raise _bad_file(file, f"the file has more than {_MOST_BYTES >> 20} MiB; is this the right one?")
    try:
        value = parse_json(data)
    except ValueError as error:
        raise _bad_file(file, f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_file(file, f"found a JSON {type(value).__name__}, expected an object")
    return value


def _bad_file(file: object, text: str) -> OptionError:
    return OptionError(f"{file}: {text}", code="option.invalid_file", context={"file": str(file)})


def sections_of(backend: BackendType) -> Mapping[str, type[OpenModel]]:
    """Return section -> class of a back end that is kept as data; empty where no classes are known."""
    if backend is BackendType.HTP:
        return htp.SECTIONS
    return htp_mcp.SECTIONS if backend is BackendType.HTP_MCP else {}


def sections_to_dict(config: ConfigModel) -> dict[str, Any]:
    """Return the sections that are set in a `CompileConfig` for HTP or HTP MCP."""
    made: dict[str, Any] = {}
    for section, field in FIELDS.items():
        value = getattr(config, field)
        if value is None:
            continue
        if section in _SINGLE:
            made[section] = value.as_given()
        elif section == "graphs":
            made[section] = htp.graphs_to_json(value)
        else:
            made[section] = [item.as_given() for item in value]
    return made


def sections_from_dict(
    data: Mapping[str, Any], backend: BackendType, file: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the content of a file into fields of `CompileConfig` and content without a field.

    Raises OptionError if a known section does not consist of objects.
    """
    known = sections_of(backend)
    fields: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for section, value in data.items():
        kind = known.get(section)
        if kind is None:
            others[section] = value
        elif section in _SINGLE:
            if not isinstance(value, dict):
                raise _bad_file(
                    file, f"section {section!r}: found type {type(value).__name__}, expected an object"
                )
            fields[FIELDS[section]] = kind(**value)
        else:
            # The context is one object in older files.
            entries = [value] if isinstance(value, dict) else value
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise _bad_file(file, f"section {section!r}: expected a list of objects")
            fields[FIELDS[section]] = (
                htp.graphs_from_json(entries, kind)
                if section == "graphs"
                else [kind(**entry) for entry in entries]
            )
    return fields, others


_MX = "QNN_TENSOR_DATA_FORMAT_MX"

#: Format of tensors that do not change.
_PLAIN = "QNN_TENSOR_DATA_FORMAT_DENSE"


def mx_entries(config: Mapping[str, Any] | str) -> list[dict[str, str]]:
    """Return the entries of a custom I/O file that a data format requires.

    `config` is the content, or the path of the JSON file. Raises FileNotFoundError if the file does not
    exist, and OptionError if the content has another form or format.
    """
    content = read_object(config) if isinstance(config, str) else config
    place = config if isinstance(config, str) else "data_format_config"
    names: dict[str, None] = {}
    graphs = content.get("graphs")
    if not isinstance(graphs, list):
        raise _bad_file(place, "expected a list under the key graphs")
    for graph in graphs:
        tensors = graph.get("tensors") if isinstance(graph, Mapping) else None
        if not isinstance(tensors, list):
            raise _bad_file(place, "every graph has a list under the key tensors")
        for tensor in tensors:
            name = tensor.get("tensor_name") if isinstance(tensor, Mapping) else None
            if not isinstance(name, str) or not name:
                raise _bad_file(place, "every tensor has a text under the key tensor_name")
            given = tensor.get("dataFormat")
            if given == _MX:
                names[name] = None
            elif given != _PLAIN:
                raise _bad_file(place, f"tensor {name!r}: found the dataFormat {given!r}, expected {_MX!r}")
    return [{"IOName": name, "Precision": "mxint8"} for name in names]
