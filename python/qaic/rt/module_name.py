"""The module that public classes name as theirs."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def of_qaicrt(cls: type[T]) -> type[T]:
    """Give a class the module that users import it from, which tracebacks, ``repr`` and pickles show."""
    cls.__module__ = "qaicrt"
    return cls
