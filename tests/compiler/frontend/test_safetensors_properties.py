"""Safetensors files compared with the library of the format: both read and refuse the same files."""

import contextlib
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.compiler.frontend.files.safetensors_file import read_tensors
from qaic.compiler.ir.constants.weights import InputFile, read_all
from qaic.errors import CompileError
from safetensors_files import DTYPES, described, encoded

library = pytest.importorskip("safetensors", reason="the extra `test` has the library of the format")
save = pytest.importorskip("safetensors.numpy").save

#: The library returns bytes unchanged, and defines its own names.
names = st.text(max_size=12).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def arrays(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(shapes)
    size = int(np.prod(shape)) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        content = bytes(byte & 1 for byte in content)
    return np.frombuffer(content, dtype).reshape(shape)


def read(path):
    with closing(InputFile(path)) as file:
        return {
            name: {"dtype": tensor.dtype, "shape": list(tensor.dims), "data": read_all(tensor.source)}
            for name, tensor in read_tensors(file).items()
        }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("safetensors") / "x.safetensors"


@given(tensors=st.dictionaries(names, arrays(), max_size=5), note=st.none() | st.text(max_size=8))
def test_what_the_library_writes_is_read(path, tensors, note):
    path.write_bytes(save(tensors, None if note is None else {"note": note}))
    found = read(path)
    expected, _ = described(tensors)
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in found.items()} == {
        name: (entry["dtype"], entry["shape"]) for name, entry in expected.items()
    }
    assert {name: entry["data"] for name, entry in found.items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }


@given(tensors=st.dictionaries(names, arrays(), max_size=4), data=st.data())
def test_what_is_read_of_a_changed_file_the_library_reads_alike(path, tensors, data):
    content = bytearray(encoded(*described(tensors)))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path.write_bytes(content)
    found = None
    with contextlib.suppress(CompileError):
        found = read(path)
    try:
        known = library.deserialize(bytes(content))
    except library.SafetensorError:
        known = None
    if found is not None:
        assert known is not None
        assert {name: (entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in known} == {
            name: (entry["dtype"], entry["shape"], entry["data"]) for name, entry in found.items()
        }
