"""Rows that the analysis proves independent have the same bits with any other rows."""

import numpy as np
import onnx
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from onnx import helper

import qaic
import session_models
from qaic.compiler.reports.row_independence import why_dependent

BATCH = 4
WIDTH = 6
FLOATS = np.float32


def node(op_type, inputs, output="y", **attributes):
    return helper.make_node(op_type, inputs.split(), output.split(), **attributes)


def chain(*nodes, constants=None, shape=(BATCH, WIDTH), result=(BATCH, WIDTH)):
    return session_models.model(
        list(nodes), [("x", "float32", list(shape))], [("y", "float32", list(result))], constants or {}
    )


def verdict(session):
    """Return the analysis of the graph of a container."""
    (shape,) = [spec.shape for spec in session.inputs]
    return why_dependent(
        onnx.ModelProto.FromString(session.qpc.graph.tobytes()), [{"x": shape}], session.qpc.initializers
    )


def whole(*numbers):
    return np.array(numbers, np.int64)


EYE = np.eye(WIDTH, dtype=FLOATS)
ONES = np.ones((BATCH, WIDTH), FLOATS)
RAMP = np.arange(BATCH * WIDTH, dtype=FLOATS).reshape(BATCH, WIDTH)
LSTM_WEIGHTS = {
    "a": whole(0),
    "w": np.full((1, 4 * WIDTH, WIDTH), 0.1, FLOATS),
    "r": np.full((1, 4 * WIDTH, WIDTH), 0.2, FLOATS),
}

INDEPENDENT = {
    "layers": chain(
        node("MatMul", "x w", "a"),
        node("Add", "a b", "c"),
        node("Softmax", "c"),
        constants={"w": EYE, "b": ONES[0]},
    ),
    "gemm": chain(node("Gemm", "x w b"), constants={"w": EYE, "b": ONES[:1]}),
    "the same for each row": chain(node("Add", "x b"), constants={"b": ONES}),
    "there and back": chain(
        node("Transpose", "x", "t"), node("Softmax", "t", "s", axis=0), node("Transpose", "s")
    ),
    "heads": chain(
        node("Reshape", "x s", "a"),
        node("MatMul", "a w", "b"),
        node("Reshape", "b t"),
        constants={"s": whole(2 * BATCH, 3), "w": EYE[:3, :3], "t": whole(BATCH, WIDTH)},
    ),
    "attention": chain(
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("MatMul", "x t", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p x"),
        shape=(BATCH, 3, 2),
        result=(BATCH, 3, 2),
    ),
    "the size of the only batch": chain(
        node("Shape", "x", "s"),
        node("Cast", "s", "c", to=1),
        node("ReduceMax", "c", "m", keepdims=0),
        node("Div", "x m"),
    ),
    "normalized": chain(node("LayerNormalization", "x w"), constants={"w": ONES[0]}),
    "convolution": chain(
        node("Conv", "x w", "c"),
        node("GlobalAveragePool", "c", "p"),
        node("Flatten", "p"),
        constants={"w": np.ones((4, 3, 3, 3), FLOATS)},
        shape=(BATCH, 3, 8, 8),
        result=(BATCH, 4),
    ),
    "recurrent": chain(
        node("Unsqueeze", "x a", "u"),
        node("LSTM", "u w r", "l", hidden_size=WIDTH),
        node("Reshape", "l s"),
        constants=LSTM_WEIGHTS | {"s": whole(BATCH, WIDTH)},
    ),
    "state of zeros": chain(
        node("Unsqueeze", "x a", "u"),
        helper.make_node("LSTM", ["u", "w", "r", "", "", "h", "h"], ["l"], hidden_size=WIDTH),
        node("Reshape", "l s"),
        constants=LSTM_WEIGHTS | {"s": whole(BATCH, WIDTH), "h": np.zeros((1, BATCH, WIDTH), FLOATS)},
    ),
    "a table": chain(node("Cast", "x", "i", to=7), node("Gather", "t i"), constants={"t": ONES[0]}),
    "fixed quantization": chain(
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z"),
        constants={"s": FLOATS(0.1), "z": np.int8(0)},
    ),
    "equation": chain(node("Einsum", "x w", equation="bi,ij->bj"), constants={"w": EYE}),
}

DEPENDENT = {
    "maximum": (
        chain(
            node("ReduceMax", "x", "m", axes=[0]),
            node("Sub", "m c", "d"),
            node("Relu", "d", "r"),
            node("Add", "x r"),
            constants={"c": FLOATS(100)},
        ),
        "ReduceMax 'm' works across the batch",
    ),
    "everything": (chain(node("ReduceSum", "x", "s"), node("Add", "x s")), "works across the batch"),
    "other numbers for each row": (
        chain(node("Add", "x b"), constants={"b": RAMP}),
        "has a constant that differs between rows",
    ),
    "softmax of columns": (chain(node("Softmax", "x", axis=0)), "Softmax 'y' works across"),
    "sums of rows before": (chain(node("CumSum", "x a"), constants={"a": np.array(0)}), "CumSum"),
    "reversed": (
        chain(
            node("Slice", "x s e a p"),
            constants={"s": whole(-1), "e": whole(-(2**31)), "a": whole(0), "p": whole(-1)},
        ),
        "Slice",
    ),
    "rolled": (
        chain(
            node("Slice", "x s e a", "l"),
            node("Slice", "x z s a", "f"),
            node("Concat", "l f", axis=0),
            constants={"s": whole(1), "e": whole(BATCH), "a": whole(0), "z": whole(0)},
        ),
        "Slice",
    ),
    "rows by number": (chain(node("Gather", "x i"), constants={"i": whole(0, 0, 1, 2)}), "Gather"),
    "products of rows": (
        chain(node("Transpose", "x", "t"), node("MatMul", "x t", "m"), node("MatMul", "m x")),
        "multiplies rows with rows",
    ),
    "another order of elements": (
        chain(
            node("Reshape", "x s", "r"),
            node("Softmax", "r", "m"),
            node("Reshape", "m t"),
            constants={"s": whole(WIDTH, BATCH), "t": whole(BATCH, WIDTH)},
        ),
        "does not keep rows apart",
    ),
    "range of the batch": (
        chain(node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z")),
        "quantizes each row with the range of all rows",
    ),
    "parameters for each row": (
        chain(
            node("QuantizeLinear", "x s z", "q", axis=0),
            node("DequantizeLinear", "q s z", axis=0),
            constants={"s": np.linspace(0.1, 1, BATCH, dtype=FLOATS), "z": np.zeros(BATCH, np.int8)},
        ),
        "has parameters that differ between rows",
    ),
    "batch statistics": (
        chain(
            helper.make_node(
                "BatchNormalization", ["x", "w", "b", "b", "w"], ["y", "m", "v"], training_mode=1
            ),
            constants={"w": ONES[0], "b": ONES[0]},
        ),
        "has results that depend on several samples",
    ),
    "a state for each row": (
        chain(
            node("Unsqueeze", "x a", "u"),
            helper.make_node("LSTM", ["u", "w", "r", "", "", "h", "h"], ["l"], hidden_size=WIDTH),
            node("Reshape", "l s"),
            constants=LSTM_WEIGHTS | {"s": whole(BATCH, WIDTH), "h": RAMP[None]},
        ),
        "has a constant that differs between rows",
    ),
    "rows as time": (
        chain(
            node("Unsqueeze", "x a", "u"),
            node("LSTM", "u w r", "l", hidden_size=WIDTH),
            node("Reshape", "l s"),
            constants=LSTM_WEIGHTS | {"a": whole(1), "s": whole(BATCH, WIDTH)},
        ),
        "LSTM",
    ),
    "no rule": (
        chain(
            node("NonZero", "x", "n"),
            node("Cast", "n", "c", to=1),
            node("ReduceSum", "c", "s"),
            node("Add", "x s"),
        ),
        "NonZero",
    ),
    "a constant": (
        chain(
            node("Identity", "x", "i"),
            node("Mul", "x z", "m"),
            node("Add", "b c"),
            constants={"z": FLOATS(0), "b": RAMP, "c": FLOATS(1)},
        ),
        "output 'y'",
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_are_proved_to_be_independent(name):
    with qaic.Session(INDEPENDENT[name]) as session:
        assert not verdict(session)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_each_other_are_not(name):
    model, part = DEPENDENT[name]
    with qaic.Session(model) as session:
        assert part in verdict(session)


def test_the_size_of_one_of_several_batches_is_no_constant():
    def batches(*nodes):
        return session_models.model(
            list(nodes), [("x", "float32", ["b", WIDTH])], [("y", "float32", ["b", WIDTH])], {"a": whole(1)}
        )

    def found(model, sizes):
        entries = [{"b": size} for size in sizes]
        with qaic.Session(model, network_specialization_config=entries) as session:
            return why_dependent(
                onnx.ModelProto.FromString(session.qpc.graph.tobytes()),
                [{"x": (size, WIDTH)} for size in sizes],
                session.qpc.initializers,
            )

    divided = batches(
        node("Shape", "x", "s", end=1),
        node("Cast", "s", "c", to=1),
        node("Div", "x c"),
    )
    assert "computes with the batch size" in found(divided, (1, 4))
    assert "computes with the batch size" in found(divided, (2, 4))
    repeated = batches(
        node("Shape", "x", "s", end=1),
        node("ReduceSum", "x a", "r"),
        node("Concat", "s s", "t", axis=0),
        node("Expand", "r t", "e"),
        node("ReduceSum", "e a", "u"),
        node("Add", "x u"),
    )
    assert "the batch size changes more" in found(repeated, (1, 4))
    assert not found(batches(node("Shape", "x", "s"), node("Reshape", "x s")), (1, 4))


UNARY = st.sampled_from(
    ["Relu", "Exp", "Tanh", "Sigmoid", "Erf", "Neg", "Sqrt", "Reciprocal", "Softplus", "Floor"]
)
AXIS = st.sampled_from([0, 1])
#: Each adds nodes that compute another value from a value of BATCH x WIDTH.
STEPS = st.one_of(
    UNARY.map(lambda op: lambda a, b, n: [node(op, a, n)]),
    st.sampled_from(["Add", "Mul", "Sub", "Div", "Max", "Min"]).map(
        lambda op: lambda a, b, n: [node(op, f"{a} {b}", n)]
    ),
    st.sampled_from(["row", "ramp", "ones"]).map(lambda c: lambda a, b, n: [node("Add", f"{a} {c}", n)]),
    AXIS.map(lambda axis: lambda a, b, n: [node("Softmax", a, n, axis=axis)]),
    # Maxima of NaN or -0.0 may depend on the position (see the last test). 0.0 minus a number is not -0.0.
    st.tuples(st.sampled_from(["ReduceMax", "ReduceMean", "ReduceMin"]), AXIS).map(
        lambda drawn: (
            lambda a, b, n: [
                node("IsNaN", a, f"{n}n"),
                node("Sub", f"zero {a}", f"{n}d"),
                node("Where", f"{n}n zero {n}d", f"{n}w"),
                node(drawn[0], f"{n}w", f"{n}r", axes=[drawn[1]]),
                node("Sub", f"{b} {n}r", n),
            ]
        )
    ),
    st.just(lambda a, b, n: [node("MatMul", f"{a} eye", n)]),
    st.just(lambda a, b, n: [node("LayerNormalization", f"{a} row", n)]),
    st.just(
        lambda a, b, n: [
            node("Reshape", f"{a} heads", f"{n}h"),
            node("Softmax", f"{n}h", f"{n}s"),
            node("Reshape", f"{n}s shape", n),
        ]
    ),
    st.just(
        lambda a, b, n: [
            node("Reshape", f"{a} swapped", f"{n}h"),
            node("Softmax", f"{n}h", f"{n}s"),
            node("Reshape", f"{n}s shape", n),
        ]
    ),
    st.just(
        lambda a, b, n: [
            node("Transpose", a, f"{n}t"),
            node("MatMul", f"{a} {n}t", f"{n}m"),
            node("MatMul", f"{n}m {b}", n),
        ]
    ),
    AXIS.map(
        lambda axis: (
            lambda a, b, n: [
                node("Transpose", a, f"{n}t"),
                node("Softmax", f"{n}t", f"{n}s", axis=axis),
                node("Transpose", f"{n}s", n),
            ]
        )
    ),
    AXIS.map(lambda axis: lambda a, b, n: [node("CumSum", f"{a} axis{axis}", n)]),
    st.just(
        lambda a, b, n: [
            node("DynamicQuantizeLinear", a, f"{n}q {n}s {n}z"),
            node("DequantizeLinear", f"{n}q {n}s {n}z", n),
        ]
    ),
)
CONSTANTS = {
    "row": RAMP[0],
    "ramp": RAMP,
    "ones": ONES,
    "eye": EYE,
    "heads": whole(2 * BATCH, 3),
    "shape": whole(BATCH, WIDTH),
    "swapped": whole(WIDTH, BATCH),
    "axis0": np.array(0),
    "axis1": np.array(1),
    "zero": FLOATS(0),
}
EXTREMES = [0.0, -0.0, 1.0, -3.5, 1e30, -1e30, 3.4e38, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 0.1]
NUMBERS = st.lists(st.sampled_from(EXTREMES), min_size=WIDTH, max_size=WIDTH)


@given(
    steps=st.lists(st.tuples(STEPS, st.integers(0, 3)), min_size=1, max_size=4),
    mine=NUMBERS,
    others=st.lists(NUMBERS, min_size=2 * BATCH, max_size=2 * BATCH),
    is_float16=st.booleans(),
)
def test_a_row_beside_others_has_the_bits_of_a_row_alone(steps, mine, others, is_float16):
    nodes, names = [], ["x"]
    for index, (make, back) in enumerate(steps):
        name = "y" if index == len(steps) - 1 else f"v{index}"
        nodes += make(names[-1], names[-1 - back % len(names)], name)
        names.append(name)
    read = {name for one in nodes for name in one.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in read}
    with qaic.Session(chain(*nodes, constants=constants), convert_to_fp16=is_float16) as session:
        reason = verdict(session)
        event("proved" if not reason else "not proved")
        if reason:
            return
        bits = set()
        alone = np.tile(np.array(mine, FLOATS), (BATCH, 1))
        beside = [np.array(others[:BATCH], FLOATS), np.array(others[BATCH:], FLOATS)]
        bits.update(row.tobytes() for row in session.run(x=alone)["y"])
        for place in range(BATCH):
            for full in beside:
                batch = full.copy()
                batch[place] = mine
                bits.add(session.run(x=batch)["y"][place].tobytes())
    assert len(bits) == 1


@given(
    kind=st.sampled_from(["Max", "Min", "ReduceMax", "ReduceMin"]),
    mine=NUMBERS,
    others=st.lists(NUMBERS, min_size=BATCH, max_size=BATCH),
)
def test_the_position_may_change_maxima_of_zeros_and_nan_but_other_rows_change_nothing(kind, mine, others):
    """The order in which vector kernels compare a row depends on its address."""
    is_reduced = kind.startswith("Reduce")
    if is_reduced:
        model = chain(node(kind, "x", axes=[1]), result=(BATCH, 1))
    else:
        model = chain(node(kind, "x zeros"), constants={"zeros": np.zeros(WIDTH, FLOATS)})
    alone = np.tile(np.array(mine, FLOATS), (BATCH, 1))
    with qaic.Session(model) as session:
        assert not verdict(session)
        expected = session.run(x=alone)["y"]
        if not (is_reduced and np.isnan(mine).any()):
            np.testing.assert_array_equal(expected, np.tile(expected[:1], (BATCH, 1)))
        for place in range(BATCH):
            batch = np.array(others, FLOATS)
            batch[place] = mine
            assert session.run(x=batch)["y"][place].tobytes() == expected[place].tobytes()
