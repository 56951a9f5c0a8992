"""Random small graphs through every pass, one by one.

After each pass, the model is valid and computes the same as the user's model, bit by bit unless an option
rounds floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler_oracle import info, model_of, node, run
from qaic.compiler import pipeline
from qaic.compiler.ir.verify import verify
from single_pass import STEPS, begun, content, outputs, whole

#: Options with which no pass changes a number.
EXACT = ({}, {"always_expand_onnx_functions": True}, {"all_intermediate_outputs": True})
#: Options with which some passes round numbers.
ROUNDING = ({"convert_to_fp16": True}, {"convert_to_fp16": True, "mxfp6_matmul": True})


@dataclass
class Graph:
    """A graph that grows node by node; values have two or four dims."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[tuple[str, np.ndarray]] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append((name, self.random.standard_normal(shape, np.float32)))
        return name

    def numbers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append((name, np.array(values, np.int64)))
        return name

    def add(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(kind, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        self.shapes[name] = shape

    def grow(self, kind: str, value: str, other: int) -> None:
        """Add a node of a kind that reads a value; `other` selects its other operands."""
        shape = self.shapes[value]
        alike = [name for name, dims in self.shapes.items() if dims == shape]
        match kind:
            case "Add" | "Mul":
                second = [*alike, self.weight(shape[-1]), self.weight(*shape)][other % (len(alike) + 2)]
                self.add(kind, [value, second], shape)
            case "MatMul":
                self.add(kind, [value, self.weight(shape[-1], 2 + other)], (*shape[:-1], 2 + other))
            case "Conv" if len(shape) == 4:
                kernel = self.weight(2 + other, shape[1], 3, 3)
                self.add(kind, [value, kernel], (shape[0], 2 + other, *shape[2:]), pads=[1] * 4)
            case "BatchNormalization" if len(shape) == 4:
                scale, shift, mean = (self.weight(shape[1]) for _ in range(3))
                variance = f"w{len(self.weights)}"
                self.weights.append((variance, self.random.uniform(0.5, 2, shape[1]).astype(np.float32)))
                self.add(kind, [value, scale, shift, mean, variance], shape)
            case "Reshape":
                target = (shape[0] * shape[1], *shape[2:]) if len(shape) == 4 else (1, 1, *shape)
                target = target if len(target) in {2, 4} else (target[0], int(np.prod(target[1:])))
                self.add(kind, [value, self.numbers(*target)], target)
            case "Transpose":
                order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
                self.add(kind, [value], tuple(shape[at] for at in order), perm=order)
            case "Concat":
                second = alike[other % len(alike)]
                self.add(kind, [value, second], (*shape[:-1], 2 * shape[-1]), axis=-1)
            case "Slice" if shape[-1] > 1:
                bounds = [self.numbers(0), self.numbers(shape[-1] - 1), self.numbers(-1)]
                self.add(kind, [value, *bounds], (*shape[:-1], shape[-1] - 1))
            case "Shape":
                # Sizes that a model computes from shapes are folded or inferred, and never rounded.
                size = f"s{len(self.nodes)}"
                self.nodes.append(node("Shape", [value], [size], name=f"n{len(self.nodes)}"))
                self.add("Reshape", [value, size], shape)
            case _:
                self.add("Relu" if other % 2 else "Neg", [value], shape)


KINDS = (
    "Add",
    "Mul",
    "MatMul",
    "Conv",
    "BatchNormalization",
    "Reshape",
    "Transpose",
    "Concat",
    "Slice",
    "Shape",
    "Relu",
)


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a model whose last value and one other value are its outputs."""
    graph = Graph(np.random.default_rng(draw(st.integers(0, 99))))
    inputs = {"x": draw(st.sampled_from([(1, 2, 3, 4), (2, 3), (4, 96)])), "z": (2, 3)}
    graph.shapes |= inputs
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=8
        )
    )
    for kind, at, other in steps:
        graph.grow(kind, list(graph.shapes)[-1 - at % len(graph.shapes)], other)
    computed = [name for name in graph.shapes if name not in inputs]
    results = dict.fromkeys([computed[-1], computed[draw(st.integers(0, len(computed) - 1))]])
    read = {name for one in graph.nodes for name in one.input}
    return model_of(
        graph.nodes,
        [info(name, shape) for name, shape in inputs.items() if name in read],
        [info(name, graph.shapes[name]) for name in results],
        graph.weights,
    )


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(17)
    return {
        value.name: random.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32
        )
        for value in model.graph.input
    }


@pytest.mark.parametrize("options", EXACT, ids=str)
@settings(max_examples=60)
@given(models())
def test_every_pass_keeps_the_results(options, proto):
    feeds = feeds_of(proto)
    expected = run(proto, feeds, optimize=False)
    model, context = begun(proto, **options)
    before = content(model)
    for step in STEPS:
        if not step.is_needed(context):
            continue
        step.run(model, context)
        verify(model, step.name)
        after = content(model)
        if after != before:
            found = outputs(model, feeds)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=step.name)
        before = after


@pytest.mark.parametrize("options", ROUNDING, ids=str)
@settings(max_examples=60)
@given(models())
def test_every_pass_leaves_a_model_with_its_outputs(options, proto):
    model, context = begun(proto, **options)
    names = [value.name for value in proto.graph.output]
    for step in STEPS:
        if step.is_needed(context):
            step.run(model, context)
            verify(model, step.name)
            assert [value.name for value in model.proto.graph.output] == names
    onnx.checker.check_model(whole(model))
    assert {name for name, value in feeds_of(proto).items()} == {spec.name for spec in model.inputs}


@settings(max_examples=60)
@given(models())
def test_compiling_what_was_compiled_changes_nothing(proto):
    """Compiling the finished graph of a model gives the same graph."""

    def finished(given: onnx.ModelProto) -> onnx.ModelProto:
        model, context = begun(given)
        pipeline.run_passes(STEPS, model, context)
        return whole(model)

    once = finished(proto)
    assert finished(once) == once
