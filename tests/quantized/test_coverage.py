"""Number of nodes of a program that compute in integers, in the output of `qaic-qpc info`."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import qaic
from qaic.cli.qpc.facts import facts, integer_coverage
from qaic.qpc import Qpc

RNG = np.random.default_rng(1)
SAMPLE = {"x": RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)}

CONV = helper.make_node("Conv", ["x", "w"], ["c"])
SIN = helper.make_node("Sin", ["c"], ["s"])
POOL = helper.make_node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2])
SUM = helper.make_node("Add", ["p", "p"], ["y"])


def compiled(nodes, folder, **options):
    weight = RNG.standard_normal((4, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 3, 6, 6])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weight, "w")] if nodes[0] is CONV else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return qaic.compile(
        model, output_dir=folder, convert_to_quantize=True, calibration_data=[SAMPLE], **options
    )


@pytest.mark.parametrize(
    ("nodes", "options", "said"),
    [
        ([CONV, SIN, POOL, SUM], {}, "Int8 for 3 of 4 nodes ("),
        ([CONV, SIN, POOL, SUM], {"keep_original_precision_for_nodes": ["Add"]}, "Int8 for 2 of 4 nodes ("),
        ([helper.make_node("Sin", ["x"], ["y"])], {}, "Int8 for none of 1 node"),
    ],
)
def test_label_counts_what_computes_on_integers(nodes, options, said, tmp_path):
    compiled(nodes, tmp_path / "qpc", **options)
    found = facts(Qpc(tmp_path / "qpc" / "programqpc.bin"))
    assert said in found["precision"]


@pytest.mark.parametrize("graph", [b"", b"\xff", b"\x0a\x03abc"])
def test_graph_that_says_nothing(graph):
    assert integer_coverage(graph) is None
