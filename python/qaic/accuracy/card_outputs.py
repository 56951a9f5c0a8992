"""Compares outputs of a real card with those of the expected rounding.

The outputs are in one of these forms: a folder that ``qaic-runner --write-output-dir`` wrote, with files
``NAME-activation-A-inf-I.bin``, where ``I`` is the number of the sample; an ``.npz`` file whose arrays have
the names of outputs and, for several samples, a leading dimension; or a folder of such files, one for each
sample in the order of their names.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.decisions import Decide
from qaic.accuracy.decoding import Passage
from qaic.accuracy.metrics import OutputAccuracy, OutputSums
from qaic.errors import OptionError
from qaic.support.library_errors import library_errors
from qaic.support.open_regular import open_regular
from qaic.support.program_names import safe_name
from qaic.support.text import counted

_WRITTEN: Final = re.compile(r"(.+)-activation-([0-9]+)-inf-([0-9]+)\.bin", re.DOTALL)
#: ratio of the power of the card's error to that of rounding, above which rounding does not explain it: 3 dB
_MORE: Final = 2.0
#: additional share of decisions that may differ
_MORE_DECISIONS: Final = 0.01
#: SQNR in dB above which an error is too small to attribute it to a format
_EQUAL_DB: Final = 120.0
#: largest SQNR of outputs of other inputs, in dB above that between neighboring samples
_UNRELATED_DB: Final = 3.0


@dataclass(frozen=True, slots=True)
class CardAccuracy:
    """Errors of an output that is computed with the expected rounding, and on the card.

    Parameters
    ----------
    name
        Name of the output.
    rounded, card
        Errors against float32.
    apart
        Difference between the card and the expected rounding.
    neighbors
        Difference between the float32 outputs of neighboring samples.
    """

    name: str
    rounded: OutputAccuracy
    card: OutputAccuracy
    apart: OutputAccuracy
    neighbors: OutputAccuracy

    @property
    def is_unrelated(self) -> bool:
        """True if the error is as large as the difference between outputs of different samples."""
        return self.is_more and self.card.sqnr_db < self.neighbors.sqnr_db + _UNRELATED_DB < math.inf

    @property
    def is_more(self) -> bool:
        """True if the card loses more than the precision explains.

        The error must have more than twice the power of the rounding error (3 dB). For outputs with
        decisions, more than 1 % fewer decisions must also be equal.
        """
        if self.card.sqnr_db >= _EQUAL_DB or math.isnan(self.card.sqnr_db):
            return False
        is_noisier = self.card.sqnr_db < self.rounded.sqnr_db - 10 * math.log10(_MORE)
        if math.isnan(self.card.same) or self.card.sqnr_db < self.rounded.sqnr_db - 20:
            return is_noisier
        return is_noisier and self.card.same < self.rounded.same - _MORE_DECISIONS


class CardOutputs:
    """Outputs of a card by sample.

    `path` is the folder or file of the outputs; `decide` returns the decision of an output. Raises
    OptionError if the path contains no output of a card.
    """

    def __init__(self, path: str | os.PathLike[str], decide: Decide | None = None) -> None:
        self._path = Path(path)
        self._decide = decide
        if not self._path.exists():
            raise self._wrong("nothing", "a folder or an .npz file")
        self._archives: list[Path] = []
        #: output and number of the sample -> file
        self._files: dict[tuple[str, int], Path] = {}
        if self._path.is_dir():
            for file in sorted(self._path.iterdir()):
                written = _WRITTEN.fullmatch(file.name)
                if written is not None:
                    self._files[written[1], int(written[3])] = file
                elif file.suffix.lower() == ".npz":
                    self._archives.append(file)
            if not self._files and not self._archives:
                raise self._wrong(
                    "neither NAME-activation-A-inf-I.bin nor .npz files",
                    "the files that qaic-runner --write-output-dir writes",
                )
        self._stacked = None if self._path.is_dir() else _archive(self._path)
        #: the four sums of an output, in the order of `CardAccuracy`
        self._sums: dict[str, tuple[OutputSums, ...]] = {}
        #: output -> reference of the last sample
        self._last: dict[str, NDArray[Any]] = {}
        self._taken = 0
        #: number of inferences with outputs
        self._inferences = len({number for _, number in self._files}) or len(self._archives) or 1

    def _wrong(self, found: str, expected: str) -> OptionError:
        return OptionError(
            f"against: found {found} in {str(self._path)!r}, expected {expected}",
            code="option.accuracy_against",
        )

    def take(self, passage: Passage) -> None:
        """Compare the next sample. Raises OptionError if the card's output has another size or shape."""
        number, self._taken = self._taken, self._taken + 1
        given: Mapping[str, NDArray[Any]] = {}
        if self._archives:
            given = _archive(self._archives[number]) if number < len(self._archives) else {}
        for name, reference in passage.reference.items():
            if name not in self._sums:
                self._sums[name] = tuple(OutputSums(name, self._decide) for _ in range(4))
            sums = self._sums[name]
            last, self._last[name] = self._last.get(name), reference
            if last is not None and last.shape == reference.shape:
                sums[3].add(reference, last)
            found = self._found(name, number, reference, given)
            if found is None:
                continue
            rounded = passage.deployed[name]
            sums[0].add(reference, rounded)
            sums[1].add(reference, found)
            sums[2].add(rounded, found)

    def _found(
        self, name: str, number: int, reference: NDArray[Any], given: Mapping[str, NDArray[Any]]
    ) -> NDArray[Any] | None:
        """Return the output of the card; None if it is missing."""
        file = self._files.get((safe_name(name), number))
        if file is not None:
            return self._read(file, name, reference)
        array = given.get(name)
        if self._stacked is not None and name in self._stacked:
            array = self._stacked[name]
            if array.ndim == reference.ndim + 1:
                self._inferences = len(array)
                if number >= len(array):
                    return None
                array = array[number]
            elif number:
                return None
        if array is not None and array.shape != reference.shape:
            raise self._wrong(
                f"{name!r} of shape {list(array.shape)}", f"{list(reference.shape)} for sample {number + 1}"
            )
        return array

    def _read(self, file: Path, name: str, reference: NDArray[Any]) -> NDArray[Any]:
        size = file.stat().st_size
        types = [reference.dtype, *([np.dtype(np.float16)] if reference.dtype == np.float32 else [])]
        for dtype in types:
            if size == reference.size * dtype.itemsize:
                found: NDArray[Any] = np.fromfile(file, dtype).reshape(reference.shape)
                return found
        sizes = " or ".join(str(reference.size * dtype.itemsize) for dtype in types)
        raise self._wrong(f"{size} bytes of {name!r} as {file.name}", f"{sizes} bytes")

    def result(self) -> tuple[CardAccuracy, ...]:
        """Return the comparison of every output of the card.

        Raises OptionError if all outputs are missing.
        """
        found = {name: sums for name, sums in self._sums.items() if sums[1].samples}
        if not found:
            raise self._wrong(
                f"no output of the {counted(self._taken, 'sample')}",
                "outputs by their names, for the same samples",
            )
        return tuple(CardAccuracy(name, *(one.result() for one in sums)) for name, sums in found.items())

    def difference_in_number(self) -> Sequence[str]:
        """Return a sentence if samples have no output of the card, or outputs have no sample."""
        number = max(sums[1].samples for sums in self._sums.values())
        if number == self._taken == self._inferences:
            return ()
        compared = f"{number} of {counted(self._taken, 'sample')} compared"
        return (f"{compared}: the card's outputs belong to {counted(self._inferences, 'inference')}.",)


def _archive(path: Path) -> dict[str, NDArray[Any]]:
    def refuse(found: object) -> OptionError:
        return OptionError(
            f"against: found {str(path)!r}, which cannot be read as .npz ({found}), expected arrays by name",
            code="option.accuracy_against",
        )

    try:
        with open_regular(path) as file, library_errors(refuse), np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise refuse(error) from error
