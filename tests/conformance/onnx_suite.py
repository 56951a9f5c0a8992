"""ONNX's own node tests, run by ONNX's own runner, with what became of each test.

The runner reports through ``unittest``; it is run in process and its verdicts are collected here, so that two
backends can be compared test by test.
"""

from __future__ import annotations

import unittest
import warnings
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from onnx.backend.test.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onnx.backend.base import Backend

#: suffix that the runner adds for the one device both backends have
_SUFFIX = "_cpu"


class Status(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    #: ran and gave a wrong result, or broke
    FAILED = "failed"
    #: the backend said beforehand that it cannot run the model
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Outcome:
    """Verdict on one test; ``reason`` is a stable class, ``message`` the words."""

    status: Status
    reason: str = ""
    message: str = ""


#: groups of the suite whose data are in the onnx package or are generated; "real" models would be downloaded
_GROUPS = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")


class _Prepared:
    """Hands numpy scalars on as arrays: the suite has both, and onnxruntime's adapter takes arrays only."""

    def __init__(self, prepared):
        self._prepared = prepared

    def run(self, inputs):
        return self._prepared.run([np.asarray(x) if isinstance(x, np.generic) else x for x in inputs])


@cache
def _cases(backend: type[Backend]) -> dict[str, unittest.TestCase]:
    """Test cases by name."""

    class Recording(backend):
        @classmethod
        def prepare(cls, *args, **kwargs):
            try:
                return _Prepared(super().prepare(*args, **kwargs))
            except Exception as error:
                # The runner hands on the text alone.
                _refusals.append(error)
                raise

    with warnings.catch_warnings():
        # The generator of the expected values divides by zero on purpose.
        warnings.simplefilter("ignore")
        groups = Runner(Recording, __name__).test_cases
    return {
        name.removesuffix(_SUFFIX): groups[f"OnnxBackend{group}Test"](name)
        for group in _GROUPS
        for name in dir(groups[f"OnnxBackend{group}Test"])
        if name.endswith(_SUFFIX)
    }


#: what `prepare` raised last, newest at the end
_refusals: list[Exception] = []


def names(backend: type[Backend]) -> list[str]:
    """Names of all tests, sorted."""
    return sorted(_cases(backend))


def run(backend: type[Backend], selected: Iterable[str]) -> dict[str, Outcome]:
    """Run tests by name."""
    classify = _CLASSIFIERS[backend.__name__]
    outcomes = {}
    for name in selected:
        result = _Verdict(classify)
        _refusals.clear()
        with warnings.catch_warnings():
            # numpy warns while the runner compares expected infinities and NaNs.
            warnings.simplefilter("ignore")
            _cases(backend)[name].run(result)
        outcomes[name] = result.outcome
    # Exceptions keep the sessions they came from.
    _refusals.clear()
    return outcomes


class _Verdict(unittest.TestResult):
    def __init__(self, classify: Callable[[BaseException], Outcome]) -> None:
        super().__init__()
        self._classify = classify
        self.outcome = Outcome(Status.FAILED, "no verdict")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 (name of unittest)
        super().addSuccess(test)
        self.outcome = Outcome(Status.PASSED)

    def addFailure(self, test: unittest.TestCase, err: tuple) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.outcome = Outcome(Status.FAILED, "wrong result", _one_line(err[1]))

    def addError(self, test: unittest.TestCase, err: tuple) -> None:  # noqa: N802
        super().addError(test, err)
        self.outcome = self._classify(err[1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.outcome = Outcome(Status.UNSUPPORTED, getattr(_refusals[-1], "code", "skipped"), reason)


def _classify_qaic(error: BaseException) -> Outcome:
    reason = getattr(error, "code", "") or type(error).__name__
    return Outcome(Status.FAILED, reason, _one_line(error))


def _classify_onnxruntime(error: BaseException) -> Outcome:
    """Tell what ONNX Runtime or its adapter refuses from what it breaks on."""
    kind = type(error).__name__
    refused = bool(_refusals) or kind in {"RuntimeError", "TypeError"}
    return Outcome(Status.UNSUPPORTED if refused else Status.FAILED, kind, _one_line(error))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


_CLASSIFIERS: dict[str, Callable[[BaseException], Outcome]] = {
    "QaicBackend": _classify_qaic,
    "OnnxRuntimeBackend": _classify_onnxruntime,
}


def run_both() -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Run all tests on ``qaic`` and on onnxruntime, in this order."""
    import onnxruntime

    with warnings.catch_warnings():
        # It reads a module of onnx that onnx calls deprecated.
        warnings.simplefilter("ignore")
        from onnxruntime.backend.backend import OnnxRuntimeBackend

    from qaic_backend import QaicBackend

    onnxruntime.set_default_logger_severity(4)
    selected = names(QaicBackend)
    return run(QaicBackend, selected), run(OnnxRuntimeBackend, selected)
