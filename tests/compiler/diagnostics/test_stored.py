"""Diagnostics as a section of a container: writing and reading, and damage that affects only this section."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qaic
import session_models
from qaic import _core
from qaic.cli.qpc import main
from qaic.compiler.diagnostics import messages
from qaic.compiler.diagnostics.messages import Diagnostic
from qaic.support.program_names import DIAGNOSTICS_SECTION

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
DIAGNOSTICS = st.builds(
    Diagnostic, st.sampled_from(["warning", "note"]), TEXT, TEXT, st.lists(TEXT, max_size=5).map(tuple)
)


class Program:
    """A container with only this section."""

    def __init__(self, content):
        self.content = content

    def elf_section(self, name):
        return self.content if name == DIAGNOSTICS_SECTION else None


@given(st.lists(DIAGNOSTICS, max_size=5))
def test_what_is_read_is_what_was_written(items):
    assert messages.read(Program(messages.encode(items))) == tuple(items)


def test_of_very_many_nodes_the_first_are_stored():
    item = Diagnostic("note", "a.b", "text", tuple(map(str, range(1000))))
    (found,) = messages.read(Program(messages.encode([item])))
    assert found.nodes == item.nodes[:100]


ENTRY = {"severity": "note", "code": "a.b", "message": "text", "nodes": []}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{}",
        b"1",
        b"[" * 100_000,
        b"[1, null, []]",
        json.dumps([ENTRY | {"severity": "grave"}, ENTRY | {"severity": ["note"]}]).encode(),
    ],
)
def test_what_is_no_diagnostic_is_left_out(content):
    assert messages.read(Program(content)) == ()


def test_values_of_other_types_become_text():
    content = json.dumps([{"severity": "note", "code": 1, "nodes": [2, None]}]).encode()
    assert messages.read(Program(content)) == (Diagnostic("note", "1", "", ("2", "None")),)


def perceptron(weight):
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    shapes = ("float32", [1, len(weight)]), ("float32", [1, weight.shape[1]])
    return session_models.model([node], [("x", *shapes[0])], [("y", *shapes[1])], {"w": weight})


def test_a_large_weight_beyond_float16_is_told_of_in_the_container():
    # The weight is converted while it is written, so the diagnostic is known only after that.
    weight = np.full((64, 64), 1e5, np.float32)
    compiled = qaic.compile(perceptron(weight), convert_to_fp16=True)
    (found,) = qaic.Qpc(compiled.path).diagnostics
    assert found.code == "float16.overflow"
    assert found.message.startswith("4,096 constants beyond the range of float16")
    assert compiled.diagnostics == (found,)
    # The second container has the same weights as the first.
    (written,) = compiled.initializers.values()
    assert np.all(np.asarray(written) == 65504)


def test_a_program_without_diagnostics_has_no_section():
    compiled = qaic.compile(perceptron(np.eye(2, dtype=np.float32)))
    assert compiled.diagnostics == ()
    assert _core.Qpc(compiled.path).elf_section(DIAGNOSTICS_SECTION) is None


def test_the_tool_shows_them(capsys):
    compiled = qaic.compile(perceptron(np.eye(2, dtype=np.float32)), onnx_define_symbol={"gone": 1})
    assert main(["info", str(compiled.path)]) == 0
    assert "compiler warning: onnx_define_symbol: the model has no symbol 'gone'" in capsys.readouterr().out
    assert main(["info", "--json", str(compiled.path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["diagnostics"]
    assert found["code"] == "symbols.unused_definition"
