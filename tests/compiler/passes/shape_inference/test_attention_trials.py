"""An attention node compiles if and only if onnxruntime runs it with the same numbers and sizes of heads."""

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import engine_version
from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.passes.shape_inference.attention_trials import heads_fault
from qaic.errors import CompileError

INT32, INT64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
HEADS, GROUPS, HEAD, SAMPLES, TOKENS, ROWS = 4, 2, 16, 2, 3, 8
WIDTH, KEYS = HEADS * HEAD, GROUPS * HEAD
ENGINE = {"domain": "com.microsoft"}
GROUPED = {"num_heads": HEADS, "kv_num_heads": GROUPS}

_LENGTHS = {"lengths": [SAMPLES], "total": [1]}
_TABLES = {"cos": [ROWS, HEAD // 2], "sin": [ROWS, HEAD // 2]}
_CACHES = {"old_keys": [SAMPLES, GROUPS, 5, HEAD], "old_values": [SAMPLES, GROUPS, 5, HEAD]}
_EMPTY = {name: [SAMPLES, GROUPS, 0, HEAD] for name in _CACHES}
_SEPARATE = {
    "x": [SAMPLES, TOKENS, WIDTH],
    "keys": [SAMPLES, TOKENS, KEYS],
    "values": [SAMPLES, TOKENS, KEYS],
}
_PACKED = {"x": [SAMPLES, TOKENS, WIDTH + 2 * KEYS]}
_ONE_TOKEN = {name: [SAMPLES, 1, WIDTH] for name in ("x", "keys", "values")}
_CACHES_OF_ALL = {name: [SAMPLES, HEADS, 5, HEAD] for name in _CACHES}

#: Operator, form: attributes, operands in order with "" for omitted ones, and their sizes.
FORMS = {
    "GroupQueryAttention": (
        GROUPED | ENGINE,
        ["x", "keys", "values", *_CACHES, *_LENGTHS],
        _SEPARATE | _CACHES | _LENGTHS,
    ),
    "GroupQueryAttention, first step": (
        GROUPED | ENGINE,
        ["x", "keys", "values", *_CACHES, *_LENGTHS],
        _SEPARATE | _EMPTY | _LENGTHS,
    ),
    "GroupQueryAttention, packed": (
        GROUPED | ENGINE,
        ["x", "", "", *_CACHES, *_LENGTHS],
        _PACKED | _CACHES | _LENGTHS,
    ),
    "GroupQueryAttention, angles": (
        GROUPED | ENGINE | {"do_rotary": 1},
        ["x", "keys", "values", *_CACHES, *_LENGTHS, *_TABLES],
        _SEPARATE | _CACHES | _LENGTHS | _TABLES,
    ),
    "DecoderMaskedMultiHeadAttention": (
        {"num_heads": HEADS, "past_present_share_buffer": 1} | ENGINE,
        ["x", "keys", "values", "", "", *_CACHES, "past"],
        _ONE_TOKEN | _CACHES_OF_ALL | {"past": [1]},
    ),
    "MultiHeadAttention": (
        {"num_heads": HEADS} | ENGINE,
        ["x", "keys", "values"],
        {name: [SAMPLES, TOKENS, WIDTH] for name in ("x", "keys", "values")},
    ),
    "RotaryEmbedding": (
        {"num_heads": HEADS} | ENGINE,
        ["x", "positions", *_TABLES],
        {"x": [SAMPLES, TOKENS, WIDTH], "positions": [SAMPLES, TOKENS]} | _TABLES,
    ),
}
if engine_version.is_newest():
    FORMS["RotaryEmbedding, standard"] = (
        {"num_heads": HEADS},
        ["x", *_TABLES, "positions"],
        {"x": [SAMPLES, TOKENS, WIDTH], "positions": [SAMPLES, TOKENS]} | _TABLES,
    )

TYPES = {"lengths": INT32, "total": INT32, "past": INT32, "positions": INT64}


@st.composite
def forms(draw):
    """Draw a form with up to two numbers that may be wrong."""
    name = draw(st.sampled_from(sorted(FORMS)))
    attributes, operands, sizes = FORMS[name]
    attributes, sizes = dict(attributes), {key: list(dims) for key, dims in sizes.items()}
    for _ in range(draw(st.integers(0, 2))):
        numbers = [(attributes, key) for key in attributes if "num_heads" in key]
        # Older engines do not compare the number of lengths.
        compared = [dims for key, dims in sizes.items() if key != "lengths"]
        numbers += [(dims, at) for dims in compared for at in range(len(dims))]
        holder, at = draw(st.sampled_from(numbers))
        given_number = holder[at]
        choices = {1, 2, given_number * 2, given_number // 2, given_number + 1, given_number + 8}
        holder[at] = draw(st.sampled_from(sorted(choices - {0})))
    return name, attributes, operands, sizes


def built(form):
    """Build a model of one node, and operands for the first step of its caches."""
    name, attributes, operands, sizes = form
    operator, is_standard = name.partition(",")[0], "domain" not in attributes
    results = ["y", "new_keys", "new_values"] if "old_keys" in sizes else ["y"]
    made = node(operator, operands, results, name="mine", **attributes)
    inputs = [info(key, dims, TYPES.get(key, onnx.TensorProto.FLOAT)) for key, dims in sizes.items()]
    shape = list(sizes["x"])
    if "packed" in name:
        heads, groups = attributes["num_heads"], attributes["kv_num_heads"]
        shape[2] = shape[2] // (heads + 2 * groups) * heads
    model = model_of([made], inputs, [info("y", shape)], opset=23 if is_standard else 17)
    rng = np.random.default_rng(3)
    feeds = {
        key: np.zeros(dims, np.int64 if key == "positions" else np.int32)
        if key in TYPES
        else rng.random(dims, dtype=np.float32)
        for key, dims in sizes.items()
    }
    if "total" in feeds:
        tokens, held = sizes["x"][1], sizes["old_keys"][2]
        total = tokens + held if 0 < held < tokens else tokens
        feeds["total"] += total
        feeds["lengths"] += total - 1
    return model, feeds


def wrong(name, numbers=(), **sizes):
    """Build a form with other attributes and sizes."""
    attributes, operands, right = FORMS[name]
    return name, attributes | dict(numbers), operands, right | sizes


@settings(max_examples=30)
@example(wrong("GroupQueryAttention", {"num_heads": 3}))
@example(wrong("GroupQueryAttention", {"kv_num_heads": 4}))
@example(wrong("GroupQueryAttention", old_keys=[SAMPLES, GROUPS, 5, 2 * HEAD]))
@example(wrong("GroupQueryAttention, first step", old_values=[SAMPLES, GROUPS, 4, HEAD]))
@example(wrong("GroupQueryAttention, packed", {"num_heads": 2}))
@example(wrong("GroupQueryAttention, angles", cos=[2, HEAD // 2], sin=[2, HEAD // 2]))
@example(wrong("GroupQueryAttention, packed", x=[SAMPLES, 2 * TOKENS, WIDTH + 2 * KEYS]))
@example(wrong("DecoderMaskedMultiHeadAttention", old_keys=[SAMPLES, 2, 5, HEAD]))
@example(wrong("DecoderMaskedMultiHeadAttention", values=[SAMPLES, 1, 2 * WIDTH]))
@example(wrong("RotaryEmbedding", {"num_heads": 8}))
@example(wrong("RotaryEmbedding", sin=[ROWS, HEAD]))
@given(forms())
def test_a_node_compiles_if_and_only_if_its_heads_fit(form):
    model, feeds = built(form)
    try:
        program = lowered(model)
    except CompileError as error:
        refusal = str(error)
    else:
        run(model, feeds, optimize=False)
        run(whole(program), feeds)
        return
    assert "'mine'" in refusal
    with pytest.raises(Exception, match=r"node. Name:'mine'|ShapeInferenceError"):
        run(model, feeds, optimize=False)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_each_form_compiles_as_it_is(name):
    lowered(built(wrong(name))[0])


@pytest.mark.parametrize("rows", [0, 5, 1 << 15])
def test_the_error_names_the_sizes_that_the_heads_need(rows):
    caches = {name: [SAMPLES, GROUPS, rows, HEAD] for name in _CACHES}
    with pytest.raises(CompileError) as caught:
        lowered(built(wrong("GroupQueryAttention", keys=[SAMPLES, TOKENS, KEYS // 2], **caches))[0])
    assert caught.value.code == "compile.contradicting_sizes"
    assert (
        f"('keys' is [{SAMPLES}, {TOKENS}, {KEYS // 2}], expected [{SAMPLES}, {TOKENS}, {KEYS}] "
        f"for heads of {HEAD} elements)" in str(caught.value)
    )
    caches["old_values"][1] = HEADS
    with pytest.raises(CompileError, match=rf"'old_values' is .*, expected \[2, {GROUPS}, {rows}, {HEAD}\]"):
        lowered(built(wrong("GroupQueryAttention", **caches))[0])


@pytest.mark.parametrize("name", sorted(name for name, (_, _, sizes) in FORMS.items() if "cos" in sizes))
def test_heads_are_compared_with_large_tables_as_with_small_ones(name):
    attributes, operands, right = FORMS[name]

    def is_refused(rows, heads=HEADS, width=HEAD // 2, more=1):
        sizes = right | {"cos": [rows, width], "sin": [rows * more, HEAD // 2]}
        made = node(name.partition(",")[0], operands, ["y"], **attributes | {"num_heads": heads})
        inputs = [info(key, dims, TYPES.get(key, onnx.TensorProto.FLOAT)) for key, dims in sizes.items()]
        opset = 17 if "domain" in attributes else 23
        model = model_of([made], inputs, [info("y", right["x"])], opset=opset)
        try:
            lowered(model)
        except CompileError as error:
            return error.code == "compile.contradicting_sizes"
        return False

    changes = [{}, {"heads": 2 * HEADS}, {"width": HEAD}, {"more": 2}]
    small, large = ([is_refused(rows, **change) for change in changes] for rows in (ROWS, ROWS << 20))
    assert small == large
    # Releases of the engine compare different sizes.
    assert not small[0]
    assert any(small)


@pytest.mark.parametrize("count", [1, 3])
def test_lengths_of_other_samples_are_refused(count):
    with pytest.raises(CompileError, match=rf"\('lengths' is \[{count}\], expected \[{SAMPLES}\]\)"):
        lowered(built(wrong("GroupQueryAttention", lengths=[count]))[0])


def test_caches_of_two_numbers_per_integer_are_no_conflict():
    sizes = FORMS["GroupQueryAttention"][2] | {name: [SAMPLES, GROUPS, 5, HEAD // 2] for name in _CACHES}
    shapes = {name: tuple(dims) for name, dims in sizes.items()}
    for bits, is_refused in ((0, True), (4, False), (8, True)):
        made = node("GroupQueryAttention", list(shapes), ["y"], kv_cache_bit_width=bits, **GROUPED, **ENGINE)
        assert bool(heads_fault(made, shapes)) is is_refused
