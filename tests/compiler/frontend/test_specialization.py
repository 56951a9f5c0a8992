"""The final types of inputs and outputs."""

import pytest

from compiler_oracle import info, model_of, node
from single_pass import applied, before, content

NAME = "fix-interface"


def doubled():
    nodes = [node("Concat", ["x", "x"], ["d"], axis=0), node("Relu", ["d"], ["y"])]
    return model_of(nodes, [info("x", ["n", 3])], [info("y", ["m", 3])])


def dims(value):
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in value.type.tensor_type.shape.dim
    ]


def test_one_set_of_shapes_is_fixed_in_the_graph():
    model, context = before(NAME, doubled(), onnx_define_symbol=[("n", 2)])
    assert applied(NAME, model, context)
    assert (dims(model.proto.graph.input[0]), dims(model.proto.graph.output[0])) == ([2, 3], [4, 3])
    assert not model.proto.graph.value_info
    found = content(model)
    applied(NAME, model, context)
    assert content(model) == found


def test_dims_that_differ_keep_the_symbol_of_an_input_and_none_of_an_output(tmp_path):
    file = tmp_path / "sets.json"
    file.write_text('{"specializations": [{"n": "1"}, {"n": "4"}]}')
    model, context = before(NAME, doubled(), network_specialization_config=str(file))
    applied(NAME, model, context)
    assert (dims(model.proto.graph.input[0]), dims(model.proto.graph.output[0])) == (["n", 3], ["", 3])


def test_model_whose_shapes_are_not_known_is_a_defect():
    model, context = before("infer-shapes", doubled(), onnx_define_symbol=[("n", 2)])
    with pytest.raises(AssertionError, match="not known yet"):
        _ = model.interface
    assert context.options.onnx_define_symbol
