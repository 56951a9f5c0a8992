"""Runs the instrumented graph on samples and accumulates its results."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.decisions import Decide
from qaic.accuracy.decoding import Decoder, DecodingAccuracy, Passage, cache_accuracy, decoded, steps_of
from qaic.accuracy.instrument import FIELDS, OBSERVED, REFERENCE, ZERO
from qaic.accuracy.metrics import Histograms, OutputAccuracy, OutputSums
from qaic.accuracy.observed import ObservedNode, Twin
from qaic.accuracy.prepared import ModelSource, PreparedModel, prepared
from qaic.accuracy.remedies import Calibration
from qaic.accuracy.samples import Samples
from qaic.compiler.backend.engine_refusal import raise_with_node
from qaic.compiler.cache import open_cache
from qaic.compiler.calibration.collector import load_program, model_inputs
from qaic.compiler.calibration.dataset import SampledInput
from qaic.compiler.ir.model import Model
from qaic.errors import DeviceError, OptionError
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: fields that keep their largest value over all samples; "minimum" keeps the smallest, and others are summed
_LARGEST: Final = frozenset({"maximum", "quantile", "channel_median", "channel_maximum"})


@dataclass(slots=True)
class Capture:
    """Measurements with one precision."""

    #: Observed nodes and other parts of the instrumented model.
    twin: Twin
    #: One row for each node, with the columns of `FIELDS`.
    sums: NDArray[np.float64]
    #: Errors of the outputs.
    outputs: tuple[OutputAccuracy, ...]
    #: Number of samples or prompts, and of inferences.
    samples: int
    runs: int
    #: Values of the rounded nodes.
    histograms: Histograms
    #: Differences of tokens; None if the model generates none.
    decoding: DecodingAccuracy | None = None
    #: Options of the program, for remedies; None without remedies.
    calibration: Calibration | None = None

    @property
    def nodes(self) -> Sequence[ObservedNode]:
        """Observed nodes, in the order of the graph."""
        return self.twin.nodes


class InstrumentedProgram:
    """A loaded program that computes the reference together with the deployed program."""

    def __init__(self, path: Path, twin: Twin, inputs: Sequence[SampledInput], reference: Model) -> None:
        self.twin = twin
        self.inputs = inputs
        self.reference = reference
        try:
            self._set = load_program(path)
        except DeviceError as error:
            raise_with_node(error, reference)
        self._zero = {ZERO: np.zeros(1, np.float32)}
        self._has_zero = any(edge == ZERO for edge in twin.added_inputs)

    def samples(self, given: Samples) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield samples in the types of the program. Raises OptionError if a sample does not fit."""
        return given.read(self.inputs, self.reference)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one sample; returns all outputs, those of the reference under `REFERENCE` and the name.

        Blocking, without the interpreter lock; Ctrl-C ends it.
        """
        given = {**arrays, **{REFERENCE + name: array for name, array in arrays.items()}}
        if self._has_zero:
            given |= self._zero
        return self._set.run(given, None, None, None)

    def passages(self, samples: Samples, tokens: int | None, total: "Totals") -> Iterator[Passage]:
        """Run all passages, one after the other, and add the sums of nodes to `total`.

        Raises OptionError if a sample does not fit the model.
        """
        if tokens is None:
            for arrays in self.samples(samples):
                found = self.run(arrays)
                total.add(found)
                reference = {
                    name.removeprefix(REFERENCE): array
                    for name, array in found.items()
                    if name.startswith(REFERENCE)
                }
                deployed = {name: found[name] for name in reference}
                passage = Passage([(arrays, None)], 1, reference, deployed)
                total.end(passage)
                yield passage
            return
        decoder = Decoder(self.inputs, self.reference)

        def run(feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            found = self.run(feed)
            total.add(found)
            return found

        for prompt in decoder.prompts(samples, tokens):
            passage = decoded(decoder, prompt, tokens, run, REFERENCE)
            total.end(passage)
            yield passage


@contextlib.contextmanager
def instrumented(model: ModelSource, options: CompileOptions) -> Iterator[InstrumentedProgram]:
    """Compile a model with all observers, and load it; its files are removed afterwards.

    Raises CompileError if the model cannot be compiled, and OptionError if an option contradicts the model or
    changes the inputs or outputs of the program, which is not supported.
    """
    with prepared(model, options, "comparing") as source, loaded(source) as program:
        yield program


@contextlib.contextmanager
def loaded(source: PreparedModel) -> Iterator[InstrumentedProgram]:
    """Load the instrumented program of a model; its files are removed afterwards."""
    with open_cache().work_folder() as folder:
        path = folder / "program.bin"
        twin, reference = source.write_instrumented(path)
        inputs = model_inputs(reference, has_state=source.options.retained_state)
        source.progress.stage("run")
        yield InstrumentedProgram(path, twin, inputs, reference)


def capture(
    model: ModelSource,
    options: CompileOptions,
    samples: Samples,
    tokens: int | None = None,
    *,
    keep: Callable[[Passage], None] | None = None,
    decide: Decide | None = None,
) -> Capture:
    """Run all samples through the instrumented graph.

    Blocking; Ctrl-C ends it and leaves nothing behind. One passage is in memory at a time.

    `tokens` is the number of tokens that a decoder generates; None for other models. `keep` gets every
    passage. `decide` returns the decisions of an output; None selects the largest of its last dimension.
    Raises CompileError if the model cannot be compiled, and OptionError if a sample does not fit the model,
    or there is none.
    """
    with prepared(model, options, "comparing") as source, loaded(source) as program:
        total = Totals(program.twin, decide)
        for number, passage in enumerate(program.passages(samples, tokens, total), 1):
            source.progress.count(number, None, "sample")
            if keep is not None:
                keep(passage)
        return total.result()


class Split:
    """Splits the output of the instrumented program into its parts. `elements` is `Twin.elements`."""

    def __init__(self, elements: Sequence[int]) -> None:
        sizes = len(FIELDS) + 2 * np.array(elements, np.int64)
        begins = np.cumsum(sizes) - sizes
        self._sums = begins[:, None] + np.arange(len(FIELDS))
        self._is_element = np.ones(sizes.sum(), np.bool_)
        self._is_element[self._sums] = False

    def __call__(self, observed: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the sums, a row of `FIELDS` for each node, and the elements of all nodes."""
        flat = observed.reshape(-1)[: len(self._is_element)]
        return flat[self._sums], flat[self._is_element]


class Totals:
    """Sums over samples. `twin` names the observed nodes; `decide` returns the decision of an output."""

    def __init__(self, twin: Twin, decide: Decide | None = None) -> None:
        self._twin = twin
        self._decide = decide
        self._samples = self._runs = 0
        self._sums = np.zeros((len(twin.nodes), len(FIELDS)))
        self._outputs: dict[str, OutputSums] = {}
        self._last: NDArray[np.float64] = self._sums
        self._caches = [at for at, node in enumerate(twin.nodes) if node.name.endswith(RETAINED_STATE_SUFFIX)]
        self._cache_sums = np.zeros((len(self._caches), len(FIELDS)))
        self._steps: list[NDArray[np.void]] = []
        self._histograms = Histograms(twin.elements)
        self._split = Split(twin.elements)

    def add(self, found: Mapping[str, NDArray[Any]]) -> None:
        """Add the results of one run of the instrumented program."""
        sums, elements = self._split(found[OBSERVED])
        rows = sums.astype(np.float64)
        for at, name in enumerate(FIELDS):
            column, total = rows[:, at], self._sums[:, at]
            if name == "minimum":
                self._sums[:, at] = np.fmin(total, column) if self._runs else column
            elif name in _LARGEST:
                self._sums[:, at] = np.fmax(total, column) if self._runs else column
            else:
                self._sums[:, at] += column
        self._histograms.add(elements)
        self._last = rows
        self._runs += 1

    def end(self, passage: Passage) -> None:
        """Add the outputs at the end of a passage; state stays on the device and has separate rows."""
        for name, array in passage.reference.items():
            self._outputs.setdefault(name, OutputSums(name, self._decide)).add(array, passage.deployed[name])
        if passage.feeds[0][1] is not None:
            steps = steps_of([passage])
            steps["prompt"] = self._samples
            self._steps.append(steps)
            self._cache_sums += self._last[self._caches]
        self._samples += 1

    def result(self) -> Capture:
        """Return the measurements. Raises OptionError if there was no sample."""
        if not self._samples:
            raise OptionError("samples: found no samples, expected at least one", code="option.samples")
        decoding = None
        if self._steps:
            signal, noise = (self._cache_sums[:, FIELDS.index(name)] for name in ("signal", "inherited"))
            names = [self._twin.nodes[at].name for at in self._caches]
            caches = cache_accuracy(names, signal.tolist(), noise.tolist())
            decoding = DecodingAccuracy(len(self._steps[0]), np.concatenate(self._steps), caches)
        outputs = tuple(sums.result() for sums in self._outputs.values())
        return Capture(self._twin, self._sums, outputs, self._samples, self._runs, self._histograms, decoding)
