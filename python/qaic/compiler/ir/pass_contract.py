"""The contract of a pass."""

from typing import Protocol

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import is_quantizing


class Pass(Protocol):
    """One step of compiling; ``compiler/pipeline.py`` and nothing else states its place in the order."""

    #: in reports of times, names of saved graphs, and progress
    name: str

    def is_needed(self, context: Context) -> bool:
        """Return whether the options ask for the pass; `run` finds models that do not need it."""

    def run(self, model: Model, context: Context) -> bool:
        """Change the model, or learn something of it.

        Returns True if the model was changed. Raises CompileError if the model cannot become a program, and
        OptionError if an option contradicts it.
        """


class Always:
    """A pass that options do not decide about."""

    def is_needed(self, context: Context) -> bool:
        """Return True."""
        del context
        return True


class WithOption:
    """A pass that runs where one option is set."""

    option: str

    def is_needed(self, context: Context) -> bool:
        """Return whether the option asks for anything."""
        return bool(getattr(context.options, self.option))


class WhenQuantizing:
    """A pass of models that become integers."""

    def is_needed(self, context: Context) -> bool:
        """Return whether the options ask for integers."""
        return is_quantizing(context.options)


class WhenMeasuringOperations:
    """A pass of programs that measure their operations one by one."""

    def is_needed(self, context: Context) -> bool:
        """Return whether the level of statistics asks for the pass."""
        return context.measures_operations
