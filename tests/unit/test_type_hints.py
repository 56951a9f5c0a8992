"""Programs can read the types of the public interface with `typing.get_type_hints`."""

import importlib
import inspect
import typing

import pytest

import qaic
from qaic.profile import Profile

MODULES = [
    "qaic",
    "qaic.compat",
    "qaic.configs",
    "qaic.errors",
    "qaic.page",
    "qaic.qpc",
    "qaic.stats",
    "qaic.stats.reports",
    "qaicrt",
]
#: Objects that are public only as results.
RESULTS = [Profile, qaic.devices().__class__, qaic.devices()[0].__class__]


def public():
    """Yield every public class and function once."""
    seen = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for one in getattr(module, "__all__", dir(module)):
            if not one.startswith("_"):
                found = getattr(module, one)
                if inspect.isclass(found) or inspect.isfunction(found):
                    seen.setdefault(id(found), (f"{name}.{one}", found))
    for one in RESULTS:
        seen.setdefault(id(one), (one.__name__, one))
    yield from seen.values()


def is_ours(one):
    return one.__module__.partition(".")[0] in {"qaic", "qaicrt"}


def functions():
    for label, one in public():
        if inspect.isfunction(one):
            yield pytest.param(one, id=label)
        elif inspect.isclass(one):
            for base in filter(is_ours, one.__mro__):
                for name, member in vars(base).items():
                    found = getattr(member, "__func__", None) or getattr(member, "fget", None)
                    found = found or getattr(member, "func", None) or member
                    if inspect.isfunction(found) and is_ours(found):
                        yield pytest.param(found, id=f"{label}.{name}")


@pytest.mark.parametrize("function", list(functions()))
def test_type_hints_can_be_read(function):
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)
    # The types of options in a signature are in the dictionary that `**options` unpacks.
    unpacked = typing.get_args(hints.get("options"))
    typed = set(hints).union(*(one.__annotations__ for one in unpacked if typing.is_typeddict(one)))
    # The first parameter is the object itself.
    assert set(parameters[1:]) <= typed or is_typed_elsewhere(function)


def is_typed_elsewhere(function):
    """Return True if the standard library generated the object, or if the compiled module, which has a stub,
    contains it.
    """
    return (
        function.__code__.co_filename in {"<string>", "qaic/exceptions.py"} or function.__module__ == "enum"
    )


@pytest.mark.parametrize("one", [pytest.param(one, id=label) for label, one in public()])
def test_type_hints_of_classes_can_be_read(one):
    hints = typing.get_type_hints(one)
    assert set(hints) >= set(inspect.get_annotations(one))
