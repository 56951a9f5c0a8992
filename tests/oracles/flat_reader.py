"""Tables of a FlatBuffer by the numbers of their fields, read independently of the reader in the package."""

from __future__ import annotations

import struct


class Table:
    """One table; missing fields have default values."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        (back,) = struct.unpack_from("<i", data, place)
        vtable = place - back
        (size,) = struct.unpack_from("<H", data, vtable)
        self._slots = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Read the outermost table, after the eight bytes with which some writers begin."""
        if data[:8] == struct.pack("<HHI", 1, 0, 0):
            data = data[8:]
        return cls(data, struct.unpack_from("<I", data)[0])

    def _where(self, field: int) -> int | None:
        slot = self._slots[field] if field < len(self._slots) else 0
        return self._place + slot if slot else None

    def number(self, field: int, form: str) -> int:
        """Read a scalar; `form` is its letter of `struct`."""
        where = self._where(field)
        return 0 if where is None else struct.unpack_from(f"<{form}", self._data, where)[0]

    def numbers(self, field: int, form: str) -> list[int]:
        """Read a vector of scalars."""
        where = self._where(field)
        if where is None:
            return []
        begin = where + struct.unpack_from("<I", self._data, where)[0]
        (count,) = struct.unpack_from("<I", self._data, begin)
        return list(struct.unpack_from(f"<{count}{form}", self._data, begin + 4))

    def tables(self, field: int) -> list[Table]:
        """Read a vector of tables."""
        where = self._where(field)
        if where is None:
            return []
        begin = where + struct.unpack_from("<I", self._data, where)[0]
        (count,) = struct.unpack_from("<I", self._data, begin)
        offsets = struct.unpack_from(f"<{count}I", self._data, begin + 4)
        return [Table(self._data, begin + 4 + 4 * index + offset) for index, offset in enumerate(offsets)]
