"""``openqaic explain``, and the codes that error lines end with."""

import json
import re
import shlex

import pytest

from guide_blocks import ROOT
from qaic.cli.openqaic.commands.explain import error_codes
from session_models import model_of_open_batch, save


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["explain", "device.bsy"], "explain.unknown"),
        (["cache", "prune"], "cache.limit"),
        (["compile", "open.onnx", "-o", "program"], "compile.unbound_symbol"),
    ],
)
def test_explain_shows_the_message_with_dots_for_the_values(call, tmp_path, monkeypatch, argv, code):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, model_of_open_batch()).rename("open.onnx")
    error = call(*argv)[2].splitlines()[0].removeprefix("error: ")
    raised, _, printed_code = error.rpartition(" ")
    assert printed_code == f"[{code}]"
    shown = [row["message"] for row in json.loads(call("explain", code, "--json")[1])]
    assert any(re.fullmatch(".+".join(map(re.escape, message.split("..."))), raised) for message in shown)


def test_explain_lists_each_code_once_in_order(call):
    _, *rows = call("explain")[1].splitlines()
    codes = [row.split()[0] for row in rows]
    assert codes == sorted(set(codes))
    assert set(codes) == {one.code for one in error_codes()}


def test_code_of_two_exceptions(call):
    (shared,) = [row for row in call("explain")[1].splitlines() if row.startswith("cache.limit ")]
    assert shared.split(maxsplit=1)[1].split(", ") == ["OptionConflictError", "OptionError"]
    assert "next: " not in call("explain", "cache.limit")[1]


@pytest.mark.parametrize("area", sorted({one.code.partition(".")[0] for one in error_codes()}))
def test_the_next_code_is_another(call, area):
    _, found, next_code = call("explain", area)[1].rpartition("next: openqaic explain ")
    codes = {one.code for one in error_codes()}
    assert bool(found) == (sum(code == area or code.startswith(f"{area}.") for code in codes) > 1)
    assert next_code.strip() != area


def test_explain_knows_codes_of_both_languages(call):
    for code, exception in (("device.busy", "DeviceBusyError"), ("option.cache_limit", "OptionError")):
        out = json.loads(call("explain", code, "--json")[1])
        assert [(row["code"], row["exception"]) for row in out] == [(code, exception)]
        assert "next: " not in call("explain", code)[1]
        assert call("explain", f"[{code}]") == call("explain", code)
    out = call("explain", "device")[1]
    assert "device.lost" in out
    step = out.splitlines()[-1].partition("next: ")[2]
    assert call(*shlex.split(step)[1:])[0] == 0


def test_explain_shows_the_fix_and_the_guide(call):
    out = call("explain", "compile.not_batchable")[1]
    fix = "omit batchsize, or export the model with a symbolic first dimension"
    assert f"\n  fix: {fix}\n" in out
    assert out.endswith("\n  guide: docs/guide/shapes-and-state.md\n")


def test_every_code_has_a_cause_a_fix_and_a_guide_that_exists(call):
    """Regression: 288 of 389 codes had no fix."""
    out = call("explain", "--json")[1]
    known = {one["code"]: one for one in json.loads(out)}
    for one in error_codes():
        code, shown, _ = call("explain", one.code)
        lines = shown.splitlines()
        assert code == 0
        assert known[one.code]["meaning"] or one.message, one.code
        assert any(re.match(r"  fix: .*[a-z]{3}", line) for line in lines), one.code
        assert (ROOT / one.guide).is_file()
    symbol = call("explain", "compile.unbound_symbol")[1]
    assert "\n  fix: give " in symbol
    assert "onnx_define_symbol" in symbol or "--onnx-define-symbol" in symbol
