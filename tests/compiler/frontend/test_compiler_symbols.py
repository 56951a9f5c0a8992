import ast
import logging

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.frontend.size_expressions import solve, symbols_in
from qaic.errors import CompileError, OptionConflictError, OptionError
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
        (ModelInput("x", None, (0, 1, 4)), {}, "input 'x': dimension 0 is 0, expected at least 1"),
        (ModelInput("", None, (1, 0, 4)), {}, "input 'x': dimension 1 is 0, expected at least 1"),
        (ModelInput("x", None, (1, 1, 0)), {}, "dimension 2 is 0, but the model fixes it to 4"),
    ],
)
def test_contradicting_model_inputs_are_refused(given, symbols, text):
    with pytest.raises(OptionError, match=text):
        lowered(symbolic(), model_inputs=(given,), onnx_define_symbol=symbols)


@hypothesis.given(st.data())
def test_shapes_give_sizes_to_the_symbols_of_expressions(data):
    """The sizes of the expressions come from Python, and the symbols occur nowhere else."""
    names = ["n", "m", "k"]
    sizes = {name: data.draw(st.integers(1, 9), name) for name in names}
    forms = ["2*{0}", "{0} + 3", "4*{0} + {1}", "{0}*{1}", "{0} - 1 + 2*{1}"]
    texts = [
        form.format(*data.draw(st.permutations(names), form))
        for form in data.draw(st.lists(st.sampled_from(forms), min_size=1, max_size=4))
    ]
    values = {text: eval(text, {}, sizes) for text in texts}
    known = dict(values)
    while found := next(filter(None, (solve(text, known) for text in texts)), None):
        known |= found
    for text in texts:
        unknown = symbols_in(text) - known.keys()
        # Sums and products of one symbol have one solution.
        assert len(unknown) != 1
    assert {name: known[name] for name in names if name in known}.items() <= sizes.items()


def expressions(first="2*n", second="n"):
    return model_of(
        [node("Concat", ["a", "b"], ["y"], axis=1)],
        [info("a", ["batch", first]), info("b", ["batch", second])],
        [info("y", None)],
    )


@pytest.mark.parametrize(
    ("first", "second", "shape", "expected"),
    [("2*n", "n", 6, 3), ("n + 4", "3*n", 6, 6), ("n*m", "n", 6, None), ("(n + 1)//2", "n", 6, None)],
)
def test_a_shape_with_an_expression_gives_other_inputs_their_sizes(first, second, shape, expected):
    """Regression: another message asked for the size of n, and any size was accepted."""
    given = {"model_inputs": (ModelInput("a", None, (1, shape)),)}
    if expected is None:
        with pytest.raises(CompileError, match="found the symbol 'n'"):
            lowered(expressions(first, second), **given)
    else:
        assert shapes(lowered(expressions(first, second), **given))["b"] == (1, expected)


def test_sizes_that_contradict_an_expression_are_refused():
    shape, other = ModelInput("a", None, (1, 4)), ModelInput("b", None, (1, 3))
    for given in (
        {"model_inputs": (shape, other)},
        {"model_inputs": (shape,), "onnx_define_symbol": {"n": 3}},
    ):
        with pytest.raises(OptionError, match=r"the dimension '2\*n' is 4, but with 'n' = 3 it is 6"):
            lowered(expressions(), **given)
    assert shapes(lowered(expressions(), model_inputs=(shape, ModelInput("b", None, (1, 2)))))["b"] == (1, 2)


@pytest.mark.parametrize("first", ["batch", 1])
@pytest.mark.parametrize("name", ["x", ""])
def test_a_shape_with_another_batch_is_refused_with_both_options(first, name):
    """Regression: the message stated that the model fixes the size that batchsize gives."""
    model = symbolic(x=[first, "seq", 4])
    shape = ModelInput(name, None, (1, 3, 4))
    with pytest.raises(OptionConflictError, match="batchsize is 4, but model_inputs gives 1 to the first"):
        lowered(model, batchsize=4, model_inputs=(shape,))
    shape = ModelInput(name, None, (4, 3, 4))
    assert shapes(lowered(model, batchsize=4, model_inputs=(shape,)))["x"] == (4, 3, 4)


def test_forms_of_a_shape_give_the_same_container(tmp_path):
    """Regression: the containers differed in the options that they record."""
    model = symbolic()
    forms = ["x:2x3x4", "2x3x4", "x[2,3,4]", "x,float32,[2,3,4]"]
    forms.append([{"input_name": "x", "input_type": "float", "input_shape": [2, 3, 4]}])
    first, *others = (
        qaic.compile(model, model_inputs=form, output_dir=tmp_path / str(at)).path.read_bytes()
        for at, form in enumerate(forms)
    )
    assert all(other == first for other in others)
    recorded = qaic.Qpc(tmp_path / "1").options["model_inputs"]
    assert recorded == [{"input_name": "x", "input_shape": [2, 3, 4]}]


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
    assert "found the declared size 1, expected 3" in caplog.text


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
