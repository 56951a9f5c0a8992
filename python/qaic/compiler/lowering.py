"""From an opened model and options to the graph, the weights and the interface of a CPU program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.compiler import checks, engine_shapes, initializers, precision, specialize, symbols, versions
from qaic.compiler.cloud_functions import accept_padding
from qaic.compiler.functions import check_functions
from qaic.compiler.inlining import inline_functions
from qaic.compiler.inner_tensors import check_inner_tensors
from qaic.compiler.merging import merge_equal
from qaic.compiler.partition_nodes import check_partitions
from qaic.compiler.precision import FloatPrecision
from qaic.compiler.refusal import refuse
from qaic.compiler.retained import check_retained
from qaic.compiler.scopes import separate_scopes
from qaic.compiler.value_types import collect_types, common_shapes, untyped_values

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.edges import Edge
    from qaic.compiler.half_weights import Overflows
    from qaic.compiler.onnx_file import ModelFile
    from qaic.compiler.progress import Progress
    from qaic.compiler.specialize import Variant
    from qaic.compiler.weights import Weight
    from qaic.options.models import CompileOptions


@dataclass(slots=True)
class Lowered:
    """A program before it is written."""

    name: str
    #: graph without its large initializers; its shapes are fixed where there is one set of them
    model: onnx.ModelProto
    #: the large initializers in the order they are stored
    weights: dict[str, Weight]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    #: the sets of shapes where there are several, else empty
    variants: tuple[Variant, ...]
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
    for_card = accept_padding(model)
    check_inner_tensors(model)
    checks.normalize(model, weights)
    checks.check_operators(model)
    versions.lower_stamps(model)
    entries = options.network_specialization_config
    if options.mdp_load_partition_config is not None:
        check_partitions(model.graph, options.mdp_load_partition_config)
    sizes = symbols.bind(model, options.onnx_define_symbol, options.model_inputs, entries)
    if for_card or precision.needs_inlining(model, weights, floats):
        flat = inline_functions(model)
        if flat is not model:
            model = flat
            checks.normalize(model, weights)
    separate_scopes(model.graph, weights)
    forms = [_inferred(form, weights) for form in specialize.copies(model, sizes, entries)]
    interface = specialize.read_interface(forms, len(model.graph.input), entries)
    if not interface.outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="name the results of the graph as its outputs when exporting",
        )
    _refuse_passed_through(interface.inputs, interface.outputs)
    if options.retained_state:
        check_retained(interface)
    checks.check_structure(forms[0])
    progress.stage("convert")
    if for_card:
        merge_equal(model.graph, common_shapes(forms))
    overflows = precision.apply(model, weights, forms, floats)
    checks.drop_unused(model, weights)
    initializers.settle_sizes(model, weights)
    specialize.fix_interface(model, forms)
    return Lowered(
        model.graph.name or "unnamed",
        model,
        weights,
        interface.inputs,
        interface.outputs,
        interface.variants,
        overflows,
    )


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
