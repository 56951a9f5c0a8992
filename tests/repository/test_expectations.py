"""The page of expectations: its commands parse, and its tests exist."""

import ast
import re
import shlex

import pytest

from guide_blocks import ROOT
from qaic.cli import openqaic
from qaic.options.argv import read_argv
from qaic.options.table import find

TEXT = (ROOT / "docs" / "expectations.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| expectation ")
]
COMMANDS = sorted({command.strip("`") for _, command, _ in ROWS})
# `make` itself fails if wheels, the site or figures cannot be built.
TESTS = sorted({test.strip("`") for _, _, test in ROWS if test != "the command itself"})
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_page_has_rows():
    assert len(ROWS) > 25


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    program, *arguments = shlex.split(command)
    if program == "openqaic":
        assert openqaic.parser(frozenset(arguments[:1])).parse_args(arguments).command == arguments[0]
    elif program == "qaic-compile":
        assert all(find(given.key) for given in read_argv(arguments))
    elif program == "make":
        assert {name for name in arguments if "=" not in name} <= TARGETS
    else:
        assert program == "python"
        if arguments[:2] == ["-m", "pytest"]:
            path, option, name = arguments[2:]
            assert option == "-k"
            assert f"{path}::{name}" in TESTS
        else:
            assert (ROOT / arguments[0]).is_file()


@pytest.mark.parametrize("test", TESTS)
def test_tests_exist(test):
    path, name = test.split("::")
    body = ast.parse((ROOT / path).read_text()).body
    assert name.startswith("test_")
    assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}
