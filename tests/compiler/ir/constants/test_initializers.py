"""Small constants in the graph, large constants outside it."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler_oracle import info, model_of, node
from qaic.compiler.ir.constants.in_graph import as_weight, constant_of, dense, lift_float_constants
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, MemoryRange, Weight, read_all
from qaic.errors import CompileError
from single_pass import applied, before, content, outputs

NAME = "externalize-constants"


def sum_of(*arrays):
    names = [f"c{at}" for at in range(len(arrays))]
    nodes = [node("Sum", ["x", *names], ["y"])]
    return model_of(nodes, [info("x", [1])], [info("y", None)], list(zip(names, arrays, strict=True)))


def test_constants_go_where_their_size_says():
    small, large = np.ones((1, 1), np.float32), np.arange(INLINE_LIMIT, dtype=np.float32)
    model, context = before(NAME, sum_of(small, large))
    # The state after passes: a large constant in the graph, a small one outside it.
    held = model.weights.pop("c1")
    model.proto.graph.initializer.append(numpy_helper.from_array(large, "c1"))
    model.weights["c0"] = as_weight(next(t for t in model.proto.graph.initializer if t.name == "c0"))
    del model.proto.graph.initializer[0]
    applied(NAME, model, context)
    assert [tensor.name for tensor in model.proto.graph.initializer] == ["c0"]
    assert list(model.weights) == ["c1"]
    assert read_all(model.weights["c1"].source) == read_all(held.source)
    np.testing.assert_array_equal(outputs(model, {"x": np.float32([2])})["y"], 3 + large[None])
    found = content(model)
    applied(NAME, model, context)
    assert content(model) == found


def test_types_that_the_engine_does_not_map_stay_in_the_graph():
    model, context = before(NAME, sum_of(np.ones(1, np.float32)))
    payload = MemoryRange(bytes(INLINE_LIMIT))
    model.weights["w"] = Weight("w", onnx.TensorProto.INT4, (2 * INLINE_LIMIT,), payload)
    applied(NAME, model, context)
    assert "w" in {tensor.name for tensor in model.proto.graph.initializer}


def test_float_constants_of_nodes_become_initializers_in_branches_too():
    def constants(prefix):
        tensor = numpy_helper.from_array(np.float32([[1, 2]]))
        return [
            node("Constant", [], [f"{prefix}t"], value=tensor),
            node("Constant", [], [f"{prefix}f"], value_float=3.0),
            node("Constant", [], [f"{prefix}l"], value_floats=[4.0, 5.0]),
            node("Constant", [], [f"{prefix}i"], value_int=6),
        ]

    branch = helper.make_graph(constants("b"), "branch", [], [info("bt", [1, 2])])
    nodes = [*constants("a"), node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    model = model_of(nodes, [info("c", [], onnx.TensorProto.BOOL)], [info("y", [1, 2])])
    for _ in range(2):
        lift_float_constants(model)
        inner = model.graph.node[-1].attribute[0].g
        for graph, prefix in ((model.graph, "a"), (inner, "b")):
            found = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
            assert found == {f"{prefix}t": [[1, 2]], f"{prefix}f": 3, f"{prefix}l": [4, 5]}
            assert graph.node[0].output == [f"{prefix}i"]


def test_payload_that_does_not_fit_its_dims_is_refused():
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3], raw_data=bytes(8))
    for read in (as_weight, dense):
        with pytest.raises(CompileError, match="initializer 'w'"):
            read(tensor)


def test_texts_are_no_numbers():
    text = helper.make_tensor("", onnx.TensorProto.STRING, [1], [b"t"])
    given = [{"value": text}, {"value_string": "t"}, {"value_strings": ["t"]}]
    assert [constant_of(node("Constant", [], ["c"], **one)) for one in given] == [None] * 3
    assert constant_of(node("Constant", [], ["c"], value_int=2)) == 2
