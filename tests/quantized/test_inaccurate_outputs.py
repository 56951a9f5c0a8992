"""A warning names outputs that quantization changes too much, and only these."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qaic
from compiler_oracle import info, model_of, node, run
from qaic.compiler.diagnostics.messages import recorded
from quantizable_graphs import graphs

INT8 = {"convert_to_quantize": True, "enable_channelwise": True, "enable_rowwise": True}


def decibels(expected, found):
    noise = np.sum((np.float64(found) - expected) ** 2)
    power = np.sum(np.float64(expected) ** 2)
    return 10 * np.log10(power / noise) if noise and power else np.inf


def compiled(model, samples, **options):
    """Compile and run the first sample; returns the results, and the outputs that the warning names."""
    with recorded() as found, qaic.Session(model, **INT8, **options) as session:
        outputs = session.run(samples[0])
    named = [item.nodes for item in found.items if item.code == "quantization.inaccurate_outputs"]
    return outputs, named[0] if named else ()


def difference(spread, seed):
    """Build a difference of two products that are 10^spread times as large as it is, and their ratio."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((8, 8)) * 10**spread
    other = weight + rng.standard_normal((8, 8))
    nodes = [
        *(node("MatMul", ["x", "w"], ["p"]), node("MatMul", ["x", "v"], ["q"])),
        *(node("Relu", ["p"], ["z"]), node("Sub", ["p", "q"], ["y"])),
    ]
    constants = [("w", np.float32(weight)), ("v", np.float32(other))]
    model = model_of(nodes, [info("x", [20, 8])], [info("y", None), info("z", None)], constants)
    return model, {"x": rng.standard_normal((20, 8)).astype(np.float32)}


@settings(max_examples=25)
@given(spread=st.floats(-1, 3), seed=st.integers(0, 99))
def test_outputs_below_the_bound_are_named(spread, seed):
    """Two values that differ little lose their difference; no rule about operators knows this difference."""
    model, feeds = difference(spread, seed)
    expected = run(model, feeds)
    outputs, named = compiled(model, [feeds], calibration_data=[feeds])
    ratios = {name: decibels(expected[name], outputs[name]) for name in expected}
    for name, ratio in ratios.items():
        if abs(ratio - 10) > 0.5:
            assert (name in named) == (ratio < 10)


def test_a_small_output_of_one_sample_is_judged_by_others():
    model, feeds = difference(0, 1)
    small = {"x": feeds["x"] / 100}
    assert compiled(model, [small], calibration_data=[small, feeds])[1] == ()
    outputs, _ = compiled(model, [small], calibration_data=[small, feeds])
    assert decibels(run(model, small)["z"], outputs["z"]) < 10


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs())
def test_graphs_that_int8_suits_get_no_warning(graph):
    model, seed = graph
    feeds = {"x": np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    expected = run(model, feeds)
    outputs, named = compiled(model, [feeds], calibration_data=[feeds])
    assert all(decibels(expected[name], outputs[name]) < 10.5 for name in named)
