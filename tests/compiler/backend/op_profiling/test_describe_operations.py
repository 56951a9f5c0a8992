"""Operations into which the engine converts a program."""

from compiler_oracle import info, model_of, node
from single_pass import applied, before

NAME = "describe-operations"


def chain():
    nodes = [node("MatMul", ["x", "x"], ["a"], name="product"), node("Relu", ["a"], ["y"], name="activation")]
    return model_of(nodes, [info("x", [3, 3])], [info("y", None)])


def test_each_node_of_the_user_is_in_an_operation():
    model, context = before(NAME, chain(), stats_level=70)
    applied(NAME, model, context)
    described = str([dict(one) for one in model.operations.ops])
    assert "product" in described
    assert "activation" in described
    assert model.operations.executions >= 2
    first = model.operations
    applied(NAME, model, context)
    assert [dict(one) for one in model.operations.ops] == [dict(one) for one in first.ops]


def test_program_without_provenance_is_left_alone():
    model, context = before(NAME, chain(), stats_level=70)
    model.provenance = None
    applied(NAME, model, context)
    assert model.operations is None
