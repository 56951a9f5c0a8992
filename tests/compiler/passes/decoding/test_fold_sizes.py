"""Sizes in decoders become constants, and the results do not change."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import decoder_model
import qaic
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.decoding.fold_sizes import _Folder
from qaic.compiler.passes.shape_inference.engine_shapes import forms_with
from qaic.options import resolve


def compiled(model, config, folder, **options):
    given = {"network_specialization_config": config, "retained_state": True, **options}
    found = resolve(given, options_path=None, model_is_container=False)
    qpc = qaic.Qpc(compile_model(model, found.compile, found.set_compile, output_dir=folder))
    return onnx.ModelProto.FromString(qpc.graph.tobytes()).graph


@pytest.mark.parametrize("is_half", [False, True])
def test_layers_of_a_decoder_compute_no_sizes(tmp_path, is_half):
    sizes = decoder_model.Sizes(layers=2, context=128)
    config = decoder_model.specializations(8, context=sizes.context)
    caches = [f"{name}{end}" for name in sizes.caches for end in ("", "_RetainedState")]
    border = [{"IOName": name, "Precision": "float16"} for name in caches]
    half = {"convert_to_fp16": True, "custom_io_list_file": border} if is_half else {}
    graph = compiled(decoder_model.decoder(sizes), config, tmp_path / "qpc", **half)
    makers = {name: node for node in graph.node for name in node.output}
    inside = [node for node in graph.node if "/layers.1/" in node.output[0]]
    assert len(inside) > 40
    sized = {"Shape", "ConstantOfShape", "CastLike"}
    assert [(node.op_type, *node.input) for node in inside if node.op_type in sized] == []
    shapes = [makers[node.input[1]].op_type for node in inside if node.op_type == "Reshape"]
    # Values that depend on the attended length are computed once for all layers.
    assert Counter(shapes)["Constant"] >= 6
    whole = compiled(decoder_model.decoder(sizes), config, tmp_path / "whole", whole_caches=True, **half)
    assert [node for node in whole.node if node.op_type == "ConstantOfShape"]


def folded(nodes, inputs, outputs, symbols, skip=lambda _reason, _node: None):
    """Fold a graph whose inputs have symbols; `symbols` contains the sizes of each set of shapes."""
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    requested = [type("Entry", (), {"name": str(number)})() for number in range(len(symbols))]
    model = Model(proto, {}, symbol_sizes=symbols, requested=requested)
    model.forms = forms_with(model, [])
    folder = _Folder(model)
    assert folder.learn()
    folder.fold(skip)
    return model.proto.graph


def constants(graph):
    return {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t).tolist()
        for node in graph.node
        if node.op_type == "Constant"
    }


def computed_shape(order):
    """A Reshape of x [a, b, 6] to its sizes in some order, followed by the remaining size."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Constant", [], ["order"], value=numpy_helper.from_array(np.array(order))),
        helper.make_node("Constant", [], ["rest"], value=numpy_helper.from_array(np.array([-1]))),
        helper.make_node("Gather", ["sizes", "order"], ["chosen"]),
        helper.make_node("Concat", ["chosen", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return nodes, [x], [y]


@settings(max_examples=40, deadline=None)
@given(
    order=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    sets=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=3),
)
def test_a_shape_is_a_constant_only_where_it_says_the_same(order, sets):
    graph = folded(*computed_shape(order), [{"a": a, "b": b} for a, b in sets])
    (reshape,) = [node for node in graph.node if node.op_type == "Reshape"]
    shape = constants(graph).get(reshape.input[1])
    for a, b in sets:
        x = np.arange(a * b * 6).reshape(a, b, 6)
        expected = x.reshape(*[x.shape[axis] for axis in order], -1)
        if shape is not None:
            given = [x.shape[place] if size == 0 else size for place, size in enumerate(shape)]
            np.testing.assert_array_equal(x.reshape(given), expected)
    expected = {tuple([(a, b, 6)[axis] for axis in order]) for a, b in sets}
    if len(expected) == 1:
        assert shape is not None


def test_the_reason_for_a_shape_that_stays_is_reported():
    reasons = []
    sets = [{"a": 1, "b": 2}, {"a": 2, "b": 3}]
    folded(*computed_shape([1, 0]), sets, lambda reason, node: reasons.append((reason, node.output[0])))
    assert reasons == [("several sizes are unknown or differ between sets of shapes", "y")]


@pytest.mark.parametrize("is_other", [False, True])
def test_a_filled_tensor_is_one_number_where_it_has_the_shape_of_the_choice(is_other):
    """A tensor that fills the shape of another value can broadcast instead, and does not change."""
    number = numpy_helper.from_array(np.array([7], np.float32))
    nodes = [
        helper.make_node("Shape", ["z" if is_other else "x"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["filled"], value=number),
        helper.make_node("Where", ["c", "filled", "x"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, ["a", 1]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", 3]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["a", 1]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", 3])]
    graph = folded(nodes, inputs, outputs, [{"a": 1}, {"a": 5}])
    fills = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    assert bool(fills) == is_other
    if not is_other:
        assert 7 in constants(graph).values()


def test_casts_to_the_type_of_a_value_go():
    nodes = [
        helper.make_node("Cast", ["x"], ["same"], to=TensorProto.FLOAT),
        helper.make_node("CastLike", ["same", "x"], ["alike"]),
        helper.make_node("Neg", ["alike"], ["n"]),
        helper.make_node("Cast", ["n"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a"])
    outputs = [
        helper.make_tensor_value_info(name, elem_type, ["a"])
        for name, elem_type in (("half", TensorProto.FLOAT16), ("y", TensorProto.FLOAT))
    ]
    graph = folded(nodes, [x], outputs, [{"a": 1}, {"a": 5}])
    # An output keeps the node that computes it.
    assert [(node.op_type, list(node.input)) for node in graph.node] == [
        ("Neg", ["x"]),
        ("Cast", ["n"]),
        ("Cast", ["n"]),
    ]
