"""Runs the examples in the docstrings of the public interface, with the model of the guides."""

import doctest
import runpy
import sys
from pathlib import Path

import pytest

import qaic
from qaic.runtime.metrics import Measurements

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "Session": qaic.Session,
    "Qpc": qaic.Qpc,
    "CompileOptions": qaic.CompileOptions,
    "compile": qaic.compile,
    "devices": qaic.devices,
    "Session.profile": Measurements.profile,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_model.py", "model.onnx"])
    runpy.run_path(str(ROOT / "examples" / "make_model.py"), run_name="__main__")


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.usefixtures("folder")
def test_examples_run(name):
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(PUBLIC[name], name, globs={}, module=sys.modules[PUBLIC[name].__module__])
    assert test.examples
    assert not any(doctest.SKIP in example.options for example in test.examples)
    assert doctest.DocTestRunner().run(test).failed == 0
