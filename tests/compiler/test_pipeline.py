"""The list of passes, the page that describes it, and the checks after each pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from generators import passes_page
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.verify import InvalidModelError, verify
from qaic.compiler.pipeline import PHASES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "passes.md"
PASSES = [step for phase in PHASES.values() for step in phase]


def test_page_lists_the_passes_in_their_order_with_their_sentences():
    assert PAGE.read_text() == passes_page.render()


def test_one_name_means_one_pass():
    assert len({step.name for step in PASSES}) == len(set(PASSES))


def model_of(nodes, outputs=("y",), weights=()) -> Model:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in outputs],
        [numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("c", *weights)],
    )
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {})


def relu(source, result, domain=""):
    return helper.make_node("Relu", [source], [result], domain=domain)


def nested(source):
    graphs = {
        branch: helper.make_graph(
            [relu(source, f"{branch}_out")],
            branch,
            [],
            [helper.make_tensor_value_info(f"{branch}_out", TensorProto.FLOAT, [2])],
        )
        for branch in ("then_branch", "else_branch")
    }
    return helper.make_node("If", ["c"], ["y"], **graphs)


@pytest.mark.parametrize(
    "nodes",
    [
        [relu("x", "y")],
        [relu("c", "a"), relu("a", "y")],
        [relu("x", "a"), nested("a")],
    ],
)
def test_model_with_a_producer_for_every_use_is_valid(nodes):
    verify(model_of(nodes), "a pass")


@pytest.mark.parametrize(
    ("nodes", "outputs", "fault"),
    [
        ([relu("a", "y"), relu("x", "a")], ("y",), "'a' is read by Relu '' and has no producer before it"),
        ([relu("x", "y"), relu("x", "y")], ("y",), "'y' is computed twice"),
        ([relu("x", "y")], ("z",), "output 'z' has no producer"),
        ([relu("x", "y", "other")], ("y",), "no operator set of domain 'other'"),
        ([nested("gone")], ("y",), "'gone' is read by Relu"),
    ],
)
def test_model_that_is_none_is_refused_with_the_pass_and_the_fault(nodes, outputs, fault):
    with pytest.raises(InvalidModelError, match="after the pass 'break-it'") as caught:
        verify(model_of(nodes, outputs), "break-it")
    assert fault in str(caught.value)


def test_weight_that_is_in_the_graph_too_is_refused():
    model = model_of([relu("x", "y")], weights=["w"])
    model.weights["w"] = None
    with pytest.raises(InvalidModelError, match="weight 'w' is also in the graph"):
        verify(model, "a pass")


def test_copy_of_a_model_changes_alone():
    model = model_of([relu("x", "y")])
    copy = model.copy()
    copy.proto.graph.node[0].op_type = "Abs"
    copy.weights["w"] = None
    copy.facts.types["x"] = onnx.TensorProto.FLOAT
    assert (model.proto.graph.node[0].op_type, model.weights, model.facts.types) == ("Relu", {}, {})


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda step: step.name)
def test_every_pass_has_its_tests(step):
    """A test file has the name of the module or of the pass, and mentions the pass."""
    module = step.run.__module__.removeprefix("qaic.").split(".")
    folder = Path(__file__).parents[1].joinpath(*module[:-1])
    files = [folder / f"test_{stem}.py" for stem in (module[-1], step.name.replace("-", "_"))]
    assert any(file.exists() for file in files), files
