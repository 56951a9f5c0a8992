"""Value types with names for values: versions, targets, hexadecimal codes, kinds of samples.

Each type is used by one or two options; `scalars` contains the general types.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qaic.options.codecs.scalars import Bool, Codec, Enum, Int, ListOf, ValueMismatchError, to_python
from qaic.support.text import counted

if TYPE_CHECKING:
    import numpy as np

_HEX = r"(0[xX])?[0-9a-fA-F]{1,8}"


class HardwareVersion(Enum):
    """A hardware family; the version ``2.0`` may be written as a number."""

    def __init__(self) -> None:
        super().__init__("2.0", "ai100", "ai200")

    def parse(self, value: object) -> str:
        given = to_python(value)
        if isinstance(given, int | float) and not isinstance(given, bool):
            given = str(given)
        return super().parse("2.0" if isinstance(given, str) and given.strip() == "2" else given)


class CompilationTarget(Bool):
    """True, false, or the word ``hardware`` of the configuration classes, which means true."""

    expected = "true, false or hardware"

    def parse(self, value: object) -> bool:
        if isinstance(value, str) and value.strip().lower() == "hardware":
            return True
        return super().parse(value)


class Action(Bool):
    """A flag that requests another action of the tool; it has no value."""


class MostCores(Codec[tuple[int, ...]]):
    """Numbers of cores, one for each cluster; a single negative number means "not set"."""

    placeholder = "N,..."

    def __init__(self) -> None:
        self._list = ListOf(Int(ge=1, le=16), spaces=True, most=4)
        self._any = Int()
        self.expected = f"{self._list.item.expected}, or a list of at most 4 of them; -1 is unset"

    def parse(self, value: object) -> tuple[int, ...]:
        given = to_python(value)
        if isinstance(given, str | int) and not isinstance(given, bool):
            try:
                if self._any.parse(given) < 0:
                    return ()
            except ValueMismatchError:
                pass
            given = given if isinstance(given, str) else [given]
        try:
            return self._list.parse(given)
        except ValueMismatchError as error:
            raise ValueMismatchError(self.expected, error.found) from None

    def to_texts(self, value: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(map(str, value)) or ("-1",)


class HexCodes(Codec[tuple[int, ...]]):
    """Codes as hexadecimal text, split at commas and white space.

    Integers in a list are codes. A single integer is refused, because a user who writes 70 usually means the
    hexadecimal digits of the documentation.

    `most` is the largest accepted number of codes.
    """

    placeholder = "HEX,..."

    def __init__(self, *, most: int) -> None:
        self.most = most
        self.expected = f'at most {self.most} hexadecimal codes as text, as "3F,70,200"'

    def parse(self, value: object) -> tuple[int, ...]:
        given = to_python(value)
        parts = self.items(given)
        if isinstance(given, str):
            parts = re.split(r"\s*,\s*|\s+", given.strip()) if given.strip() else []
        if parts is None:
            raise self.mismatch(given)
        if len(parts) > self.most:
            raise ValueMismatchError(self.expected, counted(len(parts), "value"))
        return tuple(map(self._code, parts))

    def to_texts(self, value: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(f"{code:X}" for code in value)

    def _code(self, part: object) -> int:
        if isinstance(part, str) and re.fullmatch(_HEX, part.strip()):
            return int(part, 16)
        if isinstance(part, int) and not isinstance(part, bool) and 0 <= part < 1 << 32:
            return part
        raise self.mismatch(part)


class RandomInputData(Codec["str | None"]):
    """A distribution; true means ``uniform``, and false means none."""

    kinds = Enum("uniform", "gaussian")
    expected = "true, false, uniform or gaussian"
    placeholder = kinds.placeholder

    def parse(self, value: object) -> str | None:
        for codec in (Bool(), self.kinds):
            with suppress(ValueMismatchError):
                found = codec.parse(value)
                return found if isinstance(found, str) else "uniform" if found else None
        raise self.mismatch(value)


class Samples(Codec["Iterable[Mapping[str, np.ndarray[Any, Any]]]"]):
    """An iterable of samples; samples are checked when they are read."""

    python_only = True

    expected = "an iterable of dictionaries of arrays by input name (only from Python)"

    def parse(self, value: object) -> "Iterable[Mapping[str, np.ndarray[Any, Any]]]":
        """See `Codec.parse`. A single sample, which is a mapping, is refused: a list must contain it."""
        if isinstance(value, str | bytes | bytearray | Path | Mapping) or not isinstance(value, Iterable):
            raise self.mismatch(value)
        return value


#: Names of operators in messages of the card's compiler, in lower case -> names in ONNX.
KIND_ALIASES: Final[dict[str, str]] = {
    "adaptiveavgpool": "GlobalAveragePool",
    "avgpool": "AveragePool",
    "batchedadd": "Add",
    "batchedmul": "Mul",
    "batchedreduceadd": "ReduceSum",
    "batchedreducemax": "ReduceMax",
    "batchedreducemean": "ReduceMean",
    "batchedreducemin": "ReduceMin",
    "batchedreduceprod": "ReduceProd",
    "batchedreducesumsquare": "ReduceSumSquare",
    "batchmatmul": "MatMul",
    "broadcast": "Expand",
    "channelwisequantizedconvolution": "Conv",
    "cmpeq": "Equal",
    "cmplt": "Less",
    "cmplte": "LessOrEqual",
    "convertto": "Cast",
    "convolution": "Conv",
    "convolution3d": "Conv",
    "dequantize": "DequantizeLinear",
    "fmod": "Mod",
    "fullyconnected": "Gemm",
    "localresponsenormalization": "LRN",
    "modulo": "Mod",
    "quantize": "QuantizeLinear",
    "resizebilinear": "Resize",
    "resizenearest": "Resize",
    "rmsnorm": "RMSNormalization",
    "rowwisequantizedfullyconnected": "Gemm",
    "select": "Where",
}


def operator_kind(name: str) -> str:
    """Return the name of an operator in ONNX; other names do not change."""
    return KIND_ALIASES.get(name.lower(), name)
