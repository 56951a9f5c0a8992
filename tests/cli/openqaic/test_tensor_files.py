"""Inputs of ``openqaic run``: which array of which file goes into which input."""

import numpy as np
import pytest

from qaic.cli.openqaic.tensor_files import read_inputs
from qaic.errors import InputError
from qaic.runtime.shapes import ShapeAndType, ShapeDict

INPUTS = ShapeDict(
    {
        "bytes": ShapeAndType((2,), np.dtype(np.uint8)),
        "mask": ShapeAndType((2,), np.dtype(np.float32)),
    }
)
ONE = ShapeDict({"bytes": INPUTS["bytes"]})
X, Y = np.uint8([1, 2]), np.float32([3, 4])


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("both.npz", bytes=X, mask=Y)
    np.savez("own.npz", bytes=X)
    np.savez("other.npz", array=X)
    np.savez("others.npz", a=X, b=Y)
    np.save("x.npy", X)
    X.tofile("x.raw")


@pytest.mark.parametrize("file", ["own.npz", "other.npz", "both.npz", "x.npy", "x.raw"])
@pytest.mark.parametrize("inputs", [INPUTS, ONE])
def test_a_name_takes_one_array(file, inputs):
    found = read_inputs([f"bytes={file}"], inputs)
    assert found.keys() == {"bytes"}
    np.testing.assert_array_equal(found["bytes"], X)


def test_an_archive_without_a_name_has_all_by_theirs():
    found = read_inputs(["both.npz"], INPUTS)
    assert found.keys() == {"bytes", "mask"}


@pytest.mark.parametrize("file", ["own.npz", "other.npz", "both.npz", "x.npy", "x.raw"])
def test_a_name_that_no_input_has_is_refused_whatever_the_file(file):
    with pytest.raises(InputError, match=r"no input 'byte'; it has bytes.*did you mean 'bytes'") as caught:
        read_inputs([f"byte={file}"], ONE)
    assert caught.value.code == "run.input_name"


def test_an_archive_of_others_is_refused():
    with pytest.raises(InputError, match="the file has no array 'bytes'; it has a, b"):
        read_inputs(["bytes=others.npz"], ONE)
    with pytest.raises(InputError, match="has no input 'a'"):
        read_inputs(["others.npz"], ONE)
    with pytest.raises(InputError, match="given twice"):
        read_inputs(["bytes=own.npz", "bytes=x.npy"], ONE)
