"""Texts of the repository for readers: pages, docstrings, doc comments, and sentences in literals."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["doc", "heading", "prose", "message", "phrase"]

# Two spaces and three words: a message or a help text, not a key, a pattern or a path.
_SENTENCE = re.compile(r"[A-Za-z,]+ [a-z]+ [a-z]+")
# A part of a message.
_PHRASE = re.compile(r"[a-z] \{\}|\{\} [a-z]")
# Literals in these folders are data of tests and figures, not messages.
_FOR_DEVELOPERS = ("benches/", "fuzz/", "tests/", "tools/")
_RUST_DOC = re.compile(r"\s*//[/!] ?(?!/)(.*)")
# Comments and characters are matched so that quotes in them begin no literal.
_RUST_STRING = re.compile(r"""//[^\n]*|'(?:[^'\\\n]|\\.)'|"((?:[^"\\]|\\.)*)\"""", re.S)
_RUST_LINE_END = re.compile(r"\\\n\s*")
_RUST_VALUE = re.compile(r"\{[^{}]*\}")
_CODE = re.compile(r"``[^`]*``|`[^`]*`|\]\([^)]*\)|<[^>]*>")


class Text(NamedTuple):
    """A piece of text, its first line, and its kind. Code within it is blanked; ``{}`` represents a value."""

    path: str
    line: int
    kind: Kind
    text: str


def tracked(root: Path) -> Iterator[str]:
    """Paths of the tracked files to check, relative to the root of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*.pyi", "*.rs"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    yield from listed.stdout.splitlines()


def of_file(root: Path, path: str) -> list[Text]:
    """Texts of one file in order; no texts for a file that was deleted."""
    file = root / path
    if not file.exists() or path == "THIRD-PARTY-LICENSES.md":
        return []
    source = file.read_text()
    if path.endswith(".md"):
        return list(_of_page(path, source))
    texts = _of_rust(path, source) if path.endswith(".rs") else _of_python(path, source)
    only_docs = path.startswith(_FOR_DEVELOPERS)
    return [text for text in texts if text.kind == "doc" or not only_docs]


def _text(path: str, line: int, kind: Kind, text: str) -> Text:
    return Text(path, line, kind, _CODE.sub("`code`", text))


def _of_page(path: str, source: str) -> Iterator[Text]:
    in_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif line.startswith("#") and not in_code:
            yield _text(path, number, "heading", line.lstrip("# "))
        elif line.strip() and not in_code and not line.startswith("    "):
            yield _text(path, number, "prose", line)


def _of_python(path: str, source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings, parts = set(), set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            docstrings.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            yield from _of_literal(path, node.lineno, "".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            if id(node) in docstrings:
                yield _text(path, node.lineno, "doc", node.value.strip())
            else:
                yield from _of_literal(path, node.lineno, node.value)


def _part(value: ast.expr) -> str:
    """Return a part of a formatted string."""
    return str(value.value) if isinstance(value, ast.Constant) else "{}"


def _of_literal(path: str, line: int, literal: str) -> Iterator[Text]:
    if _SENTENCE.search(literal):
        yield _text(path, line, "message", literal)
    elif _PHRASE.search(literal):
        yield _text(path, line, "phrase", literal)


def _of_rust(path: str, source: str) -> Iterator[Text]:
    comment: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        found = _RUST_DOC.match(line)
        if found:
            comment.append(found[1])
            continue
        if comment:
            yield _text(path, number - len(comment), "doc", "\n".join(comment))
            comment = []
    for literal in _RUST_STRING.finditer(source):
        if literal[1] is not None:
            text = _RUST_VALUE.sub("{}", _RUST_LINE_END.sub("", literal[1]))
            yield from _of_literal(path, 1 + source.count("\n", 0, literal.start()), text)
    if comment:
        yield _text(path, len(source.splitlines()) - len(comment) + 1, "doc", "\n".join(comment))
