"""The checker of texts finds violations of the writing rules and their locations, and none in code."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prose.__main__ import verdict
from prose.conflicts import conflicts
from prose.rules import RULES
from prose.texts import Text, of_file

ROOT = Path(__file__).resolve().parents[2]

BROKEN = {
    "opening": ("doc", "Whether the queue is empty."),
    "heading": ("heading", "What it costs"),
    "anew": ("prose", "The server starts anew."),
    "beside": ("message", "the file beside the model"),
    "fp32": ("doc", "Values in FP32."),
    "mend": ("prose", "The option mends the model."),
    "take out": ("prose", "The pass takes out a node."),
    "stand": ("doc", "The weights lie in one file."),
    "say": ("doc", "The container says its target."),
    "participle first": ("prose", "Recorded is every inference."),
    "article before a value": ("message", "buffer {} is a {}"),
    "number before a plural": ("phrase", "found {} buffers"),
    "number before a verb": ("message", "one buffer is given; {} are expected"),
}


def test_each_rule_has_an_example_and_a_number():
    names = {rule.name for rule in RULES}
    assert names == set(BROKEN)
    assert names == set(tomllib.loads((ROOT / "tools/prose/allowed.toml").read_text()))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_and_only_that_one(name):
    kind, text = BROKEN[name]
    assert [rule.name for rule in RULES if rule.matches(Text("a.py", 1, kind, text))] == [name]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("doc", "Returns whether the queue is empty."),
        ("prose", "What it costs is in the table."),
        ("message", "What is this?"),
        ("heading", "Set time limits"),
        ("message", "-onnx-type=fp32"),
        ("prose", "The standard library is amended."),
        ("message", "-a {} is wrong: at most {} devices, and {} of {} buffers"),
        ("message", "{} and {} are the same option"),
        ("message", "--beside {} needs the model"),
    ],
)
def test_good_text_breaks_no_rule(kind, text):
    assert not any(rule.matches(Text("a.py", 1, kind, text)) for rule in RULES)


def test_texts_of_python_are_docstrings_and_sentences(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""Whole."""\n\nclass A:\n    """Of `says` it."""\n\n'
        '    x = "key"\n    y = f"cannot open the {x} of it"\n'
    )
    assert of_file(tmp_path, "a.py") == [
        ("a.py", 1, "doc", "Whole."),
        ("a.py", 4, "doc", "Of `code` it."),
        ("a.py", 7, "message", "cannot open the {} of it"),
    ]


def test_values_make_parts_of_messages(tmp_path):
    (tmp_path / "a.py").write_text('x = f"{len(a)} files"\ny = f"{x}-{y}"\n')
    (tmp_path / "a.rs").write_text('let x = format!("{count:?} \\\n    files");\nlet y = \'"\'; // "a {x}\n')
    assert of_file(tmp_path, "a.py") == [("a.py", 1, "phrase", "{} files")]
    assert of_file(tmp_path, "a.rs") == [("a.rs", 1, "phrase", "{} files")]


def test_literals_of_tests_are_no_texts(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text('"""Whole."""\n\nx = "cannot open the file of it"\n')
    assert of_file(tmp_path, "tests/a.py") == [("tests/a.py", 1, "doc", "Whole.")]


def test_texts_of_rust_are_doc_comments_and_sentences(tmp_path):
    (tmp_path / "a.rs").write_text(
        "//! A crate.\n\n/// Whether it\n/// is so.\n#[inline]\n"
        'fn f() {\n    // anew\n    panic!("the card is \\"gone\\" for good");\n}\n'
    )
    assert of_file(tmp_path, "a.rs") == [
        ("a.rs", 1, "doc", "A crate."),
        ("a.rs", 3, "doc", "Whether it\nis so."),
        ("a.rs", 8, "message", 'the card is \\"gone\\" for good'),
    ]


def test_texts_of_pages_are_headings_and_lines_without_code(tmp_path):
    (tmp_path / "a.md").write_text("# Set limits\n\nAs `anew` does.\n\n```\n# anew\nanew\n```\n\n    anew\n")
    assert of_file(tmp_path, "a.md") == [
        ("a.md", 1, "heading", "Set limits"),
        ("a.md", 3, "prose", "As `code` does."),
    ]


def test_more_matches_than_allowed_fail_and_are_shown():
    texts = [Text("a.rs", number, "doc", "Whether so.") for number in (3, 5)]
    allowed = {rule.name: 0 for rule in RULES}
    lines, is_good = verdict(texts, allowed | {"opening": 1})
    assert not is_good
    assert lines[1:3] == ["  a.rs:3: Whether so.", "  a.rs:5: Whether so."]
    assert verdict(texts, allowed | {"opening": 2}) == ([], True)
    lines, is_good = verdict(texts, allowed | {"opening": 3})
    assert is_good
    assert "lower its number" in lines[0]


# Concatenated, so that this file itself contains no marker.
OURS, MIDDLE, THEIRS = "<" * 7, "=" * 7, ">" * 7


@pytest.mark.parametrize("name", ["a.md", "folder/b.toml", "c"])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"x\n{OURS} HEAD\na\n{MIDDLE}\nb\n{THEIRS} 87a10ebb (title)\n", [2, 4, 6]),
        (f"{OURS}\n", [1]),
        (f"x {OURS}\n {MIDDLE}\n{MIDDLE}=\n{MIDDLE} x\n{THEIRS[1:]}\n", []),
        (f"\0\n{OURS}\n", []),
    ],
)
def test_lines_of_a_merge_are_found_in_each_text_file(tmp_path, name, text, lines):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert conflicts(tmp_path) == []
    subprocess.run(["git", "add", name], cwd=tmp_path, check=True)
    found = text.split("\n")
    assert conflicts(tmp_path) == [f"{name}:{number}:{found[number - 1]}" for number in lines]


def test_the_line_for_all_matches_of_a_rule_works():
    listed = subprocess.run(
        [sys.executable, "-m", "prose", "no rule of this name"],
        cwd=ROOT,
        env={"PYTHONPATH": "tools"},
        capture_output=True,
        check=True,
    )
    assert not listed.stdout.strip()
