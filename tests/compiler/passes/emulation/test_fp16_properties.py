"""Random graphs compared with rounding of each node in numpy; all operators are exact in IEEE arithmetic."""

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import session_models
from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.compiler.ir.constants.float16_weights import Overflows, converted_floats
from qaic.compiler.ir.constants.weights import MemoryRange, read_all
from qaic.options.table import CompileOptions

FLOAT = onnx.TensorProto.FLOAT
SIZE = 4

# Division is excluded: it distinguishes 0 from -0, and the sign of Relu's zero is not defined.
COMPUTING = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Sqrt": np.sqrt,
}
SELECTING = {
    "Relu": lambda a: np.where(np.isnan(a), a, np.maximum(a, np.float32(0))),
    "Neg": np.negative,
    "Abs": np.abs,
    "Identity": np.array,
    "Floor": np.floor,
}
UNARY = {"Sqrt", *SELECTING}

floats = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 300.0, 2048.0, 2049.0, 65504.0, 65520.0, 6e-8, 1 / 3]),
    st.floats(-70000, 70000, width=32),
    st.floats(-1, 1, width=32),
)
vectors = st.lists(floats, min_size=SIZE, max_size=SIZE).map(np.float32)


def half(array):
    return array.astype(np.float16).astype(np.float32)


@st.composite
def programs(draw):
    """A graph as a list of (operator, operands, output), its constants and its outputs."""
    constants = {f"c{i}": draw(vectors) for i in range(draw(st.integers(0, 3)))}
    values = ["x", *constants]
    nodes = []
    for i in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(sorted(COMPUTING | SELECTING)))
        operands = [draw(st.sampled_from(values)) for _ in range(1 if op in UNARY else 2)]
        nodes.append((op, operands, f"v{i}"))
        values.append(f"v{i}")
    # At least one node must depend on the input.
    nodes.append(("Add", ["x", values[-1]], "last"))
    outputs = draw(st.lists(st.sampled_from([n[2] for n in nodes]), unique=True, max_size=3))
    return nodes, constants, sorted({*outputs, "last"})


def half_constant(array, *, clip):
    rounded = half(array)
    if clip:
        rounded = np.where(np.isfinite(array) & np.isinf(rounded), np.copysign(65504, array), rounded)
    return rounded.astype(np.float32)


def expected(nodes, constants, x, *, clip):
    """Evaluate node by node. Constants fold in float32; nodes that also read data clip and round them."""
    values = {"x": half(x)}
    folded = dict(constants)
    for op, operands, name in nodes:
        compute = COMPUTING.get(op) or SELECTING[op]
        if all(operand in folded for operand in operands):
            folded[name] = compute(*(folded[operand] for operand in operands))
        else:
            values[name] = half(
                compute(
                    *(values[o] if o in values else half_constant(folded[o], clip=clip) for o in operands)
                )
            )
    return values | {name: half_constant(value, clip=clip) for name, value in folded.items()}


@settings(max_examples=150, deadline=None)
@given(programs(), vectors, st.booleans())
def test_random_graph_equals_rounding_after_each_node(program, x, clip):
    nodes, constants, outputs = program
    model = session_models.model(
        [helper.make_node(op, operands, [name]) for op, operands, name in nodes],
        [("x", FLOAT, [SIZE])],
        [(name, FLOAT, [SIZE]) for name in outputs],
        constants,
    )
    with onnx_file.open_bytes(model.SerializeToString()) as source:
        chosen = CompileOptions(convert_to_fp16=True, clip_fp16_constants=clip)
        compiled = lower_program(source, chosen, Progress("test")).model
    actual = dict(zip(outputs, session_models.engine(compiled).run(outputs, {"x": x}), strict=True))
    with np.errstate(all="ignore"):
        wanted = expected(nodes, constants, x, clip=clip)
    for name in outputs:
        np.testing.assert_array_equal(actual[name], wanted[name], err_msg=name)


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=50).map(np.float32), st.booleans())
def test_weights_are_rounded_like_a_cast(values, clip):
    overflows = Overflows(clip=clip)
    source = converted_floats(MemoryRange(values.tobytes()), FLOAT, onnx.TensorProto.FLOAT16, "w", overflows)
    actual = np.frombuffer(read_all(source), np.float16)
    with np.errstate(all="ignore"):
        wanted = values.astype(np.float16)
        lost = np.isinf(wanted) & np.isfinite(values)
        if clip:
            wanted = np.where(lost, np.copysign(np.float16(65504), wanted), wanted)
    np.testing.assert_array_equal(actual, wanted)
    assert source.nbytes == len(values) * 2
    assert overflows.counts == ({"w": int(lost.sum())} if lost.any() else {})
