"""From an opened model and options to the graph, the weights and the interface of a CPU program."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from qaic.compiler.backend.op_profiling.names import UserNodes
from qaic.compiler.backend.op_profiling.operations import Instrumentation
from qaic.compiler.backend.op_profiling.settings import OPS
from qaic.compiler.calibration import load_or_collect as calibration
from qaic.compiler.calibration.float_graph import FloatGraph
from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.frontend import custom_ops, specialization, symbols, validation, value_options
from qaic.compiler.frontend.check_functions import check_functions
from qaic.compiler.frontend.check_subgraph_tensors import check_inner_tensors
from qaic.compiler.frontend.inlined_names import InlinedNames
from qaic.compiler.frontend.interface import check_hardware
from qaic.compiler.ir import initializers, opset_version
from qaic.compiler.ir.shape_inference.dynamic_shapes import inferred_forms, sizes_of
from qaic.compiler.ir.shape_inference.engine_shapes import complete
from qaic.compiler.ir.value_info import collect_shapes, collect_types, common_shapes
from qaic.compiler.passes import embedding_tables, extra_outputs
from qaic.compiler.passes.cse import merge_equal
from qaic.compiler.passes.custom_io import change_edges, template_of
from qaic.compiler.passes.emulation.mxfp6_weights import compress_weights
from qaic.compiler.passes.emulation.partition_io import round_traffic
from qaic.compiler.passes.inlining import inline_functions, inline_small_functions
from qaic.compiler.passes.legalize_exports import legalize_exports
from qaic.compiler.passes.legalize_qualcomm_functions import is_unit, legalize
from qaic.compiler.passes.legalize_quantized_weights import legalize_quantized_weights
from qaic.compiler.passes.legalize_where import legalize_where
from qaic.compiler.passes.partition_config import check_partitions, node_names, write_template
from qaic.compiler.passes.prune_outputs import keep_outputs
from qaic.compiler.passes.retained_state import check_retained
from qaic.compiler.passes.set_batch import set_batch
from qaic.compiler.passes.unique_names import separate_scopes
from qaic.compiler.quantization import precision
from qaic.compiler.quantization.insert_qdq import quantize
from qaic.compiler.quantization.precision_classes import is_quantizing
from qaic.compiler.reports import emit_report, support_report
from qaic.compiler.reports.extra_artifacts import SideFile
from qaic.compiler.reports.support_report import Survey
from qaic.errors import QaicError
from qaic.support.profiling_types import STATS_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from qaic.compiler.calibration.profile import Profile
    from qaic.compiler.diagnostics.progress import Progress
    from qaic.compiler.frontend.files.onnx_file import ModelFile
    from qaic.compiler.frontend.interface import Edge
    from qaic.compiler.frontend.specialization import Interface, Variant
    from qaic.compiler.ir.float16_weights import Overflows
    from qaic.compiler.ir.weights import Weight
    from qaic.options.files.specializations import Specialization
    from qaic.options.models import CompileOptions

_log = logging.getLogger("qaic.compiler")


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
    #: what is known about its nodes, where its operations are measured
    instrumentation: Instrumentation | None = None


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
    draft = _read(source, options, progress)
    _check(draft)
    side_files = _described(draft)
    _apply_graph_options(draft)
    shapes = _settle_shapes(draft)
    _check_shaped(draft, shapes)
    given_weights = dict(draft.weights)
    floats, profile, dumped = _measure(draft, shapes)
    _lower_precision(draft, floats, profile)
    emit_report.publish_hints(options, shapes.forms[0], given_weights, floats.classes)
    interface, templates = _settle_edges(draft, shapes)
    emit_report.publish_metrics(options, shapes.forms, interface.variants, draft.model, draft.weights)
    return Lowered(
        shapes.name,
        draft.model,
        draft.weights,
        interface.inputs,
        interface.outputs,
        interface.variants,
        floats.overflows,
        [*side_files, *dumped, *templates],
        profile,
        draft.custom.libraries,
        _instrumented(draft, shapes),
    )


@dataclass(slots=True)
class _Draft:
    """A model on its way to a program; every phase changes it."""

    model: onnx.ModelProto
    #: the large initializers of the main graph, which `model` does not hold
    weights: dict[str, Weight]
    options: CompileOptions
    progress: Progress
    #: operators that the user brings along
    custom: custom_ops.CustomOps
    #: what a card would not take, as far as it is known
    survey: Survey = field(default_factory=Survey)
    #: whether it has functions that stand for operators of the card
    has_qualcomm_functions: bool = False
    #: its nodes before the passes, where the program's operations are measured
    user_nodes: UserNodes | None = None
    #: what its values were called, where options name some
    names: InlinedNames | None = None
    #: values inside of quantized weights, which options about floats are not about
    exact: list[str] = field(default_factory=list)

    def enter(self, stage: str) -> None:
        """Tell about the next stage, and how the one before left the graph."""
        self.progress.stage(stage, self.model, self.weights)

    def expand(self) -> None:
        """Expand the model's functions, whose bodies may bring text and unused constants along.

        Those that one rounding belongs to stay until `expand_units`.
        """
        self._inline(is_unit, self.names)

    def expand_units(self) -> None:
        """Expand the functions that `expand` has left."""
        if self.has_qualcomm_functions:
            self._inline(lambda _: False, None)

    def _inline(self, keep: Callable[[onnx.FunctionProto], bool], names: InlinedNames | None) -> None:
        flat = inline_functions(self.model, keep, names)
        if flat is not self.model:
            validation.normalize(flat, self.weights)
        self.model = flat


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes of a draft, once for each specialization."""

    name: str
    #: values of the symbols
    sizes: Sequence[Mapping[str, int]]
    entries: Sequence[Specialization]
    #: the model with all types and shapes and with weights as inputs; of many specializations only some
    forms: list[onnx.ModelProto]
    interface: Interface


def _read(source: ModelFile, options: CompileOptions, progress: Progress) -> _Draft:
    progress.stage("read")
    model = source.parse()
    draft = _Draft(model, source.weights, options, progress, custom_ops.read(options.register_custom_op))
    if value_options.name_values(options):
        draft.names = InlinedNames(model)
    return draft


def _check(draft: _Draft) -> None:
    """Refuse what cannot become a program, and bring the rest into one form."""
    draft.enter("check")
    model, weights, custom = draft.model, draft.weights, draft.custom
    validation.check_texts(model)
    check_functions(model)
    draft.has_qualcomm_functions = legalize(model)
    check_inner_tensors(model)
    validation.normalize(model, weights)
    custom_ops.check_implemented(model, custom)
    validation.check_operators(model, custom.implemented)
    operators = support_report.choose_list(draft.options)
    support_report.survey_operators(model, weights, operators, draft.survey, custom=custom.operators)
    opset_version.lower_stamps(model)


def _described(draft: _Draft) -> list[SideFile]:
    """Describe the model as the user gave it, in the files that are asked for."""
    files = []
    options = draft.options
    if options.mdp_dump_partition_config is not None:
        write = partial(write_template, node_names(draft.model, draft.weights), options.aic_num_cores)
        files.append(SideFile(options.mdp_dump_partition_config, write))
    if options.dump_embedding_tables is not None:
        tables = embedding_tables.find_tables(draft.model, draft.weights)
        write_tables = partial(embedding_tables.write_tables, tables)
        files.append(SideFile(options.dump_embedding_tables, write_tables))
    return files


def _apply_graph_options(draft: _Draft) -> None:
    """Expand functions, replace tables and cut off what is not asked for."""
    options = draft.options
    draft.exact = legalize_quantized_weights(draft.model, draft.weights)
    if draft.exact and draft.names is None:
        draft.names = InlinedNames(draft.model)
    if draft.has_qualcomm_functions or options.always_expand_onnx_functions:
        draft.expand()
    if options.load_embedding_tables is not None:
        embedding_tables.load_tables(draft.model, draft.weights, options.load_embedding_tables.path)
    kept = _kept_outputs(draft)
    keep_outputs(draft.model, kept)
    validation.drop_unused(draft.model, draft.weights)
    if options.mdp_load_partition_config is not None:
        check_partitions(inline_small_functions(draft.model).graph, options.mdp_load_partition_config)


def _kept_outputs(draft: _Draft) -> Sequence[str]:
    """Find the outputs that are asked for, inside functions too."""
    wanted = draft.options.output_node_names
    if draft.names is None or not value_options.inside_functions(draft.model.graph, wanted):
        return wanted
    draft.expand()
    computed = {name for node in draft.model.graph.node for name in node.output}
    return [
        output
        for name in wanted
        for output in (
            [name]
            if name in computed
            else value_options.as_outputs(draft.model.graph, name, draft.names) or [name]
        )
    ]


def _settle_shapes(draft: _Draft) -> _Shapes:
    """Give every dim a size in each specialization, and every value its type and shape."""
    draft.enter("shapes")
    weights, options = draft.weights, draft.options
    defined = set_batch(draft.model, weights, options.batchsize, options.onnx_define_symbol)
    entries = options.network_specialization_config or sizes_of(
        draft.model, options.dynamic_shape_input, defined
    )
    sizes = symbols.bind(draft.model, defined, options.model_inputs, entries)
    measures_ops = options.stats_level >= OPS
    if (
        precision.needs_inlining(draft.model, weights, options)
        or measures_ops
        or (
            draft.model.functions
            and value_options.inside_functions(draft.model.graph, options.extra_output_tensors)
        )
    ):
        draft.expand()
    model = draft.model
    separate_scopes(model.graph, weights)
    legalize_exports(model)
    if measures_ops:
        draft.user_nodes = UserNodes(model)
    graph_names = {model.graph.name, *(entry.name for entry in entries), *options.graph_names}
    extra_outputs.add_named(
        model,
        options.extra_output_tensors,
        graph_names,
        draft.names,
        was_cut=bool(options.output_node_names),
    )
    draft.options = value_options.in_expanded_graph(options, draft.names, draft.exact)
    libraries = [library.path for library in draft.custom.libraries]
    forms, interface = inferred_forms(model, weights, sizes, entries, libraries)
    if legalize_where(model, collect_types(forms[0])):
        forms, interface = inferred_forms(model, weights, sizes, entries, libraries)
    if options.all_intermediate_outputs:
        extra_outputs.add_every(model, forms)
        forms, interface = inferred_forms(model, weights, sizes, entries, libraries)
    _check_outputs(interface)
    name, variants = specialization.named(
        model.graph.name or "unnamed", interface.variants, options.graph_names
    )
    return _Shapes(name, sizes, entries, forms, replace(interface, variants=variants))


def _check_shaped(draft: _Draft, shapes: _Shapes) -> None:
    """Refuse and report what only types and shapes can tell."""
    if draft.options.retained_state:
        check_retained(shapes.interface)
    validation.check_structure(shapes.forms[0])
    support_report.survey_types(collect_types(shapes.forms[0]), draft.options, draft.survey)
    support_report.report(draft.survey, draft.options)


def _measure(
    draft: _Draft, shapes: _Shapes
) -> tuple[precision.PreparedFloats, Profile | None, list[SideFile]]:
    """Make the floats ready to be lowered, and learn their values where that is asked for."""
    model, weights, options = draft.model, draft.weights, draft.options
    if draft.has_qualcomm_functions:
        merge_equal(model.graph, common_shapes(shapes.forms), precision.listed(options))
    is_quantized = is_quantizing(options)
    subject = None
    if options.dump_profile is not None and not is_quantized:
        # What is only measured is compiled as it is.
        copy = type(model)()
        copy.CopyFrom(model)
        subject = precision.prepare(copy, dict(weights), shapes.forms, options, for_integers=True)
    floats = precision.prepare(model, weights, shapes.forms, options, for_integers=is_quantized)
    if is_quantized:
        subject = floats
    if subject is None:
        return floats, None, []
    draft.enter("calibrate")
    graph = FloatGraph(
        subject,
        shapes.interface,
        shapes.sizes,
        shapes.entries,
        draft.custom.libraries,
        has_state=options.retained_state,
    )
    profile, dumped = calibration.profile_of(graph, options, draft.progress)
    return floats, profile, dumped


def _lower_precision(draft: _Draft, floats: precision.PreparedFloats, profile: Profile | None) -> None:
    """Choose what nodes compute in, and write it into the graph."""
    draft.enter("precision")
    floats.decide(profile)
    compress_weights(floats)
    if profile is not None:
        draft.enter("quantize")
        model, weights, options = draft.model, draft.weights, draft.options
        quantize(model, weights, floats.facts, floats.classes, profile=profile, options=options)
    draft.enter("round")
    round_traffic(floats)
    floats.round_floats()


def _settle_edges(draft: _Draft, shapes: _Shapes) -> tuple[Interface, list[SideFile]]:
    """Finish the graph, and give its inputs and outputs the form that is asked for."""
    draft.enter("finish")
    draft.expand_units()
    model, weights, options = draft.model, draft.weights, draft.options
    validation.drop_unused(model, weights)
    initializers.settle_sizes(model, weights)
    specialization.fix_interface(model, shapes.forms)
    templates = []
    if options.dump_custom_io_config_template_file is not None:
        templates.append(template_of(shapes.interface, options.dump_custom_io_config_template_file))
    draft.enter("edges")
    interface = change_edges(model, weights, shapes.interface, options)
    check_hardware((*interface.inputs, *interface.outputs), options.aic_hw_version)
    return interface, templates


def _instrumented(draft: _Draft, shapes: _Shapes) -> Instrumentation | None:
    """Infer the values of the finished graph once more: passes have added some."""
    if draft.user_nodes is None:
        return None
    libraries = [library.path for library in draft.custom.libraries]
    try:
        finished, _ = inferred_forms(draft.model, draft.weights, shapes.sizes, shapes.entries, libraries)
    except QaicError as error:
        _log.debug("sizes of values that the compiler has added are not known: %s", error)
        return Instrumentation(draft.user_nodes, [[form] for form in shapes.forms])
    for form in finished:
        known = collect_shapes(form)
        unknown = [name for node in form.graph.node for name in node.output if name and name not in known]
        if unknown:
            # With constants computed, the engine may know shapes that the model computes from shapes.
            complete(form, unknown, libraries, folding=True)
    # What was known of the model before is known of what has kept its name.
    return Instrumentation(draft.user_nodes, list(map(list, zip(finished, shapes.forms, strict=True))))


def _check_outputs(interface: Interface) -> None:
    """Refuse outputs that are missing, or are inputs: the engine leaves the memory of these as it is.

    The name of the statistics is refused too: callers of :class:`qaic.Session` would never see that tensor.
    """
    if not interface.outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="name the results of the graph as its outputs when exporting",
        )
    if any(edge.name == STATS_OUTPUT for edge in (*interface.inputs, *interface.outputs)):
        raise refuse(
            f"tensor {STATS_OUTPUT!r}",
            code="reserved_name",
            found="an input or output of the model under the name of the statistics of a device",
            expected="another name",
            fix="rename it when exporting",
            context={"tensor": STATS_OUTPUT},
        )
    passed = {edge.name for edge in interface.inputs} & {edge.name for edge in interface.outputs}
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
