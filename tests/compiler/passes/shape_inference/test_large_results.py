"""The check of sizes runs no node whose operands require a large result."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, model_of, node
from qaic.compiler.passes.shape_inference import size_conflicts
from qaic.compiler.passes.shape_inference.size_conflicts import SizeCheck

LARGE = 1 << 40


def _sized(count):
    """Return each operator whose result has about `count` elements; inference does not know this number."""
    list_of, number = {"a": np.array([count])}, np.array(count)
    mel = {"a": number, "b": np.array(8000), "c": np.array(1.0, np.float32)}
    scale = {"a": np.array([count], np.float32)}
    theta, image = np.ones((1, 2, 3), np.float32), {"a": np.array([count, 1]), "b": np.array([1, 1])}
    return {
        "AffineGrid": (["t", "a"], {"t": theta, "a": np.array([1, 1, count, 1])}, {}),
        "CenterCropPad": (["x", "a"], list_of, {}),
        "Col2Im": (["t", "a", "b"], {"t": np.ones((1, 1, 1), np.float32), **image}, {"strides": [count, 1]}),
        "ConstantOfShape": (["a"], list_of, {}),
        "DFT": (["t", "a"], {"t": np.ones((1, 2, 1), np.float32), "a": number}, {}),
        "Expand": (["t", "made"], {"t": np.ones(1, np.float32), **list_of}, {}),
        "MaxUnpool": (
            ["t", "i", "a"],
            {"t": np.ones((1, 1, 1), np.float32), "i": np.zeros((1, 1, 1), np.int64), "a": [1, 1, count]},
            {"kernel_shape": [1]},
        ),
        "MelWeightMatrix": (["a", "b", "b", "c", "c"], mel, {}),
        "Pad": (["x", "a"], {"a": np.array([0, count])}, {}),
        "Range": (["z", "o", "a"], {"z": np.array(0.0), "o": np.array(1.0), "a": np.array(1 / count)}, {}),
        "Resize": (["x", "", "a"], scale, {}),
        "Tile": (["x", "a"], list_of, {}),
        "Upsample": (["x", "a"], scale, {}),
    }


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("op", sorted(_sized(1).keys() | size_conflicts._SIZED_BY_VALUES.keys()))
def test_no_node_with_a_large_result_is_run(op, count, monkeypatch):
    """Regression: the failed allocation of a result was reported as a contradiction of sizes."""
    asked = []
    monkeypatch.setattr(
        size_conflicts, "_answer", lambda model, integers, *, is_run: asked.append(is_run) or ""
    )
    operands, constants, attributes = _sized(count)[op]
    nodes = [node("Identity", ["a"], ["made"]), helper.make_node(op, operands, ["y"], **attributes)]
    opset = 9 if op == "Upsample" else 18
    model = model_of(nodes, [info("x", [2])], [info("y", None)], constants.items(), opset)
    model.graph.value_info.append(info("made", [1], TensorProto.INT64))
    SizeCheck().find(model)
    assert asked == [count == 1]
