"""Modules that are imported when one of their names is wanted."""

from __future__ import annotations

from importlib import import_module


class LazyModule:
    """Stands for a module in annotations, so that ``typing.get_type_hints`` can read them.

    Parameters
    ----------
    name : str
        Name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        """Import the module and return what it calls so."""
        return getattr(import_module(self._name), name)
