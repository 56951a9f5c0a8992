"""Recurrent operators with the batch first equal those with the steps first, except for the axes."""

import numpy as np
import pytest

from compiler_oracle import info, lowered, model_of, node, run, whole

BATCH, STEPS, WIDTH, HIDDEN = 2, 5, 3, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def program(kind, layout, *, results=("y", "h")):
    rng = np.random.default_rng(7)
    weights = [
        (name, rng.normal(size=(1, GATES[kind] * HIDDEN, width)).astype(np.float32))
        for name, width in (("w", WIDTH), ("r", HIDDEN))
    ]
    more = {"layout": layout} if layout is not None else {}
    one = node(kind, ["x", "w", "r", "", "", "h0"], list(results), hidden_size=HIDDEN, **more)
    sizes = (
        ([BATCH, STEPS, WIDTH], [BATCH, 1, HIDDEN]) if layout else ([STEPS, BATCH, WIDTH], [1, BATCH, HIDDEN])
    )
    inputs = [info("x", sizes[0]), info("h0", sizes[1])]
    outputs = [info(name, None) for name in results if name]
    return whole(lowered(model_of([one], inputs, outputs, weights)))


def steps_first(array):
    return array.transpose(1, 0, 2)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("results", [("y", "h"), ("y",), ("", "h")])
def test_results_are_those_of_the_other_layout(kind, results):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, STEPS, WIDTH)).astype(np.float32)
    h = rng.normal(size=(BATCH, 1, HIDDEN)).astype(np.float32)
    found = run(program(kind, 1, results=results), {"x": x, "h0": h})
    expected = run(program(kind, 0, results=results), {"x": steps_first(x), "h0": steps_first(h)})
    assert found.keys() == expected.keys() == {name for name in results if name}
    if "y" in found:
        np.testing.assert_array_equal(found["y"], expected["y"].transpose(2, 0, 1, 3))
    if "h" in found:
        np.testing.assert_array_equal(found["h"], steps_first(expected["h"]))


@pytest.mark.parametrize("layout", [0, None])
def test_steps_in_front_stay(layout):
    assert [one.op_type for one in program("LSTM", layout).graph.node] == ["LSTM"]
