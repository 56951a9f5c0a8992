"""Work of operations: counted by hand; the committed tables match the networks."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from forecast.architectures.language import encoder
from forecast.architectures.vision import classifier
from forecast.measured import TABLES, to_json
from qaic.forecast.analysis import analyze
from qaic.options.table import CompileOptions


def analyzed(graph, **options):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return analyze(model, CompileOptions(**options))


def tensor(name, *dims, elem_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem_type, dims)


def constant(name, *dims):
    return helper.make_tensor(name, TensorProto.FLOAT, dims, np.zeros(dims, np.float32).ravel())


def test_a_product_and_a_function_are_counted_by_hand():
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("Softmax", ["t"], ["y"], axis=-1),
        ],
        "g",
        [tensor("x", 3, 5)],
        [tensor("y", 3, 7)],
        [constant("w", 5, 7)],
    )
    table = analyzed(graph).sets[0].table
    rows = {tuple(row) for row in table.rows.tolist()}
    assert rows == {
        (1, 3 * 5 * 7, 5, 7, 0, 0, 35, 15 + 21, 0),
        (1, 0, 0, 0, 0, 21, 0, 42, 0),
        (1, 0, 0, 0, 4 * 21, 21, 0, 42, 0),
    }
    assert (table.samples, table.input_bytes, table.output_bytes) == (3, 60, 84)


def test_the_batch_of_an_option_is_that_of_the_table():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [tensor("x", "n", 5)],
        [tensor("y", "n", 7)],
        [constant("w", 5, 7)],
    )
    one, four = (analyzed(graph, batchsize=batch).sets[0].table for batch in (1, 4))
    assert (one.samples, four.samples) == (1, 4)
    assert four.total("macs") == 4 * one.total("macs")
    assert four.total("weights") == one.total("weights")


def test_what_only_depends_on_constants_or_gives_shapes_is_no_work():
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["w"], ["v"]),
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Reshape", ["x", "s"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
        ],
        "g",
        [tensor("x", 2, 5)],
        [tensor("y", 2, 7)],
        [constant("w", 7, 5)],
    )
    assert [row["macs"] for row in analyzed(graph).sets[0].table.rows] == [2 * 5 * 7]


def test_mxfp6_is_for_products_and_not_for_convolutions():
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"]),
            helper.make_node("Flatten", ["c"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["y"]),
        ],
        "g",
        [tensor("x", 1, 2, 4, 4)],
        [tensor("y", 1, 6)],
        [constant("k", 3, 2, 4, 4), constant("w", 3, 6)],
    )
    table = analyzed(graph).sets[0].table
    assert table.weight_bytes("fp16") == 2 * (96 + 18)
    assert table.weight_bytes("mxfp6+fp16") == 2 * 96 + 18 * 6.25 / 8
    assert table.convolutions == 96 / (96 + 18)


def test_a_normalization_behind_a_convolution_is_no_work():
    names = [f"n{number}" for number in range(4)]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *names], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("BatchNormalization", ["r", *names], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", 1, 2, 4, 4)],
        [tensor("y", 1, 3, 1, 1)],
        [constant("k", 3, 2, 4, 4), *(constant(name, 3) for name in names)],
    )
    # Three elements: one step of Relu, and two of the second normalization.
    assert analyzed(graph).sets[0].table.total("steps") == 3 + 6


def test_loops_are_counted_as_unknown():
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [
            tensor("i", elem_type=TensorProto.INT64),
            tensor("c", elem_type=TensorProto.BOOL),
            tensor("a", 2),
        ],
        [tensor("d", elem_type=TensorProto.BOOL), tensor("b", 2)],
    )
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [3])
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [tensor("x", 2)], [tensor("y", 2)], [trips])
    assert analyzed(graph).sets[0].table.unknown == 1


@pytest.mark.parametrize(
    ("name", "task", "size"),
    [
        ("prajjwal1/bert-tiny", "question-answering", 128),
        ("ckiplab/albert-tiny-chinese", "fill-mask", 128),
        ("microsoft/deberta-v3-small", "question-answering", 128),
        ("mobilenet_v3_small", "image-classification", 224),
        ("shufflenet_v2_x1_0", "image-classification", 224),
        ("vit_b_16", "image-classification", 224),
    ],
)
def test_committed_tables_are_those_of_the_networks(tmp_path, name, task, size):
    graph = classifier(name, size) if task == "image-classification" else encoder(name, task, size)
    found = to_json(analyze(graph.save(tmp_path), CompileOptions()).sets[0].table)
    assert found == json.loads(TABLES.read_text())[f"{name}|{task}|{size}"]


@pytest.mark.parametrize(
    ("name", "gigamacs"),
    # Published multiply-accumulates of torchvision's models.
    [
        ("resnet50", 4.09),
        ("vgg16", 15.47),
        ("densenet161", 7.73),
        ("efficientnet_b4", 4.39),
        ("mnasnet1_0", 0.31),
    ],
)
def test_networks_have_the_published_work(name, gigamacs):
    tables = json.loads(TABLES.read_text())
    rows = next(value for key, value in tables.items() if key.startswith(f"{name}|"))["rows"]
    assert sum(row[0] * row[1] for row in rows) / 1e9 == pytest.approx(gigamacs, rel=0.02)
