"""The exception tree: base classes, attributes, and pickling of every exception."""

import ast
import copy
import inspect
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import qaic
from qaic import _core, errors
from qaic.errors import QaicError

STUB = Path(qaic.__file__).with_name("_core.pyi")
CLASSES = [getattr(errors, name) for name in errors.__all__]

# Class -> the classes that catch it, in addition to QaicError: its parent and the expected built-in class.
BASES = {
    "QpcError": [ValueError],
    "QpcFormatError": ["QpcError", ValueError],
    "QpcVersionError": ["QpcError", ValueError],
    "QpcLimitError": ["QpcError", ValueError],
    "OptionError": [ValueError],
    "UnknownOptionError": ["OptionError", ValueError, TypeError],
    "OptionConflictError": ["OptionError", ValueError],
    "CompileError": [RuntimeError],
    "InputError": [ValueError],
    "MissingInputError": ["InputError", ValueError, KeyError],
    "InputShapeError": ["InputError", ValueError],
    "InputTypeError": ["InputError", ValueError, TypeError],
    "StateError": [RuntimeError],
    "DeviceError": [RuntimeError],
    "DeviceNotFoundError": ["DeviceError", RuntimeError],
    "DeviceBusyError": ["DeviceError", RuntimeError],
    "DeviceLostError": ["DeviceError", RuntimeError],
    "DeviceMemoryError": ["DeviceError", RuntimeError, MemoryError],
    "DeviceTimeoutError": ["DeviceError", RuntimeError, TimeoutError],
    "InferenceError": [RuntimeError],
    "StatsError": [ValueError],
    "UnknownStatsLayoutError": ["StatsError", ValueError],
    "StatsFormatError": ["StatsError", ValueError],
    "StatsVersionError": ["StatsError", ValueError],
    "StatsMismatchError": ["StatsError", ValueError],
    "InternalError": [RuntimeError],
}


def make(cls):
    return cls(
        "the thing is wrong",
        code="test.code",
        context={"found": 3, "expected": [1, 2], "where": "ünï"},
        hints=("do this", "or that"),
    )


def test_every_class_is_listed():
    assert BASES.keys() | {"QaicError"} == set(errors.__all__)
    exported = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert exported == set(errors.__all__)
    compiled = {
        name
        for name, value in vars(_core).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert compiled == set(errors.__all__)


@pytest.mark.parametrize("name", BASES)
def test_bases(name):
    cls = getattr(errors, name)
    assert issubclass(cls, QaicError)
    expected = [getattr(errors, base) if isinstance(base, str) else base for base in BASES[name]]
    assert all(issubclass(cls, base) for base in expected)
    # No other built-in class: an OptionError must not be caught as a KeyError.
    builtin = (ValueError, TypeError, KeyError, RuntimeError, MemoryError, TimeoutError)
    assert [base for base in builtin if issubclass(cls, base)] == [
        base for base in builtin if base in expected
    ]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_an_exception_carries(cls):
    error = make(cls)
    assert error.message == "the thing is wrong"
    assert error.code == "test.code"
    assert error.context == {"found": 3, "expected": [1, 2], "where": "ünï"}
    assert error.hints == ("do this", "or that")
    assert str(error) == "the thing is wrong\nhint: do this\nhint: or that"
    assert error.args == ("the thing is wrong",)
    assert inspect.getdoc(cls)
    assert cls.__module__ == "qaic.errors"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_defaults(cls):
    error = cls("only a message")
    assert (error.code, error.context, error.hints) == ("", {}, ())
    assert str(error) == "only a message"
    assert str(cls()) == ""


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_code_context_and_hints_are_keywords(cls):
    with pytest.raises(TypeError):
        cls("message", "code")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(cls, protocol):
    error = make(cls)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    for attribute in ("message", "code", "context", "hints", "args"):
        assert getattr(again, attribute) == getattr(error, attribute)
    assert str(again) == str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copy(cls, duplicate):
    error = make(cls)
    again = duplicate(error)
    assert type(again) is cls
    assert (str(again), again.context) == (str(error), error.context)
    again.context["found"] = 4
    assert error.context["found"] == 3


def test_pickle_crosses_processes():
    program = (
        "import pickle, sys; error = pickle.load(sys.stdin.buffer); print(type(error).__name__, error.code)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(make(errors.DeviceBusyError)),
        capture_output=True,
        check=True,
    )
    assert output.stdout.split() == [b"DeviceBusyError", b"test.code"]


def test_context_and_hints_are_the_exceptions_own():
    context, hints = {"a": 1}, ["one"]
    error = QaicError("message", context=context, hints=hints)
    context["b"] = 2
    hints.append("two")
    assert error.context == {"a": 1}
    assert error.hints == ("one",)


def test_notes_are_shown_as_for_any_exception():
    error = make(errors.QpcError)
    assert error.__notes__ == ["code: test.code"]
    error.add_note("while testing")
    assert error.__notes__ == ["code: test.code", "while testing"]
    shown = "".join(traceback.format_exception(error))
    assert shown.startswith("qaic.errors.QpcError: the thing is wrong\n")
    assert shown.endswith("\ncode: test.code\nwhile testing\n")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert again.__notes__ == error.__notes__
    assert not hasattr(QaicError("without a code"), "__notes__")


def test_repr_names_the_public_class_and_the_code():
    assert repr(make(errors.QpcError)) == "qaic.errors.QpcError('the thing is wrong', code='test.code')"
    assert repr(QaicError("text")) == "qaic.errors.QaicError('text')"


def test_the_stub_has_the_same_tree():
    described = {
        node.name: [ast.unparse(base) for base in node.bases]
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in errors.__all__
    }
    assert described == {cls.__name__: [base.__name__ for base in cls.__bases__] for cls in CLASSES}


def members(cls) -> set[str]:
    # Excludes attributes of every object, and those that only the stub can express (a constructor is __new__
    # in Rust).
    return {name for name in vars(cls) if not name.startswith("__")}


def described_members(node) -> set[str]:
    methods = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
    return methods | {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}


def test_the_stub_has_the_same_members():
    described = {
        node.name: described_members(node)
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and node.name not in errors.__all__
    }
    compiled = {name: members(getattr(_core, name)) for name in described}
    public = {
        name: {member for member in found if not member.startswith("__")} for name, found in described.items()
    }
    assert public == compiled
