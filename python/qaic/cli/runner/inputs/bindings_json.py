"""The file ``bindings.json`` next to a container: which raw file goes into which input.

Card users write ``{"userBuffers": [{"num", "buffSize", "name", "inputFile"}]}``, one row a buffer; the form
of batch JSON files is read as well. A file that cannot be used is an error: the user named inputs, and random
data must not take their place.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from qaic.cli.console import print_message
from qaic.cli.runner.inputs.batch_json import TOP, located, read_batch, read_object, refuse
from qaic.cli.runner.inputs.requests import SKIPPED, Part, Request, file_bytes, plain_outputs
from qaic.cli.runner.network import Binding, Network
from qaic.options.names import unknown_keys

_ROWS: Final = "userBuffers"
_KEYS: Final = ("num", "buffSize", "name", "inputFile", "outputFile")


def read_bindings(path: Path, network: Network) -> Request:
    """Plan the inference of a bindings file. Sizes of all files are checked; none is read.

    Parameters
    ----------
    path
        The JSON file. Paths in it are absolute, or relative to its folder and inside it.
    network
        Bindings of the program.

    Raises
    ------
    InputError
        The text is not as described, or does not fit the program.
    OSError
        A file cannot be read.
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
            refuse(where, f'"num" is {number}, and so is that of another buffer')
    for text in dict.fromkeys(text for _, _, row in numbered for text in unknown_keys(row, _KEYS)):
        print_message("warning", f"{path}: {text}")
    given = [(where, row) for _, where, row in numbered if not _is_output(row, network)]
    # Retained state that the file leaves out stays on the device.
    wanted = network.inputs
    if len(given) < len(wanted):
        wanted = [binding for binding in wanted if not network.keeps(binding)]
    if len(given) != len(wanted):
        names = ", ".join(repr(binding.name) for binding in wanted)
        refuse(str(path), f"there are files for {len(given)} inputs; the program has {len(wanted)}: {names}")
    parts = {
        binding.position: _part(row, binding, path.parent, where, network)
        for binding, (where, row) in zip(wanted, given, strict=True)
    }
    inputs = [parts.get(binding.position) or Part(binding, SKIPPED) for binding in network.inputs]
    return Request(inputs, plain_outputs(network))


def _number(row: object, where: str) -> int:
    if not isinstance(row, dict):
        refuse(where, "an object is expected")
    number = row.get("num")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        refuse(where, f'"num" is {number!r}; the number of the buffer is expected')
    return number


def _is_output(row: dict[str, Any], network: Network) -> bool:
    """Return whether a row is about an output, which needs no file."""
    name = row.get("name")
    is_named = any(binding.name == name for binding in network.outputs)
    return is_named and all(binding.name != name for binding in network.inputs)


def _part(row: dict[str, Any], binding: Binding, folder: Path, where: str, network: Network) -> Part:
    name = row.get("name")
    if name != binding.name and any(other.name == name for other in network.inputs):
        refuse(
            where,
            f'"name" is {name!r}, and by the order of "num" it is {binding.name!r}; correct one of the two',
        )
    path = located(row, "inputFile", folder, where)
    found, size = file_bytes(path), row.get("buffSize")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size != found):
        refuse(
            where,
            f'"buffSize" is {size!r}, and {path} has {found} bytes; {binding.name!r} takes {binding.nbytes}',
        )
    return Part(binding, binding.dims_for(found, f"{where}: {path}"), (path,))
