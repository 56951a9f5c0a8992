"""The order of all passes, from an opened model and options to the graph, weights and interface of a program.

A pass is one function and one entry here. `time_passes` and `enable_debug` show exactly this list.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from qaic.compiler.backend.engine_refusal import raise_with_node
from qaic.compiler.backend.op_profiling.operations import describe_operations_pass
from qaic.compiler.backend.op_profiling.provenance import record_provenance_pass
from qaic.compiler.backend.op_profiling.values import infer_finished_pass
from qaic.compiler.backend.qpc_writer import write_unchecked
from qaic.compiler.calibration.load_or_collect import FLOAT_GRAPH, calibrate_pass, dump_profile_pass
from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend import custom_ops, value_options
from qaic.compiler.frontend.check_model import (
    check_model_pass,
    check_operators_pass,
    check_structure_pass,
    externalize_constants_pass,
    import_standard_operators,
    lower_opset_version_pass,
    normalize_pass,
    remove_unused_pass,
)
from qaic.compiler.frontend.files.onnx_file import OnnxFile
from qaic.compiler.frontend.specialization import fix_interface_pass
from qaic.compiler.frontend.value_options import translate_names_pass
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model, Pass, WorkFolder
from qaic.compiler.ir.verify import verify
from qaic.compiler.passes.assign_precision import assign_precision_pass
from qaic.compiler.passes.check_interface import check_retained_state_pass, name_specializations_pass
from qaic.compiler.passes.custom_io import apply_custom_io_pass, dump_io_template_pass
from qaic.compiler.passes.decoding.fold_sizes import fold_sizes_pass
from qaic.compiler.passes.decoding.narrow_context import narrow_context_pass
from qaic.compiler.passes.decoding.state_rows import copy_attended_rows_pass, take_out_state_rows_pass
from qaic.compiler.passes.embedding_tables import dump_embedding_tables_pass, load_embedding_tables_pass
from qaic.compiler.passes.emulation.emulate_float16 import emulate_float16_pass
from qaic.compiler.passes.emulation.mxfp6_weights import compress_weights_pass
from qaic.compiler.passes.emulation.mxint8 import round_partition_traffic_pass
from qaic.compiler.passes.fold_batch_normalization import fold_batch_normalization_for_float16_pass
from qaic.compiler.passes.fuse_elementwise import fuse_elementwise_pass
from qaic.compiler.passes.inlining import (
    inline_for_nodes_pass,
    inline_functions_pass,
    inline_fused_functions_pass,
    merge_equal_nodes_pass,
    unique_names_pass,
)
from qaic.compiler.passes.legalize.legalize_division import legalize_division_pass
from qaic.compiler.passes.legalize.legalize_exports import (
    legalize_captured_values_pass,
    legalize_exports_pass,
    legalize_resize_pass,
    legalize_where_pass,
    read_masks_pass,
)
from qaic.compiler.passes.legalize.legalize_narrow_casts import legalize_narrow_casts_pass
from qaic.compiler.passes.legalize.legalize_padding import (
    legalize_padding_pass,
    legalize_transposed_padding_pass,
    separate_pads_pass,
)
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import legalize_qualcomm_functions_pass
from qaic.compiler.passes.legalize.legalize_quantized_chains import legalize_quantized_chains_pass
from qaic.compiler.passes.legalize.legalize_quantized_weights import legalize_quantized_weights_pass
from qaic.compiler.passes.legalize.legalize_recurrent import legalize_recurrent_pass
from qaic.compiler.passes.legalize.legalize_statistics import legalize_statistics_pass
from qaic.compiler.passes.legalize.legalize_unchecked import legalize_unchecked_pass
from qaic.compiler.passes.legalize.ml_attributes import check_ml_attributes_pass
from qaic.compiler.passes.outputs import add_every_output_pass, add_named_outputs_pass, prune_outputs_pass
from qaic.compiler.passes.partition_config import (
    check_partitions_pass,
    check_placement_pass,
    dump_partition_template_pass,
)
from qaic.compiler.passes.set_batch import bind_symbols_pass
from qaic.compiler.passes.shape_inference.infer_shapes import infer_shapes_pass, open_sizes_pass
from qaic.compiler.passes.store_weights import store_packed_weights_pass, store_weights_pass
from qaic.compiler.quantization.compare_outputs import compare_outputs_pass
from qaic.compiler.quantization.insert_qdq import insert_qdq_pass
from qaic.compiler.quantization.plan_quantization import plan_quantization_pass
from qaic.compiler.quantization.prepare import fold_constants_pass, raise_opset_version_pass
from qaic.compiler.reports import emit_report
from qaic.compiler.reports.support_report import survey_operators_pass, survey_types_pass
from qaic.errors import CompileError, DeviceError
from qaic.options.table import CompileOptions, is_quantizing
from qaic.support.library_errors import library_errors

#: all passes in their order, by phase
PHASES: Final[Mapping[str, Sequence[Pass]]] = {
    "legalize": (
        check_model_pass,
        legalize_qualcomm_functions_pass,
        normalize_pass,
        check_operators_pass,
        survey_operators_pass,
        lower_opset_version_pass,
        dump_partition_template_pass,
        check_placement_pass,
        dump_embedding_tables_pass,
        legalize_quantized_weights_pass,
        narrow_context_pass,
        inline_functions_pass,
        load_embedding_tables_pass,
        prune_outputs_pass,
        remove_unused_pass,
        check_partitions_pass,
    ),
    "shapes": (
        bind_symbols_pass,
        inline_for_nodes_pass,
        unique_names_pass,
        check_ml_attributes_pass,
        legalize_exports_pass,
        legalize_transposed_padding_pass,
        legalize_statistics_pass,
        record_provenance_pass,
        add_named_outputs_pass,
        translate_names_pass,
        infer_shapes_pass,
        legalize_resize_pass,
        legalize_padding_pass,
        legalize_where_pass,
        legalize_division_pass,
        legalize_unchecked_pass,
        add_every_output_pass,
        # The sizes of added outputs, in every set of shapes; empty if none were added.
        infer_shapes_pass,
        name_specializations_pass,
        check_retained_state_pass,
        check_structure_pass,
        survey_types_pass,
    ),
    "precision": (
        merge_equal_nodes_pass,
        dump_profile_pass,
        *FLOAT_GRAPH,
        calibrate_pass,
        assign_precision_pass,
        fold_batch_normalization_for_float16_pass,
    ),
    "quantize": (
        compress_weights_pass,
        raise_opset_version_pass,
        fold_constants_pass,
        plan_quantization_pass,
        insert_qdq_pass,
    ),
    "compare": (compare_outputs_pass,),
    # The casts compare values that are rounded to float16.
    "emulate": (round_partition_traffic_pass, emulate_float16_pass, legalize_narrow_casts_pass),
    "interface": (
        inline_fused_functions_pass,
        legalize_captured_values_pass,
        read_masks_pass,
        separate_pads_pass,
        legalize_recurrent_pass,
        remove_unused_pass,
        externalize_constants_pass,
        fix_interface_pass,
        open_sizes_pass,
        dump_io_template_pass,
        apply_custom_io_pass,
    ),
    # Values are described before operators of the device exist, because the engine cannot infer types of
    # these.
    "state": (
        take_out_state_rows_pass,
        fold_sizes_pass,
        infer_finished_pass,
        copy_attended_rows_pass,
        store_weights_pass,
        store_packed_weights_pass,
        fuse_elementwise_pass,
        legalize_quantized_chains_pass,
    ),
    "annotate": (describe_operations_pass,),
}

#: environment variable that makes the compiler check the model after every pass; tests set it
VERIFY_VARIABLE: Final = "QAIC_VERIFY_PASSES"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder where the system keeps temporary files."""
    with tempfile.TemporaryDirectory(prefix="openqaic-") as folder:
        yield Path(folder)


def lower(
    source: OnnxFile, options: CompileOptions, progress: Progress, work_folder: WorkFolder = temporary_folder
) -> tuple[Model, Context]:
    """Apply the options to a model.

    The weights of `source` are moved into the result. `work_folder` creates folders for programs that run
    during compilation, which are as large as the result. Returns the program before it is written, its facts,
    and the files to write next to it. Raises CompileError with the tensor or operator if the model cannot
    become a program, and OptionError if an option contradicts it.
    """
    model, context = begin(source, options, progress, work_folder)
    run_passes([step for phase in PHASES.values() for step in phase], model, context)
    emit_report.save_plan(progress.debug_folder, context.quantization)
    emit_report.publish_costs(model, context)
    return model, context


def begin(
    source: OnnxFile, options: CompileOptions, progress: Progress, work_folder: WorkFolder = temporary_folder
) -> tuple[Model, Context]:
    """Read a model, and create the context of its passes; parameters and errors are those of `lower`."""
    progress.stage("read")
    proto = source.parse()
    # Passes add standard operators.
    import_standard_operators(proto)
    custom = custom_ops.read(options.register_custom_op)
    model = Model(proto, source.weights, custom.libraries)
    context = Context(
        options,
        progress,
        write_unchecked,
        work_folder,
        custom,
        for_integers=is_quantizing(options),
        overflows=Overflows(clip=options.clip_fp16_constants),
        names=InlinedNames(proto) if value_options.name_values(options) else None,
    )
    return model, context


def _of_library(name: str, found: str, *, is_checked: bool) -> CompileError:
    """Return the error for a message of a library; a checked model points to a defect."""
    return refuse(
        f"model, in the pass {name!r}",
        code="invalid_model",
        found=found,
        expected="a model that onnx can read",
        fix="report it with the model, which passed the checker" if is_checked else "check the model",
    )


def _graph(model: Model) -> tuple[bytes, tuple[str, ...]]:
    """Return everything that a pass may have changed in the graph."""
    return model.proto.SerializeToString(), tuple(model.weights)


def _knowledge(model: Model) -> list[object]:
    """Return everything that a pass may have changed in the facts about the graph."""
    facts, specialized = model.facts, [one.SerializeToString() for one in model.specialized]
    # Shapes are collected at the first request.
    shapes = dict(vars(facts).get("shapes", {}))
    return [dict(facts.types), shapes, dict(facts.narrow), dict(facts.original), model.known, specialized]


def run_passes(passes: Sequence[Pass], model: Model, context: Context) -> None:
    """Run the needed passes in order; each is timed, and with `enable_debug` checked and saved."""
    is_verified = context.options.enable_debug or VERIFY_VARIABLE in os.environ
    is_changed, known = True, list[object]()
    graph = _graph(model) if is_verified else None
    for step in passes:
        if not step.is_needed(context):
            continue
        # A graph is saved only if it has changed.
        context.progress.stage(step.name, model.copy_for_tools if is_changed else None)
        with library_errors(partial(_of_library, step.name, is_checked=context.is_checked), among_ours=True):
            try:
                step.run(model, context)
            except (CompileError, DeviceError) as error:
                # Passes load and run the graph too, for example to calibrate it.
                raise_with_node(error, model)
        if is_verified:
            found, learned = _graph(model), _knowledge(model)
            is_changed = found != graph
            if context.is_checked and (is_changed or learned != known):
                # Inference of onnx is slow and has defects, which must not refuse a user's model.
                verify(model, step.name, are_types_verified=VERIFY_VARIABLE in os.environ)
            graph, known = found, learned
