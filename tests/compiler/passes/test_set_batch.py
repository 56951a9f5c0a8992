import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError, OptionConflictError

GENERATOR = np.random.default_rng(11)
KERNEL = GENERATOR.standard_normal((4, 2, 3, 3)).astype(np.float32)
MATRIX = GENERATOR.standard_normal((4 * 16, 5)).astype(np.float32)


def traced(first=1, shape=(1, 64)):
    """A convolution whose result is flattened with a constant shape, as exporters write it."""
    return model_of(
        [
            node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
            node("Reshape", ["c", "flat"], ["f"]),
            node("MatMul", ["f", "m"], ["y"]),
        ],
        [info("x", [first, 2, 4, 4])],
        [info("y", [first, 5])],
        [("k", KERNEL), ("m", MATRIX), ("flat", np.array(shape, np.int64))],
    )


@given(st.integers(1, 7))
def test_every_sample_of_a_batch_has_the_result_it_has_alone(batch):
    x = np.random.default_rng(batch).standard_normal((batch, 2, 4, 4)).astype(np.float32)
    program = lowered(traced(), batchsize=batch)
    assert [spec.dims for spec in (*program.inputs, *program.outputs)] == [(batch, 2, 4, 4), (batch, 5)]
    alone = ort.InferenceSession(traced().SerializeToString())
    expected = np.concatenate([alone.run(None, {"x": sample[None]})[0] for sample in x])
    np.testing.assert_allclose(run(whole(program), {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_symbolic_batch_gets_the_value():
    program = lowered(traced("n", (-1, 64)), batchsize=3)
    assert program.inputs[0].dims == (3, 2, 4, 4)


def test_a_symbolic_batch_with_another_value_is_refused():
    with pytest.raises(OptionConflictError, match=r"batchsize is 3.*'n'.*value 2"):
        lowered(traced("n", (-1, 64)), batchsize=3, onnx_define_symbol={"n": 2})


def test_a_shape_that_also_shapes_a_constant_stays_for_the_constant():
    model = model_of(
        [
            node("Reshape", ["b", "flat"], ["bias"]),
            node("Reshape", ["x", "flat"], ["f"]),
            node("Add", ["f", "bias"], ["y"]),
        ],
        [info("x", [1, 2, 2])],
        [info("y", [1, 4])],
        [("b", np.arange(4, dtype=np.float32)), ("flat", np.array([1, 4], np.int64))],
    )
    program = lowered(model, batchsize=2)
    x = np.ones((2, 2, 2), np.float32)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], [[1, 2, 3, 4]] * 2)


@pytest.mark.parametrize(
    "model",
    [
        model_of([node("Relu", ["x"], ["y"])], [info("x", [4, 2])], [info("y", [4, 2])]),
        model_of([node("ReduceSum", ["x"], ["y"], keepdims=1)], [info("x", [1, 2])], [info("y", [1, 1])]),
    ],
    ids=["no batch", "samples are mixed"],
)
def test_a_model_without_a_batch_is_refused(model):
    with pytest.raises(CompileError) as caught:
        lowered(model, batchsize=3)
    assert caught.value.code == "compile.not_batchable"


def test_a_declared_shape_of_one_sample_is_named(caplog):
    nodes = [node("NonZero", ["x"], ["places"]), node("Transpose", ["places"], ["y"])]
    model = model_of(nodes, [info("x", [1, 4])], [info("y", ["rows", 2], TensorProto.INT64)])
    for rows, count in ((1, 1), (3, 0)):
        caplog.clear()
        found = lowered(model, batchsize=3, output_shapes={"y": (rows, 2)})
        assert found.outputs[0].dims == (rows, 2)
        assert caplog.text.count("gives 1 to the first dimension of output 'y'") == count
    with pytest.raises(CompileError) as caught:
        lowered(model)
    assert "an inference that gives another shape fails" in caught.value.hints[0]
