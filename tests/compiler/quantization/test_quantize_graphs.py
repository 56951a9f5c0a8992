"""Random graphs: every quantized result equals that of the reference within one step."""

import numpy as np
from hypothesis import HealthCheck, given, settings

from qaic.compiler.ir.quantization import VALUE_PRESERVING
from quantizable_graphs import graphs, options
from quantize_oracle import Reference, profile_of, run, with_outputs
from quantize_support import quantized


def check(model, seed, chosen):
    rng = np.random.default_rng(seed)
    samples = [{"x": rng.standard_normal((1, 3, 6, 6)).astype(np.float32)} for _ in range(3)]
    profile = profile_of(model, samples)
    result = quantized(model, profile, **chosen)
    # Values inside a unit stay in floating point and keep their names.
    made = {node.output[0] for node in result.graph.node if node.op_type == "DequantizeLinear"}
    names = [name for node in model.graph.node for name in node.output if name in made]
    # Inputs also exceed the measured range, so integers saturate.
    feeds = {"x": (samples[0]["x"] * 1.5).astype(np.float32)}
    probe = with_outputs(result, names)
    for way in ({}, {"unsigned_weights": True}, {"optimize": False}):
        actual = {**run(probe, feeds, **way), **feeds}
        reference = Reference(model, profile, actual, VALUE_PRESERVING, **chosen)
        for name in names:
            step = reference.params(name)[0]
            wanted = reference.result(name)
            difference = (np.abs(actual[name] - wanted).max(initial=0) - reference.noise) / step
            assert difference <= 1.001, (name, reference.makers[name].op_type, difference, way)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), options)
def test_every_result_is_within_a_step_of_the_reference(drawn, chosen):
    model, seed = drawn
    check(model, seed, chosen)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), options)
def test_every_result_in_16_bits_is_within_a_step_of_the_reference(drawn, chosen):
    model, seed = drawn
    check(model, seed, {**chosen, "quantization_precision": "Int16"})
