"""Which tests cards are spared, and that the guide says so (docs/guide/card.md)."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
GUIDE = TESTS.parent / "docs" / "guide" / "card.md"


def spared():
    """Reason -> files with tests that are skipped on cards for it."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "virtual_card":
                (reason,) = node.args
                found.setdefault(reason.value, set()).add(path.relative_to(TESTS).as_posix())
    return found


def test_the_guide_lists_what_is_not_tested_on_cards():
    rows = [f"| {reason} | {', '.join(sorted(files))} |" for reason, files in sorted(spared().items())]
    assert len(rows) >= 3
    _, _, section = GUIDE.read_text().partition("### What is tested on virtual cards alone\n")
    section, _, _ = section.partition("\n#")
    listed = [line for line in section.splitlines() if line.startswith("| ")]
    assert listed[1:] == rows
