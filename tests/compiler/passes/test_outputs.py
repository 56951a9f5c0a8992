"""Results of inner nodes as outputs."""

import pytest

from compiler_oracle import info, lowered, model_of, node
from qaic.errors import CompileError
from single_pass import applied, before, content

NAMED, EVERY = "add-named-outputs", "add-every-output"


def chain():
    nodes = [node("Relu", ["x"], ["a"]), node("Shape", ["a"], ["s"]), node("Neg", ["a"], ["y"])]
    return model_of(nodes, [info("x", ["n", 3])], [info("y", ["n", 3])])


def names(model):
    return [value.name for value in model.proto.graph.output]


def test_named_results_follow_the_outputs():
    model, context = before(
        NAMED, chain(), extra_output_tensors=["s", "a", "y"], onnx_define_symbol=[("n", 2)]
    )
    assert applied(NAMED, model, context)
    assert names(model) == ["y", "a", "s"]
    found = content(model)
    applied(NAMED, model, context)
    assert content(model) == found


@pytest.mark.parametrize("option", [{"extra_output_tensors": ["a", "s"]}, {"all_intermediate_outputs": True}])
@pytest.mark.parametrize("dims", [["n", 3], [7, 3], None])
def test_results_that_the_file_describes_become_outputs(option, dims):
    """The newer exporter of torch describes inner values, perhaps with the sizes of other inputs."""
    model = chain()
    model.graph.value_info.extend([info("a", dims), info("s", None, 7)])
    outputs = lowered(model, onnx_define_symbol=[("n", 2)], **option).outputs
    assert [(spec.name, spec.dims) for spec in outputs] == [("y", (2, 3)), ("a", (2, 3)), ("s", (2,))]


def test_name_of_no_result_is_refused():
    model, context = before(NAMED, chain(), extra_output_tensors=["b"], onnx_define_symbol=[("n", 2)])
    with pytest.raises(CompileError, match="no result of a node of the main graph"):
        applied(NAMED, model, context)


def test_every_result_of_a_known_shape_becomes_an_output():
    options = {"all_intermediate_outputs": True, "onnx_define_symbol": [("n", 2)]}
    model, context = before(EVERY, chain(), **options)
    assert applied(EVERY, model, context)
    assert names(model) == ["y", "a", "s"]
    # Their sizes must be inferred.
    assert not model.specialized
    assert not applied("infer-shapes", model, context)
    assert [(spec.name, spec.dims) for spec in model.outputs] == [("y", (2, 3)), ("a", (2, 3)), ("s", (2,))]
    applied(EVERY, model, context)
    assert names(model) == ["y", "a", "s"]
