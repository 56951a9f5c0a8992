"""Inputs of ``openqaic run``: the assignment of arrays in files to inputs."""

import sys
from pathlib import Path

import numpy as np
import pytest

from qaic.cli.openqaic.pictures import UNCHANGED, Pixels
from qaic.cli.openqaic.tensor_files import read_inputs
from qaic.errors import InputError, StateError
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
    found = read_inputs([f"bytes={file}"], inputs, {})
    assert found.keys() == {"bytes"}
    np.testing.assert_array_equal(found["bytes"], X)


def test_an_archive_without_a_name_has_all_by_theirs():
    found = read_inputs(["both.npz"], INPUTS, {})
    assert found.keys() == {"bytes", "mask"}


@pytest.mark.parametrize("file", ["own.npz", "other.npz", "both.npz", "x.npy", "x.raw"])
def test_a_name_that_no_input_has_is_refused_whatever_the_file(file):
    with pytest.raises(InputError, match=r"no input 'byte'; it has bytes.*did you mean 'bytes'") as caught:
        read_inputs([f"byte={file}"], ONE, {})
    assert caught.value.code == "run.input_name"


def test_an_archive_of_others_is_refused():
    with pytest.raises(InputError, match="the file has no array 'bytes'; it has a, b"):
        read_inputs(["bytes=others.npz"], ONE, {})
    with pytest.raises(InputError, match="has no input 'a'"):
        read_inputs(["others.npz"], ONE, {})
    with pytest.raises(InputError, match="given twice"):
        read_inputs(["bytes=own.npz", "bytes=x.npy"], ONE, {})


PIXELS = np.random.default_rng(1).integers(0, 256, (6, 5, 3), np.uint8)


@pytest.fixture
def pictures():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(PIXELS).save("color.png")
    image.fromarray(PIXELS[..., 0]).save("gray.PNG")


def read_pixels(file, shape, dtype=np.float32, pixels=UNCHANGED):
    return read_inputs([file], ShapeDict({"x": ShapeAndType(shape, np.dtype(dtype))}), {}, pixels)["x"]


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 3, 6, 5), (2, 3, 6, 5), (6, 5, 3), (2, 6, 5, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64])
def test_a_picture_fills_an_input_in_its_layout(pictures, shape, dtype):
    expected = np.moveaxis(PIXELS, 2, 0) if shape[-3] == 3 else PIXELS
    found = read_pixels("color.png", shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    for one in found.reshape(-1, *expected.shape):
        np.testing.assert_array_equal(one, expected)


def test_an_input_of_one_channel_is_gray(pictures):
    np.testing.assert_array_equal(read_pixels("x=gray.PNG", (1, 1, 6, 5))[0, 0], PIXELS[..., 0])


def test_each_channel_has_its_mean_and_scale(pictures):
    mean, scale = (124.0, 116.0, 104.0), (58.0, 57.0, 57.5)
    expected = (PIXELS - np.float64(mean)) / np.float64(scale)
    found = read_pixels("color.png", (6, 5, 3), pixels=Pixels(mean, scale))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    shifted = read_pixels("color.png", (6, 5, 3), np.int8, Pixels((128.0,)))
    np.testing.assert_array_equal(shifted, PIXELS.astype(int) - 128)


def test_a_picture_of_another_size_is_scaled(pictures):
    found = read_pixels("color.png", (1, 3, 12, 20))
    np.testing.assert_allclose(found.mean(axis=(0, 2, 3)), PIXELS.mean(axis=(0, 1)), rtol=0.1)


@pytest.mark.parametrize(
    ("shape", "dtype", "pixels", "said"),
    [
        ((6, 5), np.float32, UNCHANGED, r"has the shape \[6, 5\], expected 3 or 4 dimensions"),
        ((2, 6, 5), np.float32, UNCHANGED, "with 1 or 3 channels"),
        ((6, 5, 3), np.int8, UNCHANGED, "found pixels from .*, expected values of int8; --mean"),
        ((6, 5, 3), np.float16, Pixels(scale=(1e-4,)), "found pixels from .*, expected values of float16"),
        ((6, 5, 3), np.float32, Pixels(scale=(5e-324,)), "found pixels from .*, expected values of float32"),
        ((6, 5, 3), np.float32, Pixels((1.0, 2.0)), "--mean: found 2 values, expected 1 or 3"),
        ((6, 5, 3), np.float32, Pixels(scale=(1.0, 2.0)), "--scale: found 2 values, expected 1 or 3"),
    ],
)
def test_a_picture_that_does_not_fit_is_refused(pictures, shape, dtype, pixels, said):
    with pytest.raises(InputError, match=said):
        read_pixels("color.png", shape, dtype, pixels)


def test_what_is_no_picture_is_refused(pictures):
    Path("x.jpg").write_bytes(b"no picture")
    with pytest.raises(
        InputError, match=r"x\.jpg: found a file that Pillow cannot read, expected a picture\n"
    ):
        read_pixels("x.jpg", (1, 3, 6, 5))
    whole = Path("color.png").read_bytes()
    Path("part.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"part\.png: found .*, expected a picture\n"):
        read_pixels("part.png", (1, 3, 6, 5))
    with pytest.raises(FileNotFoundError, match=r"did you mean x\.jpg"):
        read_pixels("x.jpeg", (1, 3, 6, 5))


@pytest.mark.parametrize("limit", [29, 14])
def test_a_picture_above_the_limit_of_pillow_is_refused(pictures, monkeypatch, limit):
    """Pillow warns above its limit, and raises an error above twice the limit."""
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", limit)
    with pytest.raises(InputError, match=rf"color\.png: found more than {limit} pixels, expected a smaller"):
        read_pixels("color.png", (6, 5, 3))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_pixels_of_more_than_8_bits_are_refused(pictures, dtype):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    wide = image.fromarray(PIXELS[..., 0].astype(dtype))
    wide.save("wide.png", None if dtype == np.uint16 else "TIFF")
    with pytest.raises(
        InputError, match=r"wide\.png: found more than 8 bits per channel, expected .* 8 bits"
    ):
        read_pixels("wide.png", (1, 6, 5))


#: EXIF orientation -> the stored rows of an upright picture, from the definition of the tag.
ORIENTATIONS = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: upright.swapaxes(0, 1)[::-1],
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_picture_is_upright(pictures, orientation):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    exif = image.Exif()
    exif[0x0112] = orientation
    image.fromarray(np.ascontiguousarray(ORIENTATIONS[orientation](PIXELS))).save("turned.png", exif=exif)
    np.testing.assert_array_equal(read_pixels("turned.png", (6, 5, 3)), PIXELS)


def test_without_pillow_the_message_names_the_extra(monkeypatch):
    Path("x.jpg").touch()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(StateError, match=r"pip install 'openqaic\[images\]'"):
        read_pixels("x.jpg", (1, 3, 6, 5))
