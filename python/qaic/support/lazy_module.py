"""Modules that are imported when one of their names is wanted."""

from importlib import import_module


class LazyModule:
    """Stands for a module that takes long to import and is not wanted at once.

    Annotations by it can be read by ``typing.get_type_hints``. Each use of a name looks for the module again.

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
