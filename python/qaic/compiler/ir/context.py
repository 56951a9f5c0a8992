"""The contract of a pass, and state that passes share in addition to the model: options, facts to report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.diagnostics.record import Survey
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.constants.propagation import node_label
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.custom_ops import CustomOps
from qaic.compiler.ir.precision import Classification
from qaic.options.table import CompileOptions

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.ir.inlined_names import InlinedNames
    from qaic.compiler.ir.model import Model
    from qaic.compiler.ir.quantization import CalibrationProfile, QuantizationPlan

#: lowest level of statistics that measures operations
OPERATIONS_LEVEL: Final = 70
#: reports why a rule does not change a node
Skip = Callable[[str, "onnx.NodeProto"], None]
#: makes a temporary folder
WorkFolder = Callable[[], AbstractContextManager[Path]]
#: writes a container that the caller loads immediately
WriteProgram = Callable[[Path, "Model", "CompileOptions"], None]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file to write after the container."""

    #: its path; an existing file is replaced
    path: Path
    #: writes the content to its argument, a path that does not exist
    write: Callable[[Path], object]


@dataclass(slots=True)
class Context:
    """Options of one compilation, and the findings of its passes."""

    #: compile options; names of values in them are those of the graph, once functions are expanded
    options: CompileOptions
    #: shows the progress of the compilation
    progress: Progress
    #: writes a container to run during compilation, because passes do not import the writer
    write_program: WriteProgram
    #: makes folders for programs that run during compilation
    work_folder: WorkFolder
    #: operators of the user's libraries
    custom: CustomOps
    #: true if the graph will be quantized, or measured for it
    for_integers: bool
    #: constants out of the range of float16
    overflows: Overflows
    #: known parts of the model that a card does not support
    survey: Survey = field(default_factory=Survey)
    #: true if the user's model is valid, so that later faults are those of the compiler
    is_checked: bool = False
    #: names of values in expanded functions, if options name some
    names: InlinedNames | None = None
    #: values inside quantized weights, to which options about floats do not apply
    exact: Sequence[str] = ()
    #: the weights of the model before its precision was changed
    given_weights: dict[str, Weight] = field(default_factory=dict)
    #: ranges and parameters of the values of the float graph, if it is quantized
    profile: CalibrationProfile | None = None
    #: precision of each node
    plan: Classification = field(default_factory=Classification)
    #: quantized values, their parameters, and the reasons for the others; None if no option asks for them
    quantization: QuantizationPlan | None = None
    side_files: list[SideFile] = field(default_factory=list)

    def skip(self, reason: str, node: onnx.NodeProto) -> None:
        """Report why a rule does not change a node; `time_passes` shows it."""
        self.progress.skip(reason, node_label(node))

    @property
    def measures_operations(self) -> bool:
        """True if the program measures its operations one by one."""
        return self.options.stats_level >= OPERATIONS_LEVEL

    @property
    def moves_parts_of_state(self) -> bool:
        """True if state may be read and written in part."""
        return self.options.retained_state and not self.options.whole_caches


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of compiling; ``compiler/pipeline.py`` and nothing else states its place in the order."""

    #: in reports of times, names of saved graphs, and progress
    name: str
    #: Changes or analyzes the model; returns True if the model was changed. Raises
    #: CompileError if the model cannot become a program, and OptionError if an option contradicts it.
    run: Callable[[Model, Context], bool]
    #: true if the options ask for the pass; `run` finds models that do not need it
    is_needed: Callable[[Context], object] = lambda _: True


def compiler_pass(
    is_needed: Callable[[Context], object] = lambda _: True,
) -> Callable[[Callable[[Model, Context], bool]], Pass]:
    """Make a pass of a function, which has the name of the pass followed by ``_pass``."""

    def made(run: Callable[[Model, Context], bool]) -> Pass:
        return Pass(run.__name__.removesuffix("_pass").replace("_", "-"), run, is_needed)

    return made
