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
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.custom_ops import CustomOps
from qaic.compiler.ir.precision import Classification
from qaic.options.table import CompileOptions

if TYPE_CHECKING:
    from qaic.compiler.ir.inlined_names import InlinedNames
    from qaic.compiler.ir.model import Model
    from qaic.compiler.ir.quantization import CalibrationProfile, QuantizationPlan

#: level of statistics from which on operations are measured
OPERATIONS_LEVEL: Final = 70
#: makes a folder for what is of no use afterwards; the argument says for what
WorkFolder = Callable[[], AbstractContextManager[Path]]
#: writes a container that the caller loads at once
WriteProgram = Callable[[Path, "Model", "CompileOptions"], None]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file to write after the container."""

    #: where it goes; replaced if it exists
    path: Path
    #: writes the content to the path it is given, which does not exist
    write: Callable[[Path], None]


@dataclass(slots=True)
class Context:
    """Options of one compilation, and what its passes have found."""

    #: compile options; names of values in them are those of the graph, once functions are expanded
    options: CompileOptions
    #: shows where the compilation is
    progress: Progress
    #: writes a container to run while compiling; passes do not know how programs are written
    write_program: WriteProgram
    #: makes folders for programs that are run while compiling
    work_folder: WorkFolder
    #: operators of the user's libraries
    custom: CustomOps
    #: whether the graph is to be quantized, or measured for it
    for_integers: bool
    #: constants that are beyond float16
    overflows: Overflows
    #: known parts of the model that a card does not support
    survey: Survey = field(default_factory=Survey)
    #: whether the user's model was found to be one, so that what is wrong later is the compiler's
    is_checked: bool = False
    #: what values are called inside of expanded functions, where options name some
    names: InlinedNames | None = None
    #: values inside of quantized weights, which options about floats are not about
    exact: Sequence[str] = ()
    #: the weights of the model before its precision was changed
    given_weights: dict[str, Weight] = field(default_factory=dict)
    #: what is known about the values of the float graph, where it is quantized
    profile: CalibrationProfile | None = None
    #: what each node computes in
    plan: Classification = field(default_factory=Classification)
    #: quantized values, their parameters, and the reasons for the others; None if no option asks for them
    quantization: QuantizationPlan | None = None
    side_files: list[SideFile] = field(default_factory=list)

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
    #: Changes the model, or learns something of it; returns True if the model was changed. Raises
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
