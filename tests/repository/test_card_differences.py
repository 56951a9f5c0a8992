"""Tests that do not run on cards are listed in docs/reference/emulated-cards.md and the Makefile."""

import ast
import importlib.util
import re
from pathlib import Path

import device_free

TESTS = Path(__file__).parents[1]
REFERENCE = TESTS.parent / "docs" / "reference" / "emulated-cards.md"


def spared():
    """Reason -> files with tests that are skipped on cards for this reason."""
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


def test_the_reference_lists_what_is_not_tested_on_cards():
    rows = [f"| {reason} | {', '.join(sorted(files))} |" for reason, files in sorted(spared().items())]
    assert len(rows) >= 3
    _, _, section = REFERENCE.read_text().partition("## Tests on virtual cards only\n")
    section, _, _ = section.partition("\n#")
    listed = [line for line in section.splitlines() if line.startswith("| ")]
    assert listed[1:] == rows


def test_what_opens_no_device_is_left_out_on_cards():
    makefile = (TESTS.parent / "Makefile").read_text().replace("\\\n", " ")
    (listed,) = re.findall(r"^DEVICE_FREE_TESTS := (.*)$", makefile, re.MULTILINE)
    assert listed.split() == list(device_free.FOLDERS)
    assert all(any((TESTS.parent / folder).rglob("test_*.py")) for folder in device_free.FOLDERS)


def test_what_opens_a_device_runs_on_the_mainline_driver_or_is_left_out_with_a_reason():
    specification = importlib.util.spec_from_file_location("suite", TESTS / "kernel" / "suite.py")
    suite = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(suite)
    files = {path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")}
    chosen = set(suite.FILES)
    assert chosen <= files
    assert not chosen & suite.LEFT_OUT.keys()
    assert all((TESTS.parent / name).exists() and reason for name, reason in suite.LEFT_OUT.items())
    folders = {name for name in suite.LEFT_OUT if not name.endswith(".py")} | {
        *device_free.FOLDERS,
        "tests/kernel",
    }
    undecided = {
        name
        for name in files - chosen - suite.LEFT_OUT.keys()
        if not any(name.startswith(f"{folder}/") for folder in folders)
    }
    assert not undecided, "in neither table of tests/kernel/suite.py"
    sources = "\n".join((TESTS.parent / name).read_text() for name in suite.FILES)
    assert all(f"def {name}" in sources for name in suite.EXCLUDED)
