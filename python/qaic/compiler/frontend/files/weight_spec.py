"""References from a model without weights to its files: JSON in the model's metadata.

::

    {"version": 5, "model_id": "/folder/checkpoint",
     "files": [{"path": "checkpoint/model.safetensors", "format": "safetensors"}],
     "inputs": [{"name": "wte.weight", "location": {"file": 0, "key": "wte.weight"}}]}

The graph's input of this name is a constant, the tensor ``key`` of that file. Earlier forms have plain paths
in ``files``, call that list ``checkpoint_files``, identify a file by its path, or list inputs without a
location because their values are in the model.
"""

from dataclasses import dataclass
from typing import Any, Final

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.frontend.files.safetensors_file import shown
from qaic.errors import CompileError
from qaic.support.json import parse_json
from qaic.support.text import counted

#: key of the model's metadata
METADATA_KEY: Final = "com.qti.aisw.extdata"

#: newest supported version
_VERSION: Final = 5
_FORMAT: Final = "safetensors"


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """An input of the graph that is a constant, and the location of its values."""

    input_name: str
    #: path as written in the model
    file: str
    #: name of the tensor in that file
    key: str


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A model's references to its weights."""

    #: path or name of the checkpoint; files may be relative to its folder; empty if not given
    model_id: str
    #: the inputs, each once
    places: tuple[WeightPlace, ...]


def parse_weight_spec(content: bytes) -> WeightSpec:
    """Parse the JSON.

    Raises CompileError if its version is unknown, or its form differs from the description above.
    """
    try:
        document = parse_json(content)
    except ValueError as error:
        raise _wrong("text", f"no JSON ({error})", "a JSON object") from error
    if not isinstance(document, dict):
        raise _wrong("text", shown(document), "a JSON object")
    version = document.get("version", _VERSION)
    if type(version) is not int or not 1 <= version <= _VERSION:
        fix = f"export the model again with a weight spec of version {_VERSION}, or update openqaic"
        what = f"'version' of the model's metadata {METADATA_KEY!r}"
        raise wrong_spec(what, shown(version), f"at most {_VERSION}", fix)
    model_id = document.get("model_id", "")
    if not isinstance(model_id, str):
        raise _wrong("'model_id'", shown(model_id), "a text")
    name = "files" if "files" in document else "checkpoint_files"
    listed = document.get(name, [])
    if not isinstance(listed, list):
        raise _wrong(f"{name!r}", shown(listed), "a list")
    files = [_file(entry, f"'{name}[{index}]'") for index, entry in enumerate(listed)]
    inputs = document.get("inputs")
    if not isinstance(inputs, list):
        raise _wrong("'inputs'", shown(inputs), "a list")
    places: dict[str, WeightPlace] = {}
    for index, entry in enumerate(inputs):
        place = _place(entry, files, f"'inputs[{index}]'")
        if place is None:
            continue
        if place.input_name in places:
            raise _wrong(f"'inputs[{index}]'", f"{shown(place.input_name)} a second time", "each input once")
        places[place.input_name] = place
    return WeightSpec(model_id, tuple(places.values()))


def _file(entry: object, where: str) -> str:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise _wrong(where, shown(entry), "a path, or an object with path and format")
    if entry.get("format", _FORMAT) != _FORMAT:
        raise _wrong(where, f"format {shown(entry['format'])}", f"{_FORMAT!r}")
    return str(entry["path"])


def _place(entry: object, files: list[str], where: str) -> WeightPlace | None:
    """Read an entry of the inputs; None if the values are in the model."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise _wrong(where, shown(entry), "an object with a name")
    location: Any = entry.get("location")
    if location is None:
        return None
    if not isinstance(location, dict) or not isinstance(location.get("key"), str):
        raise _wrong(where, f"location {shown(location)}", "an object with file and key")
    file = location.get("file")
    if type(file) is int and 0 <= file < len(files):
        file = files[file]
    if not isinstance(file, str):
        raise _wrong(
            where,
            f"file {shown(file)}",
            f"a path, or a position in the list of {counted(len(files), 'file')}",
        )
    return WeightPlace(entry["name"], file, location["key"])


def wrong_spec(what: str, found: str, expected: str, fix: str = "export the model again") -> CompileError:
    """Build the exception for a mistake in references to weights."""
    return refuse(what, code="weight_spec", found=found, expected=expected, fix=fix)


def _wrong(where: str, found: str, expected: str) -> CompileError:
    return wrong_spec(f"{where} of the model's metadata {METADATA_KEY!r}", found, expected)
