"""The order of all passes, from an opened model and options to the graph, weights and interface of a program.

A pass is one file, one test file and one entry here. `time_passes` and `enable_debug` show exactly this list.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from qaic.compiler.backend.cpu.qpc_writer import write_unchecked
from qaic.compiler.backend.op_profiling.infer_finished import InferFinished
from qaic.compiler.backend.op_profiling.operations import DescribeOperations
from qaic.compiler.backend.op_profiling.provenance import RecordProvenance
from qaic.compiler.calibration.load_or_collect import Calibrate, DumpProfile
from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend import custom_ops, value_options
from qaic.compiler.frontend.check_model import (
    CheckModel,
    CheckOperators,
    CheckStructure,
    Normalize,
    RemoveUnused,
)
from qaic.compiler.frontend.files.onnx_file import OnnxFile
from qaic.compiler.frontend.specialization import FixInterface
from qaic.compiler.frontend.value_options import TranslateNames
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.constants.initializers import ExternalizeConstants
from qaic.compiler.ir.context import Context, WorkFolder
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.opset_version import LowerOpsetVersion
from qaic.compiler.ir.pass_contract import Pass
from qaic.compiler.ir.precision import is_quantizing
from qaic.compiler.ir.verify import verify
from qaic.compiler.passes.assign_precision import AssignPrecision
from qaic.compiler.passes.cse import MergeEqualNodes
from qaic.compiler.passes.custom_io import ApplyCustomIo, DumpIoTemplate
from qaic.compiler.passes.decoding.attended_rows import CopyAttendedRows
from qaic.compiler.passes.decoding.fold_sizes import FoldSizes
from qaic.compiler.passes.decoding.narrow_context import NarrowContext
from qaic.compiler.passes.decoding.state_rows import TakeOutStateRows
from qaic.compiler.passes.embedding_tables import DumpEmbeddingTables, LoadEmbeddingTables
from qaic.compiler.passes.emulation.emulate_float16 import EmulateFloat16
from qaic.compiler.passes.emulation.mxfp6_weights import CompressWeights
from qaic.compiler.passes.emulation.partition_io import RoundPartitionTraffic
from qaic.compiler.passes.emulation.upcast_float16 import UpcastFloat16
from qaic.compiler.passes.extra_outputs import AddEveryOutput, AddNamedOutputs
from qaic.compiler.passes.fold_batch_normalization import FoldForFloat16, FoldForIntegers
from qaic.compiler.passes.inlining import InlineForNodes, InlineFunctions, InlineFusedFunctions
from qaic.compiler.passes.legalize.legalize_division import LegalizeDivision
from qaic.compiler.passes.legalize.legalize_exports import (
    LegalizeCapturedValues,
    LegalizeExports,
    LegalizeWhere,
)
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import LegalizeQualcommFunctions
from qaic.compiler.passes.legalize.legalize_quantized_weights import LegalizeQuantizedWeights
from qaic.compiler.passes.legalize.legalize_unchecked import LegalizeUnchecked
from qaic.compiler.passes.name_specializations import NameSpecializations
from qaic.compiler.passes.partition_config import CheckPartitions, CheckPlacement, DumpPartitionTemplate
from qaic.compiler.passes.prune_outputs import PruneOutputs
from qaic.compiler.passes.retained_state import CheckRetainedState
from qaic.compiler.passes.set_batch import BindSymbols
from qaic.compiler.passes.shape_inference.infer_shapes import InferShapes, OpenSizes
from qaic.compiler.passes.store_packed_weights import StorePackedWeights
from qaic.compiler.passes.store_weights import StoreWeights
from qaic.compiler.passes.unique_names import UniqueNames
from qaic.compiler.quantization.fold_constants import FoldConstants
from qaic.compiler.quantization.insert_qdq import InsertQdq
from qaic.compiler.quantization.plan_quantization import PlanQuantization
from qaic.compiler.quantization.raise_opset import RaiseOpsetVersion
from qaic.compiler.reports import emit_report
from qaic.compiler.reports.support_report import SurveyOperators, SurveyTypes
from qaic.errors import CompileError
from qaic.options.table import CompileOptions
from qaic.support.library_errors import library_errors

#: what makes the float graph that values are measured on
_FLOAT_GRAPH: Final[Sequence[Pass]] = (UpcastFloat16(), FoldForIntegers())

#: every pass in its place, by phase
PHASES: Final[Mapping[str, Sequence[Pass]]] = {
    "legalize": (
        CheckModel(),
        LegalizeQualcommFunctions(),
        Normalize(),
        CheckOperators(),
        SurveyOperators(),
        LowerOpsetVersion(),
        DumpPartitionTemplate(),
        CheckPlacement(),
        DumpEmbeddingTables(),
        LegalizeQuantizedWeights(),
        NarrowContext(),
        InlineFunctions(),
        LoadEmbeddingTables(),
        PruneOutputs(),
        RemoveUnused(),
        CheckPartitions(),
    ),
    "shapes": (
        BindSymbols(),
        InlineForNodes(),
        UniqueNames(),
        LegalizeExports(),
        RecordProvenance(),
        AddNamedOutputs(),
        TranslateNames(),
        InferShapes(),
        LegalizeWhere(),
        LegalizeDivision(),
        LegalizeUnchecked(),
        AddEveryOutput(),
        # The sizes of every output that was added, in every set of shapes; nothing where none was.
        InferShapes(),
        NameSpecializations(),
        CheckRetainedState(),
        CheckStructure(),
        SurveyTypes(),
    ),
    "precision": (
        MergeEqualNodes(),
        DumpProfile(_FLOAT_GRAPH),
        *_FLOAT_GRAPH,
        Calibrate(),
        AssignPrecision(),
        FoldForFloat16(),
    ),
    "quantize": (CompressWeights(), RaiseOpsetVersion(), FoldConstants(), PlanQuantization(), InsertQdq()),
    "emulate": (RoundPartitionTraffic(), EmulateFloat16()),
    "interface": (
        InlineFusedFunctions(),
        LegalizeCapturedValues(),
        RemoveUnused(),
        ExternalizeConstants(),
        FixInterface(),
        OpenSizes(),
        DumpIoTemplate(),
        ApplyCustomIo(),
    ),
    # The engine infers nothing of an operator of the device, so values are described before there is one.
    "state": (
        TakeOutStateRows(),
        FoldSizes(),
        InferFinished(),
        CopyAttendedRows(),
        StoreWeights(),
        StorePackedWeights(),
    ),
    "annotate": (DescribeOperations(),),
}

#: a process with this variable checks the model after every pass; tests set it
VERIFY_VARIABLE: Final = "QAIC_VERIFY_PASSES"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder where the system keeps temporary files."""
    with tempfile.TemporaryDirectory(prefix="openqaic-") as folder:
        yield Path(folder)


def lower(
    source: OnnxFile, options: CompileOptions, progress: Progress, work_folder: WorkFolder = temporary_folder
) -> tuple[Model, Context]:
    """Apply the options to a model.

    The weights of `source` are moved into the result. `work_folder` makes folders for programs that are run
    while compiling; these are as large as the result. Returns the program before it is written, and what was
    learned of it with the files to write next to it. Raises CompileError with the tensor or operator if the
    model cannot become a program, and OptionError if an option contradicts it.
    """
    model, context = begin(source, options, progress, work_folder)
    run_passes([step for phase in PHASES.values() for step in phase], model, context)
    emit_report.save_plan(progress.debug_folder, context.quantization)
    emit_report.publish_hints(options, model.specialized[0], context.given_weights, context.plan.classes)
    emit_report.publish_metrics(options, model.specialized, model.specializations, model.proto, model.weights)
    return model, context


def begin(
    source: OnnxFile, options: CompileOptions, progress: Progress, work_folder: WorkFolder = temporary_folder
) -> tuple[Model, Context]:
    """Read a model, and make what its passes know; takes and raises what `lower` does."""
    progress.stage("read")
    proto = source.parse()
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
    """Return the error for a library's message about a model; of a checked model it is perhaps a defect."""
    return refuse(
        f"model, in the pass {name!r}",
        code="invalid_model",
        found=found,
        expected="a model that onnx can read",
        fix="report it with the model, which passed the checker" if is_checked else "check the model",
    )


def run_passes(passes: Sequence[Pass], model: Model, context: Context) -> None:
    """Run the passes that are needed, in order; each is timed, and with `enable_debug` checked and kept."""
    is_verified = context.options.enable_debug or VERIFY_VARIABLE in os.environ
    is_changed = True
    for step in passes:
        if not step.is_needed(context):
            continue
        # A graph is kept where it is another one.
        context.progress.stage(step.name, model.copy_for_tools if is_changed else None)
        with library_errors(partial(_of_library, step.name, is_checked=context.is_checked), among_ours=True):
            is_changed = step.run(model, context)
        if is_verified and context.is_checked:
            verify(model, step.name)
