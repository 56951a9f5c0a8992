"""Names of nodes, and the user's nodes from which the nodes of a program come."""

from compiler_oracle import info, model_of, node
from single_pass import applied, before

NAME = "record-provenance"


def chain():
    nodes = [
        node("Relu", ["x"], ["a"], name="same"),
        node("Neg", ["a"], ["b"], name="same"),
        node("Abs", ["b"], ["y"], name='"quoted"'),
    ]
    return model_of(nodes, [info("x", [2])], [info("y", [2])])


def test_each_node_has_a_name_that_a_report_can_hold():
    model, context = before(NAME, chain(), stats_level=70)
    assert applied(NAME, model, context)
    names = [one.name for one in model.proto.graph.node]
    assert names == ["same", "same_2", "_quoted_"]
    applied(NAME, model, context)
    assert [one.name for one in model.proto.graph.node] == names


def test_node_in_the_place_of_two_is_owned_by_both():
    model, context = before(NAME, chain(), stats_level=70)
    applied(NAME, model, context)
    changed = model.copy().proto
    del changed.graph.node[:2]
    changed.graph.node.insert(0, node("Fused", ["x"], ["b"], name="fused"))
    owners = model.provenance(changed)
    assert owners == {"fused": ("same", "same"), "_quoted_": ('"quoted"',)} or owners["fused"] == ("same",)


def test_pass_is_not_needed_below_the_level():
    assert not before(NAME, chain(), stats_level=40)[1].measures_operations
