"""The options file: only text, flat, no duplicate key, and an error with the line for every defect."""

from __future__ import annotations

import os

import pytest

from qaic.errors import OptionConflictError, OptionError
from qaic.options.files.options_file import MOST_BYTES, read_options_file
from qaic.options.raw_option import OptionSource


@pytest.fixture
def read(tmp_path):
    def of(text: str | bytes):
        path = tmp_path / "options.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return {item.origin.spelling: item.value for item in read_options_file(path)}

    return of


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n", "null\n", "~"])
def test_empty_document_gives_no_options(read, text):
    assert read(text) == {}


def test_every_scalar_is_text(read):
    assert read("a: 010\nb: 2.0\nc: yes\nd: 0x1F\ne: 2026-01-01\nf: 1_0\ng: 1:30\nh: !!int 5\n") == {
        "a": "010",
        "b": "2.0",
        "c": "yes",
        "d": "0x1F",
        "e": "2026-01-01",
        "f": "1_0",
        "g": "1:30",
        "h": "5",
    }


def test_keys_are_text_also_inside_values(read):
    assert read("onnx_define_symbol: {on: 1, yes: 2, no: 3, null: 4, 8: 5}\non: 1\n") == {
        "onnx_define_symbol": {"on": "1", "yes": "2", "no": "3", "null": "4", "8": "5"},
        "on": "1",
    }


def test_whole_values_that_are_null_are_none_unless_quoted(read):
    assert read("a:\nb: ~\nc: null\nd: None\ne: NULL\nf: 'null'\ng: \"\"\nh: [~, x]\n") == {
        "a": None,
        "b": None,
        "c": None,
        "d": None,
        "e": None,
        "f": "null",
        "g": "",
        "h": ["~", "x"],
    }


def test_nested_values_and_anchors(read):
    assert read("a: [[x, 1], {k: v}]\nb: &shape [1, 2]\nc: *shape\n") == {
        "a": [["x", "1"], {"k": "v"}],
        "b": ["1", "2"],
        "c": ["1", "2"],
    }


def test_byte_order_marks_and_windows_line_ends(read):
    assert read("\ufeffa: 1\r\nb: 2\r\n") == {"a": "1", "b": "2"}
    assert read("a: ä".encode("utf-16")) == {"a": "ä"}


def test_origin_names_file_line_and_spelling(tmp_path):
    path = tmp_path / "o.yaml"
    path.write_text("# comment\naic-num-cores: 4\n")
    (item,) = read_options_file(path)
    assert item.origin.source is OptionSource.YAML
    assert (item.origin.spelling, item.origin.line) == ("aic-num-cores", 2)
    assert str(item.origin) == f"aic-num-cores ({path}, line 2)"


@pytest.mark.parametrize(
    ("text", "lines", "message"),
    [
        ("a: 1\na: 1\n", [1, 2], "a on line 2 was already given on line 1"),
        ("aic-num-cores: 1\nx: 1\naic_num_cores: 1\n", [1, 3], r"line 1 \(as aic-num-cores\)"),
        ("A-b: 1\na_B: 2\n", [1, 2], "was already given"),
        ("{a: 1, a: 2}", [1, 1], "a on line 1 was already given on line 1"),
        ("s: {x: 1, x: 2}", [1, 1], "x on line 1"),
    ],
)
def test_rejects_key_that_stands_twice(read, text, lines, message):
    with pytest.raises(OptionConflictError, match=message) as caught:
        read(text)
    assert caught.value.code == "option.duplicate"
    assert caught.value.context["lines"] == lines


def test_symbols_that_differ_only_in_case_are_two(read):
    assert read("s: {N: 1, n: 2}") == {"s": {"N": "1", "n": "2"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", r'line 1: expected lines of the form "option: value", found a list'),
        ("just text\n", "found a single value"),
        ("\n\n'null'", "line 3: .*found a single value"),
        ("a: [1, 2\nb: 3\n", "line 2: not valid YAML"),
        ("a: 1\n\tb: 2\n", "line 2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "line 2: not valid YAML"),
        ("a: *missing\n", "line 1: not valid YAML"),
        ("? [a, b]\n: 1\n", "line 1: expected a single word as key, found a list or a mapping"),
        ("s: {[a]: 1}\n", "line 1: expected a single word as key, found a list or a mapping"),
        (b"a: \xff\n", "not valid YAML"),
        (b"a: \x00\n", "not valid YAML"),
        ("a: &x [*x]\n", "at most 8 levels of lists and mappings, found more"),
        ("a: " + "[" * 20 + "]" * 20, "line 1: expected at most 8 levels of lists and mappings, found more"),
        ("a: " + "[" * 50_000, "not valid YAML|at most 100 levels"),
        ("a: " + "[" * 200 + "]" * 200, "line 1: expected at most 100 levels"),
        ("x: " + "y" * MOST_BYTES, f"at most {MOST_BYTES} bytes"),
    ],
)
def test_rejects_what_is_not_a_flat_mapping(read, text, message):
    with pytest.raises(OptionError, match=message) as caught:
        read(text)
    assert caught.value.code in {"option.invalid_file", "option.too_large"}
    assert caught.value.context["file"].endswith("options.yaml")


def test_rejects_aliases_that_multiply(read):
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 7)]
    with pytest.raises(OptionError, match="expected at most 262144 values, found more"):
        read("\n".join(levels))


def test_relative_path_key_sets_the_base_of_all_options(tmp_path):
    path = tmp_path / "o.yaml"
    path.write_text("output_dir: out\nrelative-path: True\n")
    (item,) = read_options_file(path)
    assert item.base == tmp_path
    path.write_text("output_dir: out\nrelative-path: no\n")
    (item,) = read_options_file(path)
    assert item.base is None
    path.write_text("output_dir: out\nrelative-path:\n")
    (item,) = read_options_file(path)
    assert item.base is None


def test_relative_path_key_rejects_other_values(read):
    with pytest.raises(OptionError, match="line 2: relative-path: expected true or false, found 'maybe'"):
        read("a: 1\nrelative-path: maybe\n")


def test_file_errors_stay_those_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read_options_file(tmp_path / "missing.yaml")
    assert os.fspath(caught.value.filename) == str(tmp_path / "missing.yaml")
    with pytest.raises(IsADirectoryError):
        read_options_file(tmp_path)
