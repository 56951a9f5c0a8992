"""Protobuf messages as plain values, read independently of the reader in the package."""

from __future__ import annotations


def fields(data: bytes) -> dict[int, list]:
    """Field number -> its values in order: integers as encoded, all others as bytes."""
    found: dict[int, list] = {}
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = varint(data, place)
        elif kind == 2:
            size, place = varint(data, place)
            value, place = data[place : place + size], place + size
        else:
            size = {1: 8, 5: 4}[kind]
            value, place = data[place : place + size], place + size
        found.setdefault(number, []).append(value)
    assert place == len(data)
    return found


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the value and the position after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


def packed(data: bytes) -> list[int]:
    """Values of a packed field."""
    values, place = [], 0
    while place < len(data):
        value, place = varint(data, place)
        values.append(value)
    return values
