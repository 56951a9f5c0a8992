"""The reference page of the errors equals its generated form, and its sources are complete."""

import re
from collections import Counter
from pathlib import Path

import qaicrt
from generators import error_codes as codes_of_python
from generators.errors_page import render
from qaic import _core, errors
from qaic.cli.openqaic.commands import explain
from qaic.cli.openqaic.commands.explain import error_codes
from qaic.options.conflicts import RULES
from qaic.options.rules import Severity

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "errors.md"
BINDING = ROOT / "rust" / "qaic-python" / "src"
#: Codes of calls that receive the whole message, such as those of helpers.
MESSAGES_FROM_ELSEWHERE = {
    "compile.model_changed", "compile.weight_spec", "devices.json", "option.cache_limit",
    "option.calibration_sample", "option.command_line", "option.conflict", "option.invalid_file",
    "option.model_inputs", "option.no_flag_text", "option.only_for_tools", "option.output_shapes",
    "option.unknown", "qpc.plan", "runner.batch_json",
    "runner.different_output", "runner.options", "stats.layout",
    "stats.no_descriptor", "stats.not_a_layout", "stats.opstats_schema", "stats.opstats_version",
}  # fmt: skip


def test_the_page_and_the_table_are_the_generated_ones():
    table = Path(explain.__file__).with_name("error_codes.json")
    assert table.read_text(encoding="utf-8") == codes_of_python.render(), "write it again: make docs"
    assert PAGE.read_text(encoding="utf-8") == render(), "write it again: make docs"


def test_every_row_names_an_exception_and_a_status_that_exist():
    for code, exception, status, message in _core.error_catalogue():
        assert code
        assert exception in {*errors.__all__, "OSError", "KeyboardInterrupt"}
        # Statistics are read later, so no call returns a status for them.
        assert bool(status) == (bool(message) and not code.startswith("stats."))
        assert not status or status in qaicrt.QStatus.__members__


def test_a_code_belongs_to_one_error_of_the_core():
    codes = Counter(code for code, _, _, message in _core.error_catalogue() if message)
    # The format and the host each have a limit, and their errors have different classes.
    assert [code for code, count in codes.items() if count > 1] == ["qpc.tensor_too_large"]


def test_codes_of_rules_between_options_are_listed():
    rules = {f"option.{one.name}" for one in RULES if one.severity is Severity.ERROR}
    assert len(rules) > 10
    assert rules <= {one.code for one in error_codes() if one.message}


def test_every_code_of_python_has_a_message_in_words():
    silent = {one.code for one in error_codes() if not re.search(r"[a-z]{3}", one.message)}
    own = {code for code, _, _, message in _core.error_catalogue() if not message}
    assert silent - own <= MESSAGES_FROM_ELSEWHERE


def test_what_the_binding_raises_itself_is_listed():
    raised = {
        (code, exception)
        for path in BINDING.rglob("*.rs")
        for exception, code in re.findall(r'Raise::new\(\s*py,\s*"(\w+)",\s*"([\w.]+)"', path.read_text())
    }
    listed = {(code, exception) for code, exception, _, message in _core.error_catalogue() if not message}
    assert len(raised) > 10
    assert listed == raised


def test_page_names_every_code_of_python_sources():
    page = PAGE.read_text(encoding="utf-8")
    codes = {
        code
        for path in (ROOT / "python" / "qaic").rglob("*.py")
        for code in re.findall(r'\bcode="([\w.]+)"', path.read_text())
    }
    assert len(codes) > 30
    assert {code for code in codes if not re.search(rf"`(compile\.)?{re.escape(code)}`", page)} == set()
