from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import decoder_model
from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.passes.inlining import eliminate_common_subexpressions
from qaic.options.files.node_precision import NodePrecision
from qaic.options.files.specializations import Specializations


def merged(model, shapes=None, **labels):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    eliminate_common_subexpressions(copy.graph, shapes or {}, labels)
    onnx.checker.check_model(copy)
    return copy


def kinds(model):
    return Counter(node.op_type for node in model.graph.node)


def constant(name, values):
    value = onnx.numpy_helper.from_array(np.asarray(values))
    return node("Constant", [], [name], value=value)


def test_repeated_work_is_done_once_and_the_results_stay():
    model = model_of(
        [
            constant("one", np.float32(1)),
            constant("uno", np.float32(1)),
            constant("two", np.float32(2)),
            node("Add", ["x", "one"], ["a"]),
            node("Add", ["x", "uno"], ["b"]),
            node("Add", ["x", "two"], ["c"]),
            node("Mul", ["a", "b"], ["d"]),
            node("Mul", ["b", "a"], ["e"]),
            node("Sub", ["d", "c"], ["y"]),
            node("Sub", ["e", "c"], ["z"]),
        ],
        [info("x", [2])],
        [info("y", [2]), info("z", [2])],
    )
    found = merged(model)
    # `z` equals `y`, but both are outputs.
    assert kinds(found) == {"Constant": 2, "Add": 2, "Mul": 1, "Sub": 2}
    feeds = {"x": np.float32([3, -1])}
    assert all(np.array_equal(run(found, feeds)[name], run(model, feeds)[name]) for name in ("y", "z"))


def test_attributes_types_and_optional_outputs_tell_nodes_apart():
    model = model_of(
        [
            node("ReduceMax", ["x"], ["a"], axes=[0]),
            node("ReduceMax", ["x"], ["b"], axes=[1]),
            node("Cast", ["x"], ["c"], to=TensorProto.INT64),
            node("Cast", ["x"], ["d"], to=TensorProto.INT32),
            node("MaxPool", ["p"], ["e"], kernel_shape=[1]),
            node("MaxPool", ["p"], ["f", "g"], kernel_shape=[1]),
        ],
        [info("x", [2, 2]), info("p", [1, 1, 2])],
        [
            info("a", [1, 2]),
            info("b", [2, 1]),
            info("c", [2, 2], TensorProto.INT64),
            info("d", [2, 2], TensorProto.INT32),
            info("e", [1, 1, 2]),
            info("g", [1, 1, 2], TensorProto.INT64),
        ],
    )
    assert merged(model).graph.node == model.graph.node


def test_nodes_that_compute_in_different_types_stay_apart():
    model = model_of(
        [
            node("Exp", ["x"], ["a"]),
            node("Exp", ["x"], ["b"]),
            node("Abs", ["x"], ["c"]),
            node("Abs", ["x"], ["d"]),
            node("Sum", ["a", "b", "c", "d"], ["y"]),
        ],
        [info("x", [2])],
        [info("y", [2])],
    )
    assert kinds(merged(model)) == {"Exp": 1, "Abs": 1, "Sum": 1}
    assert kinds(merged(model, a="fp16", b="fp16")) == {"Exp": 1, "Abs": 1, "Sum": 1}
    assert kinds(merged(model, a="fp16", b="fp32")) == {"Exp": 2, "Abs": 1, "Sum": 1}
    assert kinds(merged(model, b="fp32")) == {"Exp": 2, "Abs": 1, "Sum": 1}


def test_random_numbers_are_drawn_as_often_as_asked():
    model = model_of(
        [
            node("RandomNormal", [], ["a"], shape=[4]),
            node("RandomNormal", [], ["b"], shape=[4]),
            node("Sub", ["a", "b"], ["y"]),
        ],
        [],
        [info("y", [4])],
    )
    assert kinds(merged(model)) == {"RandomNormal": 2, "Sub": 1}


def test_nested_graphs_read_what_is_left():
    def branch(name, source):
        return helper.make_graph([node("Neg", [source], [name])], name, [], [info(name, [2])])

    passing = helper.make_graph([node("Neg", ["a"], ["unused"])], "passing", [], [info("b", [2])])
    inner = node("If", ["flag"], ["inner"], then_branch=branch("t", "b"), else_branch=passing)
    outer = helper.make_graph([inner], "outer", [], [info("inner", [2])])
    model = model_of(
        [
            node("Abs", ["x"], ["a"]),
            node("Abs", ["x"], ["b"]),
            node("If", ["flag"], ["y"], then_branch=outer, else_branch=branch("e", "b")),
        ],
        [info("x", [2]), info("flag", [], TensorProto.BOOL)],
        [info("y", [2])],
    )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    eliminate_common_subexpressions(copy.graph, {})
    assert kinds(copy) == {"Abs": 1, "If": 1}
    text = str(copy.graph)
    assert '"b"' not in text


def test_nodes_with_nested_graphs_stay():
    def choice(result):
        branch = helper.make_graph([node("Neg", ["x"], ["n"])], "branch", [], [info("n", [2])])
        return node("If", ["flag"], [result], then_branch=branch, else_branch=branch)

    model = model_of(
        [choice("a"), choice("b"), node("Add", ["a", "b"], ["y"])],
        [info("x", [2]), info("flag", [], TensorProto.BOOL)],
        [info("y", [2])],
    )
    assert merged(model).graph.node == model.graph.node


def test_known_shapes_are_numbers():
    model = model_of(
        [node("Shape", ["x"], ["s"]), node("Shape", ["w"], ["t"]), node("Add", ["s", "t"], ["y"])],
        [info("x", [2, 3]), info("w", [2, "n"])],
        [info("y", [2], TensorProto.INT64)],
    )
    assert kinds(merged(model, {"x": (2, 3), "w": (2, -1)})) == {"Constant": 1, "Shape": 1, "Add": 1}
    assert kinds(merged(model, {"x": (2, 3), "w": (2, 3)})) == {"Constant": 1, "Add": 1}
    assert kinds(merged(model, {"x": (2, 0), "w": (2, 0)})) == {"Constant": 1, "Add": 1}


def test_layers_of_a_decoder_share_the_work_on_positions():
    entries = Specializations().content(decoder_model.specializations())
    counts = [
        kinds(
            lowered(
                decoder_model.decoder(decoder_model.Sizes(layers=layers)),
                network_specialization_config=entries,
            ).model
        )
        for layers in (2, 6)
    ]
    once = {"ArgMax", "Equal", "Greater", "Less", "Max", "Min", "Range", "ReduceMax", "ReduceMin", "Sub"}
    assert all(counts[0][kind] == counts[1][kind] for kind in once)
    assert (counts[0]["ScatterND"], counts[1]["ScatterND"]) == (4, 12)


def test_functions_for_the_card_are_merged_and_others_left_alone():
    function = helper.make_function(
        "local", "Twice", ["x"], ["y"], [node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    call = [helper.make_node("Twice", [name], [f"{name}y"], domain="local") for name in ("x", "xy")]
    model = model_of(call, [info("x", [2])], [info("xyy", [2])], functions=[function])
    program = lowered(model)
    assert [n.op_type for n in program.model.graph.node] == ["Twice", "Twice"]
    assert run(whole(program), {"x": np.float32([1, 2])})["xyy"].tolist() == [4, 8]


@pytest.mark.parametrize(
    ("listed", "left"), [({}, 1), ({"fp32": "a"}, 2), ({"fp16": "a", "fp32": "b"}, 2), ({"fp16": "b"}, 2)]
)
def test_a_program_with_functions_of_the_card_keeps_what_a_precision_file_tells_apart(listed, left):
    call = helper.make_node("CustomRMSNorm", ["x", "w"], ["n"], domain=decoder_model.AISW, epsilon=1e-6)
    model = model_of(
        [
            call,
            node("Exp", ["x"], ["a"], name="a"),
            node("Exp", ["x"], ["b"], name="b"),
            node("Sum", ["n", "a", "b"], ["y"]),
        ],
        [info("x", [2, 4]), info("w", [4])],
        [info("y", [2, 4])],
        functions=[decoder_model.norm_function(17)],
    )
    model.opset_import.append(helper.make_opsetid(decoder_model.AISW, 1))
    lists = NodePrecision(*((listed[kind],) if kind in listed else () for kind in ("fp16", "fp32")))
    options = {"convert_to_fp16": True, "node_precision_info_file": lists} if listed else {}
    assert kinds(lowered(model, **options).model)["Exp"] == left
