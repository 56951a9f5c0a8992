"""The data format of inputs and outputs as ``CompileConfig`` has it: MX for some, as they are for the others.

The file is that of the tools: graphs, each with tensors and their format. MX of a
buffer is the precision ``mxint8`` of a custom I/O file, and that is the option it becomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qaic.configs.extension_json import read_object
from qaic.errors import OptionError

_MX = "QNN_TENSOR_DATA_FORMAT_MX"

#: The format of a tensor about which nothing is asked.
_PLAIN = "QNN_TENSOR_DATA_FORMAT_DENSE"


def mx_entries(config: Mapping[str, Any] | str) -> list[dict[str, str]]:
    """Return the entries of a custom I/O file that a data format asks for.

    Parameters
    ----------
    config
        The content, or the path of the JSON file.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    qaic.errors.OptionError
        The content has another form, or names another format.
    """
    content = read_object(config) if isinstance(config, str) else config
    place = config if isinstance(config, str) else "data_format_config"
    names: dict[str, None] = {}
    graphs = content.get("graphs")
    if not isinstance(graphs, list):
        raise _wrong(place, "expected a list under the key graphs")
    for graph in graphs:
        tensors = graph.get("tensors") if isinstance(graph, Mapping) else None
        if not isinstance(tensors, list):
            raise _wrong(place, "every graph has a list under the key tensors")
        for tensor in tensors:
            name = tensor.get("tensor_name") if isinstance(tensor, Mapping) else None
            if not isinstance(name, str) or not name:
                raise _wrong(place, "every tensor has a text under the key tensor_name")
            given = tensor.get("dataFormat")
            if given == _MX:
                names[name] = None
            elif given != _PLAIN:
                raise _wrong(place, f"tensor {name!r}: found the dataFormat {given!r}, expected {_MX!r}")
    return [{"IOName": name, "Precision": "mxint8"} for name in names]


def _wrong(place: str, text: str) -> OptionError:
    return OptionError(f"{place}: {text}", code="option.invalid_file", context={"file": place})
