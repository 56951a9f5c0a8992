"""Operators that are written as simpler operators are quantized in the same way as the operator itself."""

import numpy as np
import onnx
import pytest
from onnx import helper

import session_models
from quantize_oracle import params_of, profile_of, run, through, with_outputs
from quantize_support import quantized

FLOAT = onnx.TensorProto.FLOAT
RNG = np.random.default_rng(3)
SHAPE = [2, 3, 8]

NUMBERS = {
    "zero": 0.0,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "sixth": 1 / 6,
    "root2": np.sqrt(2.0),
    "small": 1e-5,
    "cubic": 0.044715,
    "slope": np.sqrt(2 / np.pi),
    "size": 8.0,
}


def node(text, **attributes):
    """Write ``y = Op(a, b)`` as a node."""
    result, _, call = text.partition(" = ")
    op, _, inputs = call.rstrip(")").partition("(")
    return helper.make_node(op, inputs.split(", "), [result], **attributes)


def model_of(texts, *, before=(), more=None, outputs=("y",)):
    nodes = [node(t) if isinstance(t, str) else t for t in (*before, *texts)]
    used = {name for made in nodes for name in made.input}
    constants = {k: np.float32(v) for k, v in NUMBERS.items() if k in used} | (more or {})
    return session_models.model(
        nodes,
        [("x", FLOAT, SHAPE)],
        [(name, FLOAT, None) for name in outputs],
        {k: np.asarray(v) for k, v in constants.items()},
    )


def samples(count=4):
    return [{"x": (3 * RNG.standard_normal(SHAPE)).astype(np.float32)} for _ in range(count)]


FUNCTIONS = {
    "HardSwish": ["a = Add(x, three)", "c = Clip(a, zero, six)", "m = Mul(x, c)", "y = Div(m, six)"],
    "HardSwish, scaled first": [
        "a = Add(x, three)",
        "c = Clip(a, zero, six)",
        "d = Mul(c, sixth)",
        "y = Mul(d, x)",
    ],
    "HardSwish of HardSigmoid": [node("h = HardSigmoid(x)", alpha=1 / 6), "y = Mul(x, h)"],
    "Swish": ["s = Sigmoid(x)", "y = Mul(x, s)"],
    "Gelu": ["d = Div(x, root2)", "e = Erf(d)", "a = Add(e, one)", "m = Mul(x, a)", "y = Mul(m, half)"],
    "Gelu, half first": [
        "h = Mul(x, half)",
        "d = Div(x, root2)",
        "e = Erf(d)",
        "a = Add(e, one)",
        "y = Mul(h, a)",
    ],
    "Gelu of Tanh": [
        "p = Pow(x, three)",
        "c = Mul(p, cubic)",
        "a = Add(x, c)",
        "s = Mul(a, slope)",
        "t = Tanh(s)",
        "b = Add(one, t)",
        "h = Mul(b, half)",
        "y = Mul(x, h)",
    ],
    "Mish": ["s = Softplus(x)", "t = Tanh(s)", "y = Mul(x, t)"],
    "scaled Relu": ["r = Relu(x)", "y = Mul(r, two)"],
}


def gains():
    return {
        "gain": RNG.standard_normal(8).astype(np.float32),
        "shift": RNG.standard_normal(8).astype(np.float32),
    }


NORMALIZATIONS = {
    "of deviations": [
        node("m = ReduceMean(v)", axes=[-1], keepdims=1),
        "d = Sub(v, m)",
        "p = Pow(d, two)",
        node("q = ReduceMean(p)", axes=[-1], keepdims=1),
        "e = Add(q, small)",
        "r = Sqrt(e)",
        "n = Div(d, r)",
        "g = Mul(n, gain)",
        "y = Add(g, shift)",
    ],
    "of sums and squares": [
        node("a = ReduceSum(v, last)", keepdims=1),
        "b = Mul(v, v)",
        node("c = ReduceSum(b, last)", keepdims=1),
        "m = Div(a, size)",
        "s = Div(c, size)",
        "q = Mul(m, m)",
        "k = Sub(s, q)",
        "z = Max(zero, k)",
        "e = Add(z, small)",
        "f = Sqrt(e)",
        "i = Reciprocal(f)",
        "h = Mul(i, gain)",
        "d = Sub(v, m)",
        "g = Mul(d, h)",
        "y = Add(g, shift)",
    ],
    "of squares alone": [
        node("p = Pow(v, two)"),
        node("q = ReduceMean(p)", axes=[-1], keepdims=1),
        "e = Add(q, small)",
        "r = Sqrt(e)",
        "i = Reciprocal(r)",
        "n = Mul(v, i)",
        "y = Mul(n, gain)",
    ],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_rounded_before_and_after_and_not_inside(name):
    model = model_of(FUNCTIONS[name])
    feeds = samples()
    profile = profile_of(model, feeds)
    result = quantized(model, profile)
    kinds = [made.op_type for made in result.graph.node]
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 2
    entry, left = (
        params_of(profile.tensors[t].minimum, profile.tensors[t].maximum, "symmetric_with_uint8")
        for t in "xy"
    )
    inner = run(model, {"x": through(feeds[0]["x"], *entry)})["y"]
    assert np.abs(run(result, feeds[0])["y"] - through(inner, *left)).max() <= 1.001 * left[0]


@pytest.mark.parametrize(
    ("texts", "kernel"),
    [
        (FUNCTIONS["Gelu"], "Gelu"),
        (["v = Add(x, one)", *NORMALIZATIONS["of deviations"]], "LayerNormalization"),
    ],
)
def test_the_engine_still_fuses_what_is_written_out(texts, kernel, tmp_path):
    more = gains() if kernel != "Gelu" else {}
    model = model_of(texts, more=more)
    feeds = samples()
    result = quantized(model, profile_of(model, feeds))
    run(result, feeds[0], path=tmp_path / "optimized.onnx")
    assert kernel in {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}


def test_a_value_that_others_read_is_not_inside():
    model = model_of(FUNCTIONS["Swish"], outputs=("y", "s"))
    feeds = samples()
    profile = profile_of(model, feeds)
    values = run(quantized(model, profile), feeds[0])
    low, high = profile.tensors["s"].minimum, profile.tensors["s"].maximum
    assert np.array_equal(values["s"], through(values["s"], *params_of(low, high, "symmetric_with_uint8")))


def test_a_sum_of_two_functions_is_not_one_function():
    texts = ["s = Sigmoid(x)", "a = Mul(x, s)", "b = Softmax(x)", "y = Add(a, b)"]
    model = model_of(texts)
    result = quantized(model, profile_of(model, samples()))
    made = [n.output[0] for n in result.graph.node if n.op_type == "QuantizeLinear"]
    assert made == ["x/quantized", "a/quantized", "b/quantized", "y/quantized"]


def test_a_constant_that_widens_is_no_part_of_a_function():
    model = model_of(["r = Relu(x)", "y = Add(r, wide)"], more={"wide": np.ones((4, 2, 3, 8), np.float32)})
    result = quantized(model, profile_of(model, samples()))
    assert sum(n.op_type == "QuantizeLinear" for n in result.graph.node) == 3


SOFTMAX = [
    node("m = ReduceMax(x)", axes=[-1], keepdims=1),
    "d = Sub(x, m)",
    "e = Exp(d)",
    node("t = ReduceSum(e, last)", keepdims=1),
    "y = Div(e, t)",
]


def test_a_softmax_is_one_unit():
    model = model_of(SOFTMAX, more={"last": np.int64([-1])})
    feeds = samples()
    profile = profile_of(model, feeds)
    result = quantized(model, profile)
    assert sum(n.op_type == "QuantizeLinear" for n in result.graph.node) == 2
    low, high = profile.tensors["x"].minimum, profile.tensors["x"].maximum
    data = through(feeds[0]["x"], *params_of(low, high, "symmetric_with_uint8"))
    step = params_of(0, profile.tensors["y"].maximum, "symmetric_with_uint8")[0]
    assert np.abs(run(result, feeds[0])["y"] - run(model, {"x": data})["y"]).max() <= 0.51 * step


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_a_normalization_stays_in_float(name):
    more = {**gains(), "last": np.int64([-1]), "w": RNG.standard_normal((8, 8)).astype(np.float32)}
    texts = NORMALIZATIONS[name]
    if "last" not in {i for t in texts for i in (node(t) if isinstance(t, str) else t).input}:
        del more["last"]
    if name == "of squares alone":
        del more["shift"]
    model = model_of(texts, before=["u = MatMul(x, w)", "v = Add(u, x)"], more=more)
    feeds = samples()
    result = quantized(model, profile_of(model, feeds))
    made = [n.output[0] for n in result.graph.node if n.op_type == "QuantizeLinear"]
    assert made == ["x/quantized", "u/quantized", "v/quantized"]
    values = run(with_outputs(result, ["v"]), feeds[0])
    alone = model_of(texts, more={k: v for k, v in more.items() if k != "w"})
    for made_node in alone.graph.node:
        made_node.input[:] = ["x" if i == "v" else i for i in made_node.input]
    assert np.allclose(values["y"], run(alone, {"x": values["v"]})["y"], rtol=1e-4, atol=1e-4)


def test_a_root_that_divides_something_else_is_no_normalization():
    mean = node("q = ReduceMean(x)", axes=[-1], keepdims=1)
    more = {"w": RNG.standard_normal((8, 8)).astype(np.float32)}
    model = model_of(["u = MatMul(x, w)", mean, "a = Abs(q)", "r = Sqrt(a)", "y = Mul(r, u)"], more=more)
    result = quantized(model, profile_of(model, samples()))
    made = [n.output[0] for n in result.graph.node if n.op_type == "QuantizeLinear"]
    assert made == ["x/quantized", "u/quantized", "q/quantized", "r/quantized", "y/quantized"]


@pytest.mark.parametrize("rowwise", [False, True])
def test_factors_behind_a_product_go_into_its_weight(rowwise, tmp_path):
    vector = RNG.standard_normal(8).astype(np.float32)
    more = {
        "w": RNG.standard_normal((8, 8)).astype(np.float32),
        "gain": np.float32(vector * 3),
        "shift": vector[::-1].copy(),
        "k": np.abs(vector) + 1,
    }
    texts = ["u = MatMul(x, w)", "a = Add(u, shift)", "b = Mul(gain, a)", "c = Sub(b, one)", "y = Div(c, k)"]
    model = model_of(texts, more=more)
    feeds = samples()
    profile = profile_of(model, feeds)
    result = quantized(model, profile, enable_rowwise=rowwise)
    run(result, feeds[0], path=tmp_path / "optimized.onnx")
    kinds = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node if n.op_type != "Reshape"]
    assert kinds == ["QuantizeLinear", "QGemm", "DequantizeLinear"]
    wanted = run(model, feeds[0])["y"]
    assert np.abs(run(result, feeds[0])["y"] - wanted).max() < 0.04 * np.abs(wanted).max()


@pytest.mark.parametrize("bias", [(), (1,), (8,), (1, 8), (6, 1), (6, 8)], ids=str)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div"])
def test_factors_behind_a_gemm_apply_with_a_bias_of_any_shape(kind, bias):
    """A bias with a number per row is no part of the integer kernel, which would contain the factors."""
    more = {
        "rows": np.int64([6, 8]),
        "w": RNG.standard_normal((8, 8)).astype(np.float32),
        "c": RNG.standard_normal(bias).astype(np.float32),
        "k": 3 * np.abs(RNG.standard_normal(8)).astype(np.float32) + 1,
    }
    model = model_of(["t = Reshape(x, rows)", "u = Gemm(t, w, c)", f"y = {kind}(u, k)"], more=more)
    feeds = samples()
    wanted = run(model, feeds[0])["y"]
    found = run(quantized(model, profile_of(model, feeds)), feeds[0])["y"]
    assert np.abs(found - wanted).max() < 0.04 * np.abs(wanted).max()


def test_a_division_by_zero_is_left_where_it_is():
    more = {"w": RNG.standard_normal((8, 8)).astype(np.float32), "none": np.zeros(8, np.float32)}
    model = model_of(["u = MatMul(x, w)", "y = Div(u, none)"], more=more)
    profile = profile_of(model_of(["u = MatMul(x, w)", "y = Mul(u, none)"], more=more), samples())
    kinds = [n.op_type for n in quantized(model, profile).graph.node]
    assert "Div" in kinds
