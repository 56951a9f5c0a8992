"""Modules that are imported at the first use of one of their names."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_door(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose public names are imported with their first use.

    `homes` has for each module, relative to the package, its public names, separated by spaces.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


class LazyModule:
    """Stands for a module that takes long to import and is not wanted at once.

    Annotations by it can be read by ``typing.get_type_hints``. Each use of a name looks for the module again.

    `name` is the name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        """Import the module and return what it calls so."""
        return getattr(import_module(self._name), name)
