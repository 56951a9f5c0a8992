"""Tensors of the graph to measure: all floats are float32, and no precision is assigned."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx

from qaic.compiler.calibration.dataset import SampledInput
from qaic.compiler.ir.elem_types import FLOAT, FLOAT16
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, subgraphs, uses
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision_ops import RANDOM
from qaic.compiler.ir.quantization import operands, quantizable, results
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: operators whose first result holds exactly the values of the first input, each as often as before
_REARRANGING: Final = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)

#: operators that limit values; limiting their operand earlier gives the same result
_LIMITING: Final = frozenset({"Clip", "Relu"})

#: types of tensors that are measured
_MEASURABLE: Final = frozenset({FLOAT, FLOAT16})


def model_inputs(model: Model, *, has_state: bool) -> list[SampledInput]:
    """List the inputs of a float graph as samples have to fill them."""
    outputs = {spec.name for spec in model.outputs}
    return [
        SampledInput(
            spec.name,
            np.dtype(spec.dtype),
            tuple(specialization.inputs[at] for specialization in model.specializations)
            if model.specializations
            else (spec.dims,),
            is_state=has_state and f"{spec.name}{RETAINED_STATE_SUFFIX}" in outputs,
        )
        for at, spec in enumerate(model.inputs)
    ]


@dataclass(slots=True)
class ObservedTensors:
    """The measured tensors, and the tensors that each measurement applies to."""

    #: results of nodes, which become outputs of the instrumented graph
    results: list[str] = field(default_factory=list)
    #: inputs of the graph
    inputs: list[str] = field(default_factory=list)
    #: results computed from constants alone, which are the same for every sample
    fixed: set[str] = field(default_factory=set)
    #: Tensor -> the measured tensor that stands for it: it holds the same values, or those that are left of
    #: them where a Relu or Clip is all that reads them. So a Conv and its Relu stay one unit.
    same: dict[str, str] = field(default_factory=dict)


def choose(model: Model, float_nodes: set[str]) -> ObservedTensors:
    """Choose the tensors to measure: operands and results of quantizable nodes, except constants.

    `float_nodes` stay in a float precision in any case; they are named by their first output.
    """
    wanted: dict[str, None] = {}
    for node in model.proto.graph.node:
        if not quantizable(node) or next((name for name in node.output if name), "") in float_nodes:
            continue
        wanted |= dict.fromkeys(node.input[at] for at in operands(node))
        wanted |= dict.fromkeys(node.output[at] for at in results(node))
    constants = model.constants()
    derived = _derived(model.proto.graph, constants)
    source = _sources(model.proto.graph, constants)
    limited = _limited(model.proto.graph, constants)
    inputs = [spec.name for spec in model.interface.inputs]
    chosen = ObservedTensors()
    known = set(inputs)
    for name in wanted:
        if name in constants or model.facts.types.get(name) not in _MEASURABLE:
            continue
        at = name
        while at in source and source[at] not in constants and _is_measurable(model, source[at]):
            at = source[at]
        while at in limited and _is_measurable(model, limited[at]):
            at = limited[at]
        if at not in known and not _is_measurable(model, at):
            continue
        chosen.same[name] = at
    used = set(chosen.same.values())
    chosen.inputs = [name for name in inputs if name in used]
    chosen.results = [
        name for node in model.proto.graph.node for name in node.output if name in used and name not in known
    ]
    chosen.fixed = used & derived
    return chosen


def _is_measurable(model: Model, name: str) -> bool:
    """Return whether a value can be an output of a program."""
    return model.facts.types.get(name) in _MEASURABLE and len(model.facts.shapes.get(name, range(9))) <= 8


def _sources(graph: onnx.GraphProto, constants: set[str]) -> dict[str, str]:
    """Map results of nodes that only rearrange values to their operands."""
    return {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.domain in STANDARD_DOMAINS
        and node.op_type in _REARRANGING
        and node.input
        and node.input[0] not in constants
    }


def _limited(graph: onnx.GraphProto, constants: set[str]) -> dict[str, str]:
    """Map values that only a Relu, or a Clip with constant bounds, reads to its result."""
    count = uses(graph)
    results = {name for node in graph.node for name in node.output}
    return {
        node.input[0]: node.output[0]
        for node in graph.node
        if node.domain in STANDARD_DOMAINS
        and node.op_type in _LIMITING
        and all(not name or name in constants for name in node.input[1:])
        and count[node.input[0]] == 1
        and node.input[0] in results - constants
    }


def _derived(graph: onnx.GraphProto, constants: set[str]) -> set[str]:
    """Collect the results that are computed from constants alone."""
    known = set(constants)
    for node in graph.node:
        if (
            node.op_type not in RANDOM
            and not any(subgraphs(node))
            and all(not name or name in known for name in node.input)
        ):
            known.update(node.output)
    return known - constants
