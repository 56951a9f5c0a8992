"""Large sizes: no object for each element, and no objects for sizes that no buffer can hold."""

import numpy as np
import pytest
from onnx import TensorProto, shape_inference

from compiler_oracle import FLOAT, info, lowered, model_of, node
from qaic.errors import CompileError
from qaic.options.codecs.structures import ModelInput
from qaic.options.files.specializations import SpecializationEntry

LONG = 1 << 20
INT64 = TensorProto.INT64
CONSTANTS = [
    ("all", np.array([-1])),
    ("zero", np.array([0])),
    ("end", np.array([LONG])),
    ("one", np.array(1)),
]

SETS = (SpecializationEntry("short", {"n": 4}), SpecializationEntry("long", {"n": 2**40}))

#: Nodes from "x" to "y", and the shape of "x".
LISTS = {
    "input": ([node("Add", ["x", "x"], ["y"])], [LONG]),
    "weight": ([node("Mul", ["x", "w"], ["y"])], [1]),
    "flattened": (
        [
            node("Reshape", ["x", "all"], ["a"]),
            node("Concat", ["a", "a"], ["b"], axis=0),
            node("Slice", ["b", "zero", "end"], ["c"]),
            node("Unsqueeze", ["c", "zero"], ["y"]),
        ],
        [LONG // 2, 2],
    ),
    "filled": (
        [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["c"]), node("Add", ["c", "x"], ["y"])],
        [LONG],
    ),
    "counted": (
        [
            node("Size", ["x"], ["n"]),
            node("Range", ["none", "n", "one"], ["r"]),
            node("Add", ["r", "r"], ["s"]),
            node("Cast", ["s"], ["y"], to=FLOAT),
        ],
        [LONG],
    ),
}


@pytest.mark.parametrize("case", LISTS)
def test_inference_follows_no_values_of_long_lists(case, monkeypatch):
    """Inference of onnx creates an object per element at each operator, which takes a second per million
    elements.
    """
    followed = []
    infer = shape_inference.infer_shapes

    def counting(model, *args, data_prop=False, **more):
        followed.append(data_prop)
        return infer(model, *args, data_prop=data_prop, **more)

    monkeypatch.setattr(shape_inference, "infer_shapes", counting)
    nodes, shape = LISTS[case]
    constants = [*CONSTANTS, ("none", np.array(0)), ("w", np.ones(LONG, np.float32))]
    program = lowered(model_of(nodes, [info("x", shape)], [info("y", None)], constants))
    assert np.prod(program.outputs[0].dims) == LONG
    assert set(followed) == {False}


def test_values_of_short_lists_are_followed():
    """Part of a shape is known although the rest depends on data."""
    nodes = [
        node("NonZero", ["x"], ["n"]),
        node("Shape", ["n"], ["s"]),
        node("Gather", ["s", "zero"], ["rows"]),
        node("Concat", ["rows", "all"], ["t"], axis=0),
        node("Reshape", ["n", "t"], ["r"]),
        node("ReduceSum", ["r", "columns"], ["y"], keepdims=0),
    ]
    constants = [*CONSTANTS, ("columns", np.array([1]))]
    program = lowered(model_of(nodes, [info("x", [3, 4])], [info("y", None, INT64)], constants))
    assert program.outputs[0].dims == (2,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onnx_define_symbol": {"n": 2**40}}, "input 'x': found 4398046511104 bytes"),
        ({"network_specialization_config": SETS}, "specialization 'long', input 'x': found"),
        ({"model_inputs": (ModelInput("x", "float32", (2**40,)),)}, "input 'x': found"),
        ({"onnx_define_symbol": {"n": 2**61}}, "input 'x': found"),
    ],
)
def test_a_size_that_no_buffer_holds_is_refused_before_inference(options, message, monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(shape_inference, "infer_shapes", never)
    nodes = LISTS["counted"][0]
    constants = [*CONSTANTS, ("none", np.array(0))]
    with pytest.raises(CompileError, match=message) as caught:
        lowered(model_of(nodes, [info("x", ["n"])], [info("y", None)], constants), **options)
    assert caught.value.code == "compile.tensor_too_large"
