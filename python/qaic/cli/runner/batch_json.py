"""The files of ``--aic-batch-json-input`` and ``bindings.json``: files and shapes of each inference.

If the file does not list an input whose value the device keeps, the inference uses the device's value. The
output that sets this value is then not copied to the host. ``dims`` of ``[0]`` states the same explicitly.

Users of cards write ``{"userBuffers": [{"num", "buffSize", "name", "inputFile"}]}`` to ``bindings.json`` next
to a container, one row for each buffer; that file may also have the other form. An unusable file is an error,
because random data must not replace the user's inputs.
"""

import json
import re
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

from qaic.cli.console import print_message
from qaic.cli.runner.network import (
    SKIPPED,
    Binding,
    Network,
    Part,
    Request,
    check_count,
    file_bytes,
    resolve,
    with_plain_outputs,
)
from qaic.errors import InputError
from qaic.options.names import unknown_keys
from qaic.support.open_regular import read_text
from qaic.support.text import nearest_name

# JSON can contain lone surrogates; names of files and bindings cannot.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def refuse(where: str, why: str) -> NoReturn:
    """Refuse the content of a file. Raises InputError with the place in the file and the reason."""
    raise InputError(f"{where}: {why}", code="runner.batch_json")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file; a file without an object gives an empty one."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        refuse(str(path), f"not valid JSON: {error}")
    return document if isinstance(document, dict) else {}


def text_of(entry: dict[str, Any], name: str, where: str) -> str:
    """Return a value that is a text. Raises InputError if the entry is missing, empty or no text."""
    if name not in entry:
        refuse(where, f'"{name}" is missing')
    value = entry[name]
    if not isinstance(value, str) or not value or "\0" in value or _SURROGATES.search(value):
        refuse(where, f'"{name}" is {value!r}; a string is expected')
    return value


def located(entry: dict[str, Any], name: str, folder: Path, where: str) -> Path:
    """Return a path that is absolute, or relative to the folder of the file and inside it.

    Raises InputError if the path is no text or leaves the folder.
    """
    text = text_of(entry, name, where)
    path = resolve(text, folder)
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # links in a circle
        inside = False
    if not inside and not Path(text).is_absolute():
        refuse(
            where,
            f'"{name}" is {text!r}, which is outside {str(folder)!r}, the folder of this file; '
            "move the data there, or use an absolute path",
        )
    return path


#: content of the file
TOP: Final = "IO-files"
#: names of ``data-type``, an alternative to ``elem-size`` in newer files
_TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "bool", "int8q", "uint8q"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "int16q"), 2),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "int32q", "int32i"), 4),
    **dict.fromkeys(("double", "float64", "int64", "uint64", "int64i"), 8),
}
_LARGEST_DIM = 2**40
_MOST_DIMS = 8


def read_batch(path: Path, network: Network, *, compare: bool) -> list[Request]:
    """Return the inferences of a batch file. Sizes of all files are checked; none is read.

    Paths in the file are absolute, or relative to its folder and inside it. With `compare`, the files of
    outputs are expected contents; otherwise they need not exist. Raises InputError if the text has
    another form, or does not fit the program.
    """
    sets = read_object(path).get(TOP)
    if not isinstance(sets, list):
        refuse(str(path), f'an object with a list "{TOP}" is expected')
    if not sets:
        refuse(f'{path}: "{TOP}"', "the list is empty; at least one inference is expected")
    return [
        _Inference(network, path.parent, f"{path}: {TOP}[{number}]", compare=compare).read(entries)
        for number, entries in enumerate(sets)
    ]


class _Inference:
    """Reader of the entries of one inference."""

    def __init__(self, network: Network, folder: Path, where: str, *, compare: bool) -> None:
        self._network = network
        self._folder = folder
        self._where = where
        self._compare = compare
        self._bindings = {
            "in": {binding.name: binding for binding in network.inputs},
            "out": {binding.name: binding for binding in network.outputs},
        }

    def read(self, entries: object) -> Request:
        """Read all entries, and add the inputs and outputs that are not listed."""
        if not isinstance(entries, list):
            refuse(self._where, "a list of files is expected")
        given: dict[int, Part] = {}
        for number, entry in enumerate(entries):
            part = self._part(entry, f"{self._where}[{number}]")
            if part.binding.position in given:
                refuse(f"{self._where}[{number}]", f"{part.binding.name!r} is listed a second time")
            given[part.binding.position] = part
        inputs = [given.get(binding.position) or self._kept(binding) for binding in self._network.inputs]
        # Unlisted outputs have the shapes that match the listed ones, or stay on the device.
        shapes = self._network.shapes_with(list(given.values()))
        outputs = [
            given.get(binding.position)
            or Part(
                binding,
                SKIPPED
                if self._network.keeps(binding) or binding.is_statistics
                else shapes.get(binding.position, binding.dims),
            )
            for binding in self._network.outputs
        ]
        return Request(inputs, outputs)

    def _part(self, entry: object, where: str) -> Part:
        if not isinstance(entry, dict):
            refuse(where, "an object is expected")
        direction = text_of(entry, "io-direction", where)
        if direction not in self._bindings:
            refuse(where, f'"io-direction" is {direction!r}; "in" or "out" is expected')
        binding = self._binding(text_of(entry, "map-to", where), direction, where)
        path = located(entry, "path", self._folder, where)
        item_bytes = _item_bytes(entry, where)
        dims = _dims(entry, where)
        if dims is not None and 0 not in dims and item_bytes != binding.item_bytes:
            refuse(
                where,
                f"elements have {item_bytes} bytes; those of {binding.name!r} have {binding.item_bytes}",
            )
        return (
            self._input(binding, dims, path, where)
            if direction == "in"
            else self._output(binding, dims, path, entry, where)
        )

    def _binding(self, name: str, direction: str, where: str) -> Binding:
        found = self._bindings[direction].get(name)
        if found is None:
            known = self._bindings[direction]
            near = nearest_name(name, known)
            suggestion = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, known))}"
            refuse(where, f"the program has no {direction}put {name!r}; {suggestion}")
        return found

    def _input(self, binding: Binding, dims: tuple[int, ...] | None, path: Path, where: str) -> Part:
        if dims is not None and 0 in dims:
            return self._kept(binding)
        found = file_bytes(path)
        if dims is None:
            if found == 0:
                return self._kept(binding)
            dims = binding.dims_for(found, f"{where}: {path}")
        part = self._checked(Part(binding, dims, (path,)), where)
        if found != part.nbytes:
            refuse(where, f"{path} has {found} bytes; {list(dims)} takes {part.nbytes}")
        return part

    def _output(
        self, binding: Binding, dims: tuple[int, ...] | None, path: Path, entry: dict[str, Any], where: str
    ) -> Part:
        if dims is not None and 0 in dims:
            return Part(binding, SKIPPED)
        skip = entry.get("skip-validation", False)
        if not isinstance(skip, bool):
            refuse(where, f'"skip-validation" is {skip!r}; true or false is expected')
        expected = (path,) if self._compare and not skip else ()
        part = self._checked(Part(binding, dims or binding.dims, expected), where)
        if expected:
            # The file must exist. The end of the run reports a wrong size as a difference.
            file_bytes(path)
        return part

    def _checked(self, part: Part, where: str) -> Part:
        binding = part.binding
        if binding.allowed and not binding.partial and part.dims not in (binding.dims, *binding.allowed):
            shapes = ", ".join(dict.fromkeys(str(list(dims)) for dims in binding.allowed))
            refuse(where, f"{binding.name!r} has no shape {list(part.dims)}; expected one of {shapes}")
        if not binding.accepts(part.nbytes):
            refuse(
                where,
                f"shape {list(part.dims)} has {part.nbytes} bytes; {binding.name!r} takes {binding.nbytes}"
                f"{' or less' if binding.partial else ''} as {list(binding.dims)}",
            )
        return part

    def _kept(self, binding: Binding) -> Part:
        if not self._network.keeps(binding):
            refuse(self._where, f"input {binding.name!r} has no data, and the device keeps no state for it")
        return Part(binding, SKIPPED)


def _item_bytes(entry: dict[str, Any], where: str) -> int:
    size = entry.get("elem-size")
    if size is not None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            refuse(where, f'"elem-size" is {size!r}; a number of bytes is expected')
        return size
    kind = entry.get("data-type")
    if kind is None:
        refuse(where, '"elem-size" is missing')
    found = _TYPE_BYTES.get(kind.lower()) if isinstance(kind, str) else None
    if found is None:
        refuse(where, f'"data-type" is {kind!r}; one of {", ".join(_TYPE_BYTES)} is expected')
    return found


def _dims(entry: dict[str, Any], where: str) -> tuple[int, ...] | None:
    dims = entry.get("dims")
    if dims is None:
        return None
    proper = (
        isinstance(dims, list)
        and len(dims) <= _MOST_DIMS
        and all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in dims)
    )
    if not proper or prod(dims) > _LARGEST_DIM:
        refuse(where, f'"dims" is {str(dims)[:200]}; a list of up to {_MOST_DIMS} sizes is expected')
    # A scalar is written as one element.
    return tuple(dims) or (1,)


_ROWS: Final = "userBuffers"
_KEYS: Final = ("num", "buffSize", "name", "inputFile", "outputFile")


def read_bindings(path: Path, network: Network) -> Request:
    """Plan the inference of a bindings file. Sizes of all files are checked; none is read.

    Paths in the file are absolute, or relative to its folder and inside it. Raises InputError if the text has
    another form or does not fit the program, and OSError if a file cannot be read.
    """
    document = read_object(path)
    if _ROWS not in document and TOP not in document:
        refuse(str(path), f'an object with a list "{_ROWS}" or "{TOP}" is expected')
    if _ROWS not in document:
        return read_batch(path, network, compare=False)[0]
    rows = document[_ROWS]
    if not isinstance(rows, list):
        refuse(str(path), f'"{_ROWS}" is {str(rows)[:80]}; a list of buffers is expected')
    numbered = sorted(
        (_number(row, f"{path}: {_ROWS}[{place}]"), f"{path}: {_ROWS}[{place}]", row)
        for place, row in enumerate(rows)
    )
    for (number, _, _), (following, where, _) in pairwise(numbered):
        if number == following:
            refuse(where, f'"num" is {number}, which another buffer also has')
    for text in dict.fromkeys(text for _, _, row in numbered for text in unknown_keys(row, _KEYS)):
        print_message("warning", f"{path}: {text}", verbatim=True)
    given = [(where, row) for _, where, row in numbered if not _is_output(row, network)]
    # Retained state that the file does not list stays on the device.
    wanted = network.inputs
    if len(given) < len(wanted):
        wanted = [binding for binding in wanted if not network.keeps(binding)]
    check_count(wanted, len(given), str(path))
    parts = {
        binding.position: _part(row, binding, path.parent, where, network)
        for binding, (where, row) in zip(wanted, given, strict=True)
    }
    inputs = [parts.get(binding.position) or Part(binding, SKIPPED) for binding in network.inputs]
    return with_plain_outputs(network, inputs)


def _number(row: object, where: str) -> int:
    if not isinstance(row, dict):
        refuse(where, "an object is expected")
    number = row.get("num")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        refuse(where, f'"num" is {number!r}; a buffer number is expected')
    return number


def _is_output(row: dict[str, Any], network: Network) -> bool:
    """Return True if a row describes an output, which needs no file."""
    name = row.get("name")
    is_named = any(binding.name == name for binding in network.outputs)
    return is_named and all(binding.name != name for binding in network.inputs)


def _part(row: dict[str, Any], binding: Binding, folder: Path, where: str, network: Network) -> Part:
    name = row.get("name")
    if name != binding.name and any(other.name == name for other in network.inputs):
        refuse(
            where,
            f'"name" is {name!r}, but the order of "num" gives {binding.name!r}; correct one of them',
        )
    path = located(row, "inputFile", folder, where)
    found, size = file_bytes(path), row.get("buffSize")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size != found):
        refuse(
            where,
            f'"buffSize" is {size!r}, and {path} has {found} bytes; {binding.name!r} takes {binding.nbytes}',
        )
    return Part(binding, binding.dims_for(found, f"{where}: {path}"), (path,))
