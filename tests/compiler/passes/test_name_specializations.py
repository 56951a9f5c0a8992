"""Names of the program and of its sets of shapes, and interfaces that no program can have."""

from dataclasses import replace

import pytest

from compiler_oracle import info, model_of, node
from qaic.errors import CompileError, OptionError
from single_pass import applied, before, content

NAME = "name-specializations"


def relu(result="y"):
    return model_of([node("Relu", ["x"], [result])], [info("x", ["n"])], [info(result, ["n"])])


def sets(tmp_path, *sizes):
    file = tmp_path / "sets.json"
    entries = ", ".join(f'{{"n": "{size}"}}' for size in sizes)
    file.write_text(f'{{"specializations": [{entries}]}}')
    return {"network_specialization_config": str(file)}


def test_program_has_the_name_of_its_graph():
    model, context = before(NAME, relu(), onnx_define_symbol=[("n", 2)])
    graph = content(model)
    applied(NAME, model, context)
    assert (model.name, model.specializations) == ("net", ())
    assert content(model) == graph
    assert context.given_weights == model.weights


def test_names_of_graphs_are_those_that_are_given(tmp_path):
    model, context = before(NAME, relu(), graph_names=["small", "large"], **sets(tmp_path, 2, 7))
    for _ in range(2):
        applied(NAME, model, context)
        assert [one.name for one in model.specializations] == ["small", "large"]


def test_one_graph_is_named_as_the_program():
    model, context = before(NAME, relu(), graph_names=["mine"], onnx_define_symbol=[("n", 2)])
    applied(NAME, model, context)
    assert model.name == "mine"


def test_too_few_names_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"graph_names has 1 name for 2 graphs"):
        before(NAME, relu(), graph_names=["one"], **sets(tmp_path, 2, 7))


def test_too_many_names_are_refused():
    model, context = before(NAME, relu(), onnx_define_symbol=[("n", 2)])
    context.options = replace(context.options, graph_names=("one", "two"))
    with pytest.raises(OptionError, match=r"graph_names has 2 names \(one, two\), but the container has 1"):
        applied(NAME, model, context)


def test_output_that_is_an_input_is_refused():
    proto = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2]), info("x", [2])])
    model, context = before(NAME, proto)
    with pytest.raises(CompileError, match="an input of the model with the same name"):
        applied(NAME, model, context)


def test_name_of_the_statistics_is_refused():
    model, context = before(NAME, relu("aiccyclecounts"), onnx_define_symbol=[("n", 2)])
    with pytest.raises(CompileError, match="aiccyclecounts"):
        applied(NAME, model, context)
