"""Runs the instrumented program on samples and collects the values of its tensors.

Each sample is one inference on one thread of the engine, whatever the number of workers, and only sums of
integers are kept: results depend neither on the order of samples nor on threads. Only one sample per worker
is in memory.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from os import sched_getaffinity
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.compiler.calibration.dataset import Sample, SampledInput, SampleSource, fitted
from qaic.compiler.calibration.observed_tensors import ObservedTensors, model_inputs
from qaic.compiler.diagnostics.compile_error import listing, refuse
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.diagnostics.record import warn
from qaic.compiler.frontend import specialization, validation
from qaic.compiler.ir.constants import initializers
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.graph_edits import add_output
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.quantization import TensorProfile
from qaic.compiler.passes.emulation.emulate_float16 import round_as_model
from qaic.compiler.passes.legalize.legalize_exports import legalize_captured_values, read_masks
from qaic.compiler.passes.shape_inference.dynamic_shapes import infer_specializations
from qaic.errors import CompileError, InferenceError
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX


def write_instrumented(path: Path, model: Model, context: Context, results: Sequence[str]) -> int:
    """Write a container that computes the model in its own precision and hands out more than its outputs.

    `results` of nodes become outputs, as far as they are none yet. The file must not exist; `model` is not
    changed. Returns the bytes of all outputs of one inference.
    """
    observed = model.copy()
    graph = observed.proto.graph
    outputs = {value.name for value in graph.output}
    for name in results:
        if name not in outputs:
            value = add_output(graph, name)
            value.type.tensor_type.elem_type = model.facts.types[name]
    observed.specialized, observed.known = infer_specializations(observed)
    round_as_model(observed, context.options.aic_hw_version)
    legalize_captured_values(observed.proto, observed.facts.types)
    read_masks(observed.proto)
    validation.drop_unused(observed.proto, observed.weights)
    initializers.externalize_constants(observed.proto, observed.weights)
    specialization.fix_interface(observed.proto, observed.specialized)
    observed.name = graph.name or "unnamed"
    # One buffer for all outputs could be larger than a buffer may be.
    plain = CompileOptions(retained_state=context.options.retained_state, combine_outputs=False)
    context.write_program(path, observed, plain)
    return sum(edge.nbytes for edge in observed.outputs)


#: of the virtual device
_CORES: Final = 16
#: most bytes of outputs of all workers together; the number of workers follows from it
_MOST_BYTES: Final = 1 << 30


class RangeRecord:
    """Smallest and largest value, where no histogram is needed. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minimum = np.inf
        self._maximum = -np.inf

    def add(self, array: NDArray[np.float32]) -> None:
        """Take the values of one sample; refuses NaN and infinity with a ValueError."""
        if not array.size:
            return
        # Minimum and maximum both propagate NaN.
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError("not finite")
        with self._lock:
            self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)

    def profile(self, bins: int) -> TensorProfile | None:
        """Make the profile; None when there were no values."""
        del bins
        return None if self._minimum > self._maximum else TensorProfile(self._minimum, self._maximum)


class HistogramRecord:
    """Range and histogram. Any thread may call any method."""

    def __init__(self) -> None:
        self._histogram = _core.TensorHistogram()

    def add(self, array: NDArray[np.float32]) -> None:
        """Take the values of one sample; refuses NaN and infinity with a ValueError."""
        self._histogram.add(array)

    def profile(self, bins: int) -> TensorProfile | None:
        """Make the profile; None when there were no values."""
        found = self._histogram
        return TensorProfile(found.minimum, found.maximum, found.counts(bins)) if found.count else None


def _not_a_number(name: str, place: str, values: NDArray[np.float32]) -> CompileError:
    return refuse(
        f"tensor {name!r} in {place}",
        code="calibration_not_finite",
        found=f"{int(np.isnan(values).sum())} NaN of {values.size} values",
        expected="numbers, because a range is measured",
        fix="use realistic samples, or keep the operators around this tensor in a float "
        "precision: node_precision_info_file, keep_original_precision_for_nodes",
        context={"tensor": name},
    )


def collect(
    model: Model, context: Context, measured: ObservedTensors, source: SampleSource, *, with_histograms: bool
) -> dict[str, TensorProfile]:
    """Run every sample and return the profiles of the measured tensors whose values are finite.

    Blocking, without the interpreter lock for most of the time; Ctrl-C ends it and leaves nothing behind.
    Raises CompileError if a tensor holds NaN, and OptionError if a sample does not fit the model, or there is
    none.
    """
    with context.work_folder() as folder:
        path = folder / "program.bin"
        output_bytes = write_instrumented(path, model, context, measured.results)
        options = context.options
        inputs = model_inputs(model, has_state=options.retained_state)
        kind = HistogramRecord if with_histograms else RangeRecord
        records = {name: kind() for name in (*measured.inputs, *measured.results)}
        workers = workers_of(inputs, output_bytes, options)
        run = _Run(inputs, measured, source, records, context.progress)
        run.run(path, workers)
    if run.infinite:
        warn(
            "calibration.infinite_values",
            "%s: %d of %d tensors are partly infinite (%s), which have no range; the nodes around them stay "
            "in floating point",
            source.option,
            len(run.infinite),
            len(records),
            listing(sorted(run.infinite)),
            nodes=sorted(run.infinite),
        )
    finite = {name: record for name, record in records.items() if name not in run.infinite}
    profiles = {name: record.profile(options.num_histogram_bins) for name, record in finite.items()}
    return {name: profile for name, profile in profiles.items() if profile is not None}


def workers_of(inputs: Sequence[SampledInput], output_bytes: int, options: CompileOptions) -> int:
    """Return the number of parallel samples; one with state, because the next sample would read it."""
    if any(item.is_state for item in inputs):
        return 1
    wanted = options.profiling_threads or len(sched_getaffinity(0))
    return max(1, min(wanted, _CORES, _MOST_BYTES // max(output_bytes, 1)))


@dataclass(eq=False)
class _Run:
    _inputs: Sequence[SampledInput]
    _measured: ObservedTensors
    _source: SampleSource
    _records: Mapping[str, RangeRecord | HistogramRecord]
    _progress: Progress
    #: tensors that held an infinite value in any sample
    infinite: set[str] = field(init=False, default_factory=set)

    def run(self, path: Path, workers: int) -> None:
        programs = load_program(path, workers)
        if not (self._one_by_one(programs) if workers == 1 else self._side_by_side(programs, workers)):
            raise refuse(
                self._source.option,
                code="no_samples",
                found="no samples",
                expected="at least one",
                fix="use realistic samples",
            )

    def _samples(self) -> Iterator[tuple[int, Sample, dict[str, NDArray[Any]]]]:
        for number, sample in enumerate(self._source.samples()):
            yield number, sample, fitted(self._source.option, sample, self._inputs)
            self._progress.count(number + 1, self._source.count, "sample")

    def _one_by_one(self, programs: _core.InferenceSet) -> int:
        """Run on this thread, where a signal interrupts an inference at once."""
        done = 0
        states = {item.name: item for item in self._inputs if item.is_state}
        wanted = list(
            dict.fromkeys((*self._measured.results, *(f"{name}{RETAINED_STATE_SUFFIX}" for name in states)))
        )
        kept: Mapping[str, NDArray[Any]] = {}
        for number, sample, arrays in self._samples():
            with self._told(sample):
                outputs = programs.run(arrays, None, wanted, None)
            given = dict(arrays)
            for name, item in states.items():
                # The state that the device used: zero at first, then the state after the previous sample.
                given.setdefault(
                    name, kept.get(f"{name}{RETAINED_STATE_SUFFIX}", np.zeros(item.shapes[0], item.dtype))
                )
            self._take(number, sample, given, outputs)
            kept = {
                f"{name}{RETAINED_STATE_SUFFIX}": outputs[f"{name}{RETAINED_STATE_SUFFIX}"] for name in states
            }
            done += 1
        return done

    def _side_by_side(self, programs: _core.InferenceSet, workers: int) -> int:
        done = 0
        in_flight: deque[tuple[Future[None], _core.Inference]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                for number, sample, arrays in self._samples():
                    inference = programs.prepare(arrays)
                    # The iterator of samples may reuse the memory of this sample for the next.
                    inputs = {name: arrays[name].copy() for name in self._measured.inputs}
                    future = pool.submit(self._run_one, inference, number, sample, inputs)
                    in_flight.append((future, inference))
                    if len(in_flight) > workers:
                        in_flight.popleft()[0].result()
                        done += 1
                while in_flight:
                    in_flight[0][0].result()
                    in_flight.popleft()
                    done += 1
            finally:
                for future, inference in in_flight:
                    future.cancel()
                    inference.cancel()
        return done

    def _run_one(
        self, inference: _core.Inference, number: int, sample: Sample, inputs: Mapping[str, NDArray[Any]]
    ) -> None:
        with self._told(sample):
            inference.start()
            outputs = inference.result()
        self._take(number, sample, inputs, outputs)

    @contextlib.contextmanager
    def _told(self, sample: Sample) -> Iterator[None]:
        """Add the sample that the engine could not compute to an error."""
        try:
            yield
        except InferenceError as error:
            raise refuse(
                f"{self._source.option}, {sample.place}",
                code="calibration_failed",
                found=f"inputs on which the model fails ({error.message})",
                expected="realistic inputs",
                fix="give samples with input_list_file or calibration_data; random data does not suit inputs "
                "that hold shapes or axes",
            ) from error

    def _take(
        self,
        number: int,
        sample: Sample,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
    ) -> None:
        for name in self._measured.inputs:
            self._add(name, inputs[name], sample)
        for name in self._measured.results:
            if number == 0 or name not in self._measured.fixed:
                self._add(name, outputs[name], sample)

    def _add(self, name: str, array: NDArray[Any], sample: Sample) -> None:
        values = np.ascontiguousarray(array, np.float32)
        try:
            self._records[name].add(values)
        except ValueError:
            if np.isnan(values).any():
                raise _not_a_number(name, sample.place, values) from None
            self.infinite.add(name)


def load_program(path: Path, workers: int = 1) -> _core.InferenceSet:
    """Load a program on a virtual card of this process, for so many inferences at a time. Blocking."""
    return _core.InferenceSet(_core.Context.own_cpu(), _core.Qpc(str(path)), [0], 1, workers, _refit)


def _refit(name: str, value: object, dtype: str, shape: Sequence[int], partial: bool) -> NDArray[Any]:  # noqa: FBT001
    """Convert a checked array to one that the runtime reads in place."""
    del name, partial
    return np.require(np.asarray(value, np.dtype(dtype)), requirements=["C", "A"]).reshape(tuple(shape))
