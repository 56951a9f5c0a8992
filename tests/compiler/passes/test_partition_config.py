import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from compiler_oracle import info, model_of, node
from qaic.compiler.diagnostics.messages import Survey
from qaic.compiler.passes.inlining import inline_small_functions
from qaic.compiler.passes.partition_config import (
    check_partitions,
    check_placement,
    node_names,
    write_template,
)
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
    assert refusals(model, config) == {}
    assert not caplog.records


def refusals(model, config):
    """Return the kinds of partitions that the card's compiler would refuse."""
    survey = Survey()
    check_placement(model, (), config, survey)
    check_partitions(inline_small_functions(model).graph, config, survey)
    return survey.refusals


def of_lists(*lists):
    return Partitions().content(
        {
            "partitions": [
                {"name": f"P{number}", "devices": [{"deviceId": number}], "nodeList": list(nodes)}
                for number, nodes in enumerate(lists)
            ]
        }
    )


@st.composite
def layered_models(draw):
    """Draw the operands of each node: earlier nodes, or the input as -1."""
    count = draw(st.integers(2, 8))
    return [draw(st.lists(st.integers(-1, number - 1), min_size=2, max_size=2)) for number in range(count)]


@given(layered_models(), st.data())
def test_lists_in_any_order_and_with_gaps(operands, data):
    value = lambda number: "x" if number < 0 else f"v{number}"  # noqa: E731
    names = [f"/layers/Add_{number}" for number in range(len(operands))]
    nodes = [
        node("Add", [value(a), value(b)], [f"v{number}"], name=names[number])
        for number, (a, b) in enumerate(operands)
    ]
    model = model_of(nodes, [info("x", [2])], [info(value(len(operands) - 1), [2])])
    listed = data.draw(
        st.permutations(names).map(lambda order: order[: data.draw(st.integers(1, len(names)))])
    )
    # Refused: a node before one that it reads, and a node that is used but not listed.
    place = {name: number for number, name in enumerate(listed)}
    used, pending = set(), [len(operands) - 1]
    while pending:
        number = pending.pop()
        if number >= 0 and number not in used:
            used.add(number)
            pending += operands[number]
    behind = [
        name
        for number, name in enumerate(names)
        if name in place
        and any(maker >= 0 and place.get(names[maker], -1) > place[name] for maker in operands[number])
    ]
    missing = [names[number] for number in sorted(used) if names[number] not in place]
    found = refusals(model, of_lists(listed))
    assert (
        sorted(set(found.get("nodes that 'P0' lists before the nodes that compute their operands", [])))
        == behind
    )
    assert found.get("nodes in no partition", []) == missing


def test_the_nodes_of_a_function_stand_for_its_call():
    listed = ["kept", "p", "call/product", "norm/product", "long"]
    assert "nodes in no partition" not in refusals(folding(), of_lists(listed))
    assert refusals(folding(), of_lists(listed[:-1]))["nodes in no partition"] == ["long"]


def test_partitions_that_leave_the_choice_to_the_compiler_lack_nothing():
    config = Partitions().content(
        {"partitions": [{"name": "P", "devices": [{"deviceId": 0}, {"deviceId": 1}]}]}
    )
    assert refusals(folding(), config) == {}
