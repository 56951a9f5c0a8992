"""Facts about a model that follow from shapes and weights: work, memory, and what a card may refuse."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import opened
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.value_info import collect_shapes
from qaic.compiler.passes.shape_inference.engine_shapes import complete
from qaic.compiler.pipeline import PHASES, begin, run_passes
from qaic.compiler.reports.perf_metrics import WeightCounts, parameters_of, work_of
from qaic.forecast.operations import OperationTable, operation_table
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX


@dataclass(frozen=True, slots=True, eq=False)
class ShapeSet:
    """A model with one set of shapes."""

    #: Name of the set; empty if there is only one.
    name: str
    #: Work of one inference.
    table: OperationTable
    #: Largest memory of values at the same time, in the types of the model.
    activation_bytes: int
    #: Dims of the inputs, and of the values that stay on the card, by name.
    inputs: Mapping[str, tuple[int, ...]]
    states: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Facts about a model that need no run."""

    #: One for each set of shapes.
    sets: Sequence[ShapeSet]
    #: Weights as the model stores them.
    weights: WeightCounts
    #: Nodes by operator.
    operators: Mapping[str, int]
    #: Symbols that are the first dimension of inputs.
    batch_symbols: frozenset[str]
    #: Operators that a compiler for the card is unlikely to support, or known to refuse, and their nodes.
    unlikely: Mapping[str, list[str]]
    refused: Mapping[str, list[str]]


def analyze(model: str | os.PathLike[str] | bytes | onnx.ModelProto, options: CompileOptions) -> Analysis:
    """Analyze a model up to the shapes of its values. Blocking; reads no large weights.

    Only options about shapes and operators have an effect. Raises the errors of `qaic.compile`.
    """
    with opened(model) as source, Progress("analyzing the model") as progress:
        read, context = begin(source, options, progress)
        for phase in ("legalize", "shapes"):
            run_passes(PHASES[phase], read, context)
        kinds: dict[str, int] = {}
        for node in read.specialized[0].graph.node:
            kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
        return Analysis(
            [_shape_set(read, at) for at in range(len(read.specialized))],
            parameters_of(read.proto, read.weights),
            kinds,
            frozenset(str(dims[0]) for dims in read.input_dims.values() if dims and isinstance(dims[0], str)),
            context.survey.findings,
            context.survey.refusals,
        )


def _shape_set(model: Model, at: int) -> ShapeSet:
    inputs, outputs, name = model.inputs, model.outputs, ""
    if model.specializations:
        own = model.specializations[at]
        name = own.name
        inputs = tuple(replace(s, dims=dims) for s, dims in zip(inputs, own.inputs, strict=True))
        outputs = tuple(replace(s, dims=dims) for s, dims in zip(outputs, own.outputs, strict=True))
    specialized = model.specialized[at]
    shapes = collect_shapes(specialized)
    made = (value for node in specialized.graph.node for value in node.output if value)
    if unknown := [value for value in made if value not in shapes]:
        # With constants computed, the engine may know shapes that the model computes from shapes.
        complete(specialized, unknown, model.library_paths, folding=True)
    return ShapeSet(
        name,
        operation_table(specialized, inputs, outputs),
        work_of(specialized).peak_bytes,
        {spec.name: spec.dims for spec in inputs},
        {spec.name: spec.dims for spec in outputs if spec.name.endswith(RETAINED_STATE_SUFFIX)},
    )
