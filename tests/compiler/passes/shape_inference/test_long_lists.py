"""Inference tracks only the values of short lists, because it creates an object for each element."""

import numpy as np
import onnx
import pytest

from compiler_oracle import info, lowered, model_of, node


@pytest.mark.parametrize(("length", "is_followed"), [(8, True), (1 << 20, False)])
@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_values_of_long_lists_are_not_followed(length, is_followed, place, monkeypatch):
    asked = []
    infer = onnx.shape_inference.infer_shapes

    def noted(*args, data_prop=False, **more):
        asked.append(data_prop)
        return infer(*args, data_prop=data_prop, **more)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", noted)
    values = np.arange(length)
    nodes = [
        node("Gather", ["list", "at"], ["to"]),
        node("Reshape", ["x", "to"], ["shaped"]),
        node("Relu", ["shaped"], ["y"]),
    ]
    constants = [("at", np.array([3, 2]))]
    if place == "initializer":
        constants.append(("list", values))
    else:
        nodes.insert(0, node("Constant", [], ["list"], value=onnx.numpy_helper.from_array(values)))
    lowered(model_of(nodes, [info("x", [2, 3])], [info("y", [3, 2])], constants))
    assert any(asked) is is_followed
