"""Calls of functions in all forms that ONNX allows, in every precision, compared with the formula."""

import numpy as np
import pytest
from onnx import parser

import qaic
from qaic.compiler.frontend.check_model import check_functions
from qaic.compiler.frontend.function_calls import normalize_functions
from qaic.errors import CompileError

OPTIONS = {
    "float32": ({}, 1e-5),
    "expanded": ({"always_expand_onnx_functions": True}, 1e-5),
    "float16": ({"convert_to_fp16": True}, 1e-2),
}
#: Functions for which a call or the model omits attributes, results or operator sets.
FUNCTIONS = """
<domain: "local", opset_import: ["" : 18, "local" : 1]>
inner <alpha: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
outer <slope> (x) => (y) { y = local.inner <alpha: float = @slope> (x) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
around <slope, more> (x) => (y) {
    z = local.outer <slope: float = @slope> (x)
    y = local.outer <slope: float = @more> (z)
}
<domain: "local", opset_import: ["" : 18, "local" : 1]>
chosen <slope> (x, c) => (y) {
    y = If (c) <
        then_branch = one () => (a) { a = local.outer <slope: float = @slope> (x) },
        else_branch = two () => (b) { b = Neg (x) }
    >
}
<domain: "local", opset_import: ["" : 18]>
outer_copy0 (x) => (y) { y = Neg (x) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
two <p, q> (x) => (y) {
    z = local.inner <alpha: float = @p> (x)
    y = local.inner <alpha: float = @q> (z)
}
<domain: "local", opset_import: ["" : 18, "local" : 1]>
half <s> (x) => (y) { y = local.two <p: float = @s> (x) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
bare (x) => (y) { y = local.half (x) }
<domain: "local", opset_import: ["" : 18]>
sized <axes> (x, s) => (y) {
    z = Abs (x)
    y = Resize <axes: ints = @axes, keep_aspect_ratio_policy = "not_larger", mode = "nearest"> (z, , , s)
}
<domain: "local", opset_import: ["" : 18]>
both (x) => (y, z) { y = Neg (x) z = Exp (y) }
<domain: "local", opset_import: ["" : 18, "ai.onnx.ml" : 3]>
scaled (x) => (y) { y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) }
"""


def leaky(x, alpha):
    return np.where(x < 0, alpha * x, x)


CALLS = {
    "an attribute that an outer call leaves out": ("y = local.outer (x)", lambda x: leaky(x, 0.5)),
    "an attribute that one of two calls gives": (
        "a = local.outer <slope = 0.2> (x) b = local.outer (x) y = Mul (a, b)",
        lambda x: leaky(x, 0.2) * leaky(x, 0.5),
    ),
    "one of two attributes": ("y = local.around <more = 0.2> (x)", lambda x: leaky(leaky(x, 0.5), 0.2)),
    "none of two attributes": ("y = local.around (x)", lambda x: leaky(leaky(x, 0.5), 0.5)),
    "an attribute of a branch": (
        "c = Constant <value = bool {1}> () y = local.chosen (x, c)",
        lambda x: leaky(x, 0.5),
    ),
    "an attribute, next to a function with the name of the copy": (
        "a = local.outer (x) y = local.outer_copy0 (a)",
        lambda x: -leaky(x, 0.5),
    ),
    "an attribute of a copy": (
        "a = local.bare (x) b = local.half <s = 0.2> (x) y = Mul (a, b)",
        lambda x: leaky(leaky(x, 0.5), 0.5) * leaky(leaky(x, 0.2), 0.5),
    ),
    "axes of Resize from the end": (
        "s = Constant <value_ints = [9, 4]> () r = local.sized <axes = [-1, -2]> (x, s)"
        " o = Constant <value_ints = [0, 0]> () e = Constant <value_ints = [4, 6]> ()"
        " a = Constant <value_ints = [0, 1]> () t = Constant <value_ints = [2, 2]> ()"
        " y = Slice (r, o, e, a, t)",
        abs,
    ),
    "a result at the end": ("y = local.both (x)", lambda x: -x),
    "a set that only the function imports": ("y = local.scaled (x)", lambda x: (x - 1) * 2),
}


def found(text, feeds, precision):
    options, tolerance = OPTIONS[precision]
    with qaic.Session(parser.parse_model(text).SerializeToString(), **options) as session:
        return np.array(session.run(feeds)["y"]), tolerance


@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize("call", CALLS)
def test_what_a_call_leaves_out_has_its_default(call, precision):
    nodes, expected = CALLS[call]
    text = (
        '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>\n'
        f"g (float[2,3] x) => (float[2,3] y) {{ {nodes} }}\n{FUNCTIONS}"
    )
    x = np.float32([[-3, -1, 2], [0.5, -0.25, 1]])
    result, tolerance = found(text, {"x": x}, precision)
    np.testing.assert_allclose(result, expected(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "body",
    [
        "one = Constant <value_float: float = @needed> () y = Mul (x, one)",
        "z = Cast <to: int = @needed> (x) y = CastLike (z, x)",
        "y = Concat <axis: int = @needed> (x, x)",
        "y = If (c) < then_branch = one () => (a) { a = Concat <axis: int = @needed> (x, x) },"
        " else_branch = two () => (b) { b = Neg (x) } >",
    ],
)
@pytest.mark.parametrize("is_outer", [False, True])
def test_an_attribute_that_a_call_leaves_out_and_that_has_no_default_is_named(body, is_outer):
    call = "outer" if is_outer else "inner"
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>\n'
        f"g (float[2] x, bool c) => (float[N] y) {{ y = local.{call} (x, c) }}\n"
        f'<domain: "local", opset_import: ["" : 18]>\ninner <needed> (x, c) => (y) {{ {body} }}\n'
        '<domain: "local", opset_import: ["" : 18, "local" : 1]>\n'
        "outer (x, c) => (y) { y = local.inner (x, c) }"
    )
    with pytest.raises(CompileError, match=r"'y' \(inner\): found no attribute 'needed'") as error:
        qaic.compile(model.SerializeToString())
    assert error.value.code == "compile.invalid_model"


@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize(
    "name",
    [
        "CropAndResize",
        "EmbedLayerNormalization",
        "GroupQueryAttention",
        "MatMulNBits",
        "RotaryEmbedding",
        "Gelu",
    ],
)
def test_a_function_of_the_model_goes_before_an_operator_of_the_engine(name, precision):
    # Numbers that are not an index of the values that the engine's operator reads.
    x, places = np.float32([[-3, -1, 2], [0.5, -0.25, 1]]), np.array([70, -70])
    text = (
        '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
        f"g (float[2,3] x, int64[2] i) => (float[2,3] y) {{ y = com.microsoft.{name} (x, i, x, x, i) }}\n"
        '<domain: "com.microsoft", opset_import: ["" : 18]>\n'
        f"{name} (x, i, a, b, j) => (y) {{ s = Shape (i) f = CastLike (s, x) y = Mul (x, f) }}\n"
    )
    result, tolerance = found(text, {"x": x, "i": places}, precision)
    np.testing.assert_allclose(result, 2 * x, rtol=tolerance)


def test_functions_that_nothing_calls_are_not_copied():
    """Each function calls the next with all attributes, and with all but one: 2^12 copies if each is
    expanded.
    """
    names = [f"a{number}" for number in range(12)]
    every = ", ".join(f"{name}: float = @{name}" for name in names)
    bodies = []
    for number, name in enumerate(names):
        but_one = ", ".join(f"{other}: float = @{other}" for other in names if other != name)
        bodies.append(
            f'<domain: "local", opset_import: ["" : 18, "local" : 1]>\n'
            f"f{number} <{', '.join(names)}> (x) => (y) {{ z = local.f{number + 1} <{every}> (x)"
            f" y = local.f{number + 1} <{but_one}> (z) }}"
        )
    end = f'<domain: "local", opset_import: ["" : 18]>\nf12 <{", ".join(names)}> (x) => (y) {{ y = Neg (x) }}'
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>\n'
        "g (float[2] x) => (float[2] y) { y = Neg (x) }\n" + "\n".join([*bodies, end])
    )
    normalize_functions(model)
    assert len(model.functions) == 13


def test_results_that_calls_leave_out_are_counted_before_they_are_written():
    names = ", ".join(f"y{number}" for number in range(1100))
    calls = " ".join(f"z{number} = local.f (x)" for number in range(1000))
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "local" : 1]>\n'
        f"g (float[2] x) => (float[2] z0) {{ {calls} }}\n"
        f'<domain: "local", opset_import: ["" : 18]>\nf (x) => ({names}) {{ y0 = Neg (x) }}'
    )
    with pytest.raises(CompileError, match="more than 1000000 nodes or results"):
        check_functions(model)


def of_sets(model_set, function_set, body, main="y = Tanh (z)"):
    own = "" if function_set is None else f'"" : {function_set}'
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {model_set}, "local" : 1]>\n'
        f"g (float[2, 3] x) => (float[2, 3] y) {{ z = local.f (x) {main} }}\n"
        f'<domain: "local", opset_import: [{own}]>\nf (x) => (y) {{ {body} }}'
    )


@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize("sets", [(17, 13), (14, 17), (17, 18), (17, None)])
def test_functions_of_another_operator_set_mean_the_same(sets, precision):
    options, tolerance = OPTIONS[precision]
    body = "y = Mish (x)" if sets == (17, 18) else "y = Sigmoid (x)"
    x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    expected = np.tanh(x * np.tanh(np.log1p(np.exp(x))) if sets == (17, 18) else 1 / (1 + np.exp(-x)))
    with qaic.Session(of_sets(*sets, body).SerializeToString(), **options) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("sets", "body", "main", "found"),
    [
        ((17, 11), "y = Softmax <axis = 0> (x)", "y = Tanh (z)", "Softmax of version 11 (function 'f')"),
        ((17, 18), "y = Mish (x)", "y = ReduceMax <axes = [1]> (z)", "Mish of version 18 (function 'f')"),
    ],
)
@pytest.mark.parametrize("precision", OPTIONS)
def test_operators_that_change_between_the_sets_are_named(sets, body, main, found, precision):
    with pytest.raises(CompileError) as refused:
        qaic.Session(of_sets(*sets, body, main).SerializeToString(), **OPTIONS[precision][0])
    assert found in str(refused.value)
    assert f"functions in version {sets[0]}" in str(refused.value)
    assert "one opset_version" in str(refused.value)
