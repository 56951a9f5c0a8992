"""Damaged models compile or cause a clear error; they never cause a crash or another exception."""

import contextlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler_oracle import info, model_of, node
from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file, tensor_record
from qaic.errors import CompileError
from qaic.options.table import CompileOptions

MODEL = model_of(
    [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ],
    [info("x", [2, 16])],
    [info("y", [2, 32])],
    [("w", np.ones((16, 32), np.float32)), ("b", np.ones(32, np.float32))],
).SerializeToString()

#: The payload of the large weight does not affect the reader, so the damage is in other bytes.
_PAYLOAD = MODEL.index(np.ones(512, np.float32).tobytes())
positions = st.one_of(st.integers(0, _PAYLOAD - 1), st.integers(_PAYLOAD + 2048, len(MODEL) - 1))


def attempt(content):
    with contextlib.suppress(CompileError), onnx_file.open_bytes(content) as source:
        lower_program(source, CompileOptions(convert_to_fp16=True), Progress("test"))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(MODEL) - 1))
def test_truncated_model(length):
    attempt(MODEL[:length])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=4))
def test_model_with_changed_bytes(changes):
    content = bytearray(MODEL)
    for position, value in changes:
        content[position] = value
    attempt(bytes(content))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(content):
    attempt(content)


@given(st.binary(max_size=64))
def test_walk_never_leaves_its_range(content):
    view = memoryview(content)
    with contextlib.suppress(tensor_record.WireError):
        for number, _, begin, lo, hi in tensor_record.fields(view, 0, len(view)):
            assert number > 0
            assert begin < lo <= hi <= len(view)


@given(st.integers(0, 2**64 - 1))
def test_varint_round_trip(value):
    data = tensor_record.encode_varint(value)
    assert tensor_record.read_varint(memoryview(data), 0, len(data)) == (value, len(data))
