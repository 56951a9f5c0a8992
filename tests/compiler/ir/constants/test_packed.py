"""Payloads that the core converts: sources of any kind, steps of any size, and errors."""

import os
import struct
import zlib
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic import _core
from qaic.compiler.ir.constants import packed as module
from qaic.compiler.ir.constants.float16_weights import Overflows, converted_floats
from qaic.compiler.ir.constants.packed import (
    MXFP6,
    PLAIN,
    ROWS,
    TILE_ROWS,
    TILES,
    UNIT,
    JoinedSource,
    Matrices,
    as_packed,
    converted,
    packed,
)
from qaic.compiler.ir.constants.weights import ComputedSource, FileRange, InputFile, MemoryRange, read_all
from qaic.errors import CompileError, InputError

FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16


@contextmanager
def sources(data, before=b"before"):
    """The same payload in a file, in memory, and computed in pieces."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "data")
        path.write_bytes(before + data + b"after")
        file = InputFile(path)
        pieces = ComputedSource(len(data), lambda: (data[at : at + 7] for at in range(0, len(data), 7)))
        yield {
            "file": FileRange(file, len(before), len(data)),
            "memory": MemoryRange(memoryview(data)),
            "computed": pieces,
        }
        file.close()


def container(path, payloads):
    """Write payloads to the constants of a container; returns the sizes of the steps."""
    size = sum(payload.nbytes for payload in payloads)
    writer = _core.QpcWriter(path, [("constants.bin", size, 0), ("constants.bin.crc", 4, 0)], 64)
    steps = [step for payload in payloads for step in payload.write(writer, "constants.bin")]
    writer.write("constants.bin.crc", struct.pack("<I", writer.crc32("constants.bin")))
    writer.finish()
    return steps


def rows_of(matrices, unit=UNIT):
    """Rows as the layout describes them, by numpy."""
    rows = matrices.reshape(-1, matrices.shape[-1])
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % unit)))
    return rows.reshape(len(rows), -1, unit)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 80), st.integers(1, 80)),
    is_turned=st.booleans(),
    layout=st.sampled_from([ROWS, TILES]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    held=st.sampled_from([0, 1 << 20]),
)
def test_sources_of_every_kind_give_the_rows_of_numpy(shape, is_turned, layout, dtype, held):
    count, height, width = shape
    if is_turned and count > 1:
        width = -(-width // TILE_ROWS) * TILE_ROWS
    matrices = np.arange(count * height * width, dtype=np.float32).reshape(count, height, width) % 251
    matrices = matrices.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = rows_of(matrices.swapaxes(1, 2) if is_turned else matrices)
    if layout == TILES:
        missing = np.zeros((-len(expected) % TILE_ROWS, *expected.shape[1:]), expected.dtype)
        expected = np.concatenate([expected, missing])
        expected = expected.reshape(-1, TILE_ROWS, *expected.shape[1:]).swapaxes(1, 2)
    order = Matrices(count, height, width, is_turned, layout)
    with pytest.MonkeyPatch.context() as patch, sources(matrices.tobytes()) as given_sources:
        patch.setattr(module, "_HELD", held)
        for kind, source in given_sources.items():
            stored = packed(source, dtype, order)
            data = read_all(stored)
            assert (len(data), data) == (stored.nbytes, expected.tobytes()), kind


@given(data=st.binary(max_size=3000), step=st.integers(1, 3))
def test_bytes_are_copied_from_every_kind_of_source(data, step):
    with pytest.MonkeyPatch.context() as patch, sources(data) as given_sources:
        patch.setattr(module, "_STEP", step)
        for source in (given_sources["file"], given_sources["memory"]):
            assert read_all(as_packed(source)) == data
    assert as_packed(ComputedSource(0, lambda: iter(()))) is None


def test_container_has_the_payloads_in_order_and_their_crc(tmp_path, monkeypatch):
    """A large payload is written in steps, between which signals are handled."""
    values = np.random.default_rng(1).standard_normal((700, 1200)).astype(np.float32)
    with sources(values.tobytes()) as given_sources:
        plain = as_packed(given_sources["file"])
        half = converted(given_sources["file"], ("float32", "float16"))
        turned = packed(half, "float16", Matrices(1, 700, 1200, True, TILES))
        blocks = packed(plain.inner, "float32", Matrices(1, 700, 1200, True, ROWS), code=MXFP6)
        payloads = (plain, half, turned, blocks)
        assert len(container(tmp_path / "at-once.bin", payloads)) == len(payloads)
        monkeypatch.setattr(module, "_STEP", 1)
        steps = container(tmp_path / "steps.bin", payloads)
        expected = b"".join(map(read_all, payloads))
        assert read_all(JoinedSource(payloads)) == expected
    assert len(steps) > 2 * len(payloads)
    assert sum(steps) == len(expected) == JoinedSource(payloads).nbytes
    at_once, in_steps = ((tmp_path / name).read_bytes() for name in ("at-once.bin", "steps.bin"))
    assert at_once == in_steps
    _, found, rest = at_once.partition(expected)
    assert found
    assert struct.pack("<I", zlib.crc32(expected)) in rest


@pytest.mark.parametrize(
    ("first", "then", "is_joined"),
    [
        (("bfloat16", "float32"), ("float32", "float16"), True),
        (("float16", "float32"), ("float32", "float16"), True),
        (("float32", "float16"), ("float16", "float32"), False),
        (("float32", "bfloat16"), ("bfloat16", "float16"), False),
    ],
)
def test_conversions_are_joined_only_if_no_digit_is_lost(first, then, is_joined):
    values = np.float32([1.0, 1 + 2**-9, 1 + 2**-12, 3e4, 7e4, 1e-6, 2**-26, -0.0, np.inf])
    types = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    with np.errstate(over="ignore"):
        given_values = values.astype(types[first[0]])
        expected = given_values.astype(types[first[1]]).astype(np.float32).astype(types[then[1]])
    source = converted(converted(MemoryRange(given_values.tobytes()), first), then)
    assert isinstance(source.inner, MemoryRange) == is_joined
    assert read_all(source) == expected.tobytes()


def test_facts_of_a_conversion_belong_to_the_last_read(tmp_path):
    """A payload that is read again, or in another order, counts each value once."""
    values = np.float32([1e5, -2e5, 1.0, np.inf, np.nan])
    overflows = Overflows(clip=True)
    source = converted_floats(MemoryRange(values.tobytes()), FLOAT, FLOAT16, "w", overflows)
    for _ in range(2):
        read_all(packed(source, "float16", Matrices(1, 1, 5, False, TILES)))
        assert (overflows.counts, overflows.farthest) == ({"w": 2}, {"w": -2e5})
    container(tmp_path / "c.bin", [source])
    assert (overflows.counts, overflows.survived, overflows.lost) == ({"w": 2}, {"w"}, {})
    small = converted_floats(MemoryRange(np.float32([1e-9, 0]).tobytes()), FLOAT, FLOAT16, "w", overflows)
    read_all(small)
    assert (overflows.counts, overflows.survived) == ({}, set())
    assert overflows.lost == {"w": pytest.approx(1e-9)}
    read_all(converted_floats(MemoryRange(values.tobytes()), FLOAT, BFLOAT16, "v", overflows))
    assert "v" not in overflows.counts


@pytest.mark.parametrize("code", [PLAIN, MXFP6])
@pytest.mark.parametrize("is_turned", [False, True])
def test_file_that_shrinks_is_an_error(tmp_path, code, is_turned):
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * 64 * 64))
    file = InputFile(path)
    source = packed(
        FileRange(file, 0, file.size), "float32", Matrices(1, 64, 64, is_turned, TILES), code=code
    )
    os.truncate(path, 4 * 64 * 63)
    with pytest.raises(CompileError, match="found 16128 bytes, expected 16384 bytes as when it was opened"):
        container(tmp_path / "c.bin", [source])
    file.close()


def test_descriptor_that_is_closed_is_an_error():
    file = InputFile(Path(__file__))
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_all(converted(FileRange(file, 0, 8), ("float32", "float16")))


@pytest.mark.parametrize(
    ("numbers", "named", "text"),
    [
        (("float8", "float32"), {}, 'no type "float8"'),
        (("float32", "float32"), {"code": "x"}, 'no stored form "x"'),
        (("float32", "float32"), {"matrices": Matrices(1, 1, 2, False, "x")}, 'no layout "x"'),
        (
            ("float32", "float32"),
            {"matrices": Matrices(1, 2, 2, False, TILES)},
            "found 8 bytes, expected 16",
        ),
        (("uint8", "float32"), {}, "no conversion from uint8 to float32"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(numbers, named, text):
    with pytest.raises(InputError, match=text):
        _core.Payload(bytes(8), numbers, **named)


def test_block_that_does_not_exist_is_empty():
    payload = _core.Payload(b"abc", ("uint8", "uint8"))
    assert (payload.read(0), payload.read(1), payload.nbytes, payload.blocks) == (b"abc", b"", 3, 1)
