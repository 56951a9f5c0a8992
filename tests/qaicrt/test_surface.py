"""The package has every name of the interface, and no other."""

from operator import attrgetter

import pytest
import surface

import qaic
import qaicrt


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_names_of_the_module():
    expected = surface.ENUMS | surface.EXCEPTIONS | set(surface.CLASSES) | set(surface.STRUCTURES)
    assert set(qaicrt.__all__) == expected
    assert set(dir(qaicrt)) == expected
    assert len(qaicrt.__all__) == len(expected)


@pytest.mark.parametrize(
    "name", [*sorted(surface.ENUMS), *sorted(surface.EXCEPTIONS), *surface.CLASSES, *surface.STRUCTURES]
)
def test_is_a_class_of_that_name(name):
    found = getattr(qaicrt, name)
    assert isinstance(found, type)
    if not name.startswith("QAicBuffer"):  # second names
        assert found.__name__ == name
    assert found.__module__.split(".")[0] == "qaicrt"


@pytest.mark.parametrize("name", surface.CLASSES)
def test_members_of_a_class(name):
    found = getattr(qaicrt, name)
    assert public(dir(found)) - public(dir(found.__base__)) == surface.CLASSES[name]


@pytest.mark.parametrize("name", surface.CLASSES)
def test_no_private_class_shows(name):
    found = getattr(qaicrt, name)
    assert {base.__module__ for base in found.__mro__} == {"qaicrt", "builtins"}
    for member in surface.CLASSES[name]:
        # Methods of the core have only the name, and properties have none.
        shown = getattr(getattr(found, member), "__qualname__", member)
        assert shown in {member, f"{name}.{member}"}


@pytest.mark.parametrize("name", surface.STRUCTURES)
def test_fields_of_a_structure(name):
    assert public(dir(getattr(qaicrt, name)())) == surface.STRUCTURES[name]


@pytest.mark.parametrize("path", surface.PARTS_OF_QDEVINFO)
def test_parts_of_the_device_information(path):
    assert public(dir(attrgetter(path)(qaicrt.QDevInfo()))) == surface.PARTS_OF_QDEVINFO[path]


@pytest.mark.parametrize("name", sorted(surface.EXCEPTIONS))
def test_exceptions(name):
    assert issubclass(getattr(qaicrt, name), RuntimeError)
    assert issubclass(getattr(qaicrt, name), qaic.errors.QaicError)


@pytest.mark.parametrize("name", ["setDataSingle", "Constants", "Event", "QS_SUCCESS", "ProfilingHandel"])
def test_a_name_that_does_not_exist(name):
    with pytest.raises(AttributeError, match=name):
        getattr(qaicrt, name)


def test_everything_can_be_imported_at_once():
    names = {}
    exec("from qaicrt import *", names)
    assert set(qaicrt.__all__) <= set(names)


def test_names_of_the_high_level_package():
    assert qaic.Util is qaicrt.Util
    assert qaic.InferenceBenchmarkSet is qaicrt.InferenceBenchmarkSet
