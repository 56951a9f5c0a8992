"""ONNX's own tests of every operator: if onnxruntime passes a test, qaic passes it or refuses for a known
reason.
"""

import json
from pathlib import Path

import onnx
import onnx_suite
import onnxruntime
import pytest
from onnx_suite import Status
from qaic_backend import QaicBackend

import emulated_cards
import engine_version
import sampling

#: A thousand containers are written, or two thousand with `--whole`.
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

#: Limits of a program; all other tests that onnxruntime runs must run.
LIMITS = {"compile.unsupported_type", "compile.unbound_symbol", "compile.dynamic_shape"}


@pytest.fixture(scope="module")
def forms():
    """Names of a test of each form of an operator."""
    return onnx_suite.names_of_forms()


@pytest.fixture(scope="module")
def selected(request, forms):
    """Names of the tests of each form of an operator, and of a sixth of the others."""
    # On a card, each form of an operator is tested once.
    if emulated_cards.are_meant():
        return forms
    others = sorted(set(onnx_suite.names(QaicBackend)).difference(forms))
    return forms + (others[::6] if sampling.is_sampled(request.node) else others)


@pytest.fixture(scope="module")
def outcomes(selected):
    """Outcomes of tests with qaic, and outcomes with onnxruntime of those that failed."""
    ours = onnx_suite.run(QaicBackend, selected)
    lost = [name for name, outcome in ours.items() if outcome.status is not Status.PASSED]
    return ours, onnx_suite.run_onnxruntime(lost)


def test_no_test_fails_that_onnxruntime_passes(outcomes):
    ours, theirs = outcomes
    exceptions = onnx_suite.exceptions("float32")
    lost = {
        name: ours[name]
        for name, outcome in theirs.items()
        if ours[name].status is Status.FAILED and outcome.status is Status.PASSED and name not in exceptions
    }
    assert not lost
    # An exception that is no longer needed would hide the next defect.
    assert [name for name in exceptions if name in ours and ours[name].status is Status.PASSED] == []


def test_what_onnxruntime_passes_is_refused_only_for_limits_of_a_program(outcomes):
    ours, theirs = outcomes
    lost = {
        name: ours[name]
        for name, outcome in theirs.items()
        if ours[name].status is Status.UNSUPPORTED
        and outcome.status is Status.PASSED
        and ours[name].reason not in LIMITS
    }
    assert not lost


@pytest.mark.virtual_card("functions are expanded before a device is chosen")
def test_functions_with_default_attributes_give_the_same_results(request, forms, outcomes):
    ours, _ = outcomes
    expanded = forms[::3] if sampling.is_sampled(request.node) else forms
    found = onnx_suite.run(QaicBackend, expanded, onnx_suite.WAYS["expanded"])
    # The engine lacks kernels for the newest operators, which it expands only outside functions.
    changed = {
        name: outcome
        for name, outcome in found.items()
        if outcome.status is not ours[name].status and outcome.reason != "compile.engine_refused"
    }
    assert not changed


@pytest.mark.skipif(not engine_version.is_newest(), reason="the reasons are of a newer engine")
def test_float16_fails_where_a_reason_is_written_down():
    found = onnx_suite.run(QaicBackend, onnx_suite.exceptions("float16"), onnx_suite.WAYS["float16"])
    # An exception that is no longer needed would hide the next defect.
    assert {outcome.status for outcome in found.values()} == {Status.FAILED}


def test_every_refusal_names_tensor_or_operator_and_reason(outcomes):
    ours, _ = outcomes
    silent = [
        name
        for name, outcome in ours.items()
        if outcome.status is Status.UNSUPPORTED and len(outcome.message) < 20
    ]
    assert not silent


@pytest.mark.virtual_card("fewer tests run on cards")
def test_most_tests_pass(request, outcomes):
    ours, theirs = outcomes
    # Guards the other tests here, which would pass if the suite ran nothing.
    assert len(ours) > (900 if sampling.is_sampled(request.node) else 1500)
    lost = sum(outcome.status is Status.PASSED for outcome in theirs.values())
    assert len(ours) - len(theirs) >= 9 * lost


@pytest.mark.virtual_card("fewer tests run on cards")
def test_what_does_not_pass_is_what_is_written_down(request, outcomes):
    expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    written = {key: expected.pop(key) for key in versions}
    if versions != written:
        pytest.skip(f"expected.json is for {written}, installed are {versions}; run `make node-tests`")
    ours, _ = outcomes
    told = {
        name: (status, reason)
        for status, reasons in expected.items()
        for reason, names in reasons.items()
        for name in names
        if not sampling.is_sampled(request.node) or name in ours
    }
    found = {
        name: (outcome.status, outcome.reason)
        for name, outcome in ours.items()
        if outcome.status is not Status.PASSED
    }
    assert found == told
