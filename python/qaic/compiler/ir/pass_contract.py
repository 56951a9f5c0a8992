"""The contract of a pass."""

from collections.abc import Callable
from dataclasses import dataclass

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.model import Model


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
    """Make a pass of a function, whose name is that of the pass with ``_pass`` behind it."""

    def made(run: Callable[[Model, Context], bool]) -> Pass:
        return Pass(run.__name__.removesuffix("_pass").replace("_", "-"), run, is_needed)

    return made
