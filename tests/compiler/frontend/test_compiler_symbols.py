import ast
import logging

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError, OptionError
from qaic.options.codecs.structures import ModelInput


def symbolic(**changes):
    shapes = {"x": ["batch", "seq", 4], "y": ["batch", "seq", 8]} | changes
    return model_of(
        [node("Concat", ["x", "x"], ["y"], axis=2)], [info("x", shapes["x"])], [info("y", shapes["y"])]
    )


def shapes(program):
    return {spec.name: spec.dims for spec in (*program.inputs, *program.outputs)}


def test_symbols_are_replaced_everywhere():
    program = lowered(symbolic(), onnx_define_symbol={"batch": 2, "seq": 3})
    assert shapes(program) == {"x": (2, 3, 4), "y": (2, 3, 8)}
    assert b"batch" not in program.model.SerializeToString()
    assert run(whole(program), {"x": np.zeros((2, 3, 4), np.float32)})["y"].shape == (2, 3, 8)


def test_unbound_symbol_is_refused_with_the_option_that_binds_it():
    with pytest.raises(CompileError, match=r"(?s)input 'x'.*symbol 'seq'.*onnx_define_symbol") as caught:
        lowered(symbolic(), onnx_define_symbol={"batch": 2})
    assert caught.value.code == "compile.unbound_symbol"
    assert caught.value.context == {
        "tensor": "x",
        "symbol": "seq",
        "option": "onnx_define_symbol",
        "example": {"seq": 128},
        "shapes": {"x": [2, 128, 4]},
    }
    (hint,) = caught.value.hints
    assert hint.endswith("e.g. onnx_define_symbol={'seq': 128}")


@pytest.mark.parametrize("unknown", [-1, "?"])
def test_negative_sizes_and_question_marks_are_not_known(unknown):
    model = symbolic(x=[unknown, unknown, 4], y=[unknown, unknown, 8])
    spec = ModelInput("x", "float32", (2, 3, 4))
    assert shapes(lowered(model, model_inputs=(spec,))) == {"x": (2, 3, 4), "y": (2, 3, 8)}
    with pytest.raises(CompileError, match="model_inputs"):
        lowered(model)


def test_symbols_of_outputs_alone_need_no_value():
    program = lowered(symbolic(y=["unk__1", "unk__2", "unk__3"]), onnx_define_symbol={"batch": 2, "seq": 3})
    assert shapes(program)["y"] == (2, 3, 8)


def test_unnamed_dimension_is_refused_with_model_inputs():
    with pytest.raises(CompileError, match=r"(?s)dim 1 .*model_inputs") as caught:
        lowered(symbolic(x=["batch", None, 4]), onnx_define_symbol={"batch": 2})
    assert caught.value.code == "compile.unbound_dimension"


def test_input_without_a_shape_is_refused_with_model_inputs():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", None)], [info("y", None)])
    with pytest.raises(CompileError, match="found no shape") as caught:
        lowered(model)
    (hint,) = caught.value.hints
    (entry,) = ast.literal_eval(hint.partition("model_inputs=")[2])
    assert shapes(lowered(model, model_inputs=(ModelInput(**entry),)))["x"] == (1,)
    program = lowered(model, model_inputs=(ModelInput("x", "float32", (2, 3)),))
    assert shapes(program) == {"x": (2, 3), "y": (2, 3)}


def test_model_inputs_bind_symbols_and_unnamed_dimensions():
    given = (ModelInput("x", "float32", (5, 6, 4)),)
    program = lowered(symbolic(x=["batch", None, 4]), model_inputs=given)
    assert shapes(program) == {"x": (5, 6, 4), "y": (5, 6, 8)}


def test_shapes_without_type_and_name_fit_the_models():
    for given in (ModelInput("x", None, (5, 6, 4)), ModelInput("", None, (5, 6, 4))):
        assert shapes(lowered(symbolic(x=["batch", None, 4]), model_inputs=(given,)))["x"] == (5, 6, 4)
    with pytest.raises(
        OptionError, match=r"input 'z' does not exist; the model has .*x: float32 \[batch, seq, 4\]"
    ):
        lowered(symbolic(), model_inputs=(ModelInput("z", None, (1,)),))
    two = model_of(
        [node("Add", ["a", "b"], ["y"])], [info("a", ["n", 2]), info("b", ["n", 2])], [info("y", ["n", 2])]
    )
    with pytest.raises(
        OptionError, match="a shape without a name is for models with one input; the model has"
    ):
        lowered(two, model_inputs=(ModelInput("", None, (1, 2)),))


def test_symbol_met_by_model_inputs_binds_other_inputs_too():
    model = model_of(
        [node("Add", ["a", "b"], ["y"])], [info("a", ["n", 2]), info("b", ["n", 2])], [info("y", ["n", 2])]
    )
    program = lowered(model, model_inputs=(ModelInput("a", "float32", (7, 2)),))
    assert shapes(program)["b"] == (7, 2)


@pytest.mark.parametrize(
    ("given", "symbols", "text"),
    [
        (ModelInput("z", "float32", (1, 1, 4)), {}, "'z' does not exist; the model has 'x: float32"),
        (ModelInput("x", "int32", (1, 1, 4)), {}, "found type 'int32', the model has 'float32'"),
        (
            ModelInput("x", "float32", (1, 4)),
            {},
            r"found the shape \[1, 4\], but the model has \[batch, seq, 4\]",
        ),
        (
            ModelInput("x", "float32", (1, 1, 5)),
            {},
            "input 'x': dimension 2 is 5, but the model fixes it to 4",
        ),
        (ModelInput("x", "float32", (1, 1, 4)), {"batch": 2}, "'batch' the value 1, but it already has 2"),
    ],
)
def test_contradicting_model_inputs_are_refused(given, symbols, text):
    with pytest.raises(OptionError, match=text):
        lowered(symbolic(), model_inputs=(given,), onnx_define_symbol=symbols)


def test_symbol_the_model_lacks_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        lowered(symbolic(), onnx_define_symbol={"batch": 1, "seq": 1, "sequence": 3})
    assert "no symbol 'sequence'" in caplog.text
    assert "'batch', 'seq'" in caplog.text


def test_shapes_the_file_claims_do_not_outlive_new_input_shapes(caplog):
    model = symbolic(y=["batch", 1, 8])
    model.graph.value_info.append(info("y", [9, 9, 9]))
    with caplog.at_level(logging.WARNING):
        program = lowered(model, onnx_define_symbol={"batch": 2, "seq": 3})
    assert shapes(program)["y"] == (2, 3, 8)
    assert "claims a dim of 1, it is 3" in caplog.text


def test_shape_chains_are_followed():
    model = model_of(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["b"]),
            node("Unsqueeze", ["b", "axes"], ["b1"]),
            node("Concat", ["b1", "rest"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["y"]),
        ],
        [info("x", ["batch", 2, 6])],
        [info("y", None)],
        [("zero", np.int64(0)), ("axes", np.int64([0])), ("rest", np.int64([3, 4]))],
    )
    assert shapes(lowered(model, onnx_define_symbol={"batch": 5}))["y"] == (5, 3, 4)


def test_output_size_that_depends_on_data_is_refused_by_name():
    model = model_of(
        [node("NonZero", ["x"], ["y"])], [info("x", [4])], [info("y", [1, "count"], TensorProto.INT64)]
    )
    with pytest.raises(CompileError, match=r"output 'y'.*only known when the program runs") as caught:
        lowered(model)
    assert caught.value.code == "compile.dynamic_shape"


def test_functions_and_bodies_survive_with_their_initializers():
    body = helper.make_graph(
        [node("Identity", ["going"], ["go"]), node("Add", ["acc", "one"], ["next"])],
        "body",
        [info("i", [], TensorProto.INT64), info("going", [], TensorProto.BOOL), info("acc", ["n"])],
        [info("go", [], TensorProto.BOOL), info("next", ["n"])],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1])],
    )
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = model_of(
        [
            node("Loop", ["count", "", "x"], ["l"], body=body),
            node("Twice", ["l"], ["y"], domain="local"),
        ],
        [info("x", ["n"])],
        [info("y", ["n"])],
        [("count", np.array(3, np.int64))],
        functions=[function],
    )
    program = lowered(model, onnx_define_symbol={"n": 2})
    assert shapes(program)["y"] == (2,)
    np.testing.assert_array_equal(run(whole(program), {"x": np.zeros(2, np.float32)})["y"], [6, 6])
