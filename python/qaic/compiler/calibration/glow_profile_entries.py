"""Entries of a profile file, checked one key after the other, by every reader of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx

from qaic.compiler.calibration.glow_names import entry_keys, find_keys
from qaic.compiler.ir.quantization.profile import CalibrationProfile, TensorProfile
from qaic.errors import OptionError

TOOL: Final = "openqaic"
NAME: Final = "NodeOutputName"
HEADERS: Final = ("GlowToolsVersion", "GraphPreLowerHash")
_MEASURED: Final = ("Min", "Max", "Histogram")
_FIXED: Final = ("Scale", "Offset")

MOST_BINS: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 20

DECIMAL: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_HASH: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", re.ASCII)


@dataclass(slots=True)
class ProfileFile:
    """Content of a profile file.

    Parameters
    ----------
    tool
        What wrote it; empty when it is not stated.
    graph_hash
        Of the graph it was made from; None when it is not stated.
    entries
        By key, in order.
    """

    tool: str = ""
    graph_hash: int | None = None
    entries: dict[str, TensorProfile] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """True if this package wrote the file, so that its names and graph hash can be compared with ours."""
        return self.tool.startswith(TOOL)

    def bind(self, graph: onnx.GraphProto) -> CalibrationProfile:
        """Find the tensors of a graph among the entries."""
        found = find_keys(entry_keys(graph), self.entries, written_by_us=self.is_ours)
        tensors = {name: self.entries[key] for name, key in found.items()}
        return CalibrationProfile(tensors, self.graph_hash or 0)


def wrong(file: str, line: int, key: str, found: str, expected: str) -> OptionError:
    """Make the error for what is wrong at a key of a file."""
    return OptionError(
        f"profile {file}, line {line}: {key}: found {found}, expected {expected}",
        code="profile.malformed",
        context={"file": file, "line": line, "key": key},
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


class ProfileBuilder:
    """Takes keys and values in the order of the file and checks each."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.made = ProfileFile()
        self._line = 0
        self._lines: dict[str, int] = {}
        self._fields: dict[str, str | Sequence[str]] | None = None

    def header(self, key: str, value: str | Sequence[str], line: int) -> None:
        """Take a key of one of the first two documents."""
        self._close()
        if key not in HEADERS:
            raise wrong(self.file, line, key, "an unknown key", f"{HEADERS[0]} or {HEADERS[1]}")
        if key in self._lines:
            raise wrong(self.file, line, key, "the key a second time", "it once")
        self._lines[key] = line
        if not isinstance(value, str):
            raise wrong(self.file, line, key, "a list", "one value")
        if key == HEADERS[0]:
            self.made.tool = value
            return
        if not _HASH.fullmatch(value) or int(value, 0 if value[:2] in {"0x", "0X"} else 10) >= 1 << 64:
            raise wrong(self.file, line, key, _shown(value), "a 64-bit number like 0x0123456789abcdef")
        self.made.graph_hash = int(value, 16 if value[:2] in {"0x", "0X"} else 10)

    def entry(self, line: int) -> None:
        """Begin an entry of the last document."""
        self._close()
        if len(self.made.entries) >= _MOST_ENTRIES:
            raise wrong(self.file, line, NAME, f"more than {_MOST_ENTRIES} entries", "as many as a model has")
        self._fields = {}
        self._line = line

    def field(self, key: str, value: str | Sequence[str], line: int) -> None:
        """Take a key of an entry."""
        if self._fields is None:
            raise wrong(self.file, line, key, "a key outside an entry", "a list of entries, each with '- '")
        if key != NAME and key not in _MEASURED and key not in _FIXED:
            known = ", ".join((NAME, *_MEASURED))
            raise wrong(self.file, line, key, "an unknown key", f"one of {known}")
        if key in self._fields:
            raise wrong(self.file, line, key, "the key a second time", "it once in an entry")
        if isinstance(value, str) is (key == "Histogram"):
            form = "one value" if isinstance(value, str) else "a list"
            raise wrong(
                self.file, line, key, form, "a list of numbers" if key == "Histogram" else "one value"
            )
        if key == "Histogram":
            if len(value) > MOST_BINS:
                raise wrong(self.file, line, key, f"{len(value)} bins", f"at most {MOST_BINS}")
        elif key in _MEASURED or key == "Scale":
            assert isinstance(value, str)  # noqa: S101  # checked above
            if not DECIMAL.fullmatch(value):
                raise wrong(self.file, line, key, _shown(value), "a decimal number")
        elif key == "Offset" and not _INTEGER.fullmatch(str(value)):
            raise wrong(self.file, line, key, _shown(str(value)), "an integer")
        self._fields[key] = value

    def finish(self) -> ProfileFile:
        """Return what was read."""
        self._close()
        return self.made

    def _close(self) -> None:
        fields, self._fields = self._fields, None
        if fields is None:
            return
        line = self._line
        name = fields.get(NAME)
        if not isinstance(name, str) or not name:
            raise wrong(self.file, line, NAME, "an entry without a name", "the name of a tensor")
        if name in self.made.entries:
            raise wrong(self.file, line, NAME, f"{_shown(name)} a second time", "one entry for each tensor")
        self.made.entries[name] = (
            self._fixed(fields, name)
            if any(key in fields for key in _FIXED)
            else self._measured(fields, name)
        )

    def _fixed(self, fields: dict[str, str | Sequence[str]], name: str) -> TensorProfile:
        mixed = [key for key in _MEASURED if key in fields]
        missing = [key for key in _FIXED if key not in fields]
        if mixed or missing:
            found = f"{mixed[0]} beside Scale and Offset" if mixed else f"no {missing[0]}"
            raise wrong(self.file, self._line, name, found, "Scale and Offset, or Min, Max and Histogram")
        scale, offset = float(np.float32(str(fields["Scale"]))), int(str(fields["Offset"]))
        if not (0 < scale < np.inf):
            raise wrong(self.file, self._line, name, f"Scale {fields['Scale']}", "a positive float32")
        return fixed(
            scale, offset, 8, lambda found, expected: wrong(self.file, self._line, name, found, expected)
        )

    def _measured(self, fields: dict[str, str | Sequence[str]], name: str) -> TensorProfile:
        missing = [key for key in _MEASURED if key not in fields]
        if missing:
            raise wrong(self.file, self._line, name, f"no {missing[0]}", ", ".join((NAME, *_MEASURED)))
        with np.errstate(over="ignore"):
            low, high = (float(np.float32(str(fields[key]))) for key in ("Min", "Max"))
        if not (np.isfinite(low) and np.isfinite(high)):
            raise wrong(self.file, self._line, name, "a range beyond float32", "finite Min and Max")
        if low > high:
            raise wrong(self.file, self._line, name, f"Min {low} above Max {high}", "Min <= Max")
        return TensorProfile(low, high, self._histogram(fields["Histogram"], name))

    def _histogram(
        self, values: str | Sequence[str], name: str
    ) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        try:
            counts = np.array(list(map(float, values)), np.float64)
        except ValueError as error:
            raise wrong(self.file, self._line, name, f"in Histogram {error}", "numbers") from None
        if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts <= 3e38).all()):
            raise wrong(
                self.file, self._line, name, "a count in Histogram that is no count", "numbers of 0 and more"
            )
        return counts.astype(np.float32) if counts.any() else None


def fixed(scale: float, offset: int, bits: int, wrong: Any) -> TensorProfile:
    """Make the profile of fixed parameters; ``wrong(found, expected)`` makes the exception for bad ones."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if not low <= offset <= high:
        raise wrong(f"offset {offset}", f"{low} to {high}")
    return TensorProfile(
        min(scale * (low - offset), 0.0),
        max(scale * (high - offset), 0.0),
        scale=scale,
        offset=offset,
        bits=bits,
    )
