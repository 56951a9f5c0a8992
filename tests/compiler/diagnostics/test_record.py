"""Diagnostics are objects that are shown once and stored in the container."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from onnx import helper

import qaic
import session_models
from qaic.compiler.diagnostics.messages import Diagnostic, about_files, note, recorded, repeat, warn
from qaic.compiler.driver import compile_model
from qaic.options import resolve


def messages(caplog):
    return [(record.levelname, record.name, record.getMessage()) for record in caplog.records]


def test_a_diagnostic_is_recorded_and_shown_once(caplog):
    caplog.set_level(logging.INFO, "qaic")
    with recorded() as found:
        warn("a.first", "2 of three", nodes=["n"])
        note("a.second", "100 % sure")
    assert found.items == [
        Diagnostic("warning", "a.first", "2 of three", ("n",)),
        Diagnostic("note", "a.second", "100 % sure"),
    ]
    assert messages(caplog) == [
        ("WARNING", "qaic.compiler", "2 of three"),
        ("INFO", "qaic.compiler", "100 % sure"),
    ]


def test_a_record_takes_what_its_thread_says(caplog):
    def other():
        warn("a.other", "from another thread")

    with recorded() as outer:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with recorded() as inner:
            warn("a.own", "own")
            assert outer.items == []
    assert outer.items == inner.items == [Diagnostic("warning", "a.own", "own")]
    assert [text for _, _, text in messages(caplog)] == ["from another thread", "own"]


def test_without_a_record_a_warning_is_shown(caplog):
    warn("a.b", "text")
    assert messages(caplog) == [("WARNING", "qaic.compiler", "text")]


def test_what_is_about_files_is_recorded_as_such():
    with recorded() as found:
        warn("a.program", "one")
        with about_files():
            warn("a.file", "two")
        warn("a.program", "three")
    assert [(item.code, item.is_of_program) for item in found.items] == [
        ("a.program", True),
        ("a.file", False),
        ("a.program", True),
    ]


def test_repeating_shows_warnings_and_records_all(caplog):
    caplog.set_level(logging.INFO, "qaic")
    items = [Diagnostic("warning", "a.b", "loud"), Diagnostic("note", "c.d", "quiet")]
    with recorded() as found:
        repeat(items)
    assert found.items == items
    assert [text for _, _, text in messages(caplog)] == ["loud"]


@pytest.fixture
def model(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    made = session_models.model(
        [node], [("x", "float32", [1, 2])], [("y", "float32", [1, 2])], {"w": np.eye(2, dtype=np.float32)}
    )
    return session_models.save(tmp_path, made, "model.onnx")


def test_a_compilation_records_the_same_from_the_cache(model, caplog):
    options = resolve({"onnx_define_symbol": {"gone": 1}}, options_path=None, model_is_container=False)
    records = []
    for _ in range(2):
        with recorded() as found:
            compile_model(str(model), options.compile, dict(options.set_compile))
        records.append(found.items)
    assert records[0] == records[1]
    assert [(item.severity, item.code) for item in records[0]] == [("warning", "symbols.unused_definition")]
    assert len(caplog.records) == 2


def test_the_result_of_compiling_has_its_diagnostics(model):
    fresh, cached = (qaic.compile(model, onnx_define_symbol={"absent": 1}) for _ in range(2))
    (found,) = fresh.diagnostics
    assert (found.severity, found.code) == ("warning", "symbols.unused_definition")
    assert "'absent'" in found.message
    assert cached.diagnostics == fresh.diagnostics
    # The container keeps its diagnostics after it is moved.
    assert qaic.Qpc(bytes(fresh.content)).diagnostics == fresh.diagnostics
    assert qaic.Session(fresh.path).warnings == (found.message,)
