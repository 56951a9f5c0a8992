"""Which tests cards are spared, and that the guide and the Makefile say so (docs/guide/card.md)."""

import ast
import re
from pathlib import Path

import device_free

TESTS = Path(__file__).parents[1]
GUIDE = TESTS.parent / "docs" / "guide" / "card.md"


def spared():
    """Reason -> files with tests that are skipped on cards for it."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "virtual_card" in source else ():
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


def test_what_opens_no_device_is_left_out_on_cards():
    makefile = (TESTS.parent / "Makefile").read_text().replace("\\\n", " ")
    (listed,) = re.findall(r"^DEVICE_FREE_TESTS := (.*)$", makefile, re.MULTILINE)
    assert listed.split() == list(device_free.FOLDERS)
    assert all(any((TESTS.parent / folder).rglob("test_*.py")) for folder in device_free.FOLDERS)
