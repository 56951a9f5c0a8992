"""Roundings and the arithmetic between them as operators of the device."""

from collections import Counter

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from compiler_oracle import info, model_of, node
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN
from qaic.compiler.passes.fuse_elementwise import ELEMENTWISE
from single_pass import applied, before, ops, outputs

NAME = "fuse-elementwise"
HALF = {"convert_to_fp16": True}
ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}


def prepared(proto, *, is_own=True, **options):
    """The model before the pass, with or without another operator of the device."""
    model, context = before(NAME, proto, **HALF | options)
    if is_own:
        model.own_operators = ["AttendedRows"]
    return model, context


def fused(proto, **given):
    model, context = prepared(proto, **given)
    applied(NAME, model, context)
    return model


def steps(model):
    """The steps of each fused operator."""
    return [
        next(one.s.decode() for one in made.attribute if one.name == "steps")
        for made in model.proto.graph.node
        if made.op_type == ELEMENTWISE
    ]


def expand(model):
    """Replace fused operators by nodes of ONNX, as docs/reference/cpu-program.md describes their steps."""
    nodes = []
    for made in model.proto.graph.node:
        if made.op_type != ELEMENTWISE or made.domain != DEVICE_DOMAIN:
            nodes.append(made)
            continue
        attributes = {one.name: helper.get_attribute_value(one) for one in made.attribute}
        operands, waiting = list(made.input), []
        for at, word in enumerate(attributes["steps"].decode().split()):
            raw = f"{made.output[0]}/step{at}"
            if word == "read":
                waiting.append(operands.pop(0))
                continue
            if word == "rotate":
                nodes.append(node("Split", [operands.pop(0)], [f"{raw}/0", f"{raw}/1"], axis=-1))
                nodes.append(node("Neg", [f"{raw}/1"], [f"{raw}/negated"]))
                nodes.append(node("Concat", [f"{raw}/negated", f"{raw}/0"], [raw], axis=-1))
                waiting.append(raw)
                continue
            used = [waiting.pop() for _ in range(1 if word == "round" else 2)][::-1]
            nodes.append(node(ARITHMETIC.get(word, "Identity"), used, [raw]))
            nodes.append(node("Cast", [raw], [f"{raw}/narrow"], to=attributes["rounding"]))
            nodes.append(node("Cast", [f"{raw}/narrow"], [f"{raw}/wide"], to=1))
            waiting.append(f"{raw}/wide")
        assert not operands
        (last,) = waiting
        nodes.append(node("Identity", [last], [made.output[0]]))
    del model.proto.graph.node[:]
    model.proto.graph.node.extend(nodes)
    return model


def graph_of(nodes, result="y"):
    constants = [("w", np.linspace(-2, 3, 20, dtype=np.float32).reshape(4, 5)), ("b", np.float32([0.1] * 5))]
    return model_of(nodes, [info("x", [3, 4]), info("z", [3, 5])], [info(result, None)], constants)


def test_rounded_operands_with_one_reader_join_the_operator():
    nodes = [
        node("Sigmoid", ["z"], ["s"]),
        node("Mul", ["z", "s"], ["m"]),
        node("Sub", ["b", "m"], ["d"]),
        node("Tanh", ["d"], ["y"]),
    ]
    # Two nodes read the rounded input.
    assert steps(fused(graph_of(nodes))) == ["read round", "read read read round mul sub", "read round"]


def test_value_with_other_readers_is_an_operand():
    nodes = [node("Add", ["z", "b"], ["a"]), node("Mul", ["a", "a"], ["m"]), node("Neg", ["m"], ["y"])]
    assert steps(fused(graph_of(nodes))) == ["read round read add", "read read mul"]


def test_addition_of_a_bias_stays_with_its_product():
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    model = fused(graph_of(nodes))
    assert steps(model) == ["read round", "read round"]
    assert Counter(ops(model))["Add"] == 1


def test_unrounded_arithmetic_stays_with_the_engine():
    """The engine fuses a normalization, whose inner results are not rounded."""
    fields = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    norm = node("SimplifiedLayerNormalization", ["z", "b"], ["n"], **fields)
    model = fused(graph_of([norm, node("Sqrt", ["n"], ["y"])]))
    found = Counter(ops(model))
    assert set(steps(model)) == {"read round"}
    assert found["SimplifiedLayerNormalization"] or found["Mul"]


def test_number_of_operands_is_limited():
    nodes, last = [], "z"
    for at in range(12):
        nodes.append(node("Mul" if at % 2 else "Sub", [last, "b"], [f"v{at}"]))
        last = f"v{at}"
    model = fused(graph_of([*nodes, node("Tanh", [last], ["y"])]))
    counts = [len(made.input) for made in model.proto.graph.node if made.op_type == ELEMENTWISE]
    assert max(counts) == 8
    assert not {"Mul", "Sub"} & set(ops(model))


@pytest.mark.parametrize("given", [{"is_own": False}, {"convert_to_fp16": False}])
def test_programs_without_roundings_or_other_operators_of_the_device_do_not_change(given):
    model, context = prepared(graph_of([node("Add", ["z", "b"], ["y"])]), **given)
    assert not applied(NAME, model, context)


def test_roundings_of_constants_stay_for_the_engine_to_fold():
    nodes = [
        node("ConstantOfShape", ["size"], ["c"], value=onnx.numpy_helper.from_array(np.float32([0.1]))),
        node("Exp", ["c"], ["e"]),
        node("Add", ["z", "e"], ["y"]),
    ]
    proto = graph_of(nodes)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 5]), "size"))
    assert steps(fused(proto)) == ["read round read add"]


def rotary(first=(2, 4, -1), second=(0, 2, -1), *, is_split=False, negated=0):
    """A rotary embedding of `x`, whose halves are cut by bounds, or by a split."""
    numbers = {
        name: np.array([number]) for number, name in ((1, "step"), *((n, f"n{n}") for n in range(-9, 10)))
    }
    if is_split:
        cuts = [node("Split", ["x"], ["b", "a"], axis=-1)]
    else:
        cuts = [
            node("Slice", ["x", *(f"n{number}" for number in bounds), "step"], [name])
            for name, bounds in (("a", first), ("b", second))
        ]
    joined = ["a", "b"]
    nodes = [*cuts, node("Neg", [joined[negated]], ["n"])]
    joined[negated] = "n"
    nodes += [
        node("Concat", joined, ["r"], axis=-1),
        node("Mul", ["x", "cos"], ["c"]),
        node("Mul", ["r", "sin"], ["s"]),
        node("Add", ["c", "s"], ["y"]),
    ]
    inputs = [info("x", [2, 3, 4]), info("cos", [3, 4]), info("sin", [3, 4])]
    return model_of(nodes, inputs, [info("y", None)], list(numbers.items()))


@pytest.mark.parametrize(
    ("given", "is_read"),
    [
        ({}, True),
        ({"is_split": True}, True),
        ({"first": (-2, 9, 2), "second": (-4, -2, 2)}, True),
        ({"negated": 1}, False),
        ({"first": (0, 2, -1), "second": (2, 4, -1)}, False),
        ({"first": (1, 4, -1), "second": (0, 1, -1)}, False),
        ({"first": (2, 4, -1), "second": (1, 3, -1)}, False),
    ],
)
def test_rotated_halves_are_read_in_place(given, is_read):
    model, context = prepared(rotary(**given))
    rng = np.random.default_rng(5)
    feeds = {
        name: rng.standard_normal(dims).astype(np.float32)
        for name, dims in (("x", (2, 3, 4)), ("cos", (3, 4)), ("sin", (3, 4)))
    }
    expected = outputs(model, feeds)
    applied(NAME, model, context)
    assert ("read read round mul rotate read round mul add" in steps(model)) is is_read
    assert ("Concat" in ops(model)) is not is_read
    np.testing.assert_array_equal(outputs(expand(model), feeds)["y"], expected["y"])


SHAPES = ((2, 3, 4), (3, 1), (4,), (1, 1, 1), (2, 1, 4), ())


@st.composite
def arithmetic(draw):
    """A graph of arithmetic, and of other operators that round or select, over operands that broadcast."""
    names = [f"x{at}" for at in range(len(SHAPES))]
    inputs = [info(name, shape) for name, shape in zip(names, SHAPES, strict=True)]
    nodes, values = [], [*names, "half"]
    for at in range(draw(st.integers(2, 9))):
        operator = draw(
            st.sampled_from([*ARITHMETIC.values(), *ARITHMETIC.values(), "Exp", "Relu", "Neg", "Cast"])
        )
        count = 2 if operator in ARITHMETIC.values() else 1
        # Later values are drawn more often, so that expressions become deep.
        used = [draw(st.sampled_from([*values, *values[-2:]])) for _ in range(count)]
        fields = {"to": 1} if operator == "Cast" else {}
        nodes.append(node(operator, used, [f"v{at}"], **fields))
        values.append(f"v{at}")
    shown = draw(st.lists(st.sampled_from(values[len(names) + 1 :]), min_size=1, max_size=2, unique=True))
    shown = list(dict.fromkeys([*shown, values[-1]]))
    return model_of(nodes, inputs, [info(name, None) for name in shown], [("half", np.float32(0.5))])


@given(arithmetic(), st.integers(0, 9))
def test_fused_steps_compute_the_same_bits(proto, seed):
    model, context = prepared(proto)
    rng = np.random.default_rng(seed)
    feeds = {
        f"x{at}": np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape), np.float32)
        for at, shape in enumerate(SHAPES)
    }
    expected = outputs(model, feeds)
    applied(NAME, model, context)
    found = outputs(expand(model), feeds)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        np.testing.assert_array_equal(np.signbit(found[name]), np.signbit(values))
