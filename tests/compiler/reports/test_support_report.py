"""The report lists nodes that a card is unlikely to support; models that cards run have none."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
from decoder_model import decoder
from qaic.compiler.diagnostics.messages import Survey
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.interface import Interface, Specialization, TensorSpec
from qaic.compiler.reports import operator_list
from qaic.compiler.reports.support_report import (
    survey_operators,
    survey_specializations,
    survey_types,
)
from qaic.errors import CompileError, OptionError
from qaic.options import CompileOptions, resolve


def built(nodes, inputs, outputs, initializers=(), *, opset=17, domains=(), functions=()):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def floats(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def ints(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.INT64, dims)


def findings(model, operators=None):
    survey = Survey()
    survey_operators(model, (), operators or operator_list.shipped(), survey)
    return survey.findings


def constant(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


NODE = helper.make_node
ONE_OPERATOR = {
    "Loop": NODE("Loop", ["x"], ["y"], name="n", body=helper.make_graph([], "body", [], [])),
    "NonZero": NODE("NonZero", ["x"], ["y"], name="n"),
    "RandomNormalLike": NODE("RandomNormalLike", ["x"], ["y"], name="n"),
    "Unique": NODE("Unique", ["x"], ["y"], name="n"),
    "StringConcat": NODE("StringConcat", ["x", "x"], ["y"], name="n"),
    "ai.onnx.ml.Normalizer": NODE("Normalizer", ["x"], ["y"], name="n", domain="ai.onnx.ml"),
    "com.microsoft.BiasGelu": NODE("BiasGelu", ["x", "x"], ["y"], name="n", domain="com.microsoft"),
}


@pytest.mark.parametrize("kind", ONE_OPERATOR)
def test_operators_that_are_not_listed(kind):
    model = built([ONE_OPERATOR[kind]], [floats("x", 2, 2)], [floats("y", 2, 2)], opset=20)
    assert findings(model) == {f"{kind} (not on the list of operators)": ["n"]}


@pytest.mark.parametrize(
    ("kind", "operands"),
    [
        ("Reshape", ["x", "s"]),
        ("Expand", ["x", "s"]),
        ("Tile", ["x", "s"]),
        ("TopK", ["x", "s"]),
        ("Slice", ["x", "s", "s"]),
        ("Pad", ["x", "s"]),
        ("Range", ["s", "s", "s"]),
        ("Resize", ["x", "", "s"]),
    ],
)
def test_operands_that_must_be_constants(kind, operands):
    outputs = ["y", "i"] if kind == "TopK" else ["y"]
    node = NODE(kind, operands, outputs, name="n")
    at = operands.index("s")
    dynamic = built([node], [floats("x", 2, 2), ints("s", 2)], [floats("y", 2, 2)])
    assert findings(dynamic) == {f"{kind} whose operand {at} is not constant": ["n"]}
    fixed = built([node], [floats("x", 2, 2)], [floats("y", 2, 2)], [constant("s", 1, 1)])
    assert findings(fixed) == {}
    # Values that are computed from shapes are constant if the shapes are constant.
    shaped = built(
        [NODE("Shape", ["x"], ["shape"]), NODE("Add", ["shape", "one"], ["s"]), node],
        [floats("x", "a", "b")],
        [floats("y", "a", "b")],
        [constant("one", 1, 1)],
    )
    assert findings(shaped) == {}


def test_conditions_and_what_is_inside_of_branches():
    branch = helper.make_graph([NODE("NonZero", ["x"], ["z"], name="inner")], "then", [], [floats("z", 2)])
    node = NODE("If", ["c"], ["y"], name="n", then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    dynamic = built([node], [floats("x", 2, 2), condition], [floats("y", 2)])
    assert findings(dynamic) == {
        "If whose condition is not constant": ["n"],
        "NonZero (not on the list of operators)": ["inner", "inner"],
    }
    fixed = numpy_helper.from_array(np.array(True), "c")
    assert set(findings(built([node], [floats("x", 2, 2)], [floats("y", 2)], [fixed]))) == {
        "NonZero (not on the list of operators)"
    }


def test_detections_may_end_a_model_and_not_stand_in_it():
    select = NODE("NonMaxSuppression", ["boxes", "scores"], ["chosen"], name="nms")
    inputs = [floats("boxes", 1, 8, 4), floats("scores", 1, 1, 8)]
    carried = [select, NODE("Gather", ["scores", "chosen"], ["y"])]
    assert findings(built(carried, inputs, [floats("y", 8)])) == {}
    computed = [select, NODE("Gather", ["scores", "chosen"], ["g"]), NODE("Softmax", ["g"], ["y"])]
    assert findings(built(computed, inputs, [floats("y", 8)])) == {
        "NonMaxSuppression before the end of the model (Softmax reads its result)": ["nms"]
    }


def test_training_and_operator_sets():
    norm = NODE("BatchNormalization", ["x"] * 5, ["y"], name="n", training_mode=1)
    assert findings(built([norm], [floats("x", 2, 2)], [floats("y", 2, 2)])) == {
        "BatchNormalization (training)": ["n"]
    }
    old = built([NODE("Gelu", ["x"], ["y"], name="n")], [floats("x", 2)], [floats("y", 2)], opset=17)
    assert findings(old) == {"Gelu (operator set 17; the list begins with 20)": ["n"]}


def test_custom_operators_that_are_described_are_no_finding():
    node = NODE("Mine", ["x"], ["y"], name="n", domain="my.ops")
    model = built([node], [floats("x", 2)], [floats("y", 2)], domains=["my.ops"])
    survey = Survey()
    survey_operators(model, (), operator_list.shipped(), survey, custom={"Mine"})
    assert survey.findings == {}
    assert set(findings(model)) == {"my.ops.Mine (not on the list of operators)"}


def test_functions_are_looked_into_except_those_of_the_card():
    def function(domain):
        return helper.make_function(
            domain,
            "F",
            ["a"],
            ["b"],
            [NODE("NonZero", ["a"], ["b"], name="inner")],
            [helper.make_opsetid("", 17)],
        )

    for domain, expected in [("mine", ["inner"]), ("com.qualcomm.cloud", None)]:
        model = built(
            [NODE("F", ["x"], ["y"], domain=domain)],
            [floats("x", 2, 2)],
            [ints("y", 2, 2)],
            domains=[domain],
            functions=[function(domain)],
        )
        assert findings(model).get("NonZero (not on the list of operators)") == expected


def test_a_decoder_as_its_users_export_it_is_no_finding():
    assert findings(decoder()) == {}


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (TensorProto.FLOAT, None, []),
        (TensorProto.UINT16, None, []),
        (TensorProto.DOUBLE, None, ["type float64"]),
        (TensorProto.STRING, None, ["type string"]),
        (TensorProto.FLOAT8E4M3FN, None, ["type float8e4m3fn"]),
        (TensorProto.INT4, None, ["type int4"]),
        (TensorProto.BFLOAT16, None, ["type bfloat16 (with aic_hw_version ai100)"]),
        (TensorProto.BFLOAT16, "ai100", ["type bfloat16 (with aic_hw_version ai100)"]),
        (TensorProto.BFLOAT16, "ai200", []),
    ],
)
def test_element_types(code, version, expected):
    survey = Survey()
    survey_types({"t": code}, CompileOptions(aic_hw_version=version), survey)
    assert list(survey.findings) == expected


@pytest.fixture
def selecting(tmp_path):
    """A model with a Compress in the middle; a later result has a known size again."""
    nodes = [
        NODE("Compress", ["x", "c"], ["s"], name="select"),
        NODE("ReduceSum", ["s"], ["y"], keepdims=0),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [4])
    path = tmp_path / "selecting.onnx"
    onnx.save(built(nodes, [floats("x", 4), condition], [floats("y")]), path)
    return path


def compiled(path, **options):
    resolved = resolve(options, options_path=None, model_is_container=False)
    return compile_model(path, resolved.compile, resolved.set_compile)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_one_warning_for_each_compilation_also_from_the_cache(selecting, caplog):
    texts = []
    for _ in range(2):
        caplog.clear()
        compiled(selecting)
        texts.append(warnings_of(caplog))
    assert (
        texts[0]
        == texts[1]
        == [
            "a compiler for the card is unlikely to accept this model: "
            "Compress (not on the list of operators) at 'select'"
        ]
    )


def test_strict_makes_it_an_error_and_leaves_nothing(selecting, tmp_path):
    with pytest.raises(CompileError, match="Compress") as caught:
        compiled(selecting, strict_aic=True, output_dir=tmp_path / "out")
    assert caught.value.code == "compile.card_support"
    assert caught.value.context["findings"] == {"Compress (not on the list of operators)": ["select"]}


def test_a_list_of_the_user_takes_the_place_of_ours(selecting, tmp_path, caplog):
    path = tmp_path / "OnnxSupportedOperators.txt"
    path.write_text("# of a tool\nCompress\nReduceSum\n")
    compiled(selecting, aic_operator_list=path, strict_aic=True)
    assert warnings_of(caplog) == []
    path.write_text("Compress\n")
    with pytest.raises(CompileError, match="ReduceSum"):
        compiled(selecting, aic_operator_list=path, strict_aic=True)


def test_the_shipped_list_names_operators_that_exist():
    shipped = operator_list.shipped()
    assert shipped.is_estimate
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    newest = onnx.defs.onnx_opset_version()
    old = {key for key, entry in shipped.operators.items() if entry.first_opset <= newest}
    # The engine's own operator, which exporters for the card write.
    assert old - known == {("com.microsoft", "MatMulNBits")}
    for operator in shipped.operators.values():
        assert operator.dtypes
        assert operator.source
        assert operator.first_opset >= 1
    assert {"Conv", "MatMul", "Softmax", "LayerNormalization"} <= {name for _, name in shipped.operators}
    assert not {"Loop", "NonZero", "RandomNormal", "StringConcat"} & {name for _, name in shipped.operators}


def test_the_text_of_a_list_is_a_list(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(operator_list.shipped().text())
    again = operator_list.read(path)
    assert again.operators.keys() == operator_list.shipped().operators.keys()
    assert not again.is_estimate


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no operator"),
        (b"Add\nnot an operator\n", "line 2"),
        (b"Add\n\x00\n", "line 2"),
        (b"\xff\xfe", "UTF-8"),
        (b"{", "JSON"),
        (b"{}", '"format": 1'),
        (b'{"format": 1, "operators": [{"operator": 3}]}', "operator 1"),
        (b'{"format": 1, "operators": [{"operator": "Add", "first_opset": true}]}', "operator 1"),
        (b"{" + b'"a":[' * 100_000, "JSON"),
        (b"A\n" * (4 << 20), "found more than 4.00 MiB"),
    ],
)
def test_files_that_are_no_list(tmp_path, content, message):
    path = tmp_path / "list"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message) as caught:
        operator_list.read(path)
    assert caught.value.code == "option.operator_list"


def interface(inputs, sets, outputs=()):
    """Create an interface of inputs by name, with their shapes in each set."""
    specs = tuple(TensorSpec(name, TensorProto.FLOAT, (9, 9)) for name in inputs)
    results = tuple(TensorSpec(name, TensorProto.FLOAT, (9, 9)) for name in outputs)
    named = tuple(Specialization(f"S{n}", {}, dims, ()) for n, dims in enumerate(sets))
    return Interface(specs, results, named)


@pytest.mark.parametrize(
    ("inputs", "sets", "is_refused"),
    [
        (["x"], [], False),
        (["x"], [((1, 8),), ((1, 1),)], False),
        (["x", "y"], [((1, 8), (4, 4)), ((1, 1), (4, 4))], False),
        # Only the two inputs together distinguish the sets.
        (["x", "y"], [((1, 8), (4, 4)), ((1, 1), (4, 4)), ((1, 1), (4, 8))], True),
        (["x", "y"], [((1, 8), (4, 4)), ((1, 1), (4, 8)), ((1, 1), (4, 16))], False),
        # The state stays on the device.
        (["x", "past"], [((1, 8), (4, 4)), ((1, 8), (4, 8))], True),
    ],
)
def test_sets_of_sizes_need_an_input_that_identifies_them(inputs, sets, is_refused):
    survey = Survey()
    survey_specializations(interface(inputs, sets, ["past_RetainedState"]), survey)
    what = "several sets of sizes, but no input with a different shape in each"
    assert survey.refusals == ({what: [f"S{n}" for n in range(len(sets))]} if is_refused else {})


def test_what_a_card_refuses_is_a_warning_and_an_error_when_strict(caplog):
    model = built(
        [NODE("Add", ["x", "x"], ["a"], name="one"), NODE("Add", ["a", "x"], ["y"], name="two")],
        [floats("x", 2)],
        [floats("y", 2)],
    )
    lists = [{"name": "P", "devices": [{"deviceId": 0}], "nodeList": ["two", "one"]}]
    options = {"mdp_load_partition_config": {"partitions": lists}}
    text = "nodes that 'P' lists before the nodes that compute their operands at 'two'"
    with caplog.at_level(logging.WARNING):
        qaic.compile(model, **options)
    assert f"a card's compiler refuses this model: {text}" in caplog.text
    with pytest.raises(CompileError, match="a model that the card's compiler accepts") as caught:
        qaic.compile(model, strict_aic=True, **options)
    assert caught.value.code == "compile.card_refusal"
    assert text in str(caught.value)
