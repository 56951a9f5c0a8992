"""The custom I/O file: accepted content, and refusals that name the line and the key."""

import numpy as np
import pytest

from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.files.custom_io import CustomIo, CustomIoList

CODEC = CustomIoList()


def read(path, text):
    file = path / "io.yaml"
    file.write_text(text, encoding="utf-8")
    return CODEC.load(CODEC.parse(str(file)))


def test_file_as_exporters_write_it(tmp_path):
    text = (
        " - IOName: past_key.0\n   Precision: mxint8\n\n"
        " - IOName: past_key.0_RetainedState\n   Precision: mxint8\n\n"
        "# a comment\n - {IOName: image, Layout: nhwc, Precision: int8, Scale: 0.1, Offset: -3}\n"
        " - IOName: on\n   Precision: FLOAT16\n"
    )
    assert read(tmp_path, text) == (
        CustomIo("past_key.0", precision="mxint8"),
        CustomIo("past_key.0_RetainedState", precision="mxint8"),
        CustomIo("image", "NHWC", "int8", float(np.float32(0.1)), -3),
        CustomIo("on", precision="float16"),
    )


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "[]"])
def test_file_without_entries(tmp_path, text):
    assert read(tmp_path, text) == ()


def test_python_form_is_the_file_form(tmp_path):
    entries = [{"IOName": "x", "Precision": "int8", "Scale": 0.5, "Offset": 0}, CustomIo("y", "NHWC")]
    from_python = CODEC.parse(entries)
    text = "- {IOName: x, Precision: int8, Scale: 0.5, Offset: 0}\n- {IOName: y, Layout: NHWC}"
    assert read(tmp_path, text) == CODEC.load(from_python) == from_python
    assert CODEC.parse(CODEC.to_json(from_python)) == from_python


def test_relative_path_is_rebased(tmp_path):
    (tmp_path / "io.yaml").write_text("- {IOName: x}", encoding="utf-8")
    assert CODEC.load(CODEC.rebase(CODEC.parse("io.yaml"), tmp_path)) == (CustomIo("x"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("IOName: x", ["a list of entries", "a mapping"]),
        ("just text", ["a list of entries", "just text"]),
        ("- x", ["a mapping with the key IOName on line 1", "'x'"]),
        ("- [x]", ["a mapping with the key IOName on line 1", "a list"]),
        ("- IOName: x\n- Precision: float", ["the key IOName in the entry on line 2", "none"]),
        ("- IOName:\n", ["as IOName on line 1", "''"]),
        ("- IOName: x\n  Precision: float8", ["float16", "as Precision on line 2", "'float8'"]),
        ("- IOName: x\n  Layout: NCWH", ["NCHW, NHWC as Layout on line 2", "'NCWH'"]),
        ("- IOName: x\n  Scale: 1\n  Scale: 2", ["each key once", "Scale twice on line 3"]),
        ("- IOName: x\n- IOName: y\n- IOName: x", ["one entry per IOName", "x on line 1 and on line 3"]),
        (
            "- IOName: x\n  Scale: 1\n  Offset: 0",
            ["Scale only with 'Precision: int8', on line 2", "no Precision"],
        ),
        (
            "- IOName: x\n  Precision: float\n  Offset: 0",
            ["Offset only with", "on line 3", "Precision float"],
        ),
        ("- IOName: x\n  Precision: int8\n  Scale: 1", ["the keys Offset and Scale", "on line 1", "none"]),
        ("- IOName: x\n  Precision: int8\n  Offset: 1", ["the keys Scale and Offset", "none"]),
        ("- IOName: x\n  Precision: int8\n  Scale: 0\n  Offset: 1", ["as Scale on line 3", "'0'"]),
        ("- IOName: x\n  Precision: int8\n  Scale: -1\n  Offset: 1", ["as Scale on line 3", "'-1'"]),
        ("- IOName: x\n  Precision: int8\n  Scale: nan\n  Offset: 1", ["as Scale on line 3", "'nan'"]),
        ("- IOName: x\n  Precision: int8\n  Scale: 1e39\n  Offset: 1", ["as Scale on line 3", "'1e39'"]),
        (
            "- IOName: x\n  Precision: int8\n  Scale: 1\n  Offset: 128",
            ["from -128 to 127", "line 4", "'128'"],
        ),
        ("- IOName: x\n  Precision: int8\n  Scale: 1\n  Offset: 0.5", ["as Offset on line 4", "'0.5'"]),
        ("- IOName: x\n  Precision: [int8]", ["one value as Precision on line 2", "a list"]),
        ("- [IOName: x\n", ["YAML in the file", "on line 2"]),
        ("- ? [IOName]\n  : x", ["a single word as key", "a list or a mapping on line 1"]),
        ("- *nowhere", ["YAML in the file", "on line 1"]),
        ("- IOName: \0", ["YAML in the file"]),
        ("[" * 100_000, []),
        ("[" * 200 + "]" * 200, ["at most 100 levels", "more on line 1"]),
        ("- IOName: x\n-\n", ["a mapping with the key IOName on line 2", "found nothing"]),
        ("- IOName: x\n- ''\n", ["a mapping with the key IOName on line 2", "found ''"]),
        ("- IOName: " + "[" * 9 + "]" * 9, ["at most 8 levels", "more on line 1"]),
    ],
)
def test_refused_files(tmp_path, text, words):
    with pytest.raises(ValueMismatchError) as caught:
        read(tmp_path, text)
    for word in (*words, "io.yaml"):
        assert word in str(caught.value)


@pytest.mark.parametrize("value", ["1", "[" * 20 + "]" * 20, "&a [*a]", "{a: 1, a: 2}"])
def test_unknown_keys_have_any_value_and_any_number(tmp_path, value):
    assert read(tmp_path, f"- IOName: x\n  Other: {value}\n  Other: 2\n") == (CustomIo("x"),)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, ["the path of a YAML file", "7"]),
        (b"x", ["the path of a YAML file"]),
        ([{"IOName": 7.5, "Precision": "half"}], ["as Precision on entry 1", "'half'"]),
        ([{"IOName": "x"}, {"IOName": "x"}], ["one entry per IOName", "entry 1 and on entry 2"]),
        (["x"], ["a mapping", "as entry 1"]),
        ([{7: "x"}], ["IOName in the entry on entry 1"]),
    ],
)
def test_refused_values(value, words):
    with pytest.raises(ValueMismatchError) as caught:
        CODEC.parse(value)
    for word in words:
        assert word in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueMismatchError, match="No such file"):
        CODEC.load(CODEC.parse(tmp_path / "missing.yaml"))
    with pytest.raises(ValueMismatchError, match="at most 1 MiB"):
        read(tmp_path, "#" * ((1 << 20) + 1))
    (tmp_path / "io.yaml").write_bytes(b"- IOName: \xff\xfe")
    with pytest.raises(ValueMismatchError, match="a mistake"):
        CODEC.load(CODEC.parse(tmp_path / "io.yaml"))
