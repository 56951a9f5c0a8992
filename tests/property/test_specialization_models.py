"""Random models with two or three specializations give the same results as onnxruntime for each set of
shapes.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
import session_models


@dataclass
class Value:
    """A tensor whose first two dims are symbols in either order, and whose last dim is a number."""

    name: str
    swapped: bool
    width: int


@dataclass
class Builder:
    """A model that grows by random operators."""

    draw: st.DrawFn
    random: np.random.Generator
    values: list[Value]
    nodes: list = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, array: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def node(self, op: str, inputs: list[str], **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def pick(self, like: Value | None = None, *, same_width: bool = False) -> Value:
        fitting = [
            value
            for value in self.values
            if like is None
            or (value.swapped == like.swapped and (not same_width or value.width == like.width))
        ]
        return self.draw(st.sampled_from(fitting))

    def keep(self, name: str, swapped: bool, width: int) -> None:
        self.values.append(Value(name, swapped, width))


def linear(b: Builder) -> None:
    x = b.pick()
    width = b.draw(st.integers(1, 5))
    weight = b.constant((b.random.standard_normal((x.width, width)) / 2).astype(np.float32))
    product = b.node("MatMul", [x.name, weight])
    if b.draw(st.booleans()):
        bias = b.constant(b.random.standard_normal(width).astype(np.float32))
        product = b.node("Add", [product, bias])
    b.keep(product, x.swapped, width)


def unary(b: Builder) -> None:
    x = b.pick()
    b.keep(b.node(b.draw(st.sampled_from(["Relu", "Tanh", "Neg", "Abs"])), [x.name]), x.swapped, x.width)


def swap(b: Builder) -> None:
    x = b.pick()
    b.keep(b.node("Transpose", [x.name], perm=[1, 0, 2]), not x.swapped, x.width)


def join(b: Builder) -> None:
    x = b.pick()
    y = b.pick(x)
    b.keep(b.node("Concat", [x.name, y.name], axis=2), x.swapped, x.width + y.width)


def mix(b: Builder) -> None:
    x = b.pick()
    y = b.pick(x, same_width=True)
    b.keep(b.node("Sub", [x.name, y.name]), x.swapped, x.width)


def scale(b: Builder) -> None:
    x = b.pick()
    place = b.constant(np.int64(b.draw(st.integers(0, 1))))
    size = b.node("Gather", [b.node("Shape", [x.name]), place])
    factor = b.node("Cast", [size], to=TensorProto.FLOAT)
    b.keep(b.node("Div", [x.name, factor]), x.swapped, x.width)


def flatten(b: Builder) -> None:
    x = b.pick()
    rows = b.node("Reshape", [x.name, b.constant(np.int64([-1, x.width]))])
    rows = b.node("Softmax", [rows], axis=-1)
    b.keep(b.node("Reshape", [rows, b.node("Shape", [x.name])]), x.swapped, x.width)


def center(b: Builder) -> None:
    x = b.pick()
    mean = b.node("ReduceMean", [x.name], axes=[b.draw(st.integers(0, 1))], keepdims=1)
    b.keep(b.node("Sub", [x.name, mean]), x.swapped, x.width)


def attend(b: Builder) -> None:
    x = b.pick()
    scores = b.node("MatMul", [x.name, b.node("Transpose", [x.name], perm=[0, 2, 1])])
    b.keep(b.node("MatMul", [b.node("Softmax", [scores], axis=-1), x.name]), x.swapped, x.width)


OPERATORS = [linear, unary, swap, join, mix, scale, flatten, center, attend]


@st.composite
def dynamic_models(draw):
    """Draw a model and its specializations."""
    b = Builder(draw, np.random.default_rng(draw(st.integers(0, 2**32))), [])
    inputs = []
    for number in range(draw(st.integers(1, 2))):
        value = Value(f"x{number}", draw(st.booleans()), draw(st.integers(1, 4)))
        dims = ["seq", "batch"] if value.swapped else ["batch", "seq"]
        inputs.append((value.name, "float32", [*dims, value.width]))
        b.values.append(value)
    for operator in draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6)):
        operator(b)
    made = b.values[len(inputs) :]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique_by=lambda v: v.name))
    model = session_models.model(
        b.nodes, inputs, [(value.name, "float32", None) for value in outputs], b.constants
    )
    sizes = st.tuples(st.integers(1, 4), st.integers(1, 5))
    chosen = draw(st.lists(sizes, min_size=2, max_size=3, unique=True))
    return model, [{"batch": batch, "seq": seq} for batch, seq in chosen]


def feeds_of(model, symbols, random):
    feeds = {}
    for value in model.graph.input:
        dims = [symbols.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(dims).astype(np.float32)
    return feeds


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=dynamic_models(), seed=st.integers(0, 2**32), convert=st.booleans())
def test_every_specialization_gives_what_its_shapes_give(drawn, seed, convert):
    model, specializations = drawn
    random = np.random.default_rng(seed)
    engine = session_models.engine(model)
    names = [output.name for output in engine.get_outputs()]
    with (
        tempfile.TemporaryDirectory() as folder,
        qaic.Session(
            path := session_models.save(Path(folder), model),
            network_specialization_config=specializations,
            convert_to_fp16=convert,
        ) as session,
    ):
        # Each specialization runs twice, in an order that contains every change from one to another.
        for symbols in [*specializations, *reversed(specializations), *specializations]:
            feeds = feeds_of(model, symbols, random)
            found = session.run(feeds)
            if convert:
                with qaic.Session(path, onnx_define_symbol=symbols, convert_to_fp16=True) as fixed:
                    expected = fixed.run(feeds)
            else:
                expected = dict(zip(names, engine.run(names, feeds), strict=True))
            for name in names:
                assert found[name].shape == expected[name].shape
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
