"""State that passes share in addition to the model: the options, and facts to be reported."""

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
    """A file to write after the container.

    Parameters
    ----------
    path : Path
        Where it goes; replaced if it exists.
    write : callable
        Writes the content to the path it is given, which does not exist.
    """

    path: Path
    write: Callable[[Path], None]


@dataclass(slots=True)
class Context:
    """Options of one compilation, and what its passes have found.

    Parameters
    ----------
    options
        Compile options; names of values in them are those of the graph, once functions are expanded.
    progress
        Shows where the compilation is.
    write_program
        Writes a container to run while compiling; passes do not know how programs are written.
    work_folder
        Makes folders for programs that are run while compiling.
    custom
        Operators that the user brings along.
    for_integers
        Whether the graph is to be quantized, or measured for it.
    survey
        What a card would not take, as far as it is known.
    is_checked
        Whether the user's model was found to be one, so that what is wrong later is the compiler's.
    names
        What values are called inside of expanded functions, where options name some.
    exact
        Values inside of quantized weights, which options about floats are not about.
    given_weights
        The weights of the model before its precision was changed.
    profile
        What is known about the values of the float graph, where it is quantized.
    plan
        What each node computes in.
    quantization
        What is quantized, how, and why not the rest; where anything is asked to be.
    overflows
        Constants that are beyond float16.
    side_files
        Files that the options want next to the container.
    """

    options: CompileOptions
    progress: Progress
    write_program: WriteProgram
    work_folder: WorkFolder
    custom: CustomOps
    for_integers: bool
    overflows: Overflows
    survey: Survey = field(default_factory=Survey)
    is_checked: bool = False
    names: InlinedNames | None = None
    exact: Sequence[str] = ()
    given_weights: dict[str, Weight] = field(default_factory=dict)
    profile: CalibrationProfile | None = None
    plan: Classification = field(default_factory=Classification)
    quantization: QuantizationPlan | None = None
    side_files: list[SideFile] = field(default_factory=list)

    @property
    def measures_operations(self) -> bool:
        """True if the program measures its operations one by one."""
        return self.options.stats_level >= OPERATIONS_LEVEL
