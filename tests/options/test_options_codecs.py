"""Value types: every accepted form, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from qaic.options.codecs.scalars import (
    Bool,
    Codec,
    Enum,
    FilePath,
    Float,
    Int,
    ListOf,
    Str,
    ValueMismatchError,
    to_python,
)
from qaic.support.text import format_value

CALIBRATION = Enum("None", "KLMinimization", "Percentile")


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "yes", "Yes", "on", "ON", "1", " true "])
def test_bool_text_true(text):
    assert Bool().parse(text) is True


@pytest.mark.parametrize("text", ["false", "False", "FALSE", "no", "No", "off", "OFF", "0"])
def test_bool_text_false(text):
    assert Bool().parse(text) is False


@pytest.mark.parametrize("value", [True, 1, np.bool_(True), np.int64(1)])
def test_bool_python_true(value):
    assert Bool().parse(value) is True


@pytest.mark.parametrize("value", ["y", "t", "", "2", 2, -1, 1.0, None, [], "truee"])
def test_bool_rejects_other_values(value):
    with pytest.raises(ValueMismatchError, match="expected true or false"):
        Bool().parse(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (4, 4),
        ("4", 4),
        ("+4", 4),
        ("-4", -4),
        ("1_024", 1024),
        ("010", 10),
        ("007", 7),
        (" 8 ", 8),
        (np.int32(5), 5),
        (np.array(6), 6),
    ],
)
def test_int_forms(value, number):
    parsed = Int().parse(value)
    assert parsed == number
    assert type(parsed) is int


@pytest.mark.parametrize(
    "value",
    [
        "",
        "4.0",
        "0x10",
        "1e3",
        "1__0",
        "_1",
        "1_",
        "four",
        "٤",
        4.0,
        np.float32(4),
        True,
        np.bool_(1),
        None,
        [4],
        b"4",
    ],
)
def test_int_rejects_other_values(value):
    with pytest.raises(ValueMismatchError, match="expected an integer"):
        Int().parse(value)


def test_int_limits_are_inclusive_and_named():
    codec = Int(ge=1, le=16, unit="cores")
    assert [codec.parse(value) for value in (1, 16)] == [1, 16]
    for value in (0, 17, "17", "9" * 5000, 10**5000):
        with pytest.raises(ValueMismatchError, match=r"expected an integer from 1 to 16 \(cores\), found"):
            codec.parse(value)
    assert Int(ge=1).expected == "an integer of at least 1"
    assert Int(le=9).expected == "an integer of at most 9"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.5, 0.5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e-3", 1e-3),
        ("-2E2", -200.0),
        (np.float32(0.5), 0.5),
    ],
)
def test_float_forms(value, number):
    parsed = Float().parse(value)
    assert parsed == number
    assert type(parsed) is float


@pytest.mark.parametrize(
    "value", ["", "nan", "inf", "1_0", "0x1p3", "1e", math.nan, math.inf, "1e999", 10**400, True, None]
)
def test_float_rejects_other_values(value):
    with pytest.raises(ValueMismatchError, match="expected a number"):
        Float().parse(value)


def test_float_limits_are_inclusive_and_named():
    codec = Float(ge=90, le=100)
    assert codec.parse("90") == 90
    assert codec.parse(100) == 100
    with pytest.raises(ValueMismatchError, match=r"a number from 90 to 100, found '89\.9'"):
        codec.parse("89.9")
    with pytest.raises(ValueMismatchError):
        codec.parse(100.5)


def test_str_keeps_text_and_takes_numbers_as_text():
    assert Str().parse("ai100") == "ai100"
    assert Str().parse(2.0) == "2.0"
    assert Str().parse("010") == "010"
    for value in ("", "  ", None, True, []):
        with pytest.raises(ValueMismatchError):
            Str().parse(value)


def test_path_forms_and_rebase():
    codec = FilePath("directory")
    assert codec.parse("a/b") == Path("a/b")
    assert codec.parse(PurePosixPath("a/b")) == Path("a/b")
    assert codec.rebase(Path("a"), Path("/base")) == Path("/base/a")
    assert codec.rebase(Path("/a"), Path("/base")) == Path("/a")
    assert codec.to_json(Path("a/b")) == "a/b"
    for value in ("", " ", "a\0b", 3, None, b"a", ["a"]):
        with pytest.raises(ValueMismatchError, match="the path of a directory"):
            codec.parse(value)


def test_enum_ignores_case_and_returns_the_documented_word():
    assert CALIBRATION.parse("klminimization") == "KLMinimization"
    assert CALIBRATION.parse(" Percentile ") == "Percentile"
    with pytest.raises(ValueMismatchError, match="one of None, KLMinimization, Percentile, found 'KL'"):
        CALIBRATION.parse("KL")
    with pytest.raises(ValueMismatchError):
        CALIBRATION.parse(3)


def test_enum_takes_none_only_when_it_is_a_word():
    assert CALIBRATION.takes_none
    assert CALIBRATION.parse(None) == "None"
    assert CALIBRATION.parse("none") == "None"
    words = Enum("aic", "qaic")
    assert not words.takes_none
    with pytest.raises(ValueMismatchError, match="found nothing"):
        words.parse(None)


@pytest.mark.parametrize(
    ("codec", "value", "items"),
    [
        (ListOf(Str()), "Add,Div , Softmax", ("Add", "Div", "Softmax")),
        (ListOf(Str()), ["Add", "Div"], ("Add", "Div")),
        (ListOf(Str()), ("Add",), ("Add",)),
        (ListOf(Str()), "a name", ("a name",)),
        (ListOf(Int()), "4,4", (4, 4)),
        (ListOf(Int(), spaces=True), "4 4", (4, 4)),
        (ListOf(Int(), spaces=True), "4, 4", (4, 4)),
        (ListOf(Int()), np.array([1, 2]), (1, 2)),
        (ListOf(Int()), [], ()),
        (ListOf(Int()), "", ()),
    ],
)
def test_list_forms(codec, value, items):
    assert codec.parse(value) == items


@pytest.mark.parametrize("value", [5, None, {"a": 1}, b"1,2", {1, 2}, "1,,2", "1,", ["x"], "1 2"])
def test_list_rejects_other_values(value):
    with pytest.raises(ValueMismatchError, match="a list of values, each an integer"):
        ListOf(Int()).parse(value)


def test_list_names_the_wrong_value_and_limits_the_count():
    with pytest.raises(ValueMismatchError, match="found 'x' as value 2"):
        ListOf(Int()).parse("1,x")
    limited = ListOf(Int(), most=2)
    assert limited.parse("1,2") == (1, 2)
    with pytest.raises(
        ValueMismatchError, match="a list of at most 2 values, each an integer, found 3 values"
    ):
        limited.parse("1,2,3")


def test_list_of_paths_rebases_each():
    assert ListOf(FilePath()).rebase((Path("a"), Path("/b")), Path("/c")) == (Path("/c/a"), Path("/b"))


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Bool(), "yes"),
        (Int(), 3),
        (Float(), 0.25),
        (Str(), "x"),
        (CALIBRATION, None),
        (FilePath(), "a"),
        (ListOf(Int()), "1,2"),
    ],
)
def test_json_form_parses_back_to_the_same_value(codec: Codec[object], value):
    parsed = codec.parse(value)
    assert codec.parse(json.loads(json.dumps(codec.to_json(parsed)))) == parsed


def test_json_form_of_an_unknown_type_is_a_defect_not_a_guess():
    with pytest.raises(TypeError, match="Int has no JSON form"):
        Int().to_json(object())  # type: ignore[arg-type]


def test_shown_is_short_and_never_fails():
    assert format_value(None) == "nothing"
    assert format_value("a") == "'a'"
    assert len(format_value("x" * 1000)) == 60
    assert format_value(10**5000) == "a huge int"


def test_plain_leaves_types_and_ordinary_values_alone():
    assert to_python(np.float32) is np.float32
    assert to_python("a") == "a"
    assert to_python(np.array([[1, 2]])) == [[1, 2]]
