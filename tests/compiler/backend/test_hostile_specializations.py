"""Programs whose descriptor, plan and graph contradict each other about shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import qaic
import session_models
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from qaic.qpc import Qpc
from qpc_support import container, program

X = np.ones((1, 6, 4), np.float32)


@pytest.fixture(autouse=True)
def virtual_card(monkeypatch):
    # The test builds the containers without the requests that cards need.
    monkeypatch.setenv("QAIC_DEVICE", "cpu")


@pytest.fixture(scope="module")
def parts():
    """Descriptor, plan and graph of a valid program with two specializations."""
    model = session_models.model(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Flatten", ["r"], ["y"], axis=1)],
        [("x", "float32", ["batch", "seq", 4])],
        [("y", "float32", None)],
    )
    options = {"network_specialization_config": [{"batch": 1, "seq": 6}, {"batch": 3, "seq": 2}]}
    found = resolve(options, options_path=None, model_is_container=False)
    qpc = Qpc(compile_model(model, found.compile, found.set_compile))
    return qpc.network_descriptor, qpc.plan, bytes(qpc.graph)


def opened(folder, parts, change):
    """Write the program after `change` has edited the descriptor and the plan."""
    network, plan = copied(parts[0]), copied(parts[1])
    graph = change(network, plan) or parts[2]
    network.pop("network_name", None)
    path = folder / "programqpc.bin"
    path.write_bytes(container(program(network=network, plan=plan, graph=graph)))
    return path


def copied(value):
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def both(network, plan, variant, tensor, dims):
    """Give a tensor other dims in one specialization, in the descriptor and in the plan."""
    network["allowed_shapes"][variant]["shapes"][tensor]["dims"] = dims
    side, place = ("inputs", tensor) if tensor == 0 else ("outputs", tensor - 1)
    plan["variants"][variant][side][place] = dims


def run(path, x=X):
    with qaic.Session(path) as session:
        return session.run({"x": x})


def test_the_untouched_program_runs(tmp_path, parts):
    path = opened(tmp_path, parts, lambda network, plan: None)
    assert run(path)["y"].shape == (1, 24)
    assert run(path, np.ones((3, 2, 4), np.float32))["y"].shape == (3, 8)


def fewer_in_plan(network, plan):
    plan["variants"].pop()


def none_in_plan(network, plan):
    plan.pop("variants")


def fewer_in_descriptor(network, plan):
    network["allowed_shapes"].pop()


def none_in_descriptor(network, plan):
    network.pop("allowed_shapes")


def other_dims_in_plan(network, plan):
    plan["variants"][0]["inputs"][0] = [1, 5, 4]


def other_rank_in_plan(network, plan):
    plan["variants"][0]["inputs"][0] = [24]


def missing_tensor_in_plan(network, plan):
    plan["variants"][0]["outputs"] = []


def negative_dims(network, plan):
    both(network, plan, 0, 0, [1, -6, 4])


def larger_than_the_binding(network, plan):
    both(network, plan, 0, 0, [3, 7, 4])
    network["dma_buffers"][0]["size"] *= 2


def other_type(network, plan):
    network["allowed_shapes"][0]["shapes"][0]["type"] = 7


def missing_tensor_in_descriptor(network, plan):
    network["allowed_shapes"][1]["shapes"].pop()


def newer_plan(network, plan):
    plan["version"] = 5


def variants_that_are_none(network, plan):
    plan["variants"] = {"a": 1}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (fewer_in_plan, "1 specialization, the network descriptor 2"),
        (none_in_plan, "0 specializations, the network descriptor 2"),
        (fewer_in_descriptor, "2 specializations, the network descriptor 1"),
        (none_in_descriptor, "2 specializations, the network descriptor 0"),
        (other_dims_in_plan, "specialization 0 of the plan is not entry 0 of allowed_shapes"),
        (other_rank_in_plan, "specialization 0 of the plan is not entry 0"),
        (missing_tensor_in_plan, "specialization 0 of the plan is not entry 0"),
        (negative_dims, "-6"),
        (larger_than_the_binding, "allowed_shapes entry 0, binding x: the tensor is larger"),
        (other_type, "allowed_shapes entry 0, binding x: the element type"),
        (missing_tensor_in_descriptor, "allowed_shapes entry 1 has 1 tensors, 2 expected"),
        (newer_plan, "has version 5, this library reads versions 1 to 4"),
        (variants_that_are_none, "is not a plan"),
    ],
)
def test_stories_that_contradict_each_other_are_refused(tmp_path, parts, change, text):
    path = opened(tmp_path, parts, change)
    with pytest.raises(qaic.errors.QaicError, match=text):
        run(path)
    findings = qaic.qpc.validate(path)
    assert any(finding.severity == "error" for finding in findings), findings


def output_too_small(network, plan):
    both(network, plan, 0, 1, [1, 2])


def output_of_another_shape(network, plan):
    both(network, plan, 0, 1, [2, 12])


def input_the_graph_refuses(network, plan):
    both(network, plan, 0, 0, [1, 3, 8])
    graph = onnx.ModelProto()
    graph.graph.CopyFrom(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["m"]),
                helper.make_node("Flatten", ["m"], ["y"], axis=1),
            ],
            "net",
            [session_models.value("x", "float32", ["b", "s", "k"])],
            [session_models.value("y", "float32", [None, None])],
            [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
        )
    )
    graph.ir_version = 8
    graph.opset_import.add(domain="", version=17)
    return graph.SerializeToString()


@pytest.mark.parametrize(
    ("change", "x"),
    [
        (output_too_small, X),
        (output_of_another_shape, X),
        (input_the_graph_refuses, np.ones((1, 3, 8), np.float32)),
    ],
)
def test_shapes_the_graph_contradicts_fail_the_inference_and_nothing_else(tmp_path, parts, change, x):
    path = opened(tmp_path, parts, change)
    with qaic.Session(path) as session:
        with pytest.raises(qaic.errors.InferenceError):
            session.run({"x": x})
        # The other specialization is correct.
        assert session.run({"x": np.ones((3, 2, 4), np.float32)})["y"].shape == (3, 8)
