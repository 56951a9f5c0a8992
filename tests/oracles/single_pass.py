"""A single pass: its input in the pipeline, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from compiler_oracle import run
from qaic.compiler import pipeline
from qaic.compiler.diagnostics.progress import PassLog, Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.compiler.ir.constants.weights import read_all
from qaic.compiler.ir.verify import verify
from qaic.options import resolve

if TYPE_CHECKING:
    import numpy as np

    from qaic.compiler.ir.model import Context, Model, Pass

STEPS = [step for phase in pipeline.PHASES.values() for step in phase]


def begun(proto: onnx.ModelProto, **options: object) -> tuple[Model, Context]:
    """Read a model in the same way as the pipeline before its first pass."""
    # The numbers of weights are in the bytes, which do not change.
    source = onnx_file.open_bytes(proto.SerializeToString())
    return pipeline.begin(
        source, resolve(options, options_path=None, model_is_container=False).compile, Progress("test")
    )


def before(name: str, proto: onnx.ModelProto, **options: object) -> tuple[Model, Context]:
    """Run the passes before the first pass with a name."""
    model, context = begun(proto, **options)
    first = next(at for at, step in enumerate(STEPS) if step.name == name)
    pipeline.run_passes(STEPS[:first], model, context)
    return model, context


def step_of(name: str) -> Pass:
    """Find a pass by its name."""
    return next(step for step in STEPS if step.name == name)


def applied(name: str, model: Model, context: Context) -> bool:
    """Run a pass that the options request, and check its result; return true if it changed the model."""
    step = step_of(name)
    assert step.is_needed(context)
    before = content(model)
    step.run(model, context)
    verify(model, name)
    return content(model) != before


def skipped(name: str, model: Model, context: Context) -> list[str]:
    """Run a pass; return the text of `time_passes` about nodes that it did not change."""
    passes = PassLog()
    context.progress = Progress("test", passes)
    context.progress.stage(name)
    applied(name, model, context)
    return [line for line in passes.table().splitlines() if f"{name} left " in line]


def content(model: Model) -> tuple[bytes, list[tuple[object, ...]]]:
    """Return all parts of a graph and its weights that a pass can change."""
    weights = [
        (weight.name, weight.elem_type, weight.dims, weight.blocks) for weight in model.weights.values()
    ]
    return model.proto.SerializeToString(deterministic=True), weights


def ops(model: Model) -> list[str]:
    """List the operators of the main graph."""
    return [node.op_type for node in model.proto.graph.node]


def whole(model: Model) -> onnx.ModelProto:
    """Move the weights of a model into its graph."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model.proto)
    for weight in model.weights.values():
        data = read_all(weight.source)
        copy.graph.initializer.append(
            onnx.TensorProto(name=weight.name, data_type=weight.elem_type, dims=weight.dims, raw_data=data)
        )
    return copy


def outputs(model: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a model without changes and without optimizations."""
    return run(whole(model), feeds, optimize=False)
