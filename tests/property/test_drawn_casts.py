"""Casts between element types, in branches and in bodies of Loop and Scan, compared with the user's model."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
from compiler_oracle import info, model_of, node, run
from operator_cases import OPERATOR_SETS

BOOL, INT32, INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
#: Target types of casts from floats; the values of all steps are in their ranges.
TYPES = [TensorProto.FLOAT16, TensorProto.DOUBLE, INT32, INT64, TensorProto.INT8, TensorProto.INT16, BOOL]
STEPS = ["cast", "twice", "like", "divide", "remainder", "bytes", "compare", "If", "Loop", "Scan"]
#: Operator sets that have the forms of all operators below.
SETS = [opset for opset in OPERATOR_SETS if opset >= 17]
SHAPE = [3, 4]


class Drawn:
    """A graph under construction: its constants, and the counter for names of its values."""

    def __init__(self, choices):
        self.choices, self.constants, self.count = list(choices), {}, 0

    def next(self, count):
        """Return the next choice, a number below `count`; 0 after the last choice."""
        return self.choices.pop(0) % count if self.choices else 0

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def constant(self, value):
        name = self.name()
        self.constants[name] = value
        return name

    def op(self, nodes, operator, *inputs, **attributes):
        result = self.name()
        nodes.append(node(operator, inputs, [result], **attributes))
        return result

    def chain(self, nodes, value, depth):
        """Append one to three steps; return the last value, whose elements are from -8 to 8."""
        for _ in range(1 + self.next(3)):
            step = STEPS[self.next(len(STEPS) if depth < 3 else STEPS.index("If"))]
            value = self.step(nodes, step, value, depth)
            value = self.op(nodes, "Clip", value, self.constant(np.float32(-8)), self.constant(np.float32(8)))
        return value

    def step(self, nodes, step, value, depth):
        if step in {"If", "Loop", "Scan"}:
            return getattr(self, f"in_{step.lower()}")(nodes, value, depth + 1)
        if step == "compare":
            found = self.op(nodes, "Greater", value, self.constant(np.float32(0.1)))
            return self.op(nodes, "Cast", self.op(nodes, "Not", found), to=TensorProto.FLOAT)
        if step == "bytes":
            ends = self.constant(np.float32(0)), self.constant(np.float32(8))
            scaled = self.op(
                nodes, "Mul", self.op(nodes, "Clip", value, *ends), self.constant(np.float32(31))
            )
            return self.op(nodes, "Cast", self.op(nodes, "Cast", scaled, to=TensorProto.UINT8), to=1)
        scaled = self.op(nodes, "Mul", value, self.constant(np.float32([1, 3.5, 15][self.next(3)])))
        if step in {"divide", "remainder"}:
            kind = [np.int32, np.int64][self.next(2)]
            whole = self.op(nodes, "Cast", scaled, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
            divisor = self.constant(kind([2, 3, -2, 7][self.next(4)]))
            operator = "Div" if step == "divide" else "Mod"
            return self.op(nodes, "Cast", self.op(nodes, operator, whole, divisor), to=1)
        found = self.op(nodes, "Cast", scaled, to=TYPES[self.next(len(TYPES))])
        if step == "twice":
            found = self.op(nodes, "Cast", found, to=TYPES[self.next(len(TYPES))])
        if step == "like":
            other = self.op(nodes, "Cast", scaled, to=TYPES[self.next(len(TYPES))])
            casts = [self.op(nodes, "CastLike", one, value) for one in (found, other)]
            return self.op(nodes, "Sub", *casts)
        return self.op(nodes, "Cast", found, to=1)

    def in_if(self, nodes, value, depth):
        mean = self.op(nodes, "ReduceMean", value, keepdims=0)
        limit = self.constant(np.float32([-9, 0, 9][self.next(3)]))
        condition, branches = self.op(nodes, "Greater", mean, limit), []
        for name in ("then", "else"):
            inner = []
            result = self.chain(inner, value, depth)
            branches.append(helper.make_graph(inner, name, [], [info(result, SHAPE)]))
        return self.op(nodes, "If", condition, then_branch=branches[0], else_branch=branches[1])

    def in_loop(self, nodes, value, depth):
        step, go, state, inner = self.name(), self.name(), self.name(), []
        last = self.chain(inner, state, depth)
        last = self.op(inner, "Add", last, self.op(inner, "Cast", step, to=1))
        go_on = self.op(inner, "Less", step, self.constant(np.array(self.next(3))))
        given_values = [info(step, [], INT64), info(go, [], BOOL), info(state, SHAPE)]
        body = helper.make_graph(inner, "body", given_values, [info(go_on, [], BOOL), info(last, SHAPE)])
        return self.op(nodes, "Loop", self.constant(np.array(self.next(4))), "", value, body=body)

    def in_scan(self, nodes, value, depth):
        state, row, inner = self.name(), self.name(), []
        last = self.op(inner, "Add", self.chain(inner, state, depth), row)
        total = self.op(inner, "ReduceSum", last, self.constant(np.array([0])), keepdims=0)
        given_values, results = [info(state, SHAPE), info(row, [4])], [info(last, SHAPE), info(total, [4])]
        body = helper.make_graph(inner, "body", given_values, results)
        final, rows = self.name(), self.name()
        turned = {"scan_input_directions": [self.next(2)], "scan_output_directions": [self.next(2)]}
        nodes.append(node("Scan", [value, value], [final, rows], body=body, num_scan_inputs=1, **turned))
        return self.op(nodes, "Add", final, rows)


@pytest.mark.parametrize("options", [{}, {"always_expand_onnx_functions": True}], ids=["float32", "expanded"])
@settings(deadline=None, max_examples=30)
@example(choices=[0, 2, 1, 2, 6], opset=17)
@example(choices=[2, 7, 1, 1, 4, 8, 2, 0, 5, 9, 1, 3, 2], opset=17)
@given(
    choices=st.lists(st.integers(0, 9), min_size=4, max_size=40),
    opset=st.sampled_from(SETS),
)
def test_casts_in_nested_graphs(options, choices, opset):
    drawn, nodes = Drawn(choices), []
    result = drawn.chain(nodes, "x", 0)
    nodes.append(node("Identity", [result], ["y"]))
    model = model_of(nodes, [info("x", SHAPE)], [info("y", SHAPE)], drawn.constants.items(), opset)
    feeds = {"x": np.random.default_rng(43).standard_normal(SHAPE).astype(np.float32) * 3}
    expected = run(model, feeds, optimize=False)["y"]
    with qaic.Session(model.SerializeToString(), **options) as session:
        found = session.run(feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
