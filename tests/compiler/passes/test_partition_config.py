import json

import numpy as np
from onnx import helper

from compiler_oracle import info, model_of, node
from qaic.compiler.passes.partition_config import check_partitions, node_names, write_template
from qaic.options.files.partitions import Partitions


def folding():
    body = [node("Mul", ["a", "b"], ["c"], name="product")]
    sets = [helper.make_opsetid("", 17)]
    functions = [
        helper.make_function("local", "Twice", ["a", "b"], ["c"], body, sets),
        helper.make_function("local", "CustomRMSNorm", ["a", "b"], ["c"], body, sets),
        helper.make_function(
            "local", "Long", ["a"], ["c"], [node("Abs", ["a"], [f"t{i}"]) for i in range(100)], sets
        ),
    ]
    return model_of(
        [
            node("Add", ["w", "w"], ["w2"], name="folded"),
            node("Identity", ["w2"], ["w3"], name="kept"),
            node("Mul", ["x", "w3"], ["p"]),
            helper.make_node("Twice", ["p", "p"], ["q"], name="call", domain="local"),
            helper.make_node("CustomRMSNorm", ["q", "q"], ["r"], name="norm", domain="local"),
            helper.make_node("Long", ["r"], ["y"], name="long", domain="local"),
        ],
        [info("x", [2])],
        [info("y", [2])],
        [("w", np.ones(2, np.float32))],
        functions=functions,
    )


def test_the_template_lists_what_the_cards_compiler_leaves():
    assert node_names(folding(), ()) == ["kept", "p", "call/product", "norm", "long"]


def test_weights_beside_the_graph_are_constants():
    model = folding()
    del model.graph.initializer[:]
    assert "folded" in node_names(model, ())
    assert "folded" not in node_names(model, ["w"])


def test_a_written_template_can_be_loaded_and_fits_the_model(tmp_path, caplog):
    model = folding()
    write_template(node_names(model, ()), 4, tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["partitions"][0]["devices"] == [{"deviceId": 0, "numCores": 4}]
    config = Partitions().load(Partitions().parse(tmp_path / "p.json"))
    from qaic.compiler.passes.inlining import inline_small_functions

    check_partitions(inline_small_functions(model).graph, config)
    assert not caplog.records
