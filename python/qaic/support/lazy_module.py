"""Modules that are imported at the first use of one of their names."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_door(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package that imports its public names at their first use.

    `homes` maps a module, relative to the package, to its public names, separated by spaces.
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
    """Placeholder for a module that is imported at its first use, because the import takes long.

    ``typing.get_type_hints`` can read annotations that use it. Each use of a name looks up the module.

    `name` is the name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        """Import the module and return its attribute."""
        return getattr(import_module(self._name), name)
