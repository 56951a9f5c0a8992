"""A fault in the rounding of one node of a random graph is attributed to that node.

`make accuracy-faults` tests 1,000 graphs; a normal test run tests some of them.
"""

import os

import numpy as np
import onnx
from onnx import helper, numpy_helper

import accuracy_models as models
from qaic.accuracy.capture import capture
from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.instrument import Observe
from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy
from qaic.accuracy.samples import Samples

GRAPHS = int(os.environ.get("QAIC_FAULT_GRAPHS", "25"))
UNARY = ("Tanh", "Sigmoid", "Softplus", "Erf", "Sqrt", "Softmax")
BINARY = ("Add", "Sub", "Mul", "Max")


def random_model(rng):
    """Build a graph of six to fourteen operators on matrices of one size, some with a weight."""
    nodes, constants, values = [], {}, ["x"]
    for at in range(int(rng.integers(6, 15))):
        name, kind = f"v{at}", rng.random()
        read = values[-1] if rng.random() < 0.6 else str(rng.choice(values))
        if kind < 0.35:
            operator = str(rng.choice(UNARY))
            if operator == "Sqrt":
                nodes.append(models.node("Abs", read, f"{name}_size"))
                read = f"{name}_size"
            nodes.append(models.node(operator, read, name))
        elif kind < 0.7:
            # The difference of a value and itself is zero, so a fault could not change it.
            others = [value for value in values if value != read] or ["x"]
            operator = str(rng.choice(BINARY)) if len(values) > 1 else "Add"
            nodes.append(models.node(operator, f"{read} {rng.choice(others)}", name))
        else:
            constants[f"w{at}"] = (rng.standard_normal((8, 8)) / 3).astype(np.float32)
            nodes.append(models.node("MatMul", f"{read} w{at}", name))
        values.append(name)
    inputs = {"x": [8, 8]}
    return models.model_of(nodes, inputs, {values[-1]: [8, 8]}, constants), models.samples(inputs, count=2)


def spoil(model, rng):
    """Change the rounding of one value of a deployed graph by one part in twenty; return the value."""
    graph = model.proto.graph
    makers = {name: (at, node) for at, node in enumerate(graph.node) for name in node.output}
    pairs = [
        (str(node.output[0]), *makers[node.input[0]])
        for node in graph.node
        # The second cast of a pair has the name of the value in the model.
        if node.op_type == "Cast" and node.output[0].startswith("v") and "/" not in node.output[0]
    ]
    name, at, narrowing = pairs[int(rng.integers(len(pairs)))]
    graph.initializer.append(numpy_helper.from_array(np.array(1.05, np.float32), "fault"))
    fault = helper.make_node("Mul", [narrowing.input[0], "fault"], [f"{name}/wrong"])
    model.facts.types[f"{name}/wrong"] = model.facts.types[name]
    narrowing.input[0] = f"{name}/wrong"
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node[at:]]
    del graph.node[at:]
    graph.node.extend([fault, *rest])
    return name


def blamed(seed, monkeypatch):
    """Add a fault to one node of a random graph; return this node, and the node with the largest error."""
    rng = np.random.default_rng(seed)
    model, samples = random_model(rng)
    observe, planted = Observe.run, []

    def with_fault(self, deployed, context):
        planted.append(spoil(deployed, rng))
        return observe(self, deployed, context)

    given = Samples(samples)
    with monkeypatch.context() as patch:
        patch.setattr(Observe, "run", with_fault)
        options = compile_options_of(model, "fp16", given, None, {})
        found = PrecisionAccuracy("fp16", capture(model, options, given), 0.0)
    return planted[0], str(found.nodes["name"][np.argmin(found.nodes["own_sqnr_db"])])


def test_single_faults_are_blamed_on_their_node(monkeypatch):
    pairs = [blamed(seed, monkeypatch) for seed in range(GRAPHS)]
    right = sum(planted == found for planted, found in pairs)
    assert right >= 0.95 * len(pairs), [pair for pair in pairs if pair[0] != pair[1]][:10]
