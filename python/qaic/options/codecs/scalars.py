"""Scalar value types of options: convert user input to typed values.

A codec accepts every documented form of a value: a Python object from a keyword argument, or text from a YAML
file or a command line. Rows of the option table refer to codecs and contain no code.
"""

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike, fspath
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

from qaic.options.names import nearest
from qaic.support.text import counted, format_value

T = TypeVar("T")
N = TypeVar("N", int, float)

#: Values that ``json.dumps`` accepts.
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_INT = r"[+-]?[0-9]+(_[0-9]+)*"
_FLOAT = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"

#: Largest value of options that the runtime and the card's compiler store in 32 bits.
INT32_MAX: Final = 2**31 - 1

#: Largest number of digits of a number; longer text exceeds 64 bits and is not converted.
_MOST_DIGITS = 40


class ValueMismatchError(ValueError):
    """A value does not have the type of its option.

    `expected` describes valid values in a noun phrase; `found` describes the given value for the message.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def to_python(value: object) -> object:
    """Convert a scalar or array of numpy or a similar library to Python objects, without importing numpy."""
    if (
        not isinstance(value, type)
        and hasattr(value, "dtype")
        and callable(tolist := getattr(value, "tolist", None))
    ):
        return tolist()
    return value


class Codec(ABC, Generic[T]):
    """Type of an option's value."""

    #: True if the value has no text form, so that only a keyword argument can have it.
    python_only: ClassVar[bool] = False

    #: Valid values, as a noun phrase with limits, for errors and the reference.
    expected: str

    #: Placeholder for a value in help texts.
    placeholder = "NAME"

    #: True if ``None`` is a valid value that differs from "not given".
    takes_none = False

    @abstractmethod
    def parse(self, value: object) -> T:
        """Convert any accepted form: a Python object or a text.

        Raises ValueMismatchError if the value has no accepted form or exceeds its limits.
        """

    def parse_part(self, value: object, place: str) -> T:
        """Convert a part of a larger value; `place` follows the expected values in the error."""
        try:
            return self.parse(value)
        except ValueMismatchError as error:
            raise ValueMismatchError(f"{error.expected} {place}", error.found) from None

    def to_json(self, value: T) -> Json:
        """Return the form that is stored in the container and hashed into the cache key."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple):
            return [Codec.to_json(self, item) for item in value]
        if isinstance(value, Mapping):
            return {name: Codec.to_json(self, item) for name, item in value.items()}
        raise TypeError(f"{type(self).__name__} has no JSON form for {format_value(value)}")

    def to_texts(self, value: T) -> tuple[str, ...]:
        """Return texts for flags, from which `parse` returns the value.

        Raises ValueMismatchError if there is no such text, as for a name with a comma in a list of names.
        """
        # Until a file is read, the value of its option is the path.
        held = str(value) if isinstance(value, Path) else self.to_json(value)
        if isinstance(held, str):
            return (held,)
        if isinstance(held, bool):
            return (str(held).lower(),)
        if isinstance(held, int | float):
            return (repr(held),)
        raise ValueMismatchError("a value that can be written as a flag", format_value(value))

    def rebase(self, value: T, directory: Path) -> T:
        """Make relative paths in the value relative to ``directory``."""
        del directory
        return value

    def load(self, value: T) -> T:
        """Replace the path of a file by its content, if the content is the value.

        Raises ValueMismatchError if the file cannot be read, or its content is wrong.
        """
        return value

    @staticmethod
    def items(value: object) -> Sequence[object] | None:
        """Return a value that is a list of values; None for other values and for text."""
        is_text = isinstance(value, str | bytes | bytearray)
        return value if isinstance(value, Sequence) and not is_text else None

    def mismatch(self, value: object) -> ValueMismatchError:
        """Build the error for a wrong value."""
        return ValueMismatchError(self.expected, format_value(value))


class Bool(Codec[bool]):
    """True or false; as text also yes/no, on/off, 1/0 in any case."""

    expected = "true or false"
    placeholder = "true|false"

    def parse(self, value: object) -> bool:
        """See `Codec.parse`. The integers 0 and 1 are accepted."""
        given = to_python(value)
        if isinstance(given, bool):
            return given
        if isinstance(given, int) and given in {0, 1}:
            return bool(given)
        if isinstance(given, str):
            text = given.strip().lower()
            if text in _TRUE:
                return True
            if text in _FALSE:
                return False
        raise self.mismatch(given)


def _limits(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


class _Number(Codec[N]):
    """A number within limits.

    `ge` and `le` are the smallest and largest accepted value; `unit` is the unit in messages.
    """

    noun: ClassVar[str]

    def __init__(self, *, ge: N | None = None, le: N | None = None, unit: str = "") -> None:
        self.ge: N | None = ge
        self.le: N | None = le
        self.unit = unit
        self.expected = self.noun + _limits(ge, le) + (f" ({unit})" if unit else "")

    def is_within(self, number: N) -> bool:
        """Return True if a number is not beyond the limits."""
        return not ((self.ge is not None and number < self.ge) or (self.le is not None and number > self.le))


class Int(_Number[int]):
    """A whole number; text must be decimal, may group digits with ``_``, and may have leading zeros."""

    placeholder = "N"
    noun = "an integer"

    def parse(self, value: object) -> int:
        """See `Codec.parse`. Booleans and floats are refused, even whole numbers."""
        given = to_python(value)
        if isinstance(given, bool):
            raise self.mismatch(given)
        if isinstance(given, str):
            text = given.strip()
            if not re.fullmatch(_INT, text) or len(text) > _MOST_DIGITS:
                raise self.mismatch(given)
            number = int(text)
        else:
            try:
                number = operator.index(given)  # type: ignore[arg-type]  # the call is the check
            except TypeError:
                raise self.mismatch(given) from None
        if not self.is_within(number):
            raise self.mismatch(given)
        return number


class Float(_Number[float]):
    """A finite number; text may be decimal or have an exponent."""

    placeholder = "X"
    noun = "a number"

    def parse(self, value: object) -> float:
        given = to_python(value)
        if isinstance(given, str):
            if not re.fullmatch(_FLOAT, given.strip()):
                raise self.mismatch(given)
            number = float(given)
        elif isinstance(given, int | float) and not isinstance(given, bool):
            try:
                number = float(given)
            except OverflowError:
                raise self.mismatch(given) from None
        else:
            raise self.mismatch(given)
        if not math.isfinite(number) or not self.is_within(number):
            raise self.mismatch(given)
        return number


class Str(Codec[str]):
    """Text that is not empty.

    A Python number is converted to text, so that the version ``2.0`` may be a number.
    """

    expected = "text"

    def parse(self, value: object) -> str:
        given = to_python(value)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return repr(given)
        if isinstance(given, str) and given.strip():
            return given
        raise self.mismatch(given)


class FilePath(Codec[Path]):
    """A path of a file or directory, whose existence is checked when it is used.

    `noun` names the kind of file in messages.
    """

    def __init__(self, noun: str = "path") -> None:
        self.noun = noun
        self.expected = f"the path of a {self.noun}"
        self.placeholder = "DIR" if noun == "directory" else "FILE"

    def parse(self, value: object) -> Path:
        text = fspath(value) if isinstance(value, str | PathLike) else None
        # The system cuts a path at a NUL byte, so it would open another file.
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise self.mismatch(value)
        return Path(text)

    def rebase(self, value: Path, directory: Path) -> Path:
        """See `Codec.rebase`. Absolute paths do not change."""
        return directory / value


class Enum(Codec[str]):
    """One of a few words, in any case; the result has the documented case.

    The word ``None`` among `values` means that Python's ``None`` is also valid.
    """

    def __init__(self, *values: str) -> None:
        self.values = values
        self._by_key = {value.lower(): value for value in values}
        self.expected = "one of " + ", ".join(self.values)
        self.placeholder = "|".join(values)
        self.takes_none = "none" in self._by_key

    def parse(self, value: object) -> str:
        given = "none" if value is None and self.takes_none else value
        found = self._by_key.get(given.strip().lower()) if isinstance(given, str) else None
        if found is None:
            raise ValueMismatchError(self.expected, format_value(value) + self._suggestion(given))
        return found

    def _suggestion(self, given: object) -> str:
        near = nearest(given, self._by_key) if isinstance(given, str) else None
        return "" if near is None else f" (did you mean {self._by_key[near]}?)"


class ListOf(Codec[tuple[T, ...]], Generic[T]):
    """Several values of one type: a sequence, or one text split at separators.

    With `spaces`, text is split at commas and white space (clusters, MOS, PMU events). `most` is the largest
    accepted number of values. With `distinct`, values must not repeat.
    """

    def __init__(
        self, item: Codec[T], *, spaces: bool = False, most: int | None = None, distinct: bool = False
    ) -> None:
        self.item = item
        self.spaces = spaces
        self.most = most
        self.distinct = distinct
        count = "" if most is None else f"at most {most} "
        self.expected = f"a list of {count}values, each {item.expected}"
        is_path = item.placeholder in {"FILE", "DIR"}
        self.placeholder = item.placeholder if is_path else f"{item.placeholder},..."

    def parse(self, value: object) -> tuple[T, ...]:
        """See `Codec.parse`. An empty sequence and an empty text are an empty list."""
        given = to_python(value)
        parts = self.items(given)
        if isinstance(given, str):
            text = given.strip()
            parts = re.split(r"\s*,\s*|\s+" if self.spaces else r"\s*,\s*", text) if text else []
        if parts is None:
            raise self.mismatch(given)
        if self.most is not None and len(parts) > self.most:
            raise ValueMismatchError(self.expected, counted(len(parts), "value"))
        items: list[T] = []
        for position, part in enumerate(parts, start=1):
            try:
                items.append(self.item.parse(part))
            except ValueMismatchError as error:
                raise ValueMismatchError(self.expected, f"{error.found} as value {position}") from None
            if self.distinct and items[-1] in items[:-1]:
                raise ValueMismatchError("each value once", f"{format_value(items[-1])} twice")
        return tuple(items)

    def to_json(self, value: tuple[T, ...]) -> Json:
        return [self.item.to_json(item) for item in value]

    def to_texts(self, value: tuple[T, ...]) -> tuple[str, ...]:
        """See `Codec.to_texts`. Returns one text for each item."""
        texts = tuple(text for item in value for text in self.item.to_texts(item))
        for text in texts:
            if text != text.strip() or "," in text or (self.spaces and len(text.split()) > 1):
                raise ValueMismatchError(
                    "values without separators, so that a flag can contain them", format_value(text)
                )
        return texts

    def rebase(self, value: tuple[T, ...], directory: Path) -> tuple[T, ...]:
        return tuple(self.item.rebase(item, directory) for item in value)

    def load(self, value: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(self.item.load(item) for item in value)


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected_remarks", default=None)


@contextmanager
def collecting() -> Iterator[list[str]]:
    """Collect the remarks of codecs in the block, in order and without duplicates."""
    collected: list[str] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def remark(texts: Iterable[str], place: str = "") -> None:
    """Add remarks about the value that is being converted.

    `texts` are sentences without the name of the option, which the collector adds. `place`, a part of the
    value, precedes each sentence.
    """
    collected = _COLLECTED.get()
    if collected is None:
        return
    for text in texts:
        placed = f"{place}: {text}" if place else text
        if placed not in collected:
            collected.append(placed)
