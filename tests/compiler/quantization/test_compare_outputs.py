"""Messages about outputs that quantization changes; test_inaccurate_outputs.py compares the numbers."""

import numpy as np
import pytest

from compiler_oracle import info, lowered, model_of, node
from qaic.compiler.diagnostics.messages import recorded


def message(nodes, constants, precision="Int8"):
    """Quantize with random samples; returns the message about outputs, None without one."""
    model = model_of(nodes, [info("x", [20, 8])], [info("y", None)], constants, opset=15)
    with recorded() as found:
        lowered(model, convert_to_quantize=True, quantization_precision=precision)
    return next(
        (item.message for item in found.items if item.code == "quantization.inaccurate_outputs"), None
    )


@pytest.mark.parametrize(("precision", "spread"), [("Int8", 1e3), ("Int16", 1e5)])
def test_a_difference_of_large_values_is_reported_without_samples(precision, spread):
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((8, 8)) * spread
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("MatMul", ["x", "v"], ["q"]),
        node("Sub", ["p", "q"], ["y"]),
    ]
    constants = [("w", np.float32(weight)), ("v", np.float32(weight + rng.standard_normal((8, 8))))]
    found = message(nodes, constants, precision)
    assert found is not None
    assert "output 'y' differs from float32 on the first calibration sample" in found
    assert f"`openqaic accuracy MODEL --to {precision.lower()}`" in found


@pytest.mark.parametrize("kind", ["RandomNormalLike", "Bernoulli", "Tanh"])
def test_random_and_similar_results_cause_no_message(kind):
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Sigmoid", ["p"], ["s"]), node(kind, ["s"], ["y"])]
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    assert message(nodes, [("w", weight)]) is None
