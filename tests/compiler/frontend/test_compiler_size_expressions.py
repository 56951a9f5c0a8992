"""Arithmetic in dimensions, in the form of exporters that trace with symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler_oracle import info, lowered, model_of, node
from qaic.compiler.frontend.size_expressions import evaluate, symbols_in
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

SIZES = {"batch": 3, "seq_len": 7, "s0": 5, "past.len": 11}


@st.composite
def expressions(draw, depth=3):
    """Draw an expression in the exporter's form, the same for Python's `eval`, and its symbols."""
    kind = draw(
        st.sampled_from(["number", "symbol"] + ["binary", "call", "parentheses", "minus"] * (depth > 0))
    )
    if kind == "number":
        text = str(draw(st.integers(0, 10**6)))
        return text, text, frozenset()
    if kind == "symbol":
        symbol = draw(st.sampled_from(sorted(SIZES)))
        return symbol, f"SIZES[{symbol!r}]", frozenset({symbol})
    if kind == "minus":
        text, python, names = draw(expressions(depth=0))
        return f"-{text}", f"(-{python})", names
    operands = [draw(expressions(depth=depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    names = frozenset().union(*(names for _, _, names in operands))
    if kind == "parentheses":
        return f"({operands[0][0]})", f"({operands[0][1]})", operands[0][2]
    if kind == "call":
        name = draw(st.sampled_from(["Min", "Max"]))
        texts, pythons = ([operand[at] for operand in operands] for at in (0, 1))
        # Python's functions need a list for a single number.
        return f"{name}({', '.join(texts)})", f"{name.lower()}([{', '.join(pythons)}])", names
    operator = draw(st.sampled_from([" + ", " - ", "*", " * ", "//", " % "]))
    return (
        operator.join(f"({t})" for t, _, _ in operands),
        operator.join(f"({p})" for _, p, _ in operands),
        names,
    )


@given(expressions())
def test_expressions_have_the_value_that_python_gives_them(expression):
    text, python, names = expression
    try:
        expected = eval(python)
    except ZeroDivisionError:
        expected = None
    found = evaluate(text, SIZES)
    if not names and not any(sign in text for sign in "+-*/%M"):
        assert found is None, "a number alone is a name"
    else:
        assert found == (expected if expected is None or abs(expected) < 2**62 else None)
        assert symbols_in(text) == names
    if names:
        assert evaluate(text, {k: v for k, v in SIZES.items() if k != min(names)}) is None


@given(st.text("ab1 +-*/%(),._", max_size=12) | st.text(max_size=12))
def test_any_other_text_is_a_name(text):
    names = symbols_in(text)
    assert names == {text} or all(name.isascii() and name in text for name in names)
    assert evaluate(text, {text: 17}) == 17


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4*height4", {"height4"}),
        ("past_len + seq_len", {"past_len", "seq_len"}),
        ("((height + 1)//2)", {"height"}),
        ("Min(height, ((height + 1)//2))", {"height"}),
        ("batch-size", {"batch-size"}),
        ("batch+size", {"batch+size"}),
        ("a/b", {"a/b"}),
        ("f(a)", {"f(a)"}),
        ("Min", {"Min"}),
        ("12", {"12"}),
        ("(" * 100 + "a" + ")" * 99, {"(" * 100 + "a" + ")" * 99}),
        ("(" * 60 + "a" + ")" * 60, {"a"}),
        ("a + " * 100 + "a", {"a + " * 100 + "a"}),
    ],
)
def test_names_and_expressions_are_distinguished(text, expected):
    assert symbols_in(text) == expected


def test_a_size_that_no_file_can_hold_is_none():
    assert evaluate("*".join(["999999999999999999"] * 5), {}) is None


def pooled(*dims):
    """A model that adds its input to itself."""
    return model_of([node("Add", ["x", "x"], ["y"])], [info("x", dims)], [info("y", dims)])


def test_inputs_whose_sizes_are_expressions_are_bound_by_their_symbols():
    program = lowered(pooled("4*side", "left + right"), onnx_define_symbol={"side": 2, "left": 1, "right": 4})
    assert [spec.dims for spec in (*program.inputs, *program.outputs)] == [(8, 5), (8, 5)]
    assert not program.specializations


def test_the_whole_text_may_be_given_a_size_as_a_name():
    program = lowered(
        pooled("4*side", "left + right"), onnx_define_symbol={"4*side": 9, "left + right": 2, "side": 1}
    )
    assert program.inputs[0].dims == (9, 2)


def test_expressions_differ_between_specializations(caplog):
    sizes = [{"side": 1, "left": 2, "right": 3}, {"side": 5, "left": 4, "right": 1}]
    entries = [SpecializationEntry(str(at), symbols) for at, symbols in enumerate(sizes)]
    program = lowered(pooled("4*side", "left + right"), network_specialization_config=entries)
    assert [specialization.inputs for specialization in program.specializations] == [((4, 5),), ((20, 5),)]
    assert program.inputs[0].dims == (20, 5)
    assert not caplog.records


def test_dynamic_inputs_count_the_symbols_of_expressions():
    program = lowered(pooled("4*side", 3), dynamic_shape_input=["x"], onnx_define_symbol={"side": 20})
    assert [specialization.inputs[0] for specialization in program.specializations] == [
        (4 * side, 3) for side in range(20, 0, -1)
    ]
    assert [specialization.outputs for specialization in program.specializations] == [
        v.inputs for v in program.specializations
    ]


def test_the_symbol_that_has_no_size_is_named():
    with pytest.raises(CompileError, match=r"'past \+ seq'.*\n.*onnx_define_symbol=\{'seq': 128\}") as caught:
        lowered(pooled("past + seq"), onnx_define_symbol={"past": 3})
    assert caught.value.context["symbol"] == "seq"


def test_an_unknown_symbol_is_answered_with_those_of_expressions(caplog):
    lowered(pooled("4*side"), onnx_define_symbol={"side": 2, "sides": 2})
    assert "no symbol 'sides'; its symbols are: 'side'" in caplog.text


def test_a_negative_size_is_refused():
    with pytest.raises(CompileError, match=r"found -2 for dim 0 of its shape \[seq - 5\].*\n.*'seq'"):
        lowered(pooled("seq - 5"), onnx_define_symbol={"seq": 3})
