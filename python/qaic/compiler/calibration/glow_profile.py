"""CalibrationProfile files: three YAML documents, as Glow writes them.

Large files are usual (512 numbers for each tensor) and YAML parsers are slow, so a reader for the plain shape
that these files have in practice comes first; what it does not know goes to PyYAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx

from qaic import _core
from qaic.compiler.calibration.glow_names import entry_keys
from qaic.compiler.calibration.glow_profile_entries import (
    HEADERS,
    NAME,
    TOOL,
    ProfileBuilder,
    ProfileFile,
    wrong,
)
from qaic.compiler.calibration.glow_profile_readers import UnusualError, read_general, read_plain
from qaic.compiler.ir.quantization.profile import CalibrationProfile

#: of a file, and of one that only a general parser understands
MOST_BYTES: Final = 512 << 20
_MOST_GENERAL_BYTES: Final = 16 << 20


def write_profile(profile: CalibrationProfile, graph: onnx.GraphProto) -> Iterator[str]:
    """Write a profile piece by piece.

    Parameters
    ----------
    profile
        Measured ranges of tensors of `graph`.
    graph
        Main graph; gives the tensors their keys, and the entries their order.
    """
    yield f"---\n{HEADERS[0]}: '{TOOL} {_core.__version__}'\n...\n"
    yield f"---\n{HEADERS[1]}: 0x{profile.graph_hash:016x}\n...\n---\n"
    empty = True
    for name, key in entry_keys(graph).items():
        tensor = profile.tensors.get(name)
        if tensor is None or tensor.is_fixed:
            continue
        empty = False
        histogram = (
            np.zeros(1, np.float32) if tensor.histogram is None else np.asarray(tensor.histogram, np.float32)
        )
        yield (
            f"- {NAME}: '{key}'\n  Min: {_decimal(tensor.minimum)}\n  Max: {_decimal(tensor.maximum)}\n"
            f"  Histogram: [ {', '.join(_decimals(histogram))} ]\n"
        )
    yield "[]\n...\n" if empty else "...\n"


def _decimal(value: float) -> str:
    """Write a float32 in plain decimal with the fewest digits that give the same float32 again."""
    return np.format_float_positional(np.float32(value), unique=True, trim="-")


def _decimals(values: np.ndarray[Any, np.dtype[np.float32]]) -> list[str]:
    whole = values == np.rint(values)
    if whole.all() and (np.abs(values) < 2**53).all():
        return [str(value) for value in values.astype(np.int64).tolist()]
    return [
        str(int(value)) if is_whole and abs(value) < 2**53 else _decimal(value)
        for value, is_whole in zip(values.tolist(), whole.tolist(), strict=True)
    ]


def read_profile(data: bytes, file: str) -> ProfileFile:
    """Read a profile file of either generation.

    Parameters
    ----------
    data
        Content.
    file
        What messages call it.

    Raises
    ------
    OptionError
        It is not a profile; the message names the line and the key.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(file, line, "text", f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text") from None
    builder = ProfileBuilder(file)
    try:
        read_plain(text, builder)
    except UnusualError:
        if len(data) > _MOST_GENERAL_BYTES:
            raise wrong(
                file,
                1,
                "layout",
                f"{len(data)} bytes in a layout of YAML that is slow to read",
                f"one key per line as the tools write it, or at most {_MOST_GENERAL_BYTES >> 20} MiB",
            ) from None
        builder = ProfileBuilder(file)
        read_general(text, builder)
    return builder.finish()
