"""Results that a node omits although the engine writes them; without names, they end the process."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import FLOAT, info, lowered, model_of, node, run, whole

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def _loop(outputs, state):
    names = [f"s{at}" for at in range(state)]
    nodes = [node("Identity", ["go"], ["go_on"]), *(node("Neg", [name], [f"{name}_next"]) for name in names)]
    nodes.append(node("Abs", [names[-1]], ["scan"]))
    inputs = [
        info("i", [], TensorProto.INT64),
        info("go", [], TensorProto.BOOL),
        *(info(n, None) for n in names),
    ]
    results = [
        info("go_on", [], TensorProto.BOOL),
        *(info(f"{n}_next", None) for n in names),
        info("scan", None),
    ]
    body = helper.make_graph(nodes, "body", inputs, results)
    return [node("Loop", ["count", "yes", *["x"] * state], outputs, body=body)]


def _scan(outputs):
    body = helper.make_graph(
        [node("Add", ["s", "row"], ["next"]), node("Neg", ["row"], ["out"])],
        "body",
        [info("s", [4]), info("row", [4])],
        [info("next", [4]), info("out", [4])],
    )
    return [node("Scan", ["start", "x"], outputs, body=body, num_scan_inputs=1)]


def _if(outputs):
    def branch(name, op):
        results = [f"{name}_{at}" for at in range(2)]
        nodes = [node(op, ["x"], [results[0]]), node("Abs", ["x"], [results[1]])]
        return helper.make_graph(nodes, name, [], [info(result, [2, 4]) for result in results])

    condition = [node("ReduceMax", ["x"], ["most"], keepdims=0), node("Greater", ["most", "zero"], ["go"])]
    return [
        *condition,
        node("If", ["go"], outputs, then_branch=branch("a", "Neg"), else_branch=branch("b", "Exp")),
    ]


CASES = {
    "Loop, state": (_loop(["", "y"], 1), np.stack([X, X])),
    "Loop, second state": (_loop(["y", "", ""], 2), X),
    "Loop, state and scan": (_loop(["", "y", ""], 2), X),
    "Scan, state": (_scan(["", "y"]), -X),
    "Scan, result": (_scan(["y", ""]), X.sum(axis=0)),
    "If, first": (_if(["", "y"]), X),
    "If, last": (_if(["y", ""]), -X),
    "Split": ([node("Split", ["x", "sizes"], ["", "y", ""], axis=1)], X[:, 1:3]),
    "BatchNormalization": (
        [
            node("Transpose", ["x"], ["t"]),
            node("BatchNormalization", ["t", "one", "null", "null", "one"], ["z", "", "y"], training_mode=1),
        ],
        np.float32(0.9) + np.float32(0.1) * X.var(axis=1),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", ["graph", "function", "branch", "body"])
def test_results_are_those_of_named_ones(case, place):
    nodes, expected = CASES[case]
    constants = {
        "count": np.array(2),
        "once": np.array(1),
        "first": np.array([0]),
        "yes": np.array(True),
        "start": np.zeros(4, np.float32),
        "zero": np.float32(0),
        "sizes": np.array([1, 2, 1]),
        "one": np.ones(2, np.float32),
        "null": np.zeros(2, np.float32),
    }
    functions = []
    if place == "branch":
        other = helper.make_graph([node("Identity", ["x"], ["other"])], "other", [], [info("other", None)])
        then = helper.make_graph(nodes, "then", [], [info("y", expected.shape)])
        nodes = [node("If", ["yes"], ["chosen"], then_branch=then, else_branch=other)]
        nodes.append(node("Identity", ["chosen"], ["y"]))
    elif place == "body":
        nodes = [*nodes, node("Identity", ["on"], ["still"])]
        given = [info("at", [], TensorProto.INT64), info("on", [], TensorProto.BOOL)]
        results = [info("still", [], TensorProto.BOOL), info("y", expected.shape)]
        body = helper.make_graph(nodes, "outer", given, results)
        nodes = [node("Loop", ["once", ""], ["rows"], body=body), node("Squeeze", ["rows", "first"], ["y"])]
    elif place == "function":
        read = [name for name in constants if any(name in n.input for n in nodes)]
        opsets = [helper.make_opsetid("", 17)]
        functions = [helper.make_function("f", "F", ["x", *read], ["y"], nodes, opsets)]
        nodes = [helper.make_node("F", ["x", *read], ["y"], domain="f")]
    model = model_of(
        nodes,
        [info("x", [2, 4])],
        [info("y", expected.shape, FLOAT)],
        list(constants.items()),
        functions=functions,
    )
    if functions:
        model.opset_import.append(helper.make_opsetid("f", 1))
    np.testing.assert_allclose(run(whole(lowered(model)), {"x": X})["y"], expected, rtol=1e-6)
