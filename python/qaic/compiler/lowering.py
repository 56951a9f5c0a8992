"""From an opened model and options to the graph, the weights and the interface of a CPU program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from qaic.compiler import (
    checks,
    custom_ops,
    embedding_tables,
    extra_outputs,
    initializers,
    precision,
    reports,
    specialize,
    support_report,
    symbols,
    versions,
)
from qaic.compiler.batch import set_batch
from qaic.compiler.calibration import obtain as calibration
from qaic.compiler.calibration.float_graph import FloatGraph
from qaic.compiler.cloud_functions import accept_padding
from qaic.compiler.custom_io import change_edges, template_of
from qaic.compiler.dynamic_shapes import inferred_forms, sizes_of
from qaic.compiler.functions import check_functions
from qaic.compiler.inlining import inline_functions, inline_small_functions
from qaic.compiler.inner_tensors import check_inner_tensors
from qaic.compiler.merging import merge_equal
from qaic.compiler.mx_weights import compress_weights
from qaic.compiler.output_nodes import keep_outputs
from qaic.compiler.partition_nodes import check_partitions, node_names, write_template
from qaic.compiler.partition_traffic import round_traffic
from qaic.compiler.quantize.insert import quantize
from qaic.compiler.refusal import refuse
from qaic.compiler.retained import check_retained
from qaic.compiler.scopes import separate_scopes
from qaic.compiler.side_files import SideFile
from qaic.compiler.support_report import Survey
from qaic.compiler.value_types import collect_types, common_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from qaic.compiler.calibration.profile import Profile
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
    #: what the options want written beside the container
    side_files: list[SideFile]
    #: what is known about the values of its float graph, where it was quantized
    profile: Profile | None = None
    #: engine libraries that its operators need
    custom_op_libraries: Sequence[custom_ops.Library] = ()


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
    progress.stage("check", model, weights)
    checks.check_texts(model)
    check_functions(model)
    for_card = accept_padding(model)
    check_inner_tensors(model)
    checks.normalize(model, weights)
    custom = custom_ops.read(options.register_custom_op)
    custom_ops.check_implemented(model, custom)
    checks.check_operators(model, custom.implemented)
    survey = Survey()
    support_report.survey_operators(
        model, weights, support_report.choose_list(options), survey, custom=custom.operators
    )
    versions.lower_stamps(model)
    side_files = _dumped(model, weights, options)
    if for_card or options.always_expand_onnx_functions:
        model = _expanded(model, weights)
    if options.load_embedding_tables is not None:
        embedding_tables.load_tables(model, weights, options.load_embedding_tables.path)
    keep_outputs(model, options.output_node_names)
    checks.drop_unused(model, weights)
    if options.mdp_load_partition_config is not None:
        check_partitions(inline_small_functions(model).graph, options.mdp_load_partition_config)
    progress.stage("shapes", model, weights)
    defined = set_batch(model, weights, options.batchsize, options.onnx_define_symbol)
    entries = options.network_specialization_config or sizes_of(model, options.dynamic_shape_input, defined)
    sizes = symbols.bind(model, defined, options.model_inputs, entries)
    profiles = calibration.is_wanted(options) or options.dump_profile is not None
    if precision.needs_inlining(model, weights, options):
        model = _expanded(model, weights)
    separate_scopes(model.graph, weights)
    libraries = [library.path for library in custom.libraries]
    graph_names = {model.graph.name, *(entry.name for entry in entries), *options.graph_names}
    extra_outputs.add_named(
        model, options.extra_output_tensors, graph_names, was_cut=bool(options.output_node_names)
    )
    forms, interface = inferred_forms(model, weights, sizes, entries, libraries)
    if options.all_intermediate_outputs:
        extra_outputs.add_every(model, forms)
        forms, interface = inferred_forms(model, weights, sizes, entries, libraries)
    if not interface.outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="name the results of the graph as its outputs when exporting",
        )
    _refuse_passed_through(interface.inputs, interface.outputs)
    name, variants = specialize.named(model.graph.name or "unnamed", interface.variants, options.graph_names)
    if options.retained_state:
        check_retained(interface)
    checks.check_structure(forms[0])
    support_report.survey_types(collect_types(forms[0]), options, survey)
    support_report.report(survey, options)
    given_weights = dict(weights)
    if for_card:
        merge_equal(model.graph, common_shapes(forms))
    is_quantized = calibration.is_wanted(options)
    if profiles and not is_quantized:
        # What is only measured is compiled as it is.
        copy = type(model)()
        copy.CopyFrom(model)
        measured = precision.prepare(copy, dict(weights), forms, options, for_integers=True)
    floats = precision.prepare(model, weights, forms, options, for_integers=is_quantized)
    profile = None
    if profiles:
        progress.stage("calibrate", model, weights)
        subject = floats if is_quantized else measured
        graph = FloatGraph(
            subject, interface, sizes, entries, custom.libraries, has_state=options.retained_state
        )
        profile, written = calibration.profile_of(graph, options, progress)
        side_files += written
    progress.stage("precision", model, weights)
    floats.decide(profile)
    compress_weights(floats)
    if profile is not None:
        progress.stage("quantize", model, weights)
        quantize(model, weights, floats.facts, floats.classes, profile=profile, options=options)
    progress.stage("round", model, weights)
    round_traffic(floats)
    floats.round_floats()
    reports.publish_hints(options, forms[0], given_weights, floats.classes)
    progress.stage("finish", model, weights)
    checks.drop_unused(model, weights)
    initializers.settle_sizes(model, weights)
    specialize.fix_interface(model, forms)
    if options.dump_custom_io_config_template_file is not None:
        side_files.append(template_of(interface, options.dump_custom_io_config_template_file))
    progress.stage("edges", model, weights)
    interface = change_edges(model, weights, replace(interface, variants=variants), options)
    reports.publish_metrics(options, forms, variants, model, weights)
    return Lowered(
        name,
        model,
        weights,
        interface.inputs,
        interface.outputs,
        interface.variants,
        floats.overflows,
        side_files,
        profile,
        custom.libraries,
    )


def _expanded(model: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """Expand the functions of a model, whose bodies may bring text and unused constants along."""
    flat = inline_functions(model)
    if flat is not model:
        checks.normalize(flat, weights)
    return flat


def _dumped(model: onnx.ModelProto, weights: dict[str, Weight], options: CompileOptions) -> list[SideFile]:
    """Describe the files about the model as the user gave it."""
    files = []
    if options.mdp_dump_partition_config is not None:
        write = partial(write_template, node_names(model, weights), options.aic_num_cores)
        files.append(SideFile(options.mdp_dump_partition_config, write))
    if options.dump_embedding_tables is not None:
        tables = embedding_tables.find_tables(model, weights)
        write_tables = partial(embedding_tables.write_tables, tables)
        files.append(SideFile(options.dump_embedding_tables, write_tables))
    return files


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
