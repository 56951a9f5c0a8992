"""Operators that a compiler for the card supports: the built-in list, or the user's list.

The built-in list is an estimate (`tools/generators/operator_estimate.py`). ``aic_operator_list`` replaces it
with a file of the vendor's tool, which has one operator per line, or with a file in the format of the
built-in list.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS
from qaic.errors import OptionError
from qaic.support.open_regular import read_text

#: file that `-operators-supported=onnx` writes
TEXT_NAME: Final = "OnnxSupportedOperators.txt"

_SHIPPED: Final = "aic_operators.json"
_FORMAT: Final = 1
#: most bytes of a file; existing lists have a few KiB
_LARGEST_BYTES: Final = 4 << 20
_LINE: Final = re.compile(r"(?:([\w.-]+)\.)?([A-Za-z]\w*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operator:
    """One entry of a list."""

    domain: str
    name: str
    first_opset: int = 1
    #: last operator set of the entry; None if no later set changed the operator
    last_opset: int | None = None
    #: element types; empty if unknown
    dtypes: tuple[str, ...] = ()
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class OperatorList:
    """Operators by domain and name."""

    operators: dict[tuple[str, str], Operator]
    is_estimate: bool

    def complaint(self, domain: str, name: str, opset: int) -> str | None:
        """Return the reason why an operator is not on the list; None if it is."""
        found = self.operators.get(("" if domain in STANDARD_DOMAINS else domain, name))
        if found is None:
            return "not on the list of operators"
        if opset < found.first_opset:
            return f"operator set {opset}; the list begins with {found.first_opset}"
        if found.last_opset is not None and opset > found.last_opset:
            return f"operator set {opset}; the list ends with {found.last_opset}"
        return None

    def text(self) -> str:
        """Write the list with one operator per line; the first line states its origin."""
        origin = "# estimated by openqaic; the vendor publishes no list\n" if self.is_estimate else ""
        names = sorted(f"{o.domain}.{o.name}" if o.domain else o.name for o in self.operators.values())
        return origin + "".join(f"{name}\n" for name in names)


@lru_cache(maxsize=1)
def shipped() -> OperatorList:
    """Return the built-in list."""
    text = Path(__file__).with_name(_SHIPPED).read_text(encoding="utf-8")
    return _from_json(json.loads(text), _SHIPPED)


def read(path: Path) -> OperatorList:
    """Read a list from a file: JSON in the built-in format, else one operator per line.

    Raises OptionError with the location if the content is not a list, and OSError if the file cannot be read.
    """
    try:
        text = read_text(path, _LARGEST_BYTES)
    except ValueError as error:
        raise _wrong(path, f"{error}, expected a list of operators") from error
    if text.lstrip().startswith("{"):
        try:
            return _from_json(json.loads(text), str(path))
        except (ValueError, RecursionError) as error:
            raise _wrong(path, f"found {error}, expected JSON") from error
    return _from_lines(text, path)


def _from_lines(text: str, path: Path) -> OperatorList:
    operators: dict[tuple[str, str], Operator] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        found = _LINE.fullmatch(word)
        if found is None:
            raise _wrong(path, f"found {word[:80]!r} in line {number}, expected the name of an operator")
        domain, name = found[1] or "", found[2]
        operators[domain, name] = Operator(domain, name)
    if not operators:
        raise _wrong(path, "found no operator, expected one per line")
    return OperatorList(operators, is_estimate=False)


def _from_json(value: Any, where: str) -> OperatorList:
    rows = value.get("operators") if isinstance(value, dict) else None
    if not isinstance(rows, list) or value.get("format") != _FORMAT:
        raise _wrong(where, f'found other keys, expected {{"format": {_FORMAT}, "operators": [...]}}')
    operators: dict[tuple[str, str], Operator] = {}
    for number, row in enumerate(rows, 1):
        operator = _operator(row)
        if operator is None:
            raise _wrong(
                where, f"found {str(row)[:80]!r} as operator {number}, expected an entry as in {_SHIPPED}"
            )
        operators[operator.domain, operator.name] = operator
    return OperatorList(operators, is_estimate=value.get("origin") == "estimate")


def _operator(row: Any) -> Operator | None:
    if not isinstance(row, dict) or not isinstance(row.get("operator"), str):
        return None
    last = row.get("last_opset")
    dtypes = row.get("dtypes", [])
    fits = (
        all(isinstance(row.get(key, ""), str) for key in ("domain", "note", "source"))
        and type(row.get("first_opset", 1)) is int
        and (last is None or type(last) is int)
        and isinstance(dtypes, list)
        and all(isinstance(dtype, str) for dtype in dtypes)
    )
    if not fits:
        return None
    return Operator(
        row.get("domain", ""),
        row["operator"],
        row.get("first_opset", 1),
        last,
        tuple(dtypes),
        row.get("note", ""),
        row.get("source", ""),
    )


def _wrong(where: Path | str, problem: str) -> OptionError:
    return OptionError(
        f"aic_operator_list {str(where)!r}: {problem}",
        code="option.operator_list",
        context={"options": ["aic_operator_list"]},
    )
