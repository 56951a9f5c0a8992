"""A program before it is written, and the compiler's facts about it, for tests that check both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.compiler.pipeline import lower

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.ir.model import Context


@dataclass(frozen=True)
class Program:
    """Program before it is written, and the facts that the compilation found."""

    model: onnx.ModelProto
    weights: dict
    name: str
    inputs: tuple
    outputs: tuple
    specializations: tuple
    context: Context

    @property
    def profile(self):
        return self.context.profile

    @property
    def overflows(self):
        return self.context.overflows

    @property
    def side_files(self):
        return self.context.side_files


def lower_program(source, options, progress) -> Program:
    """Run all passes over an opened model."""
    model, context = lower(source, options, progress)
    return Program(
        model.proto, model.weights, model.name, model.inputs, model.outputs, model.specializations, context
    )
