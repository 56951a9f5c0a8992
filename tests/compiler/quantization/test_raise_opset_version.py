"""Operator sets that are too old or too new for integers."""

import numpy as np
import pytest
from onnx import TensorProto, defs

from compiler_oracle import info, kinds, lowered, model_of, node, run, whole
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.quantization.prepare import raise_operator_set
from single_pass import applied, before, content, outputs

NAME = "raise-opset-version"


def product(opset, extra=()):
    nodes = [node("MatMul", ["x", "w"], ["p"]), *extra, node("Relu", ["p"], ["y"])]
    weight = np.random.default_rng(8).standard_normal((3, 4), np.float32)
    return model_of(nodes, [info("x", [2, 3])], [info("y", [2, 4])], [("w", weight)], opset=opset)


def prepared(opset, **more):
    model, context = before(NAME, product(opset, **more), convert_to_quantize=True)
    context.plan.classes["p"] = PrecisionClass.INT8
    return model, context


def versions(model):
    return {entry.domain: entry.version for entry in model.proto.opset_import}


@pytest.mark.parametrize(("opset", "raised"), [(9, 12), (10, 12), (11, 12), (12, 12), (17, 17)])
def test_old_set_becomes_the_first_with_integers_and_results_stay(opset, raised):
    model, context = prepared(opset)
    x = {"x": np.random.default_rng(9).standard_normal((2, 3), np.float32)}
    expected, imported = outputs(model, x)["y"], versions(model)
    assert applied(NAME, model, context) == (raised != opset)
    # The imports of other domains do not change.
    assert versions(model) == imported | {"": raised}
    np.testing.assert_array_equal(outputs(model, x)["y"], expected)
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_float_graph_keeps_its_set():
    model, context = prepared(9)
    context.plan.classes.clear()
    assert not applied(NAME, model, context)
    assert versions(model)[""] == 9


def test_set_that_cannot_be_converted_is_said(caplog):
    model, context = prepared(9)
    model.proto.graph.node[1].op_type = "Unheard"
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found
    assert "stays in floating point" in caplog.text


def test_set_of_a_reader_of_an_unknown_type_stays(caplog):
    """onnx's converter infers types, which ends the process for this model."""
    nodes = [node("FastGelu", ["x"], ["h"], domain="com.microsoft"), node("EyeLike", ["h"], ["y"], dtype=1)]
    assert not raise_operator_set(model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3])], opset=9), {})
    assert "an operand of an unknown type" in caplog.text


@pytest.mark.parametrize("name", ["coordinate_transformation_mode", "nearest_mode"])
def test_coordinates_of_a_converted_resize_are_given_once(name):
    nodes = [node("Resize", ["x", "s"], ["y"], **{name: ""})]
    scales = np.array([1, 1, 2, 2], np.float32)
    model = model_of(nodes, [info("x", [1, 1, 2, 2])], [info("y", [1, 1, 4, 4])], [("s", scales)], opset=10)
    assert raise_operator_set(model, {})
    (made,) = (made for made in model.graph.node if made.op_type == "Resize")
    given = sorted(attribute.name for attribute in made.attribute)
    assert given == ["coordinate_transformation_mode", "nearest_mode"]
    assert next(attribute.s for attribute in made.attribute if attribute.name == name) == b""


#: Operator that changed in set 28 -> nodes from `c` to `r`, which also have a form in older sets.
CHANGED = {
    "Cast": [node("Cast", ["c"], ["h"], to=TensorProto.INT32), node("Cast", ["h"], ["r"], to=1)],
    "Celu": [node("Celu", ["c"], ["r"], alpha=2.0)],
    "Compress": [node("Compress", ["c", "all"], ["r"], axis=1)],
    "DepthToSpace": [
        node("DepthToSpace", ["c"], ["h"], blocksize=2),
        node("SpaceToDepth", ["h"], ["r"], blocksize=2),
    ],
    "Einsum": [node("Einsum", ["c", "c"], ["r"], equation="abcd,abde->abce")],
    "Mod": [node("Mod", ["c", "one"], ["r"], fmod=1)],
    "OneHot": [
        node("Cast", ["c"], ["h"], to=TensorProto.INT64),
        node("OneHot", ["h", "depth", "values"], ["o"]),
        node("ReduceMax", ["o", "last"], ["r"], keepdims=0),
    ],
    "ReduceLogSumExp": [
        node("ReduceLogSumExp", ["c", "axis"], ["h"]),
        node("Add", ["c", "h"], ["r"]),
    ],
    "ReverseSequence": [
        node("Squeeze", ["c", "zero"], ["s"]),
        node("ReverseSequence", ["s", "lengths"], ["h"]),
        node("Unsqueeze", ["h", "zero"], ["r"]),
    ],
}
#: Nodes from `c` to `r` that do not exist in older sets.
NEW = {
    "Mod of floats": [node("Mod", ["c", "one"], ["r"])],
    "SpaceToDepth": [
        node("SpaceToDepth", ["c"], ["h"], blocksize=2, mode="CRD"),
        node("DepthToSpace", ["h"], ["r"], blocksize=2, mode="CRD"),
    ],
}
CONSTANTS = {
    "all": np.ones(4, bool),
    "axis": np.array([1]),
    "depth": np.array(3),
    "last": np.array([4]),
    "lengths": np.array([4, 3, 2, 1]),
    "one": np.float32(1),
    "values": np.array([0, 1], np.float32),
    "zero": np.array([0]),
}


def changed(nodes, opset):
    draw = np.random.default_rng(1)
    weights = [(name, draw.standard_normal((4, 4, 1, 1), np.float32)) for name in ("v", "w")]
    read = {name for made in nodes for name in made.input}
    nodes = [node("Conv", ["x", "v"], ["c"]), *nodes, node("Conv", ["r", "w"], ["y"])]
    constants = [*weights, *((name, value) for name, value in CONSTANTS.items() if name in read)]
    sizes = [1, 4, 4, 4]
    return model_of(nodes, [info("x", sizes)], [info("y", sizes)], constants, opset=opset)


X = np.random.default_rng(2).standard_normal((1, 4, 4, 4), np.float32)
has_set_28 = pytest.mark.skipif(defs.onnx_opset_version() < 28, reason="onnx has no operator set 28")


@has_set_28
@pytest.mark.parametrize("op", CHANGED)
def test_an_operator_that_changed_in_set_28_has_integers_around_it(op):
    options = {"convert_to_quantize": True, "calibration_data": [{"x": X}]}
    found, older = (lowered(changed(CHANGED[op], opset), **options) for opset in (28, 27))
    assert kinds(found) == kinds(older)
    assert "QuantizeLinear" in kinds(found)
    np.testing.assert_array_equal(run(whole(found), {"x": X})["y"], run(whole(older), {"x": X})["y"])
    original = run(changed(CHANGED[op], 28), {"x": X})["y"]
    np.testing.assert_array_equal(run(whole(lowered(changed(CHANGED[op], 28))), {"x": X})["y"], original)


@has_set_28
@pytest.mark.parametrize("op", NEW)
def test_an_operator_without_an_older_form_stays_in_float(op, caplog):
    model = changed(NEW[op], 28)
    found = lowered(model, convert_to_quantize=True, calibration_data=[{"x": X}])
    assert "the model stays in floating point" in caplog.text
    assert "QuantizeLinear" not in kinds(found)
    assert kinds(found) == kinds(lowered(model))
