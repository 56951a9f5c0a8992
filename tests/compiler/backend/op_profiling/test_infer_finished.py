"""Types and shapes of values that passes have added."""

from compiler_oracle import info, model_of, node
from qaic.compiler.ir.value_info import collect_shapes
from single_pass import applied, before, content, step_of

NAME = "infer-finished"


def squared(nodes=None):
    nodes = nodes or [node("Mul", ["x", "x"], ["a"]), node("Relu", ["a"], ["y"])]
    return model_of(nodes, [info("x", [2, 3])], [info("y", None)])


def test_values_that_passes_added_have_shapes():
    model, context = before(NAME, squared(), stats_level=70, convert_to_fp16=True)
    found = content(model)
    assert not applied(NAME, model, context)
    (forms,) = model.described
    shapes = collect_shapes(forms[0])
    assert {shapes[name] for one in model.proto.graph.node for name in one.output} == {(2, 3)}
    assert len({name for one in model.proto.graph.node for name in one.output}) > 2
    # The known facts about the model follow.
    assert forms[1] is model.specialized[0]
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_graph_that_cannot_be_inferred_keeps_what_is_known():
    model, context = before(NAME, squared(), stats_level=70)
    model.proto.graph.node[0].op_type = "NonZero"
    del model.proto.graph.node[0].input[1:]
    step_of(NAME).run(model, context)
    assert [forms[-1] for forms in model.described] == list(model.specialized)
