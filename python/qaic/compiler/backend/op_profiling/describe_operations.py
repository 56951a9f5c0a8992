"""The operations that the engine makes of a program, where they are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx

from qaic.compiler.backend.cpu.qpc_writer import declared, light_form, prove, write_unchecked
from qaic.compiler.backend.op_profiling.operations import describe_operations, engine_graph, named_throughout
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import WhenMeasuringOperations

#: how deep the standard functions are nested that an engine has no kernel for
_FUNCTION_DEPTH: Final = 4


class DescribeOperations(WhenMeasuringOperations):
    """Have the engine optimize the program, and note its operations, each under a name."""

    name = "describe-operations"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model, and note its operations."""
        if model.provenance is None:
            return False
        provenance = model.provenance
        with context.work_folder() as folder:
            with declared(model):
                owners = provenance.owners(model.proto)
            optimized = _optimized(folder / "program.bin", model, context)
            for _ in range(_FUNCTION_DEPTH):
                with declared(model):
                    written_out = named_throughout(model.proto, optimized)
                    if written_out is not None:
                        model.proto = written_out
                        owners = provenance.owners(written_out)
                if written_out is None:
                    break
                optimized = _optimized(folder / "program.bin", model, context)
        with declared(model):
            model.operations = describe_operations(model.proto, optimized, owners, model.described)
        return True


def _optimized(path: Path, model: Model, context: Context) -> onnx.ModelProto:
    """Take the engine's graph from a container that is written for it."""
    write_unchecked(path, model, context.options)
    prove(path, model, light_form(model), context.options)
    optimized = engine_graph(path)
    path.unlink()
    return optimized
