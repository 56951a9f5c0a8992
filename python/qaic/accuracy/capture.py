"""Running the instrumented graph over samples, and adding up what comes out of it."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic import _core
from qaic.accuracy.instrument import FIELDS, REFERENCE, STATISTICS, ZERO, Observe
from qaic.accuracy.metrics import OutputSums
from qaic.compiler.backend.cpu.qpc_writer import write_unchecked
from qaic.compiler.calibration.observed_tensors import model_inputs
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.driver import opened
from qaic.compiler.pipeline import PHASES, begin, run_passes
from qaic.errors import OptionError
from qaic.options.models import CompileOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from qaic.accuracy.instrument import Twin
    from qaic.accuracy.metrics import OutputAccuracy
    from qaic.accuracy.observed import ObservedNode
    from qaic.accuracy.samples import Samples
    from qaic.compiler.calibration.dataset import SampledInput
    from qaic.compiler.ir.model import Model

    ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto

#: fields whose largest value over all samples counts; of the smallest it is the smallest, others are added
_LARGEST: Final = frozenset({"maximum", "quantile", "channel_median", "channel_maximum"})


@dataclass(slots=True)
class Capture:
    """What was measured with one precision.

    Parameters
    ----------
    nodes
        What was observed, in the order of the graph.
    sums
        One row for each node, with the columns of `FIELDS`.
    outputs
        Errors of the outputs.
    samples
        Number of samples.
    """

    nodes: Sequence[ObservedNode]
    sums: NDArray[np.float64]
    outputs: tuple[OutputAccuracy, ...]
    samples: int


class InstrumentedProgram:
    """A loaded program that computes the reference beside the deployed program."""

    def __init__(self, path: Path, twin: Twin, inputs: Sequence[SampledInput], reference: Model) -> None:
        self.twin = twin
        self.inputs = inputs
        self.reference = reference
        self._set = load(path)
        self._zero = {ZERO: np.zeros(1, np.float32)}
        self._has_zero = any(edge == ZERO for edge in twin.added_inputs)

    def samples(self, given: Samples) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield samples as the program takes them; raises an OptionError for one that does not fit."""
        return given.read(self.inputs, self.reference)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one sample; returns all outputs, those of the reference under `REFERENCE` and the name.

        Blocking, without the interpreter lock; Ctrl-C ends it.
        """
        given = {**arrays, **{REFERENCE + name: array for name, array in arrays.items()}}
        if self._has_zero:
            given |= self._zero
        return self._set.run(given, None, None, None)


def load(path: Path) -> _core.InferenceSet:
    """Load a program of this host's own virtual card."""
    return _core.InferenceSet(_core.Context.own_cpu(), _core.Qpc(str(path)), [0], 1, 1, _refit)


@contextlib.contextmanager
def instrumented(model: ModelSource, options: CompileOptions) -> Iterator[InstrumentedProgram]:
    """Compile a model with everything that is observed, and load it; its files are removed afterwards.

    Raises
    ------
    CompileError
        The model cannot be compiled.
    OptionError
        An option contradicts the model, or changes the border of the program, which is not compared.
    """
    if options.custom_io_list_file:
        raise OptionError(
            "custom_io_list_file: accuracy compares the outputs of the model, which this option changes; "
            "leave it out",
            code="option.accuracy_custom_io",
            context={"options": ["custom_io_list_file"]},
        )
    with tempfile.TemporaryDirectory(prefix="openqaic-accuracy-") as folder:
        path = Path(folder, "program.bin")
        with opened(model) as source, Progress("comparing") as progress:
            deployed, context = begin(source, options, progress)
            for phase in ("legalize", "shapes", "precision"):
                run_passes(PHASES[phase], deployed, context)
            reference = deployed.copy()
            inputs = model_inputs(reference, has_state=options.retained_state)
            observe = Observe(reference)
            run_passes(
                [*PHASES["quantize"], *PHASES["emulate"], observe, *PHASES["interface"]], deployed, context
            )
            plain = CompileOptions(
                retained_state=options.retained_state,
                combine_outputs=False,
                aic_num_cores=options.aic_num_cores,
            )
            progress.stage("write")
            write_unchecked(path, deployed, plain)
        yield InstrumentedProgram(path, observe.twin, inputs, reference)


def capture(model: ModelSource, options: CompileOptions, samples: Samples) -> Capture:
    """Run all samples through the instrumented graph.

    Blocking; Ctrl-C ends it and leaves nothing behind. One sample is in memory at a time.

    Raises
    ------
    CompileError
        The model cannot be compiled.
    OptionError
        A sample does not fit the model, or there is none.
    """
    with instrumented(model, options) as program:
        total = Totals(program.twin)
        for arrays in program.samples(samples):
            total.add(program.run(arrays))
        return total.result()


@dataclass(slots=True)
class Totals:
    """Sums over samples."""

    twin: Twin
    samples: int = 0
    sums: NDArray[np.float64] = field(init=False)
    outputs: dict[str, OutputSums] = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros((len(self.twin.nodes), len(FIELDS)))
        self.outputs = {name: OutputSums(name) for name in self.twin.outputs}

    def add(self, found: Mapping[str, NDArray[Any]]) -> None:
        """Take what one run of the instrumented program gave."""
        rows = found[STATISTICS][: len(self.twin.nodes)].astype(np.float64)
        for at, name in enumerate(FIELDS):
            column, total = rows[:, at], self.sums[:, at]
            if name == "minimum":
                self.sums[:, at] = np.fmin(total, column) if self.samples else column
            elif name in _LARGEST:
                self.sums[:, at] = np.fmax(total, column) if self.samples else column
            else:
                self.sums[:, at] += column
        for name, sums in self.outputs.items():
            # State stays on the device; its errors are those of the nodes that make it.
            if name in found:
                sums.add(found[REFERENCE + name], found[name])
        self.samples += 1

    def result(self) -> Capture:
        """Return what was measured.

        Raises
        ------
        OptionError
            There was no sample.
        """
        if not self.samples:
            raise OptionError("samples: found no samples, expected at least one", code="option.samples")
        outputs = tuple(sums.result() for sums in self.outputs.values() if sums.samples)
        return Capture(self.twin.nodes, self.sums, outputs, self.samples)


def with_kept(options: CompileOptions, names: Sequence[str]) -> CompileOptions:
    """Return the options with nodes in float32, beside those that are there already."""
    from qaic.options.files.node_precision import NodePrecision

    lists = options.node_precision_info_file or NodePrecision()
    single = tuple(dict.fromkeys((*lists.fp32, *names)))
    half = tuple(name for name in lists.fp16 if name not in set(names))
    return replace(options, node_precision_info_file=NodePrecision(half, single))


def _refit(name: str, value: object, dtype: str, shape: Sequence[int], partial: bool) -> NDArray[Any]:  # noqa: FBT001
    """Make an array that was checked before one the runtime takes in place."""
    del name, partial
    return np.require(np.asarray(value, np.dtype(dtype)), requirements=["C", "A"]).reshape(tuple(shape))
