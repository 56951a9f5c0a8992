"""ONNX's own node tests, run by ONNX's own runner, with the outcome of each test.

The runner reports through ``unittest``. This module runs it in the same process and collects its verdicts, so
that the tests can compare two backends test by test.
"""

from __future__ import annotations

import json
import unittest
import warnings
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from qaic.compiler.ir.graph_walk import all_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onnx.backend.base import Backend

#: Suffix that the runner adds for the only device of both backends.
_SUFFIX = "_cpu"


class Status(StrEnum):
    """Outcome of a test."""

    PASSED = "passed"
    #: Ran and gave a wrong result, or failed.
    FAILED = "failed"
    #: The backend reported in advance that it cannot run the model.
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Outcome:
    """Verdict on one test; ``reason`` is a stable class, ``message`` is the text."""

    status: Status
    reason: str = ""
    message: str = ""


#: Groups of the suite whose data is in the onnx package or is generated; "real" models would be downloaded.
_GROUPS = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")


class _Prepared:
    """Passes numpy scalars as arrays: the suite has both, and onnxruntime's adapter accepts only arrays."""

    def __init__(self, prepared):
        self._prepared = prepared

    def run(self, inputs):
        return self._prepared.run([np.asarray(x) if isinstance(x, np.generic) else x for x in inputs])


def as_function(model: ModelProto) -> ModelProto:
    """Move the nodes of a model into a function, and their attributes to defaults of the function."""
    graph = model.graph
    if model.functions or graph.sparse_initializer or not graph.node:
        return model
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    body = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    defaults = []
    for index, original in enumerate(graph.node):
        body.append(type(original).FromString(original.SerializeToString()))
        for attribute in body[-1].attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                continue
            default = AttributeProto.FromString(attribute.SerializeToString())
            default.name = f"{attribute.name}_{index}"
            defaults.append(default)
            name, kind = attribute.name, attribute.type
            attribute.Clear()
            attribute.name, attribute.type, attribute.ref_attr_name = name, kind, default.name
    sets = [*model.opset_import, helper.make_opsetid("local", 1)]
    names = [value.name for value in inputs], [value.name for value in graph.output]
    function = helper.make_function("local", "Body", *names, body, sets, [], defaults)
    called = helper.make_graph(
        [helper.make_node("Body", *names, domain="local")], graph.name, inputs, graph.output
    )
    return helper.make_model(
        called, functions=[function], opset_imports=sets, ir_version=max(8, model.ir_version)
    )


@dataclass(frozen=True)
class Way:
    """Compilation of the models of the tests."""

    options: tuple[tuple[str, object], ...] = ()
    change: Callable[[ModelProto], ModelProto] = lambda model: model
    #: Largest error of a float result, divided by the largest expected value; None for ONNX's own limits.
    tolerance: float | None = None


#: float16 has 11 bits, and each operation before a result rounds once.
WAYS = {
    "float32": Way(),
    "float16": Way((("convert_to_fp16", True),), tolerance=2**-7),
    "expanded": Way((("always_expand_onnx_functions", True),), as_function),
}


def _compared(tolerance: float, runner: type[Runner], expected, found, **more) -> None:
    """Compare with a tolerance relative to the largest value; ONNX's limits are those of float32."""
    if len(expected) == len(found):
        for ours, theirs in zip(found, expected, strict=True):
            kind = getattr(theirs, "dtype", np.dtype(object)).kind
            finite = np.abs(theirs[np.isfinite(theirs)]) if kind == "f" else np.zeros(0)
            limit = tolerance * float(finite.max(initial=0))
            limits = {**more, "rtol": tolerance, "atol": limit} if kind == "f" else more
            Runner.assert_similar_outputs.__func__(runner, [theirs], [ours], **limits)
        return
    Runner.assert_similar_outputs.__func__(runner, expected, found, **more)


@cache
def _cases(backend: type[Backend], way: Way = WAYS["float32"]) -> dict[str, unittest.TestCase]:
    """Test cases by name."""

    class Recording(backend):
        @classmethod
        def prepare(cls, model, *args, **kwargs):
            try:
                kwargs = {**kwargs, **dict(way.options)}
                return _Prepared(super().prepare(way.change(model), *args, **kwargs))
            except Exception as error:
                # The runner passes only the text.
                _refusals.append(error)
                raise

    if backend.__name__ == "QaicBackend":
        # The original function would also prepare the model.
        Recording.is_compatible = lambda _: True

    class Comparing(Runner):
        @classmethod
        def assert_similar_outputs(cls, ref_outputs, outputs, rtol, atol, model_dir=None):
            more = {"rtol": rtol, "atol": atol, "model_dir": model_dir}
            if way.tolerance is None:
                super().assert_similar_outputs(ref_outputs, outputs, **more)
            else:
                _compared(way.tolerance, cls, ref_outputs, outputs, **more)

    with warnings.catch_warnings():
        # The generator of the expected values divides by zero intentionally.
        warnings.simplefilter("ignore")
        groups = Comparing(Recording, __name__).test_cases
    return {
        name.removesuffix(_SUFFIX): groups[f"OnnxBackend{group}Test"](name)
        for group in _GROUPS
        for name in dir(groups[f"OnnxBackend{group}Test"])
        if name.endswith(_SUFFIX)
    }


#: Exceptions that `prepare` raised, the latest at the end.
_refusals: list[Exception] = []


def names(backend: type[Backend]) -> list[str]:
    """Names of all tests, sorted."""
    return sorted(_cases(backend))


def names_of_forms() -> list[str]:
    """Names of tests of nodes in which an operator has a new combination of inputs or attributes."""
    known: set[tuple[object, ...]] = set()
    found = []
    with warnings.catch_warnings():
        # The generator of the expected values divides by zero intentionally.
        warnings.simplefilter("ignore")
        cases = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    for case in cases:
        # Older versions of onnx contain the models as files.
        model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
        sets = tuple((entry.domain, entry.version) for entry in model.opset_import)
        forms = {
            (
                node.domain,
                node.op_type,
                sets,
                *map(bool, node.input),
                *sorted((a.name, a.i, a.f, a.s, *a.ints) for a in node.attribute),
            )
            for node in all_nodes(model.graph.node)
        }
        if not forms <= known:
            known |= forms
            found.append(case.name)
    return found


def run(backend: type[Backend], selected: Iterable[str], way: Way = WAYS["float32"]) -> dict[str, Outcome]:
    """Run tests by name."""
    classify = _CLASSIFIERS[backend.__name__]
    outcomes = {}
    for name in selected:
        result = _Verdict(classify)
        _refusals.clear()
        with warnings.catch_warnings():
            # numpy warns while the runner compares expected infinities and NaNs.
            warnings.simplefilter("ignore")
            _cases(backend, way)[name].run(result)
        outcomes[name] = result.outcome
    # Exceptions keep the sessions that raised them.
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
    """Classify an exception of onnxruntime or its adapter as a refusal or a failure."""
    kind = type(error).__name__
    refused = bool(_refusals) or kind in {"RuntimeError", "TypeError"}
    return Outcome(Status.UNSUPPORTED if refused else Status.FAILED, kind, _one_line(error))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


_CLASSIFIERS: dict[str, Callable[[BaseException], Outcome]] = {
    "QaicBackend": _classify_qaic,
    "OnnxRuntimeBackend": _classify_onnxruntime,
}


def exceptions(way: str) -> dict[str, str]:
    """Read the tests that do not pass when they are compiled in one way, and the reasons."""
    content = (Path(__file__).parent / "exceptions.json").read_text(encoding="utf-8")
    return json.loads(content)[way]


def run_onnxruntime(selected: Iterable[str]) -> dict[str, Outcome]:
    """Run tests on onnxruntime."""
    import onnxruntime

    with warnings.catch_warnings():
        # The suite imports a module that onnx has deprecated.
        warnings.simplefilter("ignore")
        from onnxruntime.backend.backend import OnnxRuntimeBackend

    onnxruntime.set_default_logger_severity(4)
    return run(OnnxRuntimeBackend, selected)
