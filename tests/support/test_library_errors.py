"""Exceptions of a library become one error; those of this package and of the system do not change."""

import io
import zipfile

import numpy as np
import pytest

from qaic.errors import InputError
from qaic.support.library_errors import library_errors


def refuse(found):
    return InputError(f"damaged: {found}", code="run.input_file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', ",
        b"PK\x03\x04",
        b"PK" + bytes(200),
        b"pickle",
    ],
)
def test_what_numpy_raises_is_one_error(content):
    with pytest.raises(InputError, match=r"damaged: .") as caught, library_errors(refuse):
        np.load(io.BytesIO(content), allow_pickle=False)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "error", [zipfile.BadZipFile("x"), KeyError("x"), MemoryError(), RecursionError("x"), OSError("x")]
)
def test_every_kind_of_error_is_translated(error):
    with pytest.raises(InputError), library_errors(refuse):
        raise error


@pytest.mark.parametrize("error", [FileNotFoundError(2, "x"), refuse("mine"), KeyboardInterrupt()])
def test_errors_of_the_system_and_our_own_pass(error):
    with pytest.raises(type(error)) as caught, library_errors(refuse):
        raise error
    assert caught.value is error


def test_a_defect_of_ours_is_no_error_of_the_input():
    ours = compile("raise ValueError('defect')", "ours.py", "exec")
    with pytest.raises(ValueError, match="defect") as caught, library_errors(refuse, among_ours=True):
        exec(ours, {"__name__": "qaic.compiler.somewhere"})
    assert not isinstance(caught.value, InputError)
    with pytest.raises(InputError), library_errors(refuse, among_ours=True):
        np.array([1.0]).reshape(1, 2, order="?")
    with pytest.raises(InputError), library_errors(refuse, among_ours=True):
        exec(ours, {"__name__": "onnx.numpy_helper"})
