"""Tests of time, signals, threads and processes, which `make adverse-timing` repeats."""

import ast
import re
from functools import cache
from pathlib import Path

_MODULES = "asyncio|concurrent|multiprocessing|select|signal|threading|time"
_USE = re.compile(
    rf"\b(?:{_MODULES})\.\w|^\s*(?:import|from) .*\b(?:{_MODULES})\b|\bos\.fork\(|\binterrupted\(",
    re.MULTILINE,
)
#: Folders in which all tests are about threads.
_THREADS = Path(__file__).parent / "threads"


@cache
def tests_of(path):
    """Return the names of tests that use such a module, also through another definition in their file."""
    text = path.read_text()
    if not _USE.search(text):
        return frozenset()
    rows, sources, imported, methods = text.splitlines(), {}, set(), {}
    for node in ast.parse(text).body:
        first = min((part.lineno for part in getattr(node, "decorator_list", ())), default=node.lineno)
        lines = "\n".join(rows[first - 1 : node.end_lineno])
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                sources[node.name] = lines
                methods[node.name] = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            case ast.Assign(targets=[ast.Name(id=name)]):
                sources[name] = lines
            case ast.ImportFrom(names=names) if _USE.search(lines):
                imported |= {alias.asname or alias.name for alias in names}
    words = {name: set(re.findall(r"\w+", lines)) for name, lines in sources.items()}
    found = {
        name
        for name, lines in sources.items()
        if path.is_relative_to(_THREADS) or _USE.search(lines) or words[name] & imported
    }
    while more := {name for name in sources.keys() - found if words[name] & found}:
        found |= more
    names = found.union(*(methods.get(name, ()) for name in found))
    return frozenset(name for name in names if name.startswith("test_"))
