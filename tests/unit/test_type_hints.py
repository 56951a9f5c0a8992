"""Programs can read the types of the public interface, as many tools do by `typing.get_type_hints`."""

import inspect
import typing

import pytest

import qaic
from qaic.profile import Profile

CLASSES = [qaic.Session, qaic.Qpc, Profile]


def functions():
    yield pytest.param(qaic.compile, id="compile")
    for one in CLASSES:
        for name, member in inspect.getmembers(one):
            found = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if inspect.isfunction(found) and found.__module__.startswith("qaic."):
                yield pytest.param(found, id=f"{one.__name__}.{name}")


@pytest.mark.parametrize("function", list(functions()))
def test_type_hints_can_be_read(function):
    hints = typing.get_type_hints(function)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    assert set(parameters) <= {*hints, "cls"}
