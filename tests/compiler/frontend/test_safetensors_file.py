"""Safetensors files: the contents of valid files, and a refusal of each contradiction."""

import json
import os
import tracemalloc
from contextlib import closing

import numpy as np
import pytest

import safetensors_files
from qaic.compiler.frontend.files import safetensors_file
from qaic.compiler.frontend.files.external_data import DataFiles
from qaic.compiler.frontend.files.safetensors_file import read_tensors
from qaic.compiler.ir.constants.weights import InputFile, read_all
from qaic.errors import CompileError
from safetensors_files import described, encoded

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int64)}


def read(path):
    with closing(InputFile(path)) as file:
        return {
            name: (tensor.dtype, tensor.dims, read_all(tensor.source))
            for name, tensor in read_tensors(file).items()
        }


def refused(tmp_path, content, text):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(CompileError, match=text) as caught:
        read(path)
    assert caught.value.code == "compile.safetensors"
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


def changed(**entry):
    """A file with another description of the tensor `b`."""
    entries, payload = described(ARRAYS)
    entries["b"] |= entry
    return encoded(entries, payload)


def test_tensors_are_found_where_they_are(tmp_path):
    path = safetensors_files.write(tmp_path / "x.safetensors", ARRAYS, {"format": "pt"})
    assert read(path) == {
        "a": ("F32", (2, 3), ARRAYS["a"].tobytes()),
        "b": ("I64", (4,), ARRAYS["b"].tobytes()),
    }


def test_scalars_empty_tensors_and_files_without_any(tmp_path):
    arrays = {"none": np.zeros((0, 5), np.float16), "one": np.array(7, np.uint8)}
    path = safetensors_files.write(tmp_path / "x.safetensors", arrays)
    assert read(path) == {"none": ("F16", (0, 5), b""), "one": ("U8", (), b"\x07")}
    path.write_bytes(encoded({}, b""))
    assert read(path) == {}


def test_padding_of_the_header_is_no_matter(tmp_path):
    entries, payload = described(ARRAYS)
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded(json.dumps(entries).encode() + b" " * 7, payload))
    assert read(path)["b"][2] == ARRAYS["b"].tobytes()


def test_order_in_the_file_is_that_of_the_offsets(tmp_path):
    entries, payload = described(ARRAYS)
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded(dict(reversed(entries.items())), payload))
    assert read(path)["a"][2] == ARRAYS["a"].tobytes()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "found 0 bytes, expected at least 8"),
        (b"1234567", "found 7 bytes"),
        (encoded({}, b"", size=3), "a header of 3 bytes, expected at most the 2"),
        (encoded({}, b"", size=2**64 - 1), "a header of 18446744073709551615 bytes"),
        (encoded({}, b"", size=0), "begins with b''"),
        (encoded(b"[]", b""), "a header that begins with"),
        (encoded(b"\xef\xbb\xbf{}", b""), "a header that begins with"),
        (encoded(b" {}", b""), "a header that begins with"),
        (encoded(b"{", b""), "not JSON"),
        (encoded(b"{}{}", b""), "not JSON"),
        (encoded(b'{"\xff": 1}', b""), "not JSON"),
        (encoded(b'{"a":' * 100_000, b""), "not JSON .values are nested too deeply"),
        (encoded(b'{"a": {"a": 1, "a": 2}}', b""), "not JSON .the key 'a' occurs twice"),
        (encoded(b'{"a": 1, "b": 2, "a": 3}', b""), "not JSON .the key 'a' occurs twice"),
        (encoded({"a": 1}, b""), "tensor 'a' described by 1"),
        (encoded({"a": {"dtype": "F32"}}, b""), "tensor 'a' described by"),
        (encoded({"x" * 10_000: 1}, b""), r"tensor 'xxx.*\.\.\. described by 1"),
        (encoded({"__metadata__": []}, b""), "not an object of strings"),
        (encoded({"__metadata__": {"a": 1}}, b""), "not an object of strings"),
        (changed(more=1), "tensor 'b' described by"),
        (changed(dtype="F31"), "tensor 'b' of type 'F31'"),
        (changed(dtype=None), "tensor 'b' of type None"),
        (changed(dtype=["F32"]), "tensor 'b' of type"),
        (changed(dtype="I32"), "with 32 bytes, expected 128 bits for I32"),
        (changed(shape="4"), "of shape '4'"),
        (changed(shape=[4.0]), r"of shape \[4.0\]"),
        (changed(shape=[True, 4]), r"of shape \[True, 4\]"),
        (changed(shape=[-4]), r"of shape \[-4\]"),
        (changed(shape=[1] * 65), "of shape"),
        (changed(shape=[2**63]), "of shape"),
        (changed(shape=[2**62, 2**62]), "with 32 bytes, expected .* bits for I64"),
        # A product that is correct again after it overflows 64 bits.
        (changed(shape=[2**62 + 1, 4]), "with 32 bytes, expected .* bits for I64"),
        (changed(data_offsets=[24]), "a range inside 56 bytes"),
        (changed(data_offsets=[24, 56, 56]), "a range inside 56 bytes"),
        (changed(data_offsets=[56, 24]), "a range inside 56 bytes"),
        (changed(data_offsets=[-8, 24]), "a range inside 56 bytes"),
        (changed(data_offsets=[32, 64]), "a range inside 56 bytes"),
        (changed(data_offsets=[24, 56.0]), "a range inside 56 bytes"),
        (changed(data_offsets=[2**64 + 24, 2**64 + 56]), "a range inside 56 bytes"),
        (changed(data_offsets=[16, 48]), "tensor 'b', which overlaps the one before"),
        (changed(data_offsets=[0, 32]), "overlaps the one before"),
        (encoded(*described(ARRAYS)) + b"\0", "1 bytes after the last tensor"),
        (encoded({}, b"12345678"), "8 bytes after the last tensor"),
        (encoded(*described(ARRAYS))[:-1], "a range inside 55 bytes"),
        (encoded({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"1"), "expected 12 bits"),
    ],
)
def test_file_that_lies_is_refused(tmp_path, content, text):
    refused(tmp_path, content, text)


def test_gap_between_tensors_is_refused(tmp_path):
    entries, payload = described(ARRAYS)
    entries["b"]["data_offsets"] = [32, 64]
    refused(tmp_path, encoded(entries, payload + bytes(8)), "tensor 'b', which leaves a gap before it")


def test_huge_header_is_refused_unread(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{")
    os.truncate(path, (1 << 40) + 8)
    tracemalloc.start()
    try:
        with pytest.raises(CompileError, match="a header of 1099511627776 bytes, expected at most 33554432"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_late_repetition_among_many_keys_is_found_at_once(tmp_path):
    # Counting each key in the whole list would take quadratic time.
    keys = [f'"{index}":0' for index in range(200_000)]
    refused(
        tmp_path, encoded(("{" + ",".join([*keys, keys[-1]]) + "}").encode(), b""), "'199999' occurs twice"
    )


def test_every_cut_of_a_file_is_refused(tmp_path):
    content = safetensors_files.write(tmp_path / "x.safetensors", ARRAYS).read_bytes()
    for length in range(len(content)):
        refused(tmp_path, content[:length], "found")


def test_file_that_is_cut_off_after_it_was_checked_gives_an_error(tmp_path):
    path = safetensors_files.write(tmp_path / "x.safetensors", {"a": np.zeros(100_000, np.float32)})
    with closing(InputFile(path)) as file:
        (tensor,) = read_tensors(file).values()
        os.truncate(path, 5000)
        with pytest.raises(CompileError, match="found 5000 bytes"):
            read_all(tensor.source)


def test_pipes_and_folders_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CompileError, match="not a regular file"):
        DataFiles().opened(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        DataFiles().opened(tmp_path)


def test_types_have_the_widths_of_their_names():
    for name, (bits, _) in safetensors_file.TYPES.items():
        digits = "".join(letter if letter.isdigit() else " " for letter in name.split("_")[0]).split()
        assert bits == (int(digits[0]) if digits else 8), name
