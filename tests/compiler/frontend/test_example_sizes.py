"""Examples of open sizes: all commands propose the same ones, which the compiler accepts."""

import shlex

import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
from qaic.cli.openqaic import main
from qaic.compiler.frontend.example_sizes import example_shape, example_sizes
from qaic.errors import CompileError


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["batch", 3, "height", "width"], [1, 3, 224, 224]),
        (["N", 3, "H", "W"], [1, 3, 224, 224]),
        ([None, 3, None, None], [1, 3, 224, 224]),
        ([None, None, None, 3], [1, 224, 224, 3]),
        (["n", 3, 48, "w"], [1, 3, 48, 48]),
        (["n", 64, "a", "b"], [1, 64, 1, 1]),
        (["batch_size", "sequence_length"], [1, 128]),
        (["batch_size", 1, "total_len", "total_len"], [1, 1, 128, 128]),
        (["batch", "past + seq"], [1, 129]),
        ([2, "n", None], [2, 1, 1]),
        ([], []),
    ],
)
def test_names_and_places_give_sizes(shape, expected):
    assert example_shape(shape, example_sizes([shape])) == expected


def test_a_symbol_has_one_size_in_all_inputs():
    picture, other = ["n", 3, "a", "b"], ["n", "a"]
    sizes = example_sizes([other, picture])
    assert sizes == {"n": 1, "a": 224, "b": 224}
    assert example_shape(other, sizes) == [1, 224]


DIMS = st.sampled_from([1, 3, 8, None, "batch", "seq_len", "height", "W", "2*n", "token s"])


def negated(shapes):
    """A model that negates each input."""
    infos = [
        helper.make_tensor_value_info(f"{side}{number}", TensorProto.FLOAT, shape)
        for side in "xy"
        for number, shape in enumerate(shapes)
    ]
    nodes = [helper.make_node("Neg", [f"x{number}"], [f"y{number}"]) for number in range(len(shapes))]
    graph = helper.make_graph(nodes, "g", infos[: len(shapes)], infos[len(shapes) :])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@settings(max_examples=15)
@given(shapes=st.lists(st.lists(DIMS, min_size=1, max_size=4), min_size=1, max_size=2))
def test_all_commands_propose_the_same_sizes_and_accept_them(folder, shapes):
    dims = {dim for shape in shapes for dim in shape}
    # Shapes are proposed first, then the symbols of expressions.
    assume(not {None, "2*n"} <= dims)
    path = folder / "model.onnx"
    onnx.save(negated(shapes), path)
    report = qaic.check(path)
    if report.compiles:
        return
    # The line of `openqaic check`, and the error of `qaic.compile` that `openqaic compile` prints.
    (line,) = report.sections[0].report.next_steps.values()
    assert main([*shlex.split(line)[1:], "--json"]) == 0
    with pytest.raises(CompileError) as caught:
        qaic.compile(path)
    context = caught.value.context
    if "shapes" in context:
        expected = [
            f"--shape={name}:{'x'.join(map(str, shape))}" for name, shape in context["shapes"].items()
        ]
    else:
        expected = [f"--onnx-define-symbol={name},{size}" for name, size in context["example"].items()]
    assert shlex.split(line)[3:] == expected
