"""The pass inserts Q and DQ nodes exactly where the plan requires them, with the parameters of the plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import numpy_helper

from qaic.compiler.ir.graph_walk import node_key
from qaic.compiler.ir.quantization import Scheme
from quantizable_graphs import graphs, options
from quantize_oracle import profile_of
from quantize_support import quantized

MOVING = {Scheme.INTEGERS, Scheme.EQUAL_INTEGERS}


def value_of(name):
    """Return the name of the value whose integers a tensor contains."""
    return name.partition("/quantized")[0]


def check(model, seed, chosen):
    samples = [{"x": np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32)}]
    parts = {}
    result = quantized(model, profile_of(model, samples), parts=parts, **chosen)
    plan, graph = parts["plan"], result.graph
    planned = plan.values()
    weights = {group.weight.name for group in plan.groups() if group.weight is not None}
    moved = {name for group in plan.groups() if group.scheme in MOVING for name in group.results}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    for node in quantizers:
        params = planned[value_of(node.output[0])]
        scale, zero = (constants[name] for name in node.input[1:])
        assert (scale, zero) == (np.float32(params.scale), params.zero_point)
        assert zero.dtype == (np.uint8 if params.precision == "Int8" else np.int16)
    quantized_values = [value_of(node.output[0]) for node in quantizers]
    # Each value is quantized once; integers that a node moves are not quantized again; constants are
    # integers.
    assert len(set(quantized_values)) == len(quantized_values)
    assert not set(quantized_values) & (moved | plan.constants | weights)
    made = {name for group in plan.groups() for name in group.results}
    entering = {name for group in plan.groups() for name in group.operands} - made - plan.constants
    assert entering <= set(quantized_values)
    assert set(quantized_values) <= entering | (made - moved)
    # Nodes in floating point keep their names and inputs.
    left = {node_key(node): node for node in graph.node}
    for entry in plan.floats():
        for node in entry.nodes:
            assert left[node_key(node)].op_type == node.op_type
            if not entry.readers:
                assert list(left[node_key(node)].input) == list(node.input)
    for group in plan.groups():
        kind = group.group.node.op_type
        moving = [node for node in graph.node if node.op_type == kind and group.scheme in MOVING]
        assert group.scheme not in MOVING or any(value_of(node.output[0]) in group.results for node in moving)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), options)
def test_quantizers_are_those_of_the_plan(drawn, chosen):
    check(*drawn, chosen)


@pytest.mark.parametrize("precision", ["Int8", "Int16"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), options)
def test_quantizers_have_the_precision_of_the_plan(precision, drawn, chosen):
    check(*drawn, {**chosen, "quantization_precision": precision})
