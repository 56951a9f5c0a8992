"""Files that are not models are refused; all other files get one form."""

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler_oracle import in_function, info, lowered, model_of, node
from qaic.compiler.frontend import validation
from qaic.errors import CompileError
from single_pass import applied, before, begun, content, ops


def relu(**more):
    return model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])], **more)


@pytest.mark.parametrize("name", ["check-model", "check-operators", "check-structure"])
def test_checks_change_nothing(name):
    model, context = before(name, relu())
    found = content(model)
    for _ in range(2):
        assert not applied(name, model, context)
    assert content(model) == found
    assert context.is_checked == (name == "check-structure")


def test_function_that_calls_itself_is_refused():
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="local")
    function = helper.make_function("local", "F", ["a"], ["b"], [call], sets)
    model, context = begun(relu(functions=[function]))
    with pytest.raises(CompileError, match="a call of itself"):
        applied("check-model", model, context)


def test_normal_form_has_no_text_for_humans():
    proto = relu()
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "words"
    proto.graph.input[0].doc_string = "words"
    model, context = before("normalize", proto)
    assert applied("normalize", model, context)
    assert b"words" not in content(model)[0]
    found = content(model)
    applied("normalize", model, context)
    assert content(model) == found


def test_unknown_operator_is_refused():
    proto = model_of([node("Nothing", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    model, context = before("check-operators", proto)
    with pytest.raises(CompileError, match="Nothing"):
        applied("check-operators", model, context)


def test_structure_that_the_checker_refuses_is_named():
    model, context = before("check-structure", relu())
    model.specialized[0].graph.node[0].op_type = "Add"
    with pytest.raises(CompileError):
        applied("check-structure", model, context)
    assert not context.is_checked


@pytest.mark.parametrize("size", [1, 1 << 10])
def test_constants_that_nothing_reads_are_removed(size):
    weights = [(name, np.ones(size, np.float32)) for name in ("w", "unused")]
    proto = model_of([node("Add", ["x", "w"], ["y"])], [info("x", [size])], [info("y", [size])], weights)
    model, context = before("remove-unused", proto)
    # The state after a pass that removed the last use of a constant.
    model.proto.graph.node[0].input[1] = "x"
    applied("remove-unused", model, context)
    assert ops(model) == ["Add"]
    assert not model.proto.graph.initializer
    assert not model.weights
    found = content(model)
    applied("remove-unused", model, context)
    assert content(model) == found
    assert isinstance(model.proto, onnx.ModelProto)


def with_broken_text(proto, text):
    """Serialize a model in which bytes that are not UTF-8 replace a text."""
    return proto.SerializeToString().replace(text.encode(), b"\xff\xfe"[: len(text)] * (len(text) // 2))


@pytest.mark.parametrize(
    "where", ["input", "output", "name", "op_type", "domain", "attribute", "initializer"]
)
def test_names_that_are_no_text_are_refused(where):
    proto = relu()
    at, tensor = proto.graph.node[0], helper.make_tensor("<>", onnx.TensorProto.FLOAT, [1], [1.0])
    if where == "initializer":
        proto.graph.initializer.append(tensor)
    elif where == "attribute":
        at.attribute.append(helper.make_attribute("<>", 1))
    elif where in {"input", "output"}:
        getattr(at, where)[0] = "<>"
    else:
        setattr(at, where, "<>")
    broken = onnx.ModelProto.FromString(with_broken_text(proto, "<>"))
    with pytest.raises(CompileError, match="UTF-8 text"):
        validation.check_texts(broken)


def test_words_for_humans_may_be_no_text():
    proto = relu()
    proto.graph.doc_string = "<>"
    broken = onnx.ModelProto.FromString(with_broken_text(proto, "<>"))
    validation.check_texts(broken)
    validation.normalize(broken, {})
    assert b"\xff\xfe" not in broken.SerializeToString()


def test_small_initializers_of_one_name_are_refused():
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0])
    proto = relu()
    proto.graph.initializer.extend([tensor, tensor])
    model, context = begun(proto)
    with pytest.raises(CompileError, match="initializer 'w': found two of that name"):
        applied("check-model", model, context)


@pytest.mark.parametrize("opset", [8, 9, 17])
@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("scanned", [-1, 0, 1, 2, 3, 2**40])
def test_a_scan_over_more_inputs_than_it_has_is_refused(scanned, count, is_function, opset):
    names = [f"x{at}" for at in range(count)]
    body = helper.make_graph(
        [node("Identity", ["i0"], ["o"])],
        "body",
        [info(f"i{at}", [3]) for at in range(count)],
        [info("o", [3])],
    )
    lengths = [""] if opset == 8 else []
    nodes = [node("Scan", [*lengths, *names], ["y"], body=body, num_scan_inputs=scanned, name="mine")]
    functions = []
    if is_function:
        nodes, functions = in_function(nodes, names, "y", opset)
    inputs = [info(name, [1, 2, 3][3 - (3 if opset == 8 else 2) :]) for name in names]
    model = model_of(nodes, inputs, [info("y", None)], opset=opset, functions=functions)
    if 1 <= scanned <= count:
        validation.check_counts(model)
        return
    with pytest.raises(
        CompileError, match=r"'mine' \(Scan\).* in 'num_scan_inputs', expected 1 to"
    ) as caught:
        lowered(model)
    assert caught.value.code == "compile.invalid_model"


@pytest.mark.parametrize("op", ["Scan", "Split"])
@pytest.mark.parametrize("count", [None, 1, 2, 3, 5])
def test_a_count_that_a_call_sets_is_checked(count, op):
    """The reference is the number of operands and results: a Scan over 1 or 2 of 2, a Split into 2."""
    body = helper.make_graph(
        [node("Identity", ["i0"], ["o0"]), node("Identity", ["i1"], ["o1"])],
        "body",
        [info("i0", None), info("i1", None)],
        [info("o0", None), info("o1", None)],
    )
    name = "num_scan_inputs" if op == "Scan" else "num_outputs"
    inner = node(op, ["x", "z"], ["y", "t"], body=body) if op == "Scan" else node(op, ["x"], ["y", "t"])
    given = {} if count is None else {"n": count}
    if given:
        inner.attribute.add(name=name, ref_attr_name="n", type=onnx.AttributeProto.INT)
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function(
        "local", "F", ["x", "z"], ["y", "t"], [inner], imports, ["n"] * len(given)
    )
    call = helper.make_node("F", ["x", "z"], ["y", "t"], domain="local", **given)
    inputs, outputs = [info("x", [2, 3]), info("z", [2, 3])], [info("y", None), info("t", None)]
    model = model_of([call], inputs, outputs, opset=18, functions=[function])
    if count in ((1, 2) if op == "Scan" else (None, 2, 3, 5)):
        validation.check_counts(model)
        return
    found = "no" if count is None else f"{count} in"
    with pytest.raises(CompileError, match=rf"\({op}\): found {found} '{name}', expected [12]"):
        lowered(model)


#: Operator -> operands, results, attributes, and the omitted attributes without which engines end the
#: process.
READING = {
    "AttnLSTM": ("abcdefghijklmn", "y", {}, ["i", "j", "k", "l", "n"]),
    "ConvTransposeWithDynamicPads": ("abcd", "y", {}, ["c"]),
    "DecoderMaskedMultiHeadAttention": ("abcdefgh", "yuv", {}, ["u", "v"]),
    "EmbedLayerNormalization": ("abcdefg", "y", {}, ["e"]),
    "GroupQueryAttention": ("abcdefghi", "yuv", {"do_rotary": 1}, ["h", "i"]),
    "MultiHeadAttention": ("abcdefghi", "yuv", {}, ["u", "v"]),
    "QEmbedLayerNormalization": ("abcdefghijklmnopqr", "yu", {}, ["e", "k", "p"]),
    "QLinearConcat": ("abcdefgh", "y", {}, [*"bcdefgh"]),
    "QLinearLeakyRelu": ("abcde", "y", {}, ["e"]),
    "QLinearSigmoid": ("abcde", "y", {}, ["e"]),
}
#: Operator -> the attributes that it omits so that it needs none of them.
NEEDING_NONE = {
    **dict.fromkeys(["EmbedLayerNormalization", "QEmbedLayerNormalization"], "b"),
    "DecoderMaskedMultiHeadAttention": "h",
    "MultiHeadAttention": "i",
}


@pytest.mark.parametrize("place", ["graph", "function", "call"])
@pytest.mark.parametrize("op", READING)
def test_an_operand_that_the_engine_reads_without_a_check_is_necessary(op, place):
    operands, results, attributes, needed = READING[op]
    names = [*operands, *results]
    choices = [(set(names) - {one}, one) for one in names]
    if op in NEEDING_NONE:
        choices.append((set(operands) - set(NEEDING_NONE[op]) | {"y"}, None))
    for kept, left_out in choices:
        given = [name if name in kept else "" for name in operands]
        while not given[-1] and op != "QLinearConcat":
            given.pop()
        made = [name if name in kept else "" for name in results]
        nodes, functions = [node(op, given, made, domain="com.microsoft", name="mine", **attributes)], []
        if place != "graph" and left_out not in {*results}:
            inner = [node(op, [*operands], made, domain="com.microsoft", name="mine", **attributes)]
            inner = nodes if place == "function" else inner
            taken = [*filter(None, given)] if place == "function" else [*operands]
            imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
            functions = [helper.make_function("local", "F", taken, [*filter(None, made)], inner, imports)]
            passed = taken if place == "function" else given
            nodes = [node("F", passed, [*filter(None, made)], domain="local")]
        model = model_of(nodes, [info(one, None) for one in operands], [info("y", None)], functions=functions)
        if left_out not in needed:
            validation.check_counts(model)
            continue
        with pytest.raises(CompileError, match=rf"mine.*{op}.* found no (in|out)put \d+, expected a value"):
            validation.check_counts(model)


@pytest.mark.parametrize(("count", "results"), [(1, "yt"), (2, "ytu"), (1, "ytu"), (0, "y"), (-1, "yt")])
def test_a_split_into_fewer_results_than_it_has_is_refused(count, results):
    nodes = [node("Split", ["x"], [*results], num_outputs=count)]
    model = model_of(nodes, [info("x", [6])], [info("y", None)], opset=18)
    with pytest.raises(
        CompileError, match=f"'y' .Split.: found {count} in 'num_outputs', expected {len(results)}"
    ):
        lowered(model)
