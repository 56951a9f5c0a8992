"""A model that can be compiled repeatedly with different lists of nodes.

Steps that do not depend on the lists run once: reading, checks, shapes, and calibration.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnx

from qaic.accuracy.instrument import Observe
from qaic.accuracy.observed import Twin
from qaic.compiler.backend.qpc_writer import write_unchecked
from qaic.compiler.cache import open_cache
from qaic.compiler.calibration.collector import model_inputs
from qaic.compiler.calibration.dataset import SampledInput
from qaic.compiler.calibration.load_or_collect import calibrate_pass
from qaic.compiler.diagnostics.messages import Survey
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import opened
from qaic.compiler.frontend.files.onnx_file import OnnxFile
from qaic.compiler.frontend.value_options import in_expanded_graph
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.graph_walk import all_nodes, standard
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model, Pass
from qaic.compiler.ir.precision import Classification
from qaic.compiler.passes.shape_inference.infer_shapes import open_sizes_pass
from qaic.compiler.pipeline import PHASES, begin, run_passes
from qaic.compiler.quantization.prepare import raise_opset_version_pass
from qaic.errors import OptionError
from qaic.options.conflicts import CALIBRATION_SAMPLES, QUANTIZATION_SETTINGS
from qaic.options.files.node_precision import NodePrecision
from qaic.options.table import CompileOptions, find
from qaic.support.text import nearest_name

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto


#: passes after values are measured, except the precision of nodes
_MEASURED: Final[Sequence[Pass]] = tuple(step for step in PHASES["precision"] if step is not calibrate_pass)


class PreparedModel:
    """A model after shape inference, from `prepared`."""

    def __init__(self, source: OnnxFile, options: CompileOptions, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        #: the float graph with all shapes, before its precision changes
        self.shaped, self._context = begin(source, options, progress, open_cache().work_folder)
        if self._context.names is None and self.shaped.proto.functions:
            # Reports use the names in the bodies of functions.
            self._context.names = InlinedNames(self.shaped.proto)
        for phase in ("legalize", "shapes"):
            run_passes(PHASES[phase], self.shaped, self._context)
        self._is_measured = False

    @property
    def names(self) -> InlinedNames | None:
        """Return the names of values in the bodies of functions; None if there are no functions."""
        return self._context.names

    @property
    def inputs(self) -> list[SampledInput]:
        """Inputs in the form that samples must have."""
        return model_inputs(self.shaped, has_state=self.options.retained_state)

    def write(self, path: Path, half: Sequence[str] = (), single: Sequence[str] = ()) -> None:
        """Write the program with some nodes in float16 and in float32, by the names of a precision file.

        It equals the program of `qaic.compile` with the same options and that file, but values are measured
        once for all lists. `qaic.compile` measures no value that stays in floating point, and this program
        uses no such measurement.
        """
        model, context = self._floats(half, single)
        for phase in ("quantize", "emulate", "interface"):
            run_passes(PHASES[phase], model, context)
        self._write(path, model)

    def write_instrumented(self, path: Path) -> tuple[Twin, Model]:
        """Write the program with its reference and observers; returns added nodes and the float graph."""
        model, context = self._floats()
        # The reference is added to the deployed graph, so both are in one operator set.
        run_passes([raise_opset_version_pass], model, context)
        reference = model.copy()
        observe = Observe(reference, _folded(self.shaped, reference))
        run_passes([*PHASES["quantize"], *PHASES["emulate"]], model, context)
        chooses = any(standard(node, "If") for node in all_nodes(model.proto.graph.node))
        # The observers also use If, and the engine accepts them with all sizes.
        interface = [step for step in PHASES["interface"] if chooses or step is not open_sizes_pass]
        run_passes([Pass("observe-accuracy", observe.run), *interface], model, context)
        self._write(path, model)
        return observe.twin, reference

    def _floats(self, half: Sequence[str] = (), single: Sequence[str] = ()) -> tuple[Model, Context]:
        """Return the float graph with a decision for every node."""
        before = self._context
        options = before.options
        if half or single:
            options = in_expanded_graph(
                replace(options, node_precision_info_file=merged(self.options, half, single)),
                before.names,
                before.exact,
            )
        context = replace(
            before,
            options=options,
            survey=Survey(),
            overflows=Overflows(clip=options.clip_fp16_constants),
            given_weights={},
            plan=Classification(),
            quantization=None,
            side_files=[],
        )
        model = self.shaped.copy()
        run_passes(_MEASURED if self._is_measured else PHASES["precision"], model, context)
        if not (half or single):
            before.profile, self._is_measured = context.profile, True
        return model, context

    def _write(self, path: Path, model: Model) -> None:
        self.progress.stage("write")
        plain = CompileOptions(
            retained_state=self.options.retained_state,
            combine_outputs=False,
            aic_num_cores=self.options.aic_num_cores,
        )
        write_unchecked(path, model, plain)


@contextlib.contextmanager
def prepared(model: ModelSource, options: CompileOptions, title: str) -> Iterator[PreparedModel]:
    """Open a model and run the steps that do not depend on the precision of single nodes.

    Raises CompileError if the model cannot be compiled, and OptionError if an option contradicts the model or
    changes the inputs or outputs of the program, which is not supported.
    """
    if options.custom_io_list_file:
        raise OptionError(
            "custom_io_list_file: accuracy compares the outputs of the model, which this option changes; "
            "leave it out",
            code="option.accuracy_custom_io",
            context={"options": ["custom_io_list_file"]},
        )
    with opened(model) as source, Progress(title) as progress:
        yield PreparedModel(source, options, progress)


def merged(options: CompileOptions, half: Sequence[str], single: Sequence[str]) -> NodePrecision:
    """Add names to the lists of the options; an added name is removed from the other list."""
    lists = options.node_precision_info_file or NodePrecision()
    moved = {*half, *single}
    return NodePrecision(
        (*(name for name in lists.fp16 if name not in moved), *dict.fromkeys(half)),
        (*(name for name in lists.fp32 if name not in moved), *dict.fromkeys(single)),
    )


def _folded(shaped: Model, reference: Model) -> dict[str, str]:
    """Map results of convolutions with a folded normalization to their results before folding."""
    made = {name: node for node in shaped.proto.graph.node for name in node.output if name}
    found = {}
    for node in reference.proto.graph.node:
        before = made.get(node.output[0]) if node.op_type == "Conv" and node.output else None
        if before is not None and before.op_type == "BatchNormalization":
            found[str(node.output[0])] = str(before.input[0])
    return found


#: name of a precision -> its compile options
PRECISIONS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "fp32": {},
        "fp16": {"convert_to_fp16": True},
        "int8": {"convert_to_quantize": True, "quantization_precision": "Int8"},
        "int16": {"convert_to_quantize": True, "quantization_precision": "Int16"},
        "mxfp6": {"mxfp6_matmul": True},
    }
)

_OF_INTEGERS: Final = frozenset((*QUANTIZATION_SETTINGS, *CALIBRATION_SAMPLES))


def named(to: object) -> tuple[str, ...]:
    """Return the requested precisions: ``fp16``, ``fp16,int8``, or a list; a plus joins two.

    Raises OptionError if a name is not a precision.
    """
    given = to.split(",") if isinstance(to, str) else to
    if not isinstance(given, Sequence) or not given or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"to: found {to!r}, expected names of precisions: {', '.join(PRECISIONS)}", code="option.to"
        )
    names = tuple(dict.fromkeys(name.strip().lower() for name in given))
    for name in names:
        for part in name.split("+"):
            if part not in PRECISIONS:
                near = nearest_name(part, PRECISIONS)
                hint = f" (did you mean {near}?)" if near else ""
                raise OptionError(
                    f"to: found {part!r}{hint}, expected {', '.join(PRECISIONS)}, or several joined by +",
                    code="option.to",
                )
    return names


def options_of(name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the compile options for a precision; the user's options take precedence."""
    found: dict[str, object] = {}
    for part in name.split("+"):
        found |= PRECISIONS[part]
    return {**found, **given}


def options_among(names: Sequence[str], name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the compile options for one of several precisions; only integers get options for integers."""
    if _has_integers(name) or not any(map(_has_integers, names)):
        return dict(given)
    return {
        key: value
        for key, value in given.items()
        if (spec := find(key)) is None or spec.name not in _OF_INTEGERS
    }


def _has_integers(name: str) -> bool:
    return any("convert_to_quantize" in PRECISIONS[part] for part in name.split("+"))


def name_of(options: Mapping[str, object]) -> str | None:
    """Return the name of the precision that compile options select; None for that of the model.

    Quantization without a precision uses int8, the default of the options.
    """
    given = {"quantization_precision": "Int8", **options}
    names = [
        name
        for name, asked in PRECISIONS.items()
        if asked and all(given.get(key) == value for key, value in asked.items())
    ]
    return "+".join(names) or None
