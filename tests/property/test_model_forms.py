"""Models in the forms that exporters and editors write, in every precision, against the user's model."""

import logging

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import qaic
from compiler_oracle import PLACES, info, model_of, node, run
from qaic import accuracy

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
PRECISIONS = {
    "float32": ({}, 100),
    "expanded": ({"always_expand_onnx_functions": True}, 100),
    "float16": ({"convert_to_fp16": True}, 35),
    "int8": ({"convert_to_quantize": True, "enable_channelwise": True}, 15),
}


def computed(model, feeds, precision):
    options = PRECISIONS[precision][0]
    if precision == "int8":
        options = options | {"calibration_data": [feeds]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        return session.run(feeds)


def assert_close(found, expected, precision):
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert found[name].shape == right.shape
        noise = float(((right - found[name]).astype(np.float64) ** 2).sum())
        power = float((right.astype(np.float64) ** 2).sum())
        assert noise <= power * 10 ** (-PRECISIONS[precision][1] / 10), name


WIDTH = 16


def in_scopes(levels, seed):
    """Nest If, Loop and Scan; each level has its own constant and reads the values of all outer levels."""
    rng = np.random.default_rng(seed)
    inputs, steps = [info("x", [4, WIDTH])], rng.standard_normal((2, WIDTH)).astype(np.float32)
    weights = (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32)
    held = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(steps, "steps")]
    held += [numpy_helper.from_array(np.array(2), "trips"), numpy_helper.from_array(np.array(True), "go")]

    def level(at, given_value, outer):
        kind, elements, is_node, _ = levels[at]
        values = numpy_helper.from_array(rng.standard_normal(elements).astype(np.float32) + 0.5, f"c{at}")
        nodes = [node("Constant", [], [f"c{at}"], value=values)] if is_node else []
        nodes += [
            node("ReduceMean", [f"c{at}"], [f"mean{at}"], keepdims=0),
            node("MatMul", [given_value, "w"], [f"m{at}"]),
            node("Sum", [f"m{at}", f"mean{at}", *outer], [f"s{at}"]),
            node("Tanh", [f"s{at}"], [f"t{at}"]),
        ]
        result, own = f"t{at}", [] if is_node else [values]
        if at + 1 < len(levels):
            result = f"r{at}"
            nodes.append(nested(kind, at, [*outer, f"t{at}"]))
        return nodes, own, result

    def nested(kind, at, outer):
        value, result = outer[-1], f"r{at}"
        if kind == "If":
            inputs.append(info(f"if{at}", [], BOOL))
            nodes, own, last = level(at + 1, value, outer)
            then = helper.make_graph(nodes, "then", [], [info(last, [4, WIDTH])], own)
            # The two branches can use one name for different values.
            other = helper.make_graph(
                [node("Neg", [value], [f"t{at + 1}"])], "else", [], [info(f"t{at + 1}", [4, WIDTH])]
            )
            return node("If", [f"if{at}"], [result], then_branch=then, else_branch=other)
        carried = info(f"carried{at}", [4, WIDTH])
        nodes, own, last = level(at + 1, carried.name, outer)
        if kind == "Loop":
            nodes.append(node("Identity", [f"on{at}"], [f"still{at}"]))
            results = [info(f"still{at}", [], BOOL), info(last, [4, WIDTH])]
            given_values = [info(f"i{at}", [], INT64), info(f"on{at}", [], BOOL), carried]
            body = helper.make_graph(nodes, "body", given_values, results, own)
            return node("Loop", ["trips", "go", value], [result], body=body)
        nodes.append(node("Add", [last, f"row{at}"], [f"next{at}"]))
        given_values, results = [carried, info(f"row{at}", [WIDTH])], [info(f"next{at}", [4, WIDTH])]
        body = helper.make_graph(nodes, "body", given_values, results, own)
        return node("Scan", [value, "steps"], [result], body=body, num_scan_inputs=1)

    nodes, own, result = level(0, "x", [])
    nodes.append(node("MatMul", [result, "w"], ["y"]))
    feeds = {"x": rng.standard_normal((4, WIDTH)).astype(np.float32)}
    feeds |= {value.name: np.array(levels[int(value.name[2:])][3]) for value in inputs[1:]}
    return model_of(nodes, inputs, [info("y", [4, WIDTH])], [*held, *own]), feeds


#: Kind of the nested graph, bytes of the constant (4 bytes to 1 MiB), its location, and the branch.
LEVEL = st.tuples(
    st.sampled_from(["If", "Loop", "Scan"]),
    st.sampled_from([1, 255, 256, 257, 2**14, 2**18]),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=8)
@example(levels=[("If", 2**18, False, True), ("If", 256, True, True), ("If", 1, False, True)] * 2, seed=1)
@example(levels=[("Scan", 1, True, True), ("If", 256, False, True), ("Loop", 255, False, True)] * 2, seed=2)
@given(levels=st.lists(LEVEL, min_size=2, max_size=4), seed=st.integers(0, 99))
def test_nested_graphs_read_the_values_of_every_level(precision, levels, seed):
    model, feeds = in_scopes(levels[:4], seed)
    assert_close(computed(model, feeds, precision), run(model, feeds, optimize=False), precision)


SEQUENCES = {
    "of a loop": """
      g (float[3,4] x) => (float[12,4] y)
      <int64 trips = {3}, bool go = {1}, float half = {0.5}>
      { s0 = SequenceConstruct (x)
        s, last = Loop (trips, go, s0, x) <body = b (int64 i, bool on, seq(float[3,4]) s1, float[3,4] v)
          => (bool still, seq(float[3,4]) s2, float[3,4] u)
          { u = Mul (v, half) s2 = SequenceInsert (s1, u) still = Identity (on) }>
        y = ConcatFromSequence <axis = 0> (s) }""",
    "of a branch": """
      g (float[4,4] x, bool c) => (float y)
      <int64 at = {-1}, int64[2] parts = {1, 3}>
      { s = If (c) <then_branch = t () => (seq(float[N,4]) a) { a = SequenceConstruct (x, x) },
                    else_branch = e () => (seq(float[M,4]) b) { b = SplitToSequence <axis = 0> (x, parts) }>
        part = SequenceAt (s, at) sum = ReduceSum <keepdims = 0> (part)
        n = SequenceLength (s) count = CastLike (n, sum) y = Mul (sum, count) }""",
    "mapped": """
      g (float[4,4] x) => (float[4,4] y)
      <float half = {0.5}>
      { s = SplitToSequence <axis = 1, keepdims = 0> (x)
        m = SequenceMap (s) <body = b (float[4] v) => (float[4] u) { t = Tanh (v) u = Mul (t, half) }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (m) }""",
    "an optional": """
      g (float[4,4] x, bool c) => (float[4,4] y)
      { o = If (c) <then_branch = t () => (optional(float[4,4]) a) { a = Optional (x) },
                    else_branch = e () => (optional(float[4,4]) b) { n = Neg (x) b = Optional (n) }>
        is_given = OptionalHasElement (o)
        y = If (is_given) <then_branch = t2 () => (float[4,4] d) { d = OptionalGetElement (o) },
                           else_branch = e2 () => (float[4,4] z) { z = Abs (x) }> }""",
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("what", SEQUENCES)
def test_sequences_and_optionals_pass_control_flow(what, c, precision):
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{SEQUENCES[what]}')
    x = np.random.default_rng(3).standard_normal((3 if what == "of a loop" else 4, 4)).astype(np.float32)
    feeds = {"x": x, "c": np.array(c)} if len(model.graph.input) > 1 else {"x": x}
    options, _ = PRECISIONS[precision]
    if what == "of a loop":
        options = options | {"output_shapes": {"y": [12, 4]}}
    if precision == "int8":
        options = options | {"calibration_data": [feeds]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        assert_close(session.run(feeds), run(model, feeds, optimize=False), precision)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9)
NAME = st.sampled_from(["", "a", "b", "a/b", "y", "a b", "..", "x__1"]) | TEXT


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", [*PLACES, "branch"])
@settings(deadline=None, max_examples=6)
@example(nodes=["a"] * 3, values=["x", "w", "v", "m", "n", "y"], outer="a")
@given(
    nodes=st.lists(NAME, min_size=3, max_size=3),
    values=st.lists(TEXT, min_size=6, max_size=6, unique=True),
    outer=NAME,
)
def test_names_change_no_number(place, precision, nodes, values, outer):
    x, w, v, m, n, y = values
    made = [node("MatMul", [x, w], [m]), node("Relu", [m], [n]), node("Add", [n, v], [y])]
    for one, name in zip(made, nodes, strict=True):
        one.name = name
    rng = np.random.default_rng(7)
    constants = [
        (name, rng.standard_normal(shape).astype(np.float32)) for name, shape in ((w, (4, 4)), (v, 4))
    ]
    feeds = {x: rng.standard_normal((3, 4)).astype(np.float32)}
    expected = np.maximum(feeds[x] @ constants[0][1], 0) + constants[1][1]
    inputs, outputs = [info(x, [3, 4])], [info(y, [3, 4])]
    if place == "branch":
        assume("c" not in values and "r" not in values)
        branches = [helper.make_graph(made, name, [], outputs) for name in ("one", "other")]
        made = [node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1])]
        inputs, outputs, feeds = (
            [*inputs, info("c", [], BOOL)],
            [info("r", [3, 4])],
            feeds | {"c": np.array(True)},
        )
    model = model_of(
        [*made, node("Identity", [outputs[0].name], ["\u2603 last"], name=outer)],
        inputs,
        [info("\u2603 last", [3, 4])],
        constants,
    )
    assume("\u2603 last" not in values)
    model = PLACES.get(place, PLACES["graph"])(model)
    if place != "graph":
        model.graph.node[0].name = outer
    assert_close(computed(model, feeds, precision), {"\u2603 last": expected}, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("results", [["n"], ["n", "mean"], ["n", "", "var"], ["n", "mean", "var"]])
def test_normalization_by_the_batch(results, place, precision):
    rng = np.random.default_rng(5)
    shapes = {"w": (4, 3, 1, 1), "scale": 4, "bias": 4, "old_mean": 4, "old_var": 4}
    constants = {
        name: np.abs(rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()
    }
    operands = ["c", "scale", "bias", "old_mean", "old_var"]
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", operands, results, training_mode=1, momentum=0.75),
        node("Relu", ["n"], ["y"]),
    ]
    others = [name for name in results[1:] if name]
    outputs = [info("y", [2, 4, 5, 5]), *(info(name, [4]) for name in others)]
    model = PLACES[place](model_of(nodes, [info("x", [2, 3, 5, 5])], outputs, constants.items()))
    x = rng.standard_normal((2, 3, 5, 5)).astype(np.float32)
    c = np.einsum("nchw,kc->nkhw", x, constants["w"][:, :, 0, 0])
    mean, var = c.mean((0, 2, 3)), c.var((0, 2, 3))
    scale, bias = (constants[name].reshape(4, 1, 1) for name in ("scale", "bias"))
    normal = (c - mean.reshape(4, 1, 1)) / np.sqrt(var.reshape(4, 1, 1) + 1e-5) * scale + bias
    running = {
        "mean": constants["old_mean"] * 0.75 + mean * 0.25,
        "var": constants["old_var"] * 0.75 + var * 0.25,
    }
    expected = {"y": np.maximum(normal, 0)} | {name: running[name] for name in others}
    assert_close(computed(model, {"x": x}, precision), expected, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", [0, 1])
def test_a_call_decides_whether_a_normalization_is_by_the_batch(precision, mode):
    rng = np.random.default_rng(12)
    constants = {
        name: rng.uniform(0.5, 1.5, 3).astype(np.float32) for name in ("scale", "bias", "old_mean", "old_var")
    }
    nodes = [node("BatchNormalization", ["x", *constants], ["y"], training_mode=mode)]
    shape = [4, 3, 5]
    model = PLACES["function"](model_of(nodes, [info("x", shape)], [info("y", shape)], constants.items()))
    (function,), (call,) = model.functions, model.graph.node
    call.attribute.append(helper.make_attribute("mode", mode))
    function.attribute.append("mode")
    (attribute,) = function.node[0].attribute
    attribute.ClearField("i")
    attribute.ref_attr_name = "mode"
    x = rng.standard_normal(shape).astype(np.float32)
    mean, var = (x.mean((0, 2)), x.var((0, 2))) if mode else (constants["old_mean"], constants["old_var"])
    scale, bias, mean, var = (
        value.reshape(3, 1) for value in (constants["scale"], constants["bias"], mean, var)
    )
    expected = (x - mean) / np.sqrt(var + 1e-5) * scale + bias
    assert_close(computed(model, {"x": x}, precision), {"y": expected}, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("opset", [18, 20, 21, 22])
def test_group_normalization_of_every_set(opset, place, precision):
    """Up to operator set 20, a group has one scale and one bias."""
    rng = np.random.default_rng(41)
    x = rng.standard_normal((2, 6, 3, 2)).astype(np.float32)
    scale, bias = rng.standard_normal((2, 2 if opset < 21 else 6)).astype(np.float32)
    groups = x.reshape(2, 2, 18).astype(np.float64)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    each = [np.repeat(one, 6 // one.size).reshape(6, 1, 1) for one in (scale, bias)]
    expected = np.float32(normal.reshape(x.shape) * each[0] + each[1])
    nodes = [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)]
    shape = [info("x", x.shape)], [info("y", x.shape)]
    model = PLACES[place](model_of(nodes, *shape, [("s", scale), ("b", bias)], opset))
    assert_close(computed(model, {"x": x}, precision), {"y": expected}, precision)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("opset", [9, 13, 22])
def test_normalization_over_default_axes(opset, place, precision, kind):
    """Without the attribute, shape inference fails in onnx and in the engine."""
    rng = np.random.default_rng(31)
    x, c = rng.standard_normal((2, 3, 4, 5)).astype(kind), rng.standard_normal(5).astype(kind)
    wide = x.astype(np.float64)
    mean, deviation = wide.mean((0, 2, 3), keepdims=True), wide.std((0, 2, 3), keepdims=True)
    nodes = [node("MeanVarianceNormalization", ["x"], ["m"]), node("Sub", ["c", "m"], ["y"])]
    elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    values = [info("x", x.shape, elem_type)], [info("y", ["a", "b", "c", "d"], elem_type)]
    model = PLACES[place](model_of(nodes, *values, [("c", c)], opset))
    expected = (c - (wide - mean) / (deviation + 1e-9)).astype(kind)
    assert_close(
        computed(model, {"x": x}, precision),
        {"y": expected},
        "float16" if kind == np.float16 and precision in {"float32", "expanded"} else precision,
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=8)
@example(operator="LayerNormalization", opset=9, form=(np.float32, -1, 1), is_branch=False)
@example(operator="SimplifiedLayerNormalization", opset=14, form=(np.float16, -1, 1), is_branch=True)
@given(
    operator=st.sampled_from(["LayerNormalization", "SimplifiedLayerNormalization"]),
    opset=st.integers(9, 22),
    # For some operators, the engine infers wrong shapes of the second result, and the older engine wrong
    # values.
    form=st.sampled_from([(kind, axis, 1) for kind in (np.float32, np.float16) for axis in (-1, 1, 2)])
    | st.just((np.float32, 2, 2)),
    is_branch=st.booleans(),
)
def test_normalizations_that_only_the_engine_has(precision, operator, opset, form, is_branch):
    """Optimizers of the engine write these operators into the standard set, regardless of its version."""
    rng, (kind, axis, results) = np.random.default_rng(opset), form
    x = rng.standard_normal((2, 3, 8)).astype(kind)
    constants = [("w", rng.standard_normal((8, 8)).astype(kind))]
    constants += [(name, rng.standard_normal(x.shape[axis:]).astype(kind)) for name in ("scale", "bias")]
    operands = ["m", "scale", "bias"][: 2 if operator.startswith("S") else 3]
    extra = (["", "dev"] if len(operands) == 3 else ["dev"]) if results == 2 else []
    outer = [node("MatMul", ["x", "w"], ["m"])]
    inner = [node(operator, operands, ["n", *extra], axis=axis, epsilon=1e-3)]
    elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    outputs = [info("n", x.shape, elem_type), *(info("dev", None) for _ in extra[:1])]
    given_values = [info("x", x.shape, elem_type)]
    if is_branch:
        branch = helper.make_graph(inner, "branch", [], outputs)
        outputs = [info(f"{value.name}_out", None, value.type.tensor_type.elem_type) for value in outputs]
        names = [value.name for value in outputs]
        inner = [node("If", ["c"], names, then_branch=branch, else_branch=branch)]
        constants.append(("c", np.array(True)))
    model = model_of([*outer, *inner], given_values, outputs, constants, opset)
    expected = run(model, {"x": x}, optimize=False)
    assert_close(computed(model, {"x": x}, precision), expected, precision)


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=12)
@given(
    operator=st.sampled_from(REDUCTIONS),
    opset=st.sampled_from([11, 13, 18]),
    axes=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    is_negative=st.booleans(),
    keeps=st.booleans(),
    order=st.permutations(range(4)),
)
def test_reductions_between_transposes(precision, operator, opset, axes, is_negative, keeps, order):
    rng = np.random.default_rng(11)
    x = (rng.random((2, 5, 4, 16)) + 0.5).astype(np.float32)
    factor = (rng.random(np.array(x.shape)[list(order)]) + 0.5).astype(np.float32)
    given_axes = axes and [axis - 4 * is_negative for axis in axes]
    attributes, operands, constants = {"keepdims": int(keeps)}, ["u"], [("k", factor)]
    if given_axes and (opset >= 18 or (operator == "Sum" and opset >= 13)):
        operands, constants = ["u", "axes"], [*constants, ("axes", np.array(given_axes))]
    elif given_axes:
        attributes["axes"] = given_axes
    nodes = [
        node("Transpose", ["x"], ["t"], perm=order),
        node("Mul", ["t", "k"], ["u"]),
        node(f"Reduce{operator}", operands, ["r"], **attributes),
        node("Transpose", ["r"], ["y"]),
    ]
    u = (x.transpose(order) * factor).astype(np.float64)
    along = {"axis": tuple(axes) if axes else None, "keepdims": keeps}
    right = {
        "Sum": lambda: u.sum(**along),
        "Mean": lambda: u.mean(**along),
        "Max": lambda: u.max(**along),
        "Min": lambda: u.min(**along),
        "L1": lambda: np.abs(u).sum(**along),
        "L2": lambda: np.sqrt((u**2).sum(**along)),
        "LogSum": lambda: np.log(u.sum(**along)),
        "LogSumExp": lambda: np.log(np.exp(u).sum(**along)),
        "SumSquare": lambda: (u**2).sum(**along),
    }[operator]()
    # onnx infers no shape for a transposed scalar in the old sets.
    result = info("y", None if right.shape else [])
    model = model_of(nodes, [info("x", x.shape)], [result], constants, opset=opset)
    assert_close(computed(model, {"x": x}, precision), {"y": right.T.astype(np.float32)}, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=8)
@given(
    st.lists(
        st.tuples(st.sampled_from(["given", "passed", "left out"]), st.sampled_from([0.125, 0.5, 2.0])),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_attributes_pass_through_functions_that_call_functions(precision, levels, is_nested):
    """Each function calls the next one with another slope, with its own slope, or without a slope."""
    functions, slope = [], 0.25
    for at, (how, number) in enumerate(levels):
        slope = number if how == "given" else slope if how == "passed" else at + 2.0
        said = {"given": f"<slope: float = {number}>", "passed": "<slope: float = @slope>"}.get(how, "")
        call = f"local.f{at + 1} {said} (x, c)"
        if is_nested:
            call = (
                f"If (c) <then_branch = t{at} () => (a) {{ a = {call} }},"
                f" else_branch = e{at} () => (b) {{ b = {call} }}>"
            )
        functions.append(f"f{at} <slope: float = {at + 1.0}> (x, c) => (y) {{ y = {call} }}")
    functions.append(
        f"f{len(levels)} <slope: float = {len(levels) + 1.0}> (x, c) => (y)"
        " { y = LeakyRelu <alpha: float = @slope> (x) }"
    )
    bodies = "\n".join(f'<domain: "local", opset_import: ["" : 17, "local" : 1]>\n{f}' for f in functions)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17, "local" : 1]>\n'
        "g (float[4,4] x, bool c) => (float[4,4] y) { y = local.f0 <slope: float = 0.25> (x, c) }\n" + bodies
    )
    x = np.random.default_rng(13).standard_normal((4, 4)).astype(np.float32)
    expected = {"y": np.where(x < 0, x * np.float32(slope), x)}
    assert_close(computed(model, {"x": x, "c": np.array(True)}, precision), expected, precision)


NARROW = {
    "BFLOAT16": ml_dtypes.bfloat16,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


def weight_in(place, tensor, opset, size):
    """Multiply an input by a weight of a narrow type, which a node casts to a wider type."""
    constant = node("Constant", [], ["w"], value=tensor)
    nodes = [node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT), node("MatMul", ["x", "wide"], ["y"])]
    inputs, outputs, held = [info("x", [3, size])], [info("y", [3, size])], []
    if place == "like":
        nodes[0] = node("CastLike", ["w", "x"], ["wide"])
    if place == "branch":
        other = helper.make_graph([node("Neg", ["x"], ["z"])], "else", [], [info("z", [3, size])])
        then = helper.make_graph(nodes, "then", [], outputs, [tensor])
        nodes = [node("If", ["c"], ["r"], then_branch=then, else_branch=other)]
        inputs, outputs = [*inputs, info("c", [], BOOL)], [info("r", [3, size])]
    elif place == "constant":
        nodes = [constant, *nodes]
    else:
        held = [tensor]
    model = model_of(nodes, inputs, outputs, held, opset=opset)
    return PLACES["function"](model) if place == "function" else model


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("place", ["initializer", "like", "constant", "branch", "function"])
@pytest.mark.parametrize("kind", NARROW)
def test_weights_of_narrow_floats(kind, place, size, precision):
    rng = np.random.default_rng(17)
    codes = (rng.standard_normal((size, size)) * 2).astype(NARROW[kind])
    raw = TensorProto(
        name="w", data_type=getattr(TensorProto, kind), dims=codes.shape, raw_data=codes.tobytes()
    )
    x = rng.standard_normal((3, size)).astype(np.float32)
    model = weight_in(place, raw, 19, size)
    feeds = {"x": x, "c": np.array(True)} if place == "branch" else {"x": x}
    expected = {model.graph.output[0].name: x @ codes.astype(np.float32)}
    assert_close(computed(model, feeds, precision), expected, precision)


def numbers_around(kind):
    """Collect the numbers of a narrow type, the midpoints between them, and their neighbors in float16."""
    codes = np.arange(2**16, dtype=np.uint16) if kind == "BFLOAT16" else np.arange(2**8, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        every = codes.view(NARROW[kind]).astype(np.float64)
    known = np.unique(every[np.isfinite(every) & (np.abs(every) < 65504) & (np.abs(every) > 2**-13)])
    beyond = 2 * known[-1] - known[-2]
    largest = known[-1] * np.array([1.01, 1.05, 1.08, 1.1, 1.125, 1.5, 4])
    found = np.concatenate([known, (known[1:] + known[:-1]) / 2, [beyond, (known[-1] + beyond) / 2], largest])
    found = np.float16(np.clip(found, -65504, 65504))
    found = np.concatenate([found, np.nextafter(found, np.float16(0)), [0, np.inf, np.nan]])
    return np.float32(np.concatenate([found, -found]))


def narrowed(numbers, kind, saturates):
    """Convert numbers as ONNX defines the conversion."""
    largest = float(ml_dtypes.finfo(NARROW[kind]).max) if saturates else np.inf
    with np.errstate(all="ignore"):
        return np.clip(numbers, -largest, largest).astype(NARROW[kind]).astype(np.float32)


#: Types to which the engine rounds numbers beyond the largest one wrongly.
MENDED = ("FLOAT8E4M3FN", "FLOAT8E5M2")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize(
    ("how", "source"),
    [
        *(("Cast", kind) for kind in ("FLOAT", "FLOAT16", "BFLOAT16")),
        ("CastLike", "FLOAT"),
        ("call", "FLOAT"),
    ],
)
@pytest.mark.parametrize("kind", NARROW)
def test_casts_to_narrow_floats(kind, how, source, saturates, precision):
    x = numbers_around(kind)
    if source == "BFLOAT16":
        x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        x = x[~np.isfinite(x) | (np.abs(x) <= 65504)]
    to, place = getattr(TensorProto, kind), "function" if how == "call" else "graph"
    more = {} if kind == "BFLOAT16" else {"saturate": int(saturates)}
    like = TensorProto(name="like", data_type=to, raw_data=bytes(1 + (kind == "BFLOAT16")))
    cast = node("CastLike", ["s", "like"], ["n"], **more) if how == "CastLike" else None
    nodes = [
        node("Cast", ["x"], ["s"], to=getattr(TensorProto, source)),
        cast or node("Cast", ["s"], ["n"], to=to, **more),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, [info("x", x.shape)], [info("y", x.shape)], [like] if cast else [], opset=19)
    model = PLACES[place](model)
    expected = narrowed(x, kind, saturates and bool(more))
    if saturates or kind not in MENDED:
        np.testing.assert_array_equal(run(model, {"x": x}, optimize=False)["y"], expected)
    if precision == "float16":
        with np.errstate(over="ignore"):
            expected = np.float32(np.float16(expected))
    np.testing.assert_array_equal(computed(model, {"x": x}, precision)["y"], expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize(
    ("shape", "form"), [((), {}), ((8,), {"axis": 1}), ((4, 2), {"axis": 1, "block_size": 4})]
)
@pytest.mark.parametrize("kind", [kind for kind in NARROW if kind != "BFLOAT16"])
def test_quantization_to_narrow_floats(kind, shape, form, saturates, precision):
    rng = np.random.default_rng(19)
    scales = (0.5 ** rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    each = np.repeat(scales, 4, axis=1) if len(shape) > 1 else scales
    # Half of the numbers are near the largest one.
    factors = np.where(rng.random((4, 8)) < 0.5, rng.uniform(0.9, 1.14, (4, 8)), rng.random((4, 8)) / 50)
    steps = float(ml_dtypes.finfo(NARROW[kind]).max) * factors * rng.choice([-1, 1], (4, 8))
    x = np.float32(np.float16(steps)) * each
    zero = TensorProto(
        name="z", data_type=getattr(TensorProto, kind), dims=shape, raw_data=bytes(scales.size)
    )
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], saturate=int(saturates), **form),
        node("DequantizeLinear", ["q", "s"], ["y"], **form),
    ]
    model = model_of(nodes, [info("x", [4, 8])], [info("y", [4, 8])], [("s", scales), zero], 21)
    expected = narrowed(x / each, kind, saturates) * each
    if saturates or kind not in MENDED:
        np.testing.assert_array_equal(run(model, {"x": x}, optimize=False)["y"], expected)
    np.testing.assert_array_equal(computed(model, {"x": x}, precision)["y"], expected)


X = np.random.default_rng(23).standard_normal((4, 2)).astype(np.float32)
INDICES = np.array([0, 2, 1, 5])


def encoded(name, *texts):
    """Write a node that converts given texts to the numbers 1, 2, ..., and other texts to 9."""
    numbers = ", ".join(f"{number}.0" for number in range(1, len(texts) + 1))
    keys = ", ".join(f'"{text}"' for text in texts)
    return (
        f"y = ai.onnx.ml.LabelEncoder <keys_strings = [{keys}], values_floats = [{numbers}], "
        f"default_float = 9.0> ({name})"
    )


#: Nodes that compute a float `y` from the texts `s` and `n`; `i` are indices, `c` is a condition.
STRINGS = {
    "looked up": f"t = Gather (s, i) {encoded('t', 'a', 'é')}",
    "of labels": f"""
      t = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1], values_strings = ["a", "é"], default_string = "?">
        (i)
      {encoded("t", "é", "?")}""",
    "of categories": """
      t = ai.onnx.ml.CategoryMapper <cats_strings = ["a", "b", "c"], cats_int64s = [0, 1, 2]> (i)
      j = ai.onnx.ml.CategoryMapper <cats_strings = ["c", "b"], cats_int64s = [7, 8], default_int64 = -4> (t)
      y = Cast <to = 1> (j)""",
    "compared": """
      t = Gather (s, i) k = Constant <value_string = "c"> () e = Equal (t, k) y = Cast <to = 1> (e)""",
    "of numbers": "t = Gather (n, i) y = Cast <to = 1> (t)",
    "of floats": "f = Cast <to = 1> (i) t = Cast <to = 8> (f) y = Cast <to = 1> (t)",
    "normalized": f"""
      t = StringNormalizer <locale = "C", stopwords = ["b"], is_case_sensitive = 1> (s)
      u = Gather (t, i1) {encoded("u", "a", "c")}""",
    "joined": f"t = Gather (s, i) u = StringConcat (t, t) {encoded('u', 'aa', 'cc')}",
    "split": """u, counts = StringSplit <delimiter = "."> (n) y = Cast <to = 1> (counts)""",
    "matched": """t = Gather (s, i) e = RegexFullMatch <pattern = "[a-c]+"> (t) y = Cast <to = 1> (e)""",
    "counted": """
      t = Gather (s, i)
      y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 1, min_gram_length = 1, mode = "TF",
        ngram_counts = [0, 3], ngram_indexes = [0, 1, 2, 3], pool_strings = ["a", "b", "c", "a", "c"]> (t)""",
    "one hot": """
      t = Gather (s, i) h = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "c"], zeros = 1> (t)
      y = ReduceSum <keepdims = 0> (h)""",
    "moved": f"""
      t = Gather (s, i) k = Constant <value_string = "c"> () e = Equal (t, k) w = Where (e, k, t)
      u = Concat <axis = 0> (w, t) d = Reshape (u, shape) v = Transpose (d) {encoded("v", "a", "c")}""",
    "of a branch": f"""
      t = If (c) <then_branch = g1 () => (string[4] a) {{ a = Gather (s, i) }},
                  else_branch = g2 () => (string[4] b) {{ b = Gather (n, i) }}> {encoded("t", "a", "c")}""",
    "of a loop": f"""
      s0 = Constant <value_strings = ["a"]> ()
      t = Loop (trips, c, s0) <body = b (int64 at, bool on, string[1] s1) => (bool still, string[1] s2)
        {{ s2 = StringConcat (s1, s1) still = Identity (on) }}> {encoded("t", "aaaa")}""",
}
CONSTANTS = "int64 trips = {2}, int64[2] shape = {4, 2}, int64[2] i1 = {1, 0}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("what", STRINGS)
def test_strings_inside_of_a_model(what, precision):
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
        g (int64[4] i, float[4,2] x, bool c) => (float y, float[4,2] z)
        <{CONSTANTS}> {{ z = Relu (x) {STRINGS[what]} }}"""
    )
    texts = {"s": ["a", "b", "c", "d", "e", "é"], "n": ["1", "2.5", "-3e2", "0.0", "inf", "7"]}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(values, object), name) for name, values in texts.items()
    )
    feeds = {"i": INDICES, "x": X, "c": np.array(True)}
    expected = run(model, feeds, optimize=False)
    options = PRECISIONS[precision][0] | {"output_shapes": {"y": list(expected["y"].shape)}}
    if precision == "int8":
        options |= {"calibration_data": [feeds]}
    with qaic.Session(model.SerializeToString(), **options) as session:
        assert_close(session.run(feeds), expected, precision)


#: Form of a Dropout -> operator sets that have it, attributes, and operands after the first one.
DROPOUTS = {
    "plain": ((7, 9, 10, 11, 12, 13, 22), {}, {}),
    "share as an attribute": ((7, 10, 11), {"ratio": 0.4}, {}),
    "share": ((12, 13, 22), {}, {"r": np.float32(0.4)}),
    "inference": ((12, 13, 22), {"seed": 7}, {"r": np.float32(0.4), "t": np.array(False)}),
    "training of nothing": ((12, 13, 22), {}, {"r": np.float32(0), "t": np.array(True)}),
    "training": ((12, 13, 22), {"seed": 7}, {"r": np.float32(0.4), "t": np.array(True)}),
    "training in a node": ((12, 22), {"seed": 7}, {"r": np.float32(0.4), "t": np.array(True)}),
    "mode as an input": ((12, 13, 22), {"seed": 7}, {"r": np.float32(0.4), "t": None}),
}
#: Forms that can drop values -> True if the compiler detects that they do.
RANDOM = {"training": True, "training in a node": True, "mode as an input": False}


def in_branch(model):
    """Move the nodes of a model into a branch, which returns the first result."""
    graph, value = model.graph, model.graph.output[0]
    moved = helper.make_graph(graph.node, "then", [], [value])
    other = helper.make_graph([node("Neg", ["x"], ["z"])], "else", [], [info("z", [8, 16])])
    constants = [(tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer]
    return model_of(
        [node("If", ["go"], ["chosen"], then_branch=moved, else_branch=other)],
        graph.input,
        [info("chosen", [8, 16])],
        [*constants, ("go", np.array(True))],
        model.opset_import[0].version,
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("form", "opset", "results", "place"),
    [
        (form, opset, results, place)
        for form, row in DROPOUTS.items()
        for opset in row[0]
        for results in (["d"], ["d", ""], ["d", "m"])
        for place in (*PLACES, "branch")
        if place == "graph" or (form in RANDOM and results == ["d"])
    ],
)
def test_dropout(form, opset, results, place, precision, caplog):
    _, attributes, operands = DROPOUTS[form]
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Dropout", ["p", *operands], results, name="random", **attributes),
        node("Relu", ["d"], ["y"]),
    ]
    rng = np.random.default_rng(29)
    constants = [(name, value) for name, value in operands.items() if value is not None]
    if form == "training in a node":
        nodes.insert(0, node("Constant", [], ["t"], value=numpy_helper.from_array(constants.pop()[1])))
    inputs, outputs = [info("x", [8, 16])], [info("y", [8, 16])]
    if "t" in operands and operands["t"] is None:
        inputs.append(info("t", [], BOOL))
    if "m" in results:
        nodes.append(node("Cast", ["m"], ["mask"], to=TensorProto.FLOAT))
        outputs.append(info("mask", [8, 16]))
    weight = rng.standard_normal((16, 16)).astype(np.float32)
    model = model_of(nodes, inputs, outputs, [("w", weight), *constants], opset=opset)
    model = in_branch(model) if place == "branch" else PLACES[place](model)
    feeds = {"x": rng.standard_normal((8, 16)).astype(np.float32)}
    for mode in [True, False] if len(inputs) > 1 else [None]:
        given = feeds if mode is None else feeds | {"t": np.array(mode)}
        caplog.clear()
        with caplog.at_level(logging.WARNING, "qaic"):
            found = computed(model, given, precision)
        assert_close(found, run(model, given, optimize=False), precision)
        # Names of nodes in functions begin with the names of the calls.
        is_named = "random' is on, so each inference drops values at random" in caplog.text
        assert is_named is RANDOM.get(form, False)


POINTWISE = ["Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "Softsign"]


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(deadline=None, max_examples=25)
@example(steps=[("Neg", 0, 0), ("Add", 1, 0), ("Relu", 2, 0)], is_normalized=False)
@example(steps=[("Sigmoid", 0, 0), ("Mul", 1, 0), ("Clip", 2, 0)], is_normalized=False)
@example(steps=[("Relu", 0, 0)], is_normalized=True)
@example(
    steps=[("Clip", 0, 0), ("Max", 0, 1), ("Mul", 0, 0), ("Sub", 0, 2), ("Abs", 0, 0), ("Mul", 0, 2)],
    is_normalized=False,
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([*POINTWISE, "Add", "Mul", "Sub", "Max"]), st.integers(0, 5), st.integers(0, 5)
        ),
        min_size=1,
        max_size=10,
    ),
    is_normalized=st.booleans(),
)
def test_functions_of_values_that_several_nodes_read(precision, steps, is_normalized):
    """Each step reads one or two earlier values, counted from the latest one."""
    nodes, values = [], ["x"]
    if is_normalized:
        nodes = [
            node("ReduceMean", ["x"], ["mean"], axes=[-1]),
            node("Sub", ["x", "mean"], ["d"]),
            node("Mul", ["d", "d"], ["square"]),
            node("ReduceMean", ["square"], ["v"], axes=[-1]),
            node("Add", ["v", "low"], ["more"]),
            node("Sqrt", ["more"], ["root"]),
            node("Div", ["d", "root"], ["n"]),
        ]
        values = ["n"]
    for at, (operator, first, second) in enumerate(steps):
        names = [values[-1 - first % len(values)], values[-1 - second % len(values)]]
        more = ["low", "high"] if operator == "Clip" else []
        nodes.append(node(operator, [*(names[:1] if operator in POINTWISE else names), *more], [f"v{at}"]))
        values.append(f"v{at}")
    nodes.append(node("MatMul", [values[-1], "w"], ["y"]))
    rng = np.random.default_rng(31)
    constants = [("low", np.float32(0.1)), ("high", np.float32(0.8))]
    constants.append(("w", rng.standard_normal((16, 16)).astype(np.float32)))
    model = model_of(nodes, [info("x", [4, 16])], [info("y", [4, 16])], constants)
    feeds = {"x": rng.standard_normal((4, 16)).astype(np.float32)}
    expected, found = run(model, feeds, optimize=False), computed(model, feeds, precision)
    largest = max(np.abs(value).max() for value in run(every(model), feeds).values())
    if precision in {"float32", "expanded"} or not max(largest / 10, np.abs(expected["y"]).max()) > 0.1:
        assert_close(found, expected, precision)
    else:
        # Differences of equal values, and small values among large ones, have no significant digits.
        limit = largest * {"float16": 2**-6, "int8": 2**-5}[precision] * 16
        np.testing.assert_allclose(found["y"], expected["y"], rtol=0, atol=limit)


def every(model):
    """Copy a model; the results of all nodes become its outputs."""
    copy = type(model).FromString(model.SerializeToString())
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(one.output[0]) for one in copy.graph.node)
    return copy


@pytest.mark.parametrize("to", ["fp16", "int8"])
@pytest.mark.parametrize("size", [3, 300])
def test_accuracy_of_a_model_whose_constant_is_an_output(size, to):
    constant = np.random.default_rng(37).standard_normal(size).astype(np.float32)
    nodes = [node("Add", ["x", "k"], ["s"]), node("Relu", ["s"], ["y"])]
    outputs = [info("y", [2, size]), info("k", [size])]
    model = model_of(nodes, [info("x", [2, size])], outputs, [("k", constant)])
    feeds = {"x": np.random.default_rng(38).standard_normal((2, size)).astype(np.float32)}
    found = accuracy.compare(model, to=to, samples=[feeds])
    assert {one.name for one in found.outputs[to]} == {"y", "k"}
