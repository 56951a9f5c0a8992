"""Chooses the tensors to measure, runs the instrumented program on samples, and collects their values.

The measured graph is in float32, without assigned precisions. Each sample is one inference on one thread of
the engine, for any number of workers, and only integers are summed. Results therefore depend neither on the
order of samples nor on threads. Only one sample per worker is in memory.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import sched_getaffinity
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic import _core
from qaic.compiler.calibration.dataset import Sample, SampledInput, SampleSource, fitted
from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend import specialization, validation
from qaic.compiler.ir.constants.in_graph import externalize_constants
from qaic.compiler.ir.elem_types import FLOAT, FLOAT16
from qaic.compiler.ir.graph_edits import add_output, set_shape
from qaic.compiler.ir.graph_walk import RANDOM, STANDARD_DOMAINS, subgraphs, uses
from qaic.compiler.ir.model import Context, Model
from qaic.compiler.ir.quantization import (
    CalibrationExample,
    CalibrationProfile,
    TensorProfile,
    operands,
    quantizable,
    results,
)
from qaic.compiler.passes.emulation.emulate_float16 import round_as_model
from qaic.compiler.passes.legalize.legalize_exports import legalize_captured_values, read_masks
from qaic.compiler.passes.legalize.legalize_narrow_casts import legalize_narrow_casts
from qaic.compiler.passes.legalize.legalize_padding import separate_pads
from qaic.compiler.passes.legalize.legalize_quantized_chains import legalize_quantized_chains
from qaic.compiler.passes.legalize.legalize_recurrent import legalize_recurrent
from qaic.compiler.passes.shape_inference.infer_shapes import infer_specializations
from qaic.errors import CompileError, InferenceError
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX
from qaic.support.text import counted

#: operators whose first result holds exactly the values of the first input, each as often as before
_REARRANGING: Final = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)

#: operators that limit values; limiting their operand earlier gives the same result
_LIMITING: Final = frozenset({"Clip", "Relu"})

#: types of tensors that are measured
_MEASURABLE: Final = frozenset({FLOAT, FLOAT16})


def model_inputs(model: Model, *, has_state: bool) -> list[SampledInput]:
    """List the inputs of a float graph that samples fill."""
    outputs = {spec.name for spec in model.outputs}
    return [
        SampledInput(
            spec.name,
            np.dtype(spec.dtype),
            tuple(specialization.inputs[at] for specialization in model.specializations)
            if model.specializations
            else (spec.dims,),
            is_state=has_state and f"{spec.name}{RETAINED_STATE_SUFFIX}" in outputs,
        )
        for at, spec in enumerate(model.inputs)
    ]


@dataclass(slots=True)
class ObservedTensors:
    """The measured tensors, and the tensors that each measurement applies to."""

    #: results of nodes, which become outputs of the instrumented graph
    results: list[str] = field(default_factory=list)
    #: inputs of the graph
    inputs: list[str] = field(default_factory=list)
    #: results computed from constants alone, which are the same for every sample
    fixed: set[str] = field(default_factory=set)
    #: tensor -> the measured tensor that represents it, with the same values, or with the values that remain
    #: after a Relu or Clip that is the only reader. So a Conv and its Relu stay one unit.
    same: dict[str, str] = field(default_factory=dict)


def choose(model: Model, float_nodes: set[str]) -> ObservedTensors:
    """Choose the tensors to measure: operands and results of quantizable nodes, except constants.

    `float_nodes` stay in a float precision in any case; they are named by their first output.
    """
    wanted: dict[str, None] = {}
    for node in model.proto.graph.node:
        if not quantizable(node) or next((name for name in node.output if name), "") in float_nodes:
            continue
        wanted |= dict.fromkeys(node.input[at] for at in operands(node))
        wanted |= dict.fromkeys(node.output[at] for at in results(node))
    constants = model.constants()
    derived = _derived(model.proto.graph, constants)
    source = _sources(model.proto.graph, constants)
    limiters = limiting_readers(model.proto.graph, constants)
    inputs = [spec.name for spec in model.interface.inputs]
    chosen = ObservedTensors()
    known = set(inputs)
    for name in wanted:
        if name in constants or model.facts.types.get(name) not in _MEASURABLE:
            continue
        at = name
        while at in source and source[at] not in constants and _is_measurable(model, source[at]):
            at = source[at]
        while at in limiters and _is_measurable(model, limiters[at].output[0]):
            at = limiters[at].output[0]
        if at not in known and not _is_measurable(model, at):
            continue
        chosen.same[name] = at
    used = set(chosen.same.values())
    chosen.inputs = [name for name in inputs if name in used]
    chosen.results = [
        name for node in model.proto.graph.node for name in node.output if name in used and name not in known
    ]
    chosen.fixed = used & derived
    return chosen


def _is_measurable(model: Model, name: str) -> bool:
    """Return True if a value can be an output of a program."""
    return model.facts.types.get(name) in _MEASURABLE and len(model.facts.shapes.get(name, range(9))) <= 8


def _sources(graph: onnx.GraphProto, constants: set[str]) -> dict[str, str]:
    """Map results of nodes that only rearrange values to their operands."""
    return {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.domain in STANDARD_DOMAINS
        and node.op_type in _REARRANGING
        and node.input
        and node.input[0] not in constants
    }


def limiting_readers(graph: onnx.GraphProto, constants: set[str]) -> dict[str, onnx.NodeProto]:
    """Map values that only a Relu, or a Clip with constant bounds, reads to that node."""
    count = uses(graph)
    results = {name for node in graph.node for name in node.output}
    return {
        node.input[0]: node
        for node in graph.node
        if node.domain in STANDARD_DOMAINS
        and node.op_type in _LIMITING
        and all(not name or name in constants for name in node.input[1:])
        and count[node.input[0]] == 1
        and node.input[0] in results - constants
    }


def _derived(graph: onnx.GraphProto, constants: set[str]) -> set[str]:
    """Collect the results that are computed from constants alone."""
    known = set(constants)
    for node in graph.node:
        if (
            node.op_type not in RANDOM
            and not any(subgraphs(node))
            and all(not name or name in known for name in node.input)
        ):
            known.update(node.output)
    return known - constants


def write_instrumented(path: Path, model: Model, context: Context, results: Sequence[str]) -> int:
    """Write a container that computes the model in its own precision, with additional outputs.

    `results` of nodes become outputs, unless they already are. The file must not exist; `model` is not
    changed. Returns the bytes of all outputs of one inference.
    """
    observed = model.copy()
    graph = observed.proto.graph
    outputs = {value.name for value in graph.output}
    for name in results:
        if name not in outputs:
            value = add_output(graph, name)
            value.type.tensor_type.elem_type = model.facts.types[name]
            if name in model.facts.shapes:
                set_shape(value, (None if size < 0 else size for size in model.facts.shapes[name]))
    if results:
        observed.specialized, observed.known = infer_specializations(observed)
    round_as_model(observed, context.options.aic_hw_version)
    legalize_narrow_casts(observed.proto, observed.facts.types)
    legalize_captured_values(observed.proto, observed.facts.types)
    read_masks(observed.proto)
    separate_pads(observed.proto)
    legalize_recurrent(observed.proto)
    legalize_quantized_chains(observed.proto, observed.facts)
    validation.drop_unused(observed.proto, observed.weights)
    externalize_constants(observed.proto, observed.weights)
    specialization.fix_interface(observed.proto, observed.specialized)
    observed.name = graph.name or "unnamed"
    # One buffer for all outputs could be larger than a buffer may be.
    plain = CompileOptions(retained_state=context.options.retained_state, combine_outputs=False)
    context.write_program(path, observed, plain)
    return sum(edge.nbytes for edge in observed.outputs)


#: cores of the virtual device
CORES: Final = 16
#: most bytes of outputs of all workers together; the number of workers follows from it
_MOST_BYTES: Final = 1 << 30


class RangeRecord:
    """Smallest and largest value, for tensors without a histogram. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minimum = np.inf
        self._maximum = -np.inf

    def add(self, array: NDArray[np.float32]) -> None:
        """Add the values of one sample; refuses NaN and infinity with a ValueError."""
        if not array.size:
            return
        # Minimum and maximum both propagate NaN.
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError("not finite")
        with self._lock:
            self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)

    def profile(self, bins: int) -> TensorProfile | None:
        """Return the profile; None if there were no values."""
        del bins
        return None if self._minimum > self._maximum else TensorProfile(self._minimum, self._maximum)


class HistogramRecord:
    """Range and histogram. Any thread may call any method."""

    def __init__(self) -> None:
        self._histogram = _core.TensorHistogram()

    def add(self, array: NDArray[np.float32]) -> None:
        """Add the values of one sample; refuses NaN and infinity with a ValueError."""
        self._histogram.add(array)

    def profile(self, bins: int) -> TensorProfile | None:
        """Return the profile; None if there were no values."""
        found = self._histogram
        return TensorProfile(found.minimum, found.maximum, found.counts(bins)) if found.count else None


class ExampleRecord:
    """The first sample with its outputs, and the power of outputs. Any thread may call any method."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._lock = threading.Lock()
        self._inputs: dict[str, NDArray[Any]] = {}
        self._outputs: dict[str, NDArray[Any]] = {}
        self._powers = dict.fromkeys(names, 0.0)

    def set_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy the first sample, because an iterator of samples may reuse its memory for the next."""
        self._inputs = {name: array.copy() for name, array in arrays.items()}

    def add(self, number: int, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Add the outputs of a sample."""
        powers = {name: mean_square(outputs[name]) for name in self.names}
        with self._lock:
            self._powers = {name: max(power, powers[name]) for name, power in self._powers.items()}
            if number == 0:
                self._outputs = {name: outputs[name].copy() for name in self.names}

    def found(self) -> CalibrationExample:
        """Return the example after all samples."""
        return CalibrationExample(self._inputs, self._outputs, self._powers)


def mean_square(array: NDArray[Any]) -> float:
    """Return the mean of the squares of all finite elements; 0 if there are none."""
    values = array[np.isfinite(array)]
    squares: NDArray[np.float64] = np.square(values, dtype=np.float64)
    return float(squares.sum()) / max(squares.size, 1)


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
) -> CalibrationProfile:
    """Run every sample and return the profiles of the measured tensors whose values are finite.

    Blocking, mostly without the interpreter lock; Ctrl-C ends it and leaves no files. Raises CompileError if
    NaN is in a sample or reaches an output, and OptionError if there is no sample, or one does not fit the
    model.
    """
    with context.work_folder() as folder:
        path = folder / "program.bin"
        output_bytes = write_instrumented(path, model, context, measured.results)
        options = context.options
        inputs = model_inputs(model, has_state=options.retained_state)
        kind = HistogramRecord if with_histograms else RangeRecord
        records = {name: kind() for name in (*measured.inputs, *measured.results)}
        workers = workers_of(inputs, output_bytes, options)
        example = ExampleRecord([spec.name for spec in model.outputs if np.dtype(spec.dtype).kind == "f"])
        run = _Run(inputs, measured, source, records, context.progress, example)
        run.run(path, workers)
    if run.infinite:
        warn(
            "calibration.infinite_values",
            f"{source.option}: found infinite values or NaN in {len(run.infinite)} of "
            f"{counted(len(records), 'tensor')} ({listing(sorted(run.infinite))}), which have no range; the "
            "nodes around them stay in floating point",
            nodes=sorted(run.infinite),
        )
    finite = {name: record for name, record in records.items() if name not in run.infinite}
    profiles = {name: record.profile(options.num_histogram_bins) for name, record in finite.items()}
    found = {name: profile for name, profile in profiles.items() if profile is not None}
    zeros = sorted(
        name for name in found if name in measured.inputs and found[name].minimum == found[name].maximum == 0
    )
    if zeros:
        text = f"found only zeros in the samples of {listing(zeros)}, so the ranges do not fit other data"
        warn("calibration.only_zeros", f"{source.option}: {text}", nodes=zeros)
    return CalibrationProfile(found, example=example.found())


def workers_of(inputs: Sequence[SampledInput], output_bytes: int, options: CompileOptions) -> int:
    """Return the number of parallel samples; one with state, because the next sample would read it."""
    if any(item.is_state for item in inputs):
        return 1
    wanted = options.profiling_threads or len(sched_getaffinity(0))
    return max(1, min(wanted, CORES, _MOST_BYTES // max(output_bytes, 1)))


@dataclass(eq=False)
class _Run:
    _inputs: Sequence[SampledInput]
    _measured: ObservedTensors
    _source: SampleSource
    _records: Mapping[str, RangeRecord | HistogramRecord]
    _progress: Progress
    _example: ExampleRecord
    #: tensors that held an infinite value or NaN in any sample
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
            arrays = fitted(self._source.option, sample, self._inputs)
            if number == 0:
                self._example.set_inputs(arrays)
            yield number, sample, arrays
            self._progress.count(number + 1, self._source.count, "sample")

    def _one_by_one(self, programs: _core.InferenceSet) -> int:
        """Run on this thread, where a signal interrupts an inference at once."""
        done = 0
        states = {item.name: item for item in self._inputs if item.is_state}
        wanted = list(
            dict.fromkeys(
                (
                    *self._example.names,
                    *self._measured.results,
                    *(f"{name}{RETAINED_STATE_SUFFIX}" for name in states),
                )
            )
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
        # A compilation without calibration does not need this import.
        from concurrent.futures import Future, ThreadPoolExecutor

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
        self._example.add(number, outputs)
        measured = {name: inputs[name] for name in self._measured.inputs}
        # Exporters replace the NaN of attention rows without keys, so that it does not reach an output.
        # Outputs without floats do not show NaN.
        shown = [*measured.values(), *(outputs[name] for name in self._example.names)]
        is_refused = not self._example.names or any(np.isnan(array).any() for array in shown)
        for name in self._measured.results:
            if number == 0 or name not in self._measured.fixed:
                measured[name] = outputs[name]
        for name, array in measured.items():
            values = np.ascontiguousarray(array, np.float32)
            try:
                self._records[name].add(values)
            except ValueError:
                if is_refused and np.isnan(values).any():
                    raise _not_a_number(name, sample.place, values) from None
                self.infinite.add(name)


def load_program(path: Path, workers: int = 1) -> _core.InferenceSet:
    """Load a program on a virtual card of this process, for this number of parallel inferences. Blocking."""
    return _core.InferenceSet(_core.Context.own_cpu(), _core.Qpc(str(path)), [0], 1, workers, _refit)


def _refit(name: str, value: object, dtype: str, shape: Sequence[int], partial: bool) -> NDArray[Any]:  # noqa: FBT001
    """Convert a checked array to one that the runtime reads without a copy."""
    del name, partial
    return np.require(np.asarray(value, np.dtype(dtype)), requirements=["C", "A"]).reshape(tuple(shape))
