import logging

import numpy as np
import onnx
import pytest

from compiler_oracle import FLOAT, HALF, half, info, lowered, model_of, node, run, whole
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.value_info import ValueInfo, collect_types
from qaic.compiler.passes.assign_precision import decide
from qaic.errors import CompileError
from qaic.options.codecs.enumerations import KIND_ALIASES
from qaic.options.files.node_precision import NodePrecision
from qaic.options.table import CompileOptions

BFLOAT = onnx.TensorProto.BFLOAT16
FP32, FP16, BF16, INT8, INT16 = PrecisionClass


def classes_of(model, profiled=None, **options):
    inferred = onnx.shape_inference.infer_shapes(model)
    facts = ValueInfo(collect_types(inferred), [inferred])
    return decide(model, facts, CompileOptions(**options), profiled).classes


def perceptron():
    return model_of(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("LayerNormalization", ["a", "s"], ["n"]),
            node("ArgMax", ["n"], ["i"]),
            node("Relu", ["n"], ["y"]),
        ],
        [info("x", [2, 4])],
        [info("y", [2, 4]), info("i", None, onnx.TensorProto.INT64)],
        [("w", np.ones((4, 4), np.float32)), ("b", np.ones(4, np.float32)), ("s", np.ones(4, np.float32))],
    )


PROFILED = {"x", "m", "a", "n", "y"}


@pytest.mark.parametrize(
    ("options", "profiled", "expected"),
    [
        ({}, None, [FP32, FP32, FP32, FP32, FP32]),
        ({}, PROFILED, [INT8, INT8, FP32, FP32, INT8]),
        ({"quantization_precision": "Int16"}, PROFILED, [INT16, INT16, FP32, FP32, INT16]),
        ({}, PROFILED - {"m"}, [FP32, FP32, FP32, FP32, INT8]),
        ({"convert_to_fp16": True}, None, [FP16] * 5),
        ({"convert_to_fp16": True}, PROFILED, [INT8, INT8, FP16, FP16, INT8]),
        ({"keep_original_precision_for_nodes": ("Add",)}, PROFILED, [INT8, FP32, FP32, FP32, INT8]),
        (
            {"convert_to_fp16": True, "keep_original_precision_for_nodes": ("Add",)},
            None,
            [FP16, FP32, FP16, FP16, FP16],
        ),
        ({"execute_nodes_in_fp16": ("Relu",)}, PROFILED, [INT8, INT8, FP32, FP32, FP16]),
        (
            {
                "execute_nodes_in_fp16": ("Relu", "MatMul"),
                "node_precision_info_file": NodePrecision(("a",), ("m",)),
            },
            PROFILED,
            [FP32, FP16, FP32, FP32, FP16],
        ),
    ],
)
def test_later_rules_win(options, profiled, expected):
    found = classes_of(perceptron(), profiled, **options)
    assert found == dict(zip(["m", "a", "n", "i", "y"], expected, strict=True))


def test_constants_have_ranges_and_constant_nodes_stay():
    model = model_of(
        [node("Transpose", ["w"], ["t"]), node("MatMul", ["x", "t"], ["y"])],
        [info("x", [2, 4])],
        [info("y", [2, 4])],
        [("w", np.ones((4, 4), np.float32))],
    )
    assert classes_of(model, {"x", "y", "t", "w"}) == {"t": FP32, "y": INT8}


def test_nodes_without_floats_have_no_class():
    model = model_of(
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["g"]), node("Relu", ["x"], ["y"])],
        [info("x", [2])],
        [info("y", [2]), info("g", [], onnx.TensorProto.INT64)],
        [("i", np.int64(0))],
    )
    assert classes_of(model, {"x", "y", "g", "s"}) == {"s": FP32, "y": INT8}


def test_every_alias_stands_for_an_operator_of_onnx():
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert set(KIND_ALIASES.values()) <= known
    assert all(key == key.lower() for key in KIND_ALIASES)


@pytest.mark.parametrize("name", ["BatchMatMul", "batchmatmul", "MatMul"])
def test_kinds_of_the_card_are_understood(name, caplog):
    with caplog.at_level(logging.WARNING):
        assert classes_of(perceptron(), execute_nodes_in_fp16=(name,))["m"] is FP16
    assert not caplog.records


def test_unknown_kinds_are_named_with_the_nearest(caplog):
    with caplog.at_level(logging.WARNING):
        classes_of(perceptron(), execute_nodes_in_fp16=("Matmull", "Softmax", "Relu"))
    assert caplog.messages == [
        "execute_nodes_in_fp16: the model has no operators 'Matmull' (did you mean 'MatMul'?), 'Softmax'"
    ]


def test_unknown_names_are_counted_and_five_are_shown(caplog):
    names = tuple(f"missing{i}" for i in range(7))
    with caplog.at_level(logging.WARNING):
        lowered(perceptron(), node_precision_info_file=NodePrecision(("m",), names))
    assert "7 of 8 names" in caplog.text
    assert "'missing4' and 2 more" in caplog.text


def test_precision_file_without_a_node_of_the_model_is_refused():
    with pytest.raises(CompileError, match=r"node_precision_info_file.*'mm'.*as 'm'") as caught:
        lowered(perceptron(), node_precision_info_file=NodePrecision(("mm",), ("zz",)))
    assert caught.value.code == "compile.unknown_nodes"


def test_empty_lists_change_nothing():
    assert set(classes_of(perceptron(), node_precision_info_file=NodePrecision()).values()) == {FP32}


def squares(elem_type, **more):
    return model_of(
        [node("Mul", ["x", "x"], ["s"]), node("Mul", ["s", "c"], ["y"])],
        [info("x", [1], elem_type)],
        [info("y", [1], elem_type)],
        [("c", np.float16([1 / 300]) if elem_type == HALF else np.float32([1 / 300]))],
        **more,
    )


def test_node_of_a_float16_model_in_fp32_does_not_overflow():
    model = squares(HALF)
    x = np.float16([300])
    plain = run(whole(lowered(model)), {"x": x})["y"]
    listed = run(whole(lowered(model, node_precision_info_file=NodePrecision((), ("s",)))), {"x": x})["y"]
    assert plain == np.inf
    # The second product reads a rounded 90000.
    assert listed == np.inf
    both = lowered(model, node_precision_info_file=NodePrecision((), ("s", "y")))
    assert run(whole(both), {"x": x})["y"] == np.float16(90000 * np.float32(np.float16(1 / 300)))


def test_output_of_a_float16_model_goes_by_its_name():
    model = squares(HALF)
    program = lowered(model, node_precision_info_file=NodePrecision((), ("y",)))
    assert [spec.dtype for spec in program.outputs] == ["float16"]


def test_one_kind_in_fp16_rounds_only_it():
    model = squares(FLOAT)
    x = np.float32([300])
    assert run(whole(lowered(model)), {"x": x})["y"] < 301
    out = run(whole(lowered(model, execute_nodes_in_fp16=("Mul",))), {"x": x})["y"]
    assert out == np.inf
    last = lowered(model, node_precision_info_file=NodePrecision(("y",), ()))
    assert run(whole(last), {"x": np.float32([200])})["y"] == half(40000 * half(1 / 300))


def test_fp32_node_receives_rounded_values_unchanged():
    model = model_of(
        [node("Add", ["x", "one"], ["a"]), node("Sub", ["a", "x"], ["y"])],
        [info("x", [1])],
        [info("y", [1])],
        [("one", np.float32([1]))],
    )
    x = np.float32([2048.25])
    program = lowered(model, convert_to_fp16=True, keep_original_precision_for_nodes=("Sub",))
    assert run(whole(program), {"x": x})["y"] == half(half(x) + 1) - x


def test_convolution_and_its_normalization_in_two_precisions_stay_two_nodes():
    model = model_of(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("BatchNormalization", ["c", "s", "s", "s", "s"], ["y"]),
        ],
        [info("x", [1, 1, 2, 2])],
        [info("y", [1, 1, 2, 2])],
        [("w", np.full((1, 1, 1, 1), 300, np.float32)), ("s", np.float32([1]))],
    )
    x = np.full((1, 1, 2, 2), 300, np.float32)
    one = lowered(model, convert_to_fp16=True)
    two = lowered(model, convert_to_fp16=True, keep_original_precision_for_nodes=("BatchNormalization",))
    assert "BatchNormalization" not in {n.op_type for n in one.model.graph.node}
    assert np.isinf(run(whole(two), {"x": x})["y"]).all()
    assert "BatchNormalization" in {n.op_type for n in two.model.graph.node}


def test_function_bodies_are_reached_by_kinds():
    function = onnx.helper.make_function(
        "local",
        "Square",
        ["a"],
        ["b"],
        [node("Mul", ["a", "a"], ["sq"]), node("Sqrt", ["sq"], ["b"])],
        [onnx.helper.make_opsetid("", 17)],
    )
    model = model_of(
        [node("Square", ["x"], ["y"], domain="local")],
        [info("x", [1])],
        [info("y", [1])],
        functions=[function],
    )
    program = lowered(model, execute_nodes_in_fp16=("Mul",))
    assert run(whole(program), {"x": np.float32([300])})["y"] == np.inf


def bfloat(array):
    """Round to bfloat16 by hand: the upper half of a float32, rounded to nearest even."""
    # numpy 1 converts scalars that combine uint64 and Python's int to floats.
    bits = np.atleast_1d(np.asarray(array, np.float32)).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).reshape(np.shape(array))


def bfloat_model():
    return model_of(
        [
            node("Cast", ["x"], ["b"], to=BFLOAT),
            node("Mul", ["b", "b"], ["s"]),
            node("Mul", ["s", "c"], ["t"]),
            node("Clip", ["t", "low"], ["u"]),
            node("Cast", ["u"], ["y"], to=FLOAT),
        ],
        [info("x", [400])],
        [info("y", [400])],
        [
            onnx.helper.make_tensor("c", BFLOAT, [1], [0.3]),
            onnx.helper.make_tensor("low", BFLOAT, [], [-0.5]),
        ],
    )


def test_bfloat16_is_rounded_on_ai200(caplog):
    x = np.random.default_rng(3).standard_normal(400).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        program = lowered(bfloat_model(), aic_hw_version="ai200")
    assert not caplog.records
    wanted = bfloat(bfloat(bfloat(x) * bfloat(x)) * bfloat(np.float32(0.3)))
    for optimize in (True, False):
        np.testing.assert_array_equal(run(whole(program), {"x": x}, optimize)["y"], wanted)


@pytest.mark.parametrize("version", [None, "2.0", "ai100"])
def test_bfloat16_is_float32_elsewhere_with_a_warning(version, caplog):
    x = np.random.default_rng(3).standard_normal(400).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        program = lowered(bfloat_model(), aic_hw_version=version)
    assert "bfloat16" in caplog.text
    assert "ai200" in caplog.text
    out = run(whole(program), {"x": x})["y"]
    # The casts of the model compute like other nodes, so nothing is rounded.
    np.testing.assert_allclose(out, x * x * bfloat(np.float32(0.3)), rtol=1e-6)


def test_large_bfloat16_weights_stay_small():
    table = np.random.default_rng(3).standard_normal((40, 40)).astype(np.float32)
    model = model_of(
        [
            node("Cast", ["x"], ["b"], to=BFLOAT),
            node("Mul", ["b", "w"], ["m"]),
            node("Cast", ["m"], ["y"], to=FLOAT),
        ],
        [info("x", [40, 40])],
        [info("y", [40, 40])],
        [onnx.helper.make_tensor("w", BFLOAT, [40, 40], table.ravel())],
    )
    program = lowered(model, aic_hw_version="ai200")
    (weight,) = program.weights.values()
    assert weight.elem_type == BFLOAT
    x = np.ones((40, 40), np.float32)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], bfloat(table))


def test_plain_model_is_left_alone():
    program = lowered(perceptron())
    assert [n.op_type for n in program.model.graph.node] == [n.op_type for n in perceptron().graph.node]


def test_measuring_a_float16_model_leaves_its_program_alone(tmp_path):
    model = squares(HALF)
    plain = lowered(model)
    measured = lowered(model, dump_profile=tmp_path / "p.yaml", calibration_data=[{"x": np.float16([2])}])
    assert measured.model == plain.model
    assert len(measured.side_files) == 1
