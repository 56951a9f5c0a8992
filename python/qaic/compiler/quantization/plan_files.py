"""A quantization plan as text and JSON, and as input files of the compiler: encodings and node precisions.

Encodings (AIMET 0.6.1, https://quic.github.io/aimet-pages) count q from 0 and add a negative offset. Here q
is signed and the offset is subtracted, so an 8-bit offset ``o`` becomes ``-o - 128``. Both files together,
with the same other options, give the same program: values inside groups have only ranges, and results of
nodes that stay in floating point by choice have a float type.
"""

import json
from typing import Any

import onnx

from qaic.compiler.ir.graph_walk import node_key
from qaic.compiler.ir.quantization import PlannedWeight, QuantizationPlan, QuantizedGroup, QuantParams
from qaic.support.text import counted

_BITS = {"Int8": 8, "Int16": 16}
_FLOAT_BITS = {"fp16": 16, "fp32": 32}


def plan_text(plan: QuantizationPlan) -> str:
    """Write a plan for people: the groups, then the other nodes with their reasons."""
    groups, floats = list(plan.groups()), list(plan.floats())
    inside = sum(len(group.group.nodes) for group in groups)
    outside = sum(len(entry.nodes) for entry in floats)
    lines = [
        f"{counted(inside, 'node')} in {counted(len(groups), 'quantized group')}, "
        f"{counted(outside, 'node')} in floating point"
    ]
    for group in groups:
        op_types = " + ".join(node.op_type for node in group.group.nodes)
        lines.append(f"{group.group.output}: {op_types}, {group.precision}, {group.scheme.value}")
        lines += [f"  reads {name}: {_formula(params)}" for name, params in group.operands.items()]
        if group.weight is not None:
            lines.append(f"  weight {group.weight.name}: {_weight_text(group.weight)}")
        if group.table is not None:
            lines.append(
                f"  table {group.table.name}: {counted(len(group.table.steps), 'row')} with a step each"
            )
        lines += [f"  makes {name}: {_formula(params)}" for name, params in group.results.items()]
    for entry in floats:
        lines += [f"{node_key(node)}: {node.op_type}, float: {entry.reason.value}" for node in entry.nodes]
    return "\n".join(lines) + "\n"


def _formula(params: QuantParams) -> str:
    if not params.offset:
        return f"{params.scale:.9g} x q"
    return f"{params.scale:.9g} x (q {'-' if params.offset > 0 else '+'} {abs(params.offset)})"


def _weight_text(weight: PlannedWeight) -> str:
    scales = weight.stored_scales
    found = f"scale {float(scales[0]):.9g}" if weight.axis is None else f"{len(scales)} scales"
    along = "" if weight.axis is None else f" along axis {weight.axis}"
    factors = "" if weight.factors is None else ", multiplied by factors"
    bias = "" if weight.bias is None else ", with a bias"
    return f"{found}{along}, offset {weight.offset}{factors}{bias}"


def plan_json(plan: QuantizationPlan) -> dict[str, Any]:
    """Write a plan for programs."""
    return {
        "groups": [_group_json(group) for group in plan.groups()],
        "floats": [
            _node_json(node) | {"reason": entry.reason.code, "sentence": entry.reason.value}
            for entry in plan.floats()
            for node in entry.nodes
        ],
    }


def _group_json(group: QuantizedGroup) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nodes": [_node_json(node) for node in group.group.nodes],
        "precision": group.precision,
        "scheme": group.scheme.name.lower(),
        "operands": {name: _params_json(params) for name, params in group.operands.items()},
        "results": {name: _params_json(params) for name, params in group.results.items()},
    }
    if group.weight is not None:
        found["weight"] = {
            "name": group.weight.name,
            "scales": [float(scale) for scale in group.weight.stored_scales],
            "offset": group.weight.offset,
            "axis": group.weight.axis,
            "is_multiplied": group.weight.factors is not None,
            "has_bias": group.weight.bias is not None,
        }
    if group.table is not None:
        found["table"] = group.table.name
    return found


def _node_json(node: onnx.NodeProto) -> dict[str, Any]:
    return {"output": node_key(node), "name": node.name, "op_type": node.op_type}


def _params_json(params: QuantParams) -> dict[str, Any]:
    return {"scale": params.scale, "offset": params.offset}


def encodings(plan: QuantizationPlan) -> dict[str, Any]:
    """Write a plan as encodings, for ``external_quantization_file``.

    Scales of weights are those before a bias enlarged them; the next compilation enlarges them again. A
    weight that is multiplied by factors has no entry, because its parameters are those of the product.
    """
    activations: dict[str, list[dict[str, Any]]] = {}
    constants: dict[str, list[dict[str, Any]]] = {}
    for name, params in (plan.ranges | plan.values()).items():
        section = constants if name in plan.constants else activations
        section[name] = [_encoding(params.scale, params.offset, params.precision)]
    for group in plan.groups():
        weight = group.weight
        if weight is not None and weight.factors is None:
            constants[weight.name] = [
                _encoding(float(scale), weight.offset, group.precision) for scale in weight.scales
            ]
    for name, precision in plan.chosen_floats.items():
        # A result that others read as integers has one entry; the node precision file contains its node.
        if name not in activations:
            activations[name] = [{"bitwidth": _FLOAT_BITS[precision], "dtype": "float"}]
    return {"version": "0.6.1", "activation_encodings": activations, "param_encodings": constants}


def _encoding(scale: float, offset: int, precision: str) -> dict[str, Any]:
    bits = _BITS[precision]
    first = -offset - (1 << (bits - 1))
    return {
        "bitwidth": bits,
        "dtype": "int",
        "is_symmetric": str(offset == 0),
        "scale": scale,
        "offset": first,
        "min": scale * first,
        "max": scale * (first + (1 << bits) - 1),
    }


def node_precision(plan: QuantizationPlan) -> dict[str, list[str]]:
    """Write the nodes that a plan keeps in floating point by choice, for ``node_precision_info_file``."""
    return {
        key: sorted(name for name, precision in plan.chosen_floats.items() if precision == wanted)
        for key, wanted in (("FP16NodeInstanceNames", "fp16"), ("FP32NodeInstanceNames", "fp32"))
    }


def files_of(plan: QuantizationPlan) -> dict[str, str]:
    """Write all files of a plan: name of a file -> content. JSON is valid YAML."""
    held = {
        "quantization-plan.json": plan_json(plan),
        "quantization-encodings.json": encodings(plan),
        "node-precision.yaml": node_precision(plan),
    }
    made = {name: json.dumps(content, indent=1) + "\n" for name, content in held.items()}
    return {"quantization-plan.txt": plan_text(plan)} | made
