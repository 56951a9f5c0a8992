"""From an opened model and options to the graph, the weights and the interface of a CPU program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.compiler import checks, engine_shapes, initializers, precision, symbols, versions
from qaic.compiler.edges import Edge, read_edge
from qaic.compiler.functions import check_functions
from qaic.compiler.inner_tensors import check_inner_tensors
from qaic.compiler.precision import FloatPrecision
from qaic.compiler.refusal import refuse
from qaic.compiler.scopes import separate_scopes
from qaic.compiler.value_types import collect_types, untyped_values

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.half_weights import Overflows
    from qaic.compiler.onnx_file import ModelFile
    from qaic.compiler.progress import Progress
    from qaic.compiler.weights import Weight
    from qaic.options.models import CompileOptions


@dataclass(slots=True)
class Lowered:
    """A program before it is written."""

    name: str
    #: graph with fixed shapes and without its large initializers
    model: onnx.ModelProto
    #: the large initializers in the order they are stored
    weights: dict[str, Weight]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    overflows: Overflows


def lower(source: ModelFile, options: CompileOptions, progress: Progress) -> Lowered:
    """Apply everything the options say to a model.

    Parameters
    ----------
    source : ModelFile
        Opened model; its weights are moved into the result.
    options : CompileOptions
        Compile options.
    progress : Progress
        Told about stages.

    Raises
    ------
    CompileError
        The model cannot become a program; the message names the tensor or operator.
    OptionError
        An option contradicts the model.
    """
    progress.stage("read")
    model = source.parse()
    weights = source.weights
    progress.stage("check")
    floats = FloatPrecision(options.convert_to_fp16, options.clip_fp16_constants)
    checks.check_texts(model)
    check_functions(model)
    check_inner_tensors(model)
    checks.normalize(model, weights)
    checks.check_operators(model)
    versions.lower_stamps(model)
    symbols.bind(model, options.onnx_define_symbol, options.model_inputs)
    flat = precision.inline_functions(model, weights, floats)
    if flat is not model:
        model = flat
        checks.normalize(model, weights)
    separate_scopes(model.graph, weights)
    inferred = _inferred(model, weights)
    inputs = tuple(read_edge(value, "input") for value in inferred.graph.input[: len(model.graph.input)])
    outputs = tuple(read_edge(value, "output") for value in inferred.graph.output)
    if not outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="name the results of the graph as its outputs when exporting",
        )
    _refuse_passed_through(inputs, outputs)
    checks.check_structure(inferred)
    progress.stage("convert")
    overflows = precision.apply(model, weights, inferred, floats)
    checks.drop_unused(model, weights)
    initializers.settle_sizes(model, weights)
    _fix_interface(model, inferred)
    return Lowered(model.graph.name or "unnamed", model, weights, inputs, outputs, overflows)


def _refuse_passed_through(inputs: tuple[Edge, ...], outputs: tuple[Edge, ...]) -> None:
    """Refuse outputs that are inputs: the engine leaves the memory of such an output as it is."""
    passed = {edge.name for edge in inputs} & {edge.name for edge in outputs}
    if passed:
        name = min(passed)
        raise refuse(
            f"output {name!r}",
            code="output_is_input",
            found="an input of the model under the same name",
            expected="the result of an operator",
            fix="put an Identity operator between the input and an output of another name",
            context={"tensor": name},
        )


def _inferred(model: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """Infer types and shapes, with the engine's help where onnx does not know an operator."""
    inferred = symbols.infer(checks.with_weights_as_inputs(model, weights))
    missing = untyped_values(inferred.graph, collect_types(inferred))
    if missing or _open_outputs(inferred):
        problem = engine_shapes.complete(inferred, missing)
        if problem and _open_outputs(inferred):
            raise refuse(
                f"shape of output {_open_outputs(inferred)[0]!r}",
                code="invalid_model",
                found=f"a graph the engine refuses ({problem})",
                expected="operators that fit their inputs",
                fix="check the model, and the shapes given with onnx_define_symbol and model_inputs",
            )
    return inferred


def _open_outputs(inferred: onnx.ModelProto) -> list[str]:
    """List the outputs that are tensors without a complete shape."""
    return [
        value.name
        for value in inferred.graph.output
        if value.type.HasField("tensor_type")
        and not (
            value.type.tensor_type.HasField("shape")
            and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        )
    ]


def _fix_interface(model: onnx.ModelProto, inferred: onnx.ModelProto) -> None:
    """Give the graph's inputs and outputs their final shapes and drop what only inference needed."""
    graph = model.graph
    types = {value.name: value for value in (*inferred.graph.input, *inferred.graph.output)}
    for value in (*graph.input, *graph.output):
        value.type.CopyFrom(types[value.name].type)
    graph.ClearField("value_info")
