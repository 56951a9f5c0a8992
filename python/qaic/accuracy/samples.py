"""Samples for the comparison of a model: arrays, a list of files, archives of arrays, or random numbers."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.compiler.calibration.dataset import (
    FileSource,
    RandomSource,
    Sample,
    SampledInput,
    SampleSource,
    archived,
    fitted,
    index_limits,
    is_archive,
)
from qaic.compiler.ir.model import Model
from qaic.errors import OptionError

#: input of prompts
TOKENS: Final = "input_ids"
_ARCHIVES: Final = "a folder of .npz files or one .npz file"
_PATHS: Final = f"an input list, {_ARCHIVES}, or random"
_OBJECTS: Final = "an iterable of dictionaries (name of an input -> array), or the path of samples"
_RANDOM: Final = "random"


class Samples:
    """Samples that can be read as often as needed.

    `given` is the user's value. Raises OptionError if the value has another form, or there are no samples.
    """

    def __init__(self, given: object) -> None:
        self._path: Path | None = None
        self._items: Sequence[object] = ()
        self.is_random = isinstance(given, str) and given == _RANDOM
        if self.is_random:
            return
        if isinstance(given, str | os.PathLike):
            self._path = Path(given)
            if not self._path.exists():
                raise _wrong(f"{str(given)!r}, which does not exist", _PATHS)
            if self._path.suffix.lower() == ".npy":
                raise _wrong(
                    f"{str(given)!r}, an array without the name of an input",
                    f"{_ARCHIVES}, which numpy.savez writes with the names of inputs",
                )
            if self._path.is_dir():
                self._items = sorted(self._path.glob("*.npz"))
                if not self._items:
                    raise _wrong(f"the folder {str(given)!r} without an .npz file", _PATHS)
            return
        if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
            raise _wrong(f"type {type(given).__name__}", _OBJECTS)
        self._items = given if isinstance(given, Sequence) else list(given)
        if not self._items:
            raise _wrong("no samples", _OBJECTS)

    @property
    def path(self) -> Path | None:
        """The input list or the ``.npz`` file, if the samples are one file."""
        return None if self.is_folder else self._path

    @property
    def is_folder(self) -> bool:
        """True for a folder of ``.npz`` files, whose samples depend on the shapes of the inputs."""
        return self._path is not None and self._path.is_dir()

    def calibration(self) -> dict[str, object]:
        """Return the compile options that calibrate with these samples, which must not be in a folder."""
        if self.is_random:
            return {"use_random_input_data": True}
        return {"input_list_file": self.path} if self.path is not None else {"calibration_data": self._items}

    @contextmanager
    def named_in_errors(self, given: Mapping[str, object]) -> Iterator[None]:
        """Name the samples in errors about an input list, which the compiler reads as another option.

        `given` are the compile options of the user.
        """
        option = "input_list_file"
        try:
            yield
        except OptionError as error:
            if error.context.get("given") == [TOKENS]:
                error.hints = ("`openqaic accuracy` takes prompts with --tokens N (tokens=N in Python)",)
            is_own = option not in given or error.context.get("file") == str(self._path)
            if not is_own or not error.message.startswith(option):
                raise
            message = f"samples{error.message.removeprefix(option)}"
            context = dict(error.context)
            raise OptionError(message, code="option.samples", context=context, hints=error.hints) from None

    def read(self, inputs: Sequence[SampledInput], model: Model) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the samples in the types of the program.

        Raises OptionError if a sample does not fit the model; the message names it.
        """
        source: SampleSource
        if self.is_random:
            source = RandomSource(inputs, "uniform", index_limits(model.proto.graph, model.facts.shapes))
            samples: Iterable[Sample] = source.samples()
        elif self.path is not None:
            samples = FileSource(self.path, inputs).samples()
        elif self._path is not None:
            samples = self._archived(inputs)
        else:
            samples = self._given()
        yield from (fitted("samples", sample, inputs) for sample in samples)

    def given(self) -> Iterator[Sample]:
        """Yield the samples unchanged, before they are compared with a model.

        Raises OptionError if they are files without names, for which a model must name the inputs.
        """
        is_list = self.path is not None and not is_archive(self.path)
        if is_list or self.is_random:
            found = f"the input list {str(self.path)!r}" if self.path else repr(_RANDOM)
            raise _wrong(found, f"{_ARCHIVES}, with the names of inputs")
        yield from self._archived(None) if self._path is not None else self._given()

    def _given(self) -> Iterator[Sample]:
        for number, item in enumerate(self._items, start=1):
            if not isinstance(item, Mapping):
                raise _wrong(f"type {type(item).__name__} as sample {number}", _OBJECTS)
            yield Sample(f"sample {number}", {str(name): np.asarray(array) for name, array in item.items()})

    def _archived(self, inputs: Sequence[SampledInput] | None) -> Iterator[Sample]:
        for file in self._items or [self._path]:
            path = Path(str(file))
            yield from archived(path, inputs, partial(_wrong_file, path))


def _wrong_file(path: Path, found: str, expected: str) -> OptionError:
    return _wrong(f"{str(path)!r}, {found}", expected)


def _wrong(found: str, expected: str) -> OptionError:
    return OptionError(f"samples: found {found}, expected {expected}", code="option.samples")
