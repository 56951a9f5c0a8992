"""Sequences with the names and the ``repr`` of the vendor's binding."""

from collections.abc import Iterable
from operator import index
from typing import Self, SupportsIndex, overload

from qaic.rt.enums import of_qaicrt

_MOST_SHOWN = 32


@of_qaicrt
class QIDList(list[int]):
    """Device ids. A list of numbers is also accepted.

    Parameters
    ----------
    ids
        The first ids.
    """

    __slots__ = ()

    def __init__(self, ids: Iterable[SupportsIndex] = ()) -> None:
        super().__init__(map(index, ids))

    def append(self, value: SupportsIndex) -> None:
        """Add an id at the end."""
        super().append(index(value))

    def insert(self, position: SupportsIndex, value: SupportsIndex) -> None:
        """Add an id before the one at ``position``."""
        super().insert(position, index(value))

    def extend(self, values: Iterable[SupportsIndex]) -> None:
        """Add ids at the end."""
        super().extend(map(index, values))

    def __iadd__(self, values: Iterable[SupportsIndex]) -> Self:  # type: ignore[override,misc]
        self.extend(values)
        return self

    @overload
    def __setitem__(self, key: SupportsIndex, value: SupportsIndex) -> None: ...
    @overload
    def __setitem__(self, key: slice, value: Iterable[SupportsIndex]) -> None: ...
    def __setitem__(self, key: SupportsIndex | slice, value: SupportsIndex | Iterable[SupportsIndex]) -> None:
        if isinstance(key, slice):
            super().__setitem__(key, map(index, value))  # type: ignore[arg-type]
        else:
            super().__setitem__(key, index(value))  # type: ignore[arg-type]

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> "QIDList": ...
    def __getitem__(self, key: SupportsIndex | slice) -> "int | QIDList":
        found = super().__getitem__(key)
        return QIDList(found) if isinstance(found, list) else found

    def __repr__(self) -> str:
        return f"QIDList[{', '.join(map(str, self))}]"


@of_qaicrt
class vector_char(bytes):
    """Bytes of a report, read-only."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self[:_MOST_SHOWN]))
        return f"vector_char[{shown}{', ...' if len(self) > _MOST_SHOWN else ''}]"
