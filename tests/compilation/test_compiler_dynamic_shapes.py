import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qaic
import session_models
from compiler_oracle import info, lowered, model_of, node
from qaic.errors import OptionError, QaicError

WEIGHT = np.random.default_rng(3).standard_normal((4, 5)).astype(np.float32)


def projection(output=("n", "seq", 5)):
    return model_of(
        [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])],
        [info("x", ["n", "seq", 4])],
        [info("y", list(output))],
        [("w", WEIGHT)],
    )


def pooled():
    """A model with an output shape that onnx cannot express: half of a symbol."""
    return model_of(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[2], ceil_mode=1)],
        [info("x", [1, 1, "width"])],
        [info("y", None)],
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 40))
def test_every_size_up_to_the_bound_runs_and_outputs_follow(tmp_path_factory, batch, length):
    path = session_models.save(tmp_path_factory.getbasetemp(), projection())
    options = {"dynamic_shape_input": ["x"], "onnx_define_symbol": {"n": 3, "seq": 40}}
    with qaic.Session(path, **options) as session:
        x = np.random.default_rng(length).standard_normal((batch, length, 4)).astype(np.float32)
        result = session.run({"x": x})["y"]
        np.testing.assert_allclose(result, np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-5)


def test_buffers_have_the_size_of_the_bound_and_larger_inputs_are_refused(tmp_path):
    path = session_models.save(tmp_path, projection())
    options = {"dynamic_shape_input": ["x"], "onnx_define_symbol": {"n": 1, "seq": 20}}
    with qaic.Session(path, **options) as session:
        assert session.model_input_shape_dict["x"][0] == (1, 20, 4)
        with pytest.raises(QaicError):
            session.run({"x": np.zeros((1, 21, 4), np.float32)})


def test_shapes_that_have_no_name_are_inferred_for_every_size():
    program = lowered(pooled(), dynamic_shape_input=("x",), onnx_define_symbol={"width": 30})
    assert [specialization.outputs[0] for specialization in program.specializations] == [
        (1, 1, -(-width // 2)) for width in range(30, 0, -1)
    ]


def test_named_shapes_are_those_that_inference_finds():
    # Few sets of sizes are inferred one by one, many by the names of their dims.
    few = lowered(projection(), dynamic_shape_input=("x",), onnx_define_symbol={"n": 2, "seq": 8})
    many = lowered(projection(), dynamic_shape_input=("x",), onnx_define_symbol={"n": 2, "seq": 40})
    assert (len(few.specializations), len(many.specializations)) == (16, 80)
    shapes = {specialization.inputs: specialization.outputs for specialization in many.specializations}
    assert all(
        shapes[specialization.inputs] == specialization.outputs for specialization in few.specializations
    )


def test_a_claim_of_the_file_about_one_size_does_not_count():
    program = lowered(
        projection((1, 1, 5)), dynamic_shape_input=("x",), onnx_define_symbol={"n": 2, "seq": 9}
    )
    assert {specialization.outputs[0][1] for specialization in program.specializations} == set(range(1, 10))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dynamic_shape_input": ("z",), "onnx_define_symbol": {"n": 1, "seq": 2}}, "no input 'z'"),
        (
            {"dynamic_shape_input": ("x",), "onnx_define_symbol": {"n": 1}},
            "'seq'.*no bound.*onnx_define_symbol",
        ),
        (
            {"dynamic_shape_input": ("x",), "onnx_define_symbol": {"n": 1000, "seq": 1000}},
            "1000000 combinations",
        ),
    ],
)
def test_what_cannot_be_dynamic_is_refused(options, said):
    with pytest.raises(OptionError, match=said) as caught:
        lowered(projection(), **options)
    assert caught.value.code == "option.dynamic_shape_input"


def test_an_input_without_symbols_is_refused():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    with pytest.raises(OptionError, match="no symbolic dimension"):
        lowered(model, dynamic_shape_input=("x",))
