"""Pictures as inputs of a program."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.errors import InputError, StateError
from qaic.runtime.shapes import ShapeAndType
from qaic.support.library_errors import library_errors
from qaic.support.open_regular import open_regular

#: suffixes of files that are pictures
SUFFIXES: Final = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})
_MODES: Final = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Pixels:
    """Conversion of pixels to numbers: ``(pixel - mean) / scale``, with one value or one for each channel."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)


UNCHANGED: Final = Pixels()


def read_picture(path: Path, name: str, wanted: ShapeAndType, pixels: Pixels) -> NDArray[Any]:
    """Read a picture in the size, layout and type of an input. Blocking.

    The input has three or four dimensions: channels before or after height and width, 1 or 3. Each picture
    of a batch is the same. Raises StateError if Pillow is missing, InputError if the input or the file is not
    a picture, and OSError if the file cannot be read.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise StateError(
            f"{path}: pictures need Pillow, which is not installed: pip install 'openqaic[images]'",
            code="run.pillow",
        ) from error

    def refuse(found: str, expected: str = "a picture") -> InputError:
        return InputError(f"{path}: found {found}, expected {expected}", code="run.input_file")

    height, width, channels, is_first = _layout(path, name, wanted)
    with open_regular(path) as file, library_errors(refuse), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            picture = Image.open(file)
        except UnidentifiedImageError as error:
            raise refuse("a file that Pillow cannot read") from error
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise refuse(f"more than {Image.MAX_IMAGE_PIXELS} pixels", "a smaller picture") from error
        if picture.mode.startswith(("I", "F")):
            raise refuse("more than 8 bits per channel", "a picture with 8 bits per channel")
        upright = ImageOps.exif_transpose(picture).convert(_MODES[channels])
        resized = upright.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(resized, np.float64).reshape(height, width, channels)
    for option, given in (("--mean", pixels.mean), ("--scale", pixels.scale)):
        if len(given) not in {1, channels}:
            raise InputError(
                f"{option}: found {len(given)} values, expected 1 or {channels}", code="run.picture"
            )
    with np.errstate(over="ignore"):
        values = (array - pixels.mean) / pixels.scale
    is_whole = wanted.dtype.kind in "iu"
    if is_whole or wanted.dtype.kind == "f":
        limits = np.iinfo(wanted.dtype) if is_whole else np.finfo(wanted.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise InputError(
                f"{path}: found pixels from {values.min():g} to {values.max():g}, expected values of "
                f"{wanted.dtype}; --mean and --scale change them",
                code="run.picture",
            )
    if is_whole:
        values = np.rint(values)
    if is_first:
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(values, wanted.shape).astype(wanted.dtype))


def _layout(path: Path, name: str, wanted: ShapeAndType) -> tuple[int, int, int, bool]:
    """Return height, width and channels of an input, and true if channels come first."""
    if len(wanted.shape) in {3, 4}:
        first, second, third = wanted.shape[-3:]
        if first in _MODES:
            return second, third, first, True
        if third in _MODES:
            return first, second, third, False
    raise InputError(
        f"{path}: input {name!r} has the shape {list(wanted.shape)}, expected 3 or 4 dimensions with 1 or 3 "
        "channels for a picture",
        code="run.picture",
    )
